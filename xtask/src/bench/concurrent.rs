//! Fifty sandboxes started at once: how long until the last has ended, and how many failed.

use std::cell::Cell;

use anyhow::{Result, ensure};

use super::bench_dir::BenchDir;
use super::contender::{Contenders, Oci};
use super::rounds::{self, Entrant};
use super::runner::View;
use super::stopwatch::Argv;
use super::table::{Table, Unit};

const SIZE: usize = 50;

/// Each is fifty runs, so fewer rounds say as much.
const SHARE: usize = 5;

struct ConcurrentRuns<'a> {
    name: &'static str,
    view: View,
    /// The command of one, by its number; no number comes twice.
    member: Box<dyn Fn(usize) -> Argv + 'a>,
    started: Cell<usize>,
    failed: Cell<usize>,
}

impl<'a> ConcurrentRuns<'a> {
    fn new(name: &'static str, view: View, member: impl Fn(usize) -> Argv + 'a) -> Self {
        let member = Box::new(member);
        ConcurrentRuns { name, view, member, started: Cell::new(0), failed: Cell::new(0) }
    }

    fn entrant<'b>(&'b self, bench_dir: &'b BenchDir) -> Entrant<'b> {
        let measure = Box::new(move || {
            let first = self.started.get();
            self.started.set(first + SIZE);
            let members = (first..first + SIZE).map(|number| (self.member)(number)).collect();
            let (time, failed) = bench_dir.runner(self.view).run_concurrently(members)?;
            self.failed.set(self.failed.get() + failed);
            Ok(rounds::milliseconds(time))
        });
        Entrant { name: self.name, ours: false, measure }
    }
}

pub(super) fn table(bench_dir: &BenchDir, contenders: &Contenders, rounds: usize) -> Result<Table> {
    let crun = |number| contenders.oci_run(Oci::Crun, &format!("crowd-{number}"));
    let all_runs = [
        ConcurrentRuns::new("msb run", View::Plain, |_| contenders.msb_run()),
        ConcurrentRuns::new("bwrap", View::Plain, |_| contenders.bwrap_true()),
        ConcurrentRuns::new("crun run", View::NoHybrid, crun),
    ];
    let rounds = rounds.div_ceil(SHARE);
    let entrants = all_runs.iter().map(|runs| runs.entrant(bench_dir)).collect();
    let series = rounds::play(rounds, entrants)?;

    let [msb, ..] = &all_runs;
    let failed = msb.failed.get();
    ensure!(failed == 0, "{failed} of {} sandboxes failed, {SIZE} at once", msb.started.get());

    let work = "50 at once, each create + true + destroy";
    let mut table = Table::new(work, Unit::Milliseconds, "bwrap", None, &series);
    for ConcurrentRuns { name, started, failed, .. } in &all_runs {
        table.note(name, format!("{} of {} failed", failed.get(), started.get()));
    }
    Ok(table)
}
