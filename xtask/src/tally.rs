//! Counts what tests say of themselves: passed, failed, skipped.
//!
//! A test that cannot run prints `SKIP: reason` and returns. The test runner calls that passed;
//! the tally does not, or a suite that skips everything would look like one that holds.

use std::fmt;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::stream::{self, End};

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    /// What failed, by name, for the end of a long log.
    pub(crate) failures: Vec<String>,
    /// Why each skipped test was skipped.
    pub(crate) skips: Vec<String>,
    /// How long each test took, where its runner tells.
    pub(crate) times: Vec<(Duration, String)>,
}

impl Tally {
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        self.failed += 1;
        self.failures.push(what.into());
    }

    pub(crate) fn skip(&mut self, why: impl Into<String>) {
        self.skipped += 1;
        self.skips.push(why.into());
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.skips.extend(other.skips);
        self.times.extend(other.times);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { passed, failed, skipped, .. } = self;
        write!(formatter, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Compiling the tests of a cold tree on two cores takes minutes; a hung test takes for ever.
const TEST_LIMIT: Duration = Duration::from_secs(40 * 60);

/// Runs a `cargo test` command line to its end, whatever fails on the way.
pub(crate) fn cargo_test(command: &mut Command) -> Result<Tally> {
    // Without `--show-output` the runner swallows what a passing test prints, and so its SKIP.
    command.args(["--no-fail-fast", "--", "--show-output"]);
    test_program(command, "cargo test")
}

/// Runs a test program to its end.
pub(crate) fn test_program(command: &mut Command, name: &str) -> Result<Tally> {
    let mut log = Log::default();
    let end = stream::lines(command, TEST_LIMIT, |line| {
        if log.read(line) == Show::Yes {
            println!("{line}");
        }
    })?;
    let mut tally = log.tally();
    for (_, test) in &mut tally.times {
        *test = format!("{name} {test}");
    }
    match end {
        End::Exited(status) if !status.success() && tally.failed == 0 => {
            tally.fail(format!("{name} ended with {status}"));
        }
        End::Exited(_) => {}
        End::LeftBehind(_) => {
            tally.fail(format!("a test of {name} left a process behind that holds its output"));
        }
        End::TimedOut | End::Silent => {
            tally.fail(format!("{name}: not done after {} minutes", TEST_LIMIT.as_secs() / 60))
        }
    }
    Ok(tally)
}

/// Runs `python3 -m unittest -v`, which prints one verdict for each test.
pub(crate) fn python_unittest(command: &mut Command) -> Result<Tally> {
    let mut tally = Tally::default();
    let end = stream::lines(command, TEST_LIMIT, |line| {
        match line.rsplit_once(" ... ") {
            Some((_, "ok")) => return tally.pass(),
            Some((test, "FAIL" | "ERROR")) => tally.fail(test),
            Some((_, why)) if why.starts_with("skipped") => tally.skip(why),
            _ => {}
        }
        println!("{line}");
    })?;
    // An error outside of a test, such as one of a module, has no verdict.
    if tally.failed == 0 && !matches!(end, End::Exited(status) if status.success()) {
        tally.fail("python3 -m unittest did not succeed");
    }
    Ok(tally)
}

/// The output of `cargo test`, read line by line.
#[derive(Default)]
pub(crate) struct Log {
    tally: Tally,
    part: Part,
    /// Passed tests that printed a SKIP; the runner has counted them as passed.
    skipped_but_passed: usize,
    /// Verdicts that are in no sum yet; the runner prints none if it is killed.
    unsummed: UnsummedVerdicts,
}

#[derive(Default)]
struct UnsummedVerdicts {
    passed: usize,
    failed: usize,
}

#[derive(Default)]
enum Part {
    /// One line for each test.
    #[default]
    Verdicts,
    /// What the passing tests printed.
    Successes { test: String, skipped: bool },
    /// What the failing tests printed.
    Failures,
}

/// Whether a line is for the developer's eyes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Show {
    Yes,
    No,
}

impl Log {
    pub(crate) fn read(&mut self, line: &str) -> Show {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.part = Part::Verdicts;
            self.unsummed = UnsummedVerdicts::default();
            self.count(counts);
            return Show::Yes;
        }
        match line {
            "successes:" => {
                self.part = Part::Successes { test: String::new(), skipped: false };
                return Show::No;
            }
            "failures:" => self.part = Part::Failures,
            _ => {}
        }
        match &mut self.part {
            Part::Verdicts => {
                if let Some(reason) = line.strip_prefix("SKIP: ") {
                    self.skipped_but_passed += 1;
                    self.tally.skip(reason);
                } else if let Some(Verdict { test, passed, took }) = Verdict::read(line) {
                    if passed {
                        self.unsummed.passed += 1;
                    } else {
                        self.tally.failures.push(test.to_owned());
                        self.unsummed.failed += 1;
                    }
                    self.tally.times.extend(took.map(|took| (took, test.to_owned())));
                }
                Show::Yes
            }
            Part::Successes { test, skipped } => {
                if let Some(name) = section(line) {
                    name.clone_into(test);
                    *skipped = false;
                } else if let Some(reason) = line.strip_prefix("SKIP: ")
                    && !*skipped
                {
                    *skipped = true;
                    self.skipped_but_passed += 1;
                    self.tally.skip(format!("{test}: {reason}"));
                }
                Show::No
            }
            Part::Failures => Show::Yes,
        }
    }

    /// `ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`
    fn count(&mut self, counts: &str) {
        let counts = counts.split_once(". ").map_or(counts, |(_, counts)| counts);
        for part in counts.split("; ") {
            let Some((number, what)) = part.split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<usize>() else {
                continue;
            };
            match what {
                "passed" => self.tally.passed += number,
                "failed" => self.tally.failed += number,
                "ignored" => self.tally.skipped += number,
                _ => {}
            }
        }
    }

    pub(crate) fn tally(mut self) -> Tally {
        self.tally.failed += self.unsummed.failed;
        self.tally.passed += self.unsummed.passed;
        self.tally.passed = self.tally.passed.saturating_sub(self.skipped_but_passed);
        self.tally
    }
}

