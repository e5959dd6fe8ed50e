//! What a work gave, as a table for people and as JSON for machines.

use std::fmt;

use serde::Serialize;

use super::rounds::{Series, median};

/// One table: a workload, with a row for each contender.
#[derive(Serialize)]
pub(super) struct Table {
    work: String,
    unit: Unit,
    /// How many measurements stand behind each row.
    samples: usize,
    /// The name of the row that ratios are made with.
    reference: &'static str,
    rows: Vec<Row>,
}

#[derive(Serialize, Clone, Copy)]
pub(super) enum Unit {
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "KiB")]
    Kibibytes,
}

/// The goal for our row; docs/benchmarks.md lists them.
#[derive(Clone, Copy)]
pub(super) enum Goal {
    /// At most this many times the reference.
    Ratio(f64),
    /// At most this, in the unit of the table.
    Value(f64),
}

#[derive(Serialize)]
struct Row {
    name: String,
    #[serde(skip)]
    ours: bool,
    #[serde(flatten)]
    result: Outcome,
    /// What it is of other rows than the reference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beside: Vec<RatioToRow>,
    /// What the numbers do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<Verdict>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Measured {
        median: f64,
        lowest: f64,
        /// None where the reference failed or is nothing.
        ratio: Option<f64>,
    },
    Error(String),
}

#[derive(Serialize)]
struct RatioToRow {
    reference: &'static str,
    /// None where one of the two failed.
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<Verdict>,
}

#[derive(Serialize)]
struct Verdict {
    text: String,
    reached: bool,
}

impl Table {
    pub(super) fn new(
        work: impl Into<String>,
        unit: Unit,
        reference: &'static str,
        goal: Option<Goal>,
        series: &[Series],
    ) -> Self {
        let divisor = series
            .iter()
            .find(|series| series.name == reference)
            .and_then(|series| median(series.samples.as_deref().unwrap_or_default()))
            .filter(|&divisor| divisor > 0.0);
        let counts = series.iter().flat_map(|series| &series.samples).map(Vec::len);
        let samples = counts.max().unwrap_or(0);
        let rows = series.iter().map(|series| row(series, divisor, goal, unit)).collect();
        Table { work: work.into(), unit, samples, reference, rows }
    }

    /// Adds the ratios to one more row, of which ours are to be at most `limit`.
    pub(super) fn beside(mut self, reference: &'static str, limit: Option<f64>) -> Self {
        let row = self.rows.iter().find(|row| row.name == reference);
        let divisor = row.and_then(Row::median).filter(|&divisor| divisor > 0.0);
        for row in &mut self.rows {
            let ratio = divisor.and_then(|divisor| Some(row.median()? / divisor));
            let goal = limit.filter(|_| row.ours).zip(ratio).map(|(limit, ratio)| Verdict {
                text: format!("≤ {limit}× {reference}"),
                reached: ratio <= limit,
            });
            row.beside.push(RatioToRow { reference, ratio, goal });
        }
        self
    }

    /// Whether a row of ours could not be measured.
    pub(super) fn lacks_ours(&self) -> bool {
        self.rows.iter().any(|row| row.ours && row.median().is_none())
    }

    pub(super) fn note(&mut self, name: &str, note: String) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.name == name) {
            row.note = Some(note);
        }
    }
}

impl Row {
    fn median(&self) -> Option<f64> {
        match self.result {
            Outcome::Measured { median, .. } => Some(median),
            Outcome::Error(_) => None,
        }
    }
}

fn row(series: &Series, divisor: Option<f64>, goal: Option<Goal>, unit: Unit) -> Row {
    let row = |result, goal| {
        let name = series.name.clone();
        Row { name, ours: series.ours, result, beside: Vec::new(), note: None, goal }
    };
    let samples = match &series.samples {
        Ok(samples) => samples,
        Err(error) => return row(Outcome::Error(error.clone()), None),
    };
    let Some(middle) = median(samples) else {
        return row(Outcome::Error("nothing was measured".to_owned()), None);
    };
    let ratio = divisor.map(|divisor| middle / divisor);
    let lowest = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let goal = goal.filter(|_| series.ours).and_then(|goal| verdict(goal, middle, ratio, unit));
    row(Outcome::Measured { median: middle, lowest, ratio }, goal)
}

fn verdict(goal: Goal, value: f64, ratio: Option<f64>, unit: Unit) -> Option<Verdict> {
    let (text, reached) = match goal {
        // A ratio that could not be made is neither reached nor missed.
        Goal::Ratio(limit) => (format!("≤ {limit}×"), ratio? <= limit),
        Goal::Value(limit) => (format!("≤ {limit} {unit}"), value <= limit),
    };
    Some(Verdict { text, reached })
}

