//! Runs the stages of a command one after the other, whatever fails on the way, and says at the
//! end what happened.

use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::tally::Tally;

/// Tests that are named with their times at the end.
const SLOWEST: usize = 20;

pub(crate) struct Report {
    tally: Tally,
    stages: Vec<Stage>,
    begun: Instant,
    /// Processor time that this machine had used by then.
    busy: Option<Duration>,
}

/// Stages that follow each other.
pub(crate) type Row<'a> = Box<dyn FnOnce(&mut Report) + Send + 'a>;

impl Default for Report {
    fn default() -> Self {
        let (tally, stages) = (Tally::default(), Vec::new());
        Self { tally, stages, begun: Instant::now(), busy: busy() }
    }
}

/// Processor time of all processes since boot. Sandboxes are not children of the tests, so only the
/// machine as a whole can tell.
fn busy() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user, nice, system; then idle and iowait, which are none; then interrupts.
    let used: u64 = ticks.iter().take(3).chain(ticks.iter().skip(5).take(2)).sum();
    // The kernel tells hundredths of a second, whatever its own clock.
    Some(Duration::from_millis(used * 10))
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

    /// Does several rows of stages at the same time; each row is in order. Where one waits for the
    /// disk or for a sandbox, another computes.
    pub(crate) fn side_by_side(&mut self, rows: Vec<Row<'_>>) {
        let rows: Vec<Report> = thread::scope(|scope| {
            let mut running = Vec::new();
            for row in rows {
                running.push(scope.spawn(move || {
                    let mut report = Report::default();
                    row(&mut report);
                    report
                }));
            }
            running.into_iter().map(|row| row.join().expect("stages do not panic")).collect()
        });
        for row in rows {
            self.stages.extend(row.stages);
            self.tally.add(row.tally);
        }
    }

    /// For a stage that lacks what a failed one should have made.
    pub(crate) fn not_run(&mut self, name: &'static str) {
        self.stages.push(Stage { name, took: Duration::ZERO, outcome: Outcome::NotRun });
    }

    pub(crate) fn finish(mut self) -> ExitCode {
        eprintln!();
        self.tally.times.sort_by(|(one, _), (other, _)| other.cmp(one));
        for (took, test) in self.tally.times.iter().take(SLOWEST) {
            eprintln!("{:>8.1} s  test {test}", took.as_secs_f64());
        }
        eprintln!();
        for Stage { name, took, outcome } in &self.stages {
            let outcome = match outcome {
                Outcome::Done => "ok",
                Outcome::Failed => "FAILED",
                Outcome::NotRun => "not run",
            };
            eprintln!("{:>8.1} s  {name}: {outcome}", took.as_secs_f64());
        }
        let wall = self.begun.elapsed().as_secs_f64();
        match (self.busy, busy()) {
            (Some(before), Some(now)) => {
                let used = now.saturating_sub(before).as_secs_f64();
                eprintln!("{wall:>8.1} s  in all; {used:.1} s of processor time on this machine");
            }
            _ => eprintln!("{wall:>8.1} s  in all"),
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
