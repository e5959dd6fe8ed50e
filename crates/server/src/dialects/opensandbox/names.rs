//! Ids of sandboxes, and the labels that say what this dialect knows about them.

use crate::scoped::LABEL as NAMESPACE;
use msb_spec::{Error, Kind, Name, Result};
use std::collections::BTreeMap;

/// What our labels begin with. Metadata of clients does not.
pub(super) const OWN: &str = "opensandbox.";
/// The id of a sandbox that was made here.
pub(super) const ID: &str = "opensandbox.id";
/// What is before the name of an extension.
const EXTENSION: &str = "opensandbox.extension.";

/// A new id, which nobody can guess: a UUID of version 4.
pub(super) fn new_id() -> Result<Name> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::host("cannot make up an id", error))?;
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
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
        return Err(super::wrong("metadata", format!("`{taken}` is kept for the server"))
            .hint("name it otherwise"));
    }
    let mut labels = metadata;
    labels.insert(ID.to_owned(), id.to_string());
    labels.extend(extensions.into_iter().map(|(key, value)| (format!("{EXTENSION}{key}"), value)));
    Ok(labels)
}

/// What the client said about it. Which namespace it is in is the server's matter.
pub(super) fn metadata(labels: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let said = labels.iter().filter(|(key, _)| !key.starts_with(OWN) && *key != NAMESPACE);
    some(said.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// The extensions that it was made with.
pub(super) fn extensions(labels: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let said = labels
        .iter()
        .filter_map(|(key, value)| Some((key.strip_prefix(EXTENSION)?.to_owned(), value.clone())));
    some(said.collect())
}

fn some(map: BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then_some(map)
}

/// Whether nobody misses it: gone meanwhile is gone.
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
    fn labels_tell_back_what_was_said() {
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
