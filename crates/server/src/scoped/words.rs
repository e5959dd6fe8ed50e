//! Errors, with the names that the client knows and no others.

use super::Scoped;
use crate::namespace::{self, Namespace};
use msb_spec::{Error, Kind, Name, Result};

/// In place of a name that belongs to somebody else.
const ANOTHER: &str = "(another)";

impl Scoped {
    /// What came of an Operation, in words for the client.
    pub(super) fn told<T>(&self, result: Result<T>) -> Result<T> {
        match &self.namespace {
            Some(namespace) => result.map_err(|error| told(namespace, &error)),
            None => result,
        }
    }

    /// Text with names turned back.
    pub(super) fn text(&self, text: &str) -> String {
        match &self.namespace {
            Some(namespace) => turned(namespace, text),
            None => text.to_owned(),
        }
    }
}

fn told(namespace: &Namespace, error: &Error) -> Error {
    let text = |text: &str| turned(namespace, text);
    let mut told = Error::new(error.kind(), text(error.message()));
    for cause in error.causes() {
        told = told.cause(text(cause));
    }
    if let Some(stage) = error.stage() {
        told = told.at(stage);
    }
    match error.advice() {
        // It guesses which name was meant, among everybody's.
        Some(hint) if error.kind() == Kind::NotFound && !names_own(namespace, hint) => told,
        Some(hint) => told.hint(text(hint)),
        None => told,
    }
}

/// Whether a name of this namespace is in it, and none of another.
fn names_own(namespace: &Namespace, text: &str) -> bool {
    let mut quoted = text.split('`').skip(1).step_by(2);
    match namespace.is_usual() {
        true => quoted.all(|word| namespace.outer(word).is_some()),
        false => quoted.any(|word| namespace.outer(word).is_some()),
    }
}

fn turned(namespace: &Namespace, text: &str) -> String {
    let mut told = String::with_capacity(text.len());
    let mut rest = text;
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    while !rest.is_empty() {
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, more) = rest.split_at(end);
        told.push_str(turned_word(namespace, word));
        let next = more.find(is_part).unwrap_or(more.len());
        told.push_str(&more[..next]);
        rest = &more[next..];
    }
    told
}

fn turned_word<'a>(namespace: &Namespace, word: &'a str) -> &'a str {
    if Name::parse(word).is_err() || !word.contains("--") {
        return word;
    }
    match namespace::split(word) {
        (of, name) if of == namespace.as_str() => name,
        ("", _) => word,
        _ => ANOTHER,
    }
}
