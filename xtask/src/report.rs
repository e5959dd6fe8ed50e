//! Runs the stages of a command one after the other, whatever fails on the way, and says at the
//! end what happened.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::tally::Tally;

#[derive(Default)]
pub(crate) struct Report {
    tally: Tally,
    stages: Vec<Stage>,
}

struct Stage {
    name: &'static str,
    took: Duration,
    outcome: Outcome,
}

enum Outcome {
    Done,
    Failed,
    NotRun,
}

impl Report {
    /// A stage that returns an error counts as one failure, so that the summary line and the
    /// exit code never disagree.
    pub(crate) fn stage(&mut self, name: &'static str, work: impl FnOnce() -> Result<Tally>) {
        eprintln!("stage: {name}");
        let start = Instant::now();
        let tally = work().unwrap_or_else(|error| {
            eprintln!("error: {name}: {error:#}");
            let mut tally = Tally::default();
            tally.fail(format!("{name}: {error:#}"));
            tally
        });
        let outcome = if tally.failed == 0 { Outcome::Done } else { Outcome::Failed };
        self.stages.push(Stage { name, took: start.elapsed(), outcome });
        self.tally.add(tally);
    }

    /// For a stage that lacks what a failed one should have made.
    pub(crate) fn not_run(&mut self, name: &'static str) {
        self.stages.push(Stage { name, took: Duration::ZERO, outcome: Outcome::NotRun });
    }

    pub(crate) fn finish(self) -> ExitCode {
        eprintln!();
        for Stage { name, took, outcome } in &self.stages {
            let outcome = match outcome {
                Outcome::Done => "ok",
                Outcome::Failed => "FAILED",
                Outcome::NotRun => "not run",
            };
            eprintln!("{:>8.1} s  {name}: {outcome}", took.as_secs_f64());
        }
        for why in &self.tally.skips {
            eprintln!("SKIPPED  {why}");
        }
        for what in &self.tally.failures {
            eprintln!("FAILED   {what}");
        }
        println!("{}", self.tally);
        if self.tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_failed_stage_counts_and_the_next_one_still_runs() {
        let mut report = Report::default();
        report.stage("format", || bail!("not formatted"));
        report.stage("tests", || {
            let mut tally = Tally::default();
            tally.pass();
            Ok(tally)
        });

        assert_eq!(report.tally.to_string(), "1 passed, 1 failed, 0 skipped");
        assert_eq!(report.tally.failures, ["format: not formatted"]);
        assert_eq!(report.finish(), ExitCode::FAILURE);
    }
}
