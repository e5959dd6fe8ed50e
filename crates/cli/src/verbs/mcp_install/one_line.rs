//! Objects with all members in one line, as programs write them: what is added stands there,
//! too, where the library would break the line and with it all that others have in it.

use super::edit::{Entry, Spot, Value};
use jsonc_parser::{CollectOptions, ParseOptions, ast, parse_to_ast};

/// Where in a text something may be added to such an object.
pub(super) struct OneLine<'a> {
    text: &'a str,
    /// Behind its last member and what is remarked about that.
    end: usize,
    /// Whether it is the section, or what the section is missing in.
    is_section: bool,
    /// Whether there are spaces behind colons and commas.
    spaced: bool,
}

impl<'a> OneLine<'a> {
    /// The object that something is to be added to: the section by this name, or the whole. None
    /// if it is empty or has lines of its own.
    pub(super) fn find(
        text: &'a str,
        options: &ParseOptions,
        section: Option<&str>,
    ) -> Option<Self> {
        let parsed = parse_to_ast(text, &CollectOptions::default(), options).ok()?;
        let Some(ast::Value::Object(whole)) = &parsed.value else { return None };
        let object = match section {
            Some(name) => whole.get_object(name)?,
            None => whole,
        };
        let (first, last) = (object.properties.first()?, object.properties.last()?);
        let members = &text[object.range.start..last.range.start];
        if text[object.range.start..first.range.start].contains(['\n', '\r']) {
            return None;
        }
        // A comment to the end of the line would swallow what is added; one before it stays with
        // what it is about.
        let tail = &text[last.range.end..object.range.end - 1];
        let remark = tail.trim_end();
        let end = match remark {
            _ if tail.contains(['\n', '\r']) => return None,
            "" | "," => last.range.end,
            _ if remark.contains(',') => return None,
            _ => last.range.end + remark.len(),
        };
        let first = &text[first.range.start..first.range.end];
        let spaced = members.contains(", ") || first.contains(": ");
        Some(Self { text, end, is_section: section.is_some(), spaced })
    }

    /// The text with the entry.
    pub(super) fn with(&self, spot: Spot<'_>, entry: &Entry) -> String {
        let members = entry.iter().map(|(name, value)| self.member(name, &self.value(value)));
        let members = members.collect::<Vec<_>>().join(self.comma());
        let mut added = self.member(spot.name, &format!("{{{members}}}"));
        if !self.is_section {
            added = self.member(spot.section, &format!("{{{added}}}"));
        }
        let (before, after) = self.text.split_at(self.end);
        format!("{before}{}{added}{after}", self.comma())
    }

    fn member(&self, name: &str, value: &str) -> String {
        let colon = if self.spaced { ": " } else { ":" };
        format!("{}{colon}{value}", quoted(name))
    }

    fn value(&self, value: &Value) -> String {
        match value {
            Value::Text(text) => quoted(text),
            Value::List(list) => {
                let list: Vec<String> = list.iter().map(|text| quoted(text)).collect();
                format!("[{}]", list.join(self.comma()))
            }
            Value::Members(members) => {
                let members = members.iter().map(|(name, text)| self.member(name, &quoted(text)));
                format!("{{{}}}", members.collect::<Vec<_>>().join(self.comma()))
            }
        }
    }

    fn comma(&self) -> &'static str {
        if self.spaced { ", " } else { "," }
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
