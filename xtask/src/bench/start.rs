//! Create, run a static `true`, destroy: what a user waits for at each `msb run`.

use anyhow::Result;

use super::bench_dir::BenchDir;
use super::contender::{Contenders, Oci};
use super::rounds::{self, Entrant};
use super::runner::View;
use super::table::{Goal, Table, Unit};

pub(super) fn table(bench_dir: &BenchDir, contenders: &Contenders, rounds: usize) -> Result<Table> {
    let (plain, no_hybrid) = (bench_dir.runner(View::Plain), bench_dir.runner(View::NoHybrid));
    let series = rounds::play(
        rounds,
        vec![
            Entrant::timed("msb run", plain, contenders.msb_run()).ours(),
            Entrant::timed("bwrap", plain, contenders.bwrap_true()),
            Entrant::timed("crun run", no_hybrid, contenders.oci_run(Oci::Crun, "start")),
            Entrant::timed("runc run", no_hybrid, contenders.oci_run(Oci::Runc, "start")),
            Entrant::timed("true on the host", plain, contenders.host_true()),
        ],
    )?;
    let work = "create + static true + destroy";
    Ok(Table::new(work, Unit::Milliseconds, "bwrap", Some(Goal::Ratio(1.0)), &series))
}