/// `test NAME ... ok`, or `FAILED`, with ` <1.234s>` behind it where the runner tells times.
pub(crate) struct Verdict<'a> {
    pub(crate) test: &'a str,
    pub(crate) passed: bool,
    took: Option<Duration>,
}

impl<'a> Verdict<'a> {
    pub(crate) fn read(line: &'a str) -> Option<Self> {
        let (test, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        let (verdict, took) = match verdict.split_once(" <") {
            Some((verdict, time)) => (verdict, time.strip_suffix("s>")?.parse().ok()),
            None => (verdict, None),
        };
        let passed = match verdict {
            "ok" => true,
            "FAILED" => false,
            _ => return None,
        };
        Some(Self { test, passed, took: took.map(Duration::from_secs_f64) })
    }
}

fn section(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &str) -> (Tally, Vec<&str>) {
        let mut reading = Log::default();
        let shown = log.lines().filter(|line| reading.read(line) == Show::Yes).collect();
        (reading.tally(), shown)
    }

    #[test]
    fn results_of_several_test_programs_are_added_up() {
        let (tally, _) = read(
            "\
test a ... ok
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
test b ... FAILED
test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1s
",
        );

        assert_eq!(tally.to_string(), "5 passed, 1 failed, 1 skipped");
        assert_eq!(tally.failures, ["b"]);
    }

    #[test]
    fn a_passed_test_that_says_skip_counts_once_and_as_skipped() {
        let (tally, shown) = read(
            "\
test net ... ok
test vm ... ok

successes:

---- net stdout ----
chatter
SKIP: no /dev/net/tun
SKIP: and no route

---- vm stdout ----
SKIP: no /dev/kvm

successes:
    net
    vm

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
",
        );

        assert_eq!(tally.to_string(), "0 passed, 0 failed, 2 skipped");
        assert_eq!(tally.skips, ["net: no /dev/net/tun", "vm: no /dev/kvm"]);
        assert!(!shown.contains(&"chatter"));
    }

    #[test]
    fn times_are_read_where_the_runner_tells_them() {
        let (tally, _) = read("test a ... ok <1.500s>\ntest b ... FAILED <0.25s>\ntest c ... ok\n");

        assert_eq!(tally.to_string(), "2 passed, 1 failed, 0 skipped");
        let seconds: Vec<f64> = tally.times.iter().map(|(took, _)| took.as_secs_f64()).collect();
        assert_eq!(seconds, [1.5, 0.25]);
    }

    #[test]
    fn a_runner_that_was_killed_leaves_the_verdicts_it_gave() {
        let (tally, _) = read("test a ... ok\ntest b ... FAILED\ntest c ... ok\n");

        assert_eq!(tally.to_string(), "2 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_failed_test_that_says_skip_is_failed_and_its_output_is_shown() {
        let (tally, shown) = read(
            "\
test net ... FAILED

failures:

---- net stdout ----
SKIP: half of it
panicked

failures:
    net

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s
",
        );

        assert_eq!(tally.to_string(), "0 passed, 1 failed, 0 skipped");
        assert!(shown.contains(&"panicked"));
    }
}
