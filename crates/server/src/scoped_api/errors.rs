//! Errors with visible names only: names of other namespaces are hidden.

use super::ScopedApi;
use crate::namespace::{self, Namespace};
use msb_spec::{Error, Kind, Name, Result};

/// Replaces a name that belongs to another namespace.
const ANOTHER: &str = "(another)";

impl ScopedApi {
    /// Rewrites the error of an Operation for the client.
    pub(super) fn redact<T>(&self, result: Result<T>) -> Result<T> {
        match &self.namespace {
            Some(namespace) => result.map_err(|error| redact(namespace, &error)),
            None => result,
        }
    }

    /// Text with stored names replaced by visible ones.
    pub(super) fn text(&self, text: &str) -> String {
        match &self.namespace {
            Some(namespace) => replace_names(namespace, text),
            None => text.to_owned(),
        }
    }
}

fn redact(namespace: &Namespace, error: &Error) -> Error {
    let text = |text: &str| replace_names(namespace, text);
    let mut redacted = Error::new(error.kind(), text(error.message()));
    for cause in error.causes() {
        redacted = redacted.cause(text(cause));
    }
    if let Some(stage) = error.stage() {
        redacted = redacted.at(stage);
    }
    match error.advice() {
        // This hint suggests a similar name, perhaps of another namespace.
        Some(hint) if error.kind() == Kind::NotFound && !quotes_visible_name(namespace, hint) => {
            redacted
        }
        Some(hint) => redacted.hint(text(hint)),
        None => redacted,
    }
}

/// Whether the text quotes a name of this namespace, and none of another.
fn quotes_visible_name(namespace: &Namespace, text: &str) -> bool {
    let mut quoted = text.split('`').skip(1).step_by(2);
    match namespace.is_default() {
        true => quoted.all(|word| namespace.to_visible(word).is_some()),
        false => quoted.any(|word| namespace.to_visible(word).is_some()),
    }
}

fn replace_names(namespace: &Namespace, text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    let mut rest = text;
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, more) = rest.split_at(end);
        visible.push_str(replace_name(namespace, word));
        let next = more.find(is_part).unwrap_or(more.len());
        visible.push_str(&more[..next]);
        rest = &more[next..];
    }
    visible
}

fn replace_name<'a>(namespace: &Namespace, word: &'a str) -> &'a str {
    if Name::parse(word).is_err() || !word.contains("--") {
        return word;
    }
    match namespace::split(word) {
        (of, name) if of == namespace.as_str() => name,
        ("", _) => word,
        _ => ANOTHER,
    }
}
