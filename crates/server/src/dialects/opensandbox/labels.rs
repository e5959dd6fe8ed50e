//! Ids of sandboxes, and the labels with this dialect's data.

use crate::scoped_api::LABEL as NAMESPACE;
use msb_spec::encoding::hex;
use msb_spec::{Error, Kind, Name, Result};
use std::collections::BTreeMap;

/// Prefix of our labels. Metadata of clients must not have it.
pub(super) const OWN: &str = "opensandbox.";
/// The label with the id of a sandbox of this dialect.
pub(super) const ID: &str = "opensandbox.id";
/// Prefix of the labels with extensions.
const EXTENSION: &str = "opensandbox.extension.";

/// A new random id: a UUID of version 4.
pub(super) fn new_id() -> Result<Name> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::host("cannot read random bytes from the host", error))?;
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let digits = hex(random);
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    Name::parse(&parts.join("-"))
}

/// The labels of a new sandbox.
pub(super) fn labels(
    id: &Name,
    metadata: BTreeMap<String, String>,
    extensions: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    if let Some(taken) = metadata.keys().find(|key| key.starts_with(OWN) || *key == NAMESPACE) {
        return Err(super::argument_error(
            "metadata",
            format!("`{taken}` is reserved for the server"),
        )
        .hint("choose another key"));
    }
    let mut labels = metadata;
    labels.insert(ID.to_owned(), id.to_string());
    labels.extend(extensions.into_iter().map(|(key, value)| (format!("{EXTENSION}{key}"), value)));
    Ok(labels)
}

/// The metadata that the client gave, without the label of the namespace.
pub(super) fn metadata(labels: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let entries = labels.iter().filter(|(key, _)| !key.starts_with(OWN) && *key != NAMESPACE);
    non_empty(entries.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// The extensions that the client gave.
pub(super) fn extensions(labels: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let entries = labels
        .iter()
        .filter_map(|(key, value)| Some((key.strip_prefix(EXTENSION)?.to_owned(), value.clone())));
    non_empty(entries.collect())
}

fn non_empty(map: BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then_some(map)
}

/// Whether the object no longer exists, which is no error for its removal.
pub(super) fn is_gone(error: &Error) -> bool {
    error.kind() == Kind::NotFound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_uuids() {
        let (one, two) = (new_id().unwrap(), new_id().unwrap());
        assert_ne!(one, two);
        let text = one.as_str();
        assert_eq!(text.len(), 36);
        assert_eq!(&text[14..15], "4");
        assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"), "{text}");
    }

    #[test]
    fn labels_round_trip() {
        let map = |key: &str| BTreeMap::from([(key.to_owned(), "v".to_owned())]);
        let id = new_id().unwrap();
        let labels = labels(&id, map("team"), map("x")).unwrap();
        assert_eq!(metadata(&labels), Some(map("team")));
        assert_eq!(extensions(&labels), Some(map("x")));
        assert_eq!(labels[ID], id.to_string());
        assert_eq!(metadata(&map(NAMESPACE)), None);
        for taken in [ID, NAMESPACE] {
            assert!(super::labels(&id, map(taken), BTreeMap::new()).is_err(), "{taken}");
        }
    }
}
