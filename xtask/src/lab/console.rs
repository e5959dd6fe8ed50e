//! Reads the verdicts of the tests from the machine's serial console.

use crate::tally::Tally;

/// Lines that count start with this; the rest is shown only when something failed.
const MARK: &str = "LAB ";

#[derive(Default)]
pub(super) struct Console {
    lines: Vec<String>,
    tally: Tally,
    done: bool,
}

impl Console {
    pub(super) fn read(&mut self, line: &str) {
        self.lines.push(line.to_owned());
        let Some(verdict) = line.strip_prefix(MARK) else {
            return;
        };
        println!("{line}");
        match verdict.split_once(' ') {
            Some(("PASS", _)) => self.tally.pass(),
            Some(("FAIL", what)) => self.tally.fail(format!("lab: {what}")),
            Some(("SKIP", what)) => self.tally.skip(format!("lab: {what}")),
            _ if verdict == "DONE" => self.done = true,
            _ => self.tally.fail(format!("lab: no such verdict: {verdict}")),
        }
    }

    /// Adds what the tests could not say themselves, and shows the console if that helps.
    pub(super) fn finish(mut self, why: &str) -> Tally {
        if !self.done {
            self.tally.fail(format!("lab: the tests did not reach their end: {why}"));
        } else if self.tally == Tally::default() {
            self.tally.fail("lab: no test ran");
        }
        if self.tally.failed > 0 {
            eprintln!("the console of the lab:");
            for line in &self.lines {
                eprintln!("    {line}");
            }
        }
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(lines: &[&str]) -> Tally {
        let mut console = Console::default();
        lines.iter().for_each(|line| console.read(line));
        console.finish("exit status: 0")
    }

    #[test]
    fn verdicts_are_counted_and_other_lines_are_not() {
        let tally = tally(&[
            "booting",
            "LAB PASS a",
            "LAB FAIL b: it did not",
            "LAB SKIP c: no swap",
            "LAB DONE",
        ]);

        assert_eq!(tally.to_string(), "1 passed, 1 failed, 1 skipped");
        assert_eq!(tally.failures, ["lab: b: it did not"]);
        assert_eq!(tally.skips, ["lab: c: no swap"]);
    }

    #[test]
    fn a_machine_that_dies_is_a_failure() {
        assert_eq!(tally(&["LAB PASS a", "panic"]).to_string(), "1 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_machine_that_tests_nothing_is_a_failure() {
        assert_eq!(tally(&["LAB DONE"]).to_string(), "0 passed, 1 failed, 0 skipped");
    }
}
