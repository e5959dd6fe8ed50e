//! Tables for people, JSON for programs.

mod with_times;

use crate::output;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};
use with_times::WithTimes;

/// Columns as wide as they need to be, two spaces between them.
pub(crate) struct Listing {
    rows: Vec<Vec<String>>,
}

impl Listing {
    pub(crate) fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        // A cell may hold text of users or guests.
        self.rows.push(cells.iter().map(|cell| msb_spec::shown(cell)).collect());
    }

    pub(crate) fn print(&self) {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|c| c.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                // A format has a longest width, and a cell may be longer.
                line.push_str(&" ".repeat(width - cell.chars().count() + 2));
            }
            output::print(line.trim_end());
        }
    }
}

/// Prints a value for programs, its times as RFC 3339.
pub(crate) fn json<T: Serialize>(value: &T) {
    json_with_times(value, &[]);
}

/// Prints a value that has times in further members.
pub(crate) fn json_with_times<T: Serialize>(value: &T, times: &'static [&'static str]) {
    output::print(text(value, WithTimes::new(PrettyFormatter::new(), times)));
}

/// A value for programs in one line, its times as RFC 3339.
pub(crate) fn json_line<T: Serialize>(value: &T) -> String {
    text(value, WithTimes::new(CompactFormatter, &[]))
}

fn text<T: Serialize>(value: &T, formatter: impl Formatter) -> String {
    let mut json = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut json, formatter);
    value.serialize(&mut serializer).expect("our own types always serialise");
    safe(&String::from_utf8_lossy(&json))
}

/// JSON that is safe on a terminal: control characters are only ever inside strings, where they can
/// be written as its number. Line ends between values stay.
pub(crate) fn safe(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if msb_spec::disturbs(c) && c != '\n' {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_the_same_value_and_disturbs_no_terminal() {
        let value = serde_json::json!({ "a": "x\u{9b}\u{202e}\n\u{1b}y" });
        let text = safe(&serde_json::to_string_pretty(&value).unwrap());
        assert!(text.chars().all(|c| c == '\n' || !msb_spec::disturbs(c)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
