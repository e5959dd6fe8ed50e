//! Tables for people, JSON for programs.

use crate::words;
use serde::Serialize;

/// Columns as wide as they need to be, two spaces between them.
pub(crate) struct Listing {
    rows: Vec<Vec<String>>,
}

impl Listing {
    pub(crate) fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    pub(crate) fn row(&mut self, cells: &[String]) {
        // A cell may hold what somebody typed or a guest said.
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
            let line: String =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  ")).collect();
            words::say(line.trim_end());
        }
    }
}

/// Prints a value for programs.
pub(crate) fn json<T: Serialize>(value: &T) {
    words::say(serde_json::to_string_pretty(value).expect("our own types always serialise"));
}