impl fmt::Display for Unit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Unit::Milliseconds => "ms",
            Unit::Kibibytes => "KiB",
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let others = self.rows.iter().take(1).flat_map(|row| &row.beside);
        let references = [self.reference].into_iter().chain(others.map(|other| other.reference));
        let heads: Vec<String> = references.map(|name| format!("÷ {name}")).collect();
        let wide = |column: usize| heads[column].chars().count().max(8);
        writeln!(formatter, "{} ({}, median of {})", self.work, self.unit, self.samples)?;
        write!(formatter, "  {:width$}  {:>9}  {:>9}", "", "median", "lowest")?;
        for (column, head) in heads.iter().enumerate() {
            write!(formatter, "  {head:>wide$}", wide = wide(column))?;
        }
        writeln!(formatter)?;
        for row in &self.rows {
            write!(formatter, "  {:width$}  ", row.name)?;
            match &row.result {
                Outcome::Error(error) => write!(formatter, "failed: {}", one_line(error))?,
                Outcome::Measured { median, lowest, ratio } => {
                    write!(formatter, "{median:>9.2}  {lowest:>9.2}")?;
                    let others = row.beside.iter().map(|other| other.ratio);
                    for (column, ratio) in [*ratio].into_iter().chain(others).enumerate() {
                        let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
                        write!(formatter, "  {ratio:>wide$}", wide = wide(column))?;
                    }
                }
            }
            let others = row.beside.iter().filter_map(|other| other.goal.as_ref());
            for Verdict { text, reached } in row.goal.iter().chain(others) {
                let word = if *reached { "reached" } else { "MISSED" };
                write!(formatter, "  goal {text} {word}")?;
            }
            if let Some(note) = &row.note {
                write!(formatter, "  {note}")?;
            }
            writeln!(formatter)?;
        }
        Ok(())
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, samples: Result<Vec<f64>, String>) -> Series {
        Series { name: name.to_owned(), ours: name == "msb", samples }
    }

    fn table(goal: Goal, bwrap: Result<Vec<f64>, String>) -> Table {
        let series = [series("msb", Ok(vec![4.0, 6.0, 5.0])), series("bwrap", bwrap)];
        Table::new("start", Unit::Milliseconds, "bwrap", Some(goal), &series)
    }

    #[test]
    fn medians_ratios_and_goals_stand_in_one_table() {
        let table = table(Goal::Ratio(1.0), Ok(vec![4.0, 4.0, 9.0]));
        assert_eq!(
            table.to_string(),
            "\
start (ms, median of 3)
            median     lowest   ÷ bwrap
  msb         5.00       4.00      1.25  goal ≤ 1× MISSED
  bwrap       4.00       4.00      1.00
"
        );
    }

    #[test]
    fn a_failed_reference_leaves_a_row_with_its_error_and_no_verdict() {
        let table = table(Goal::Ratio(1.0), Err("no user\nnamespaces".to_owned()));
        assert_eq!(
            table.to_string(),
            "\
start (ms, median of 3)
            median     lowest   ÷ bwrap
  msb         5.00       4.00         -
  bwrap  failed: no user namespaces
"
        );
    }

    #[test]
    fn several_rows_can_be_compared_with() {
        let series = [
            series("msb", Ok(vec![5.0])),
            series("bwrap", Ok(vec![4.0])),
            series("a long name", Ok(vec![10.0])),
            series("gone", Err("gone".to_owned())),
        ];
        let table = Table::new("start", Unit::Milliseconds, "bwrap", None, &series)
            .beside("a long name", Some(1.0))
            .beside("gone", Some(1.0));
        assert_eq!(
            table.to_string(),
            "\
start (ms, median of 1)
                  median     lowest   ÷ bwrap  ÷ a long name    ÷ gone
  msb               5.00       5.00      1.25           0.50         -  goal ≤ 1× a long name reached
  bwrap             4.00       4.00      1.00           0.40         -
  a long name      10.00      10.00      2.50           1.00         -
  gone         failed: gone
"
        );
    }

    #[test]
    fn a_goal_in_units_needs_no_reference() {
        let table = table(Goal::Value(5.0), Err("gone".to_owned()));
        assert!(table.to_string().contains("goal ≤ 5 ms reached"), "{table}");
    }

    #[test]
    fn machines_get_the_same_as_people() {
        let mut table = table(Goal::Ratio(2.0), Err("gone".to_owned()));
        table.note("bwrap", "as expected".to_owned());
        assert_eq!(
            serde_json::to_value(&table).unwrap(),
            serde_json::json!({
                "work": "start",
                "unit": "ms",
                "samples": 3,
                "reference": "bwrap",
                "rows": [
                    {"name": "msb", "measured": {"median": 5.0, "lowest": 4.0, "ratio": null}},
                    {"name": "bwrap", "error": "gone", "note": "as expected"},
                ],
            })
        );
    }
}
