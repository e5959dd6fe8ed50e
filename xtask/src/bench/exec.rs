//! One command in a sandbox that already runs.

use std::fs;

use anyhow::{Context, Result, bail};

use super::bench_dir::BenchDir;
use super::contender::{self, Contenders, Oci};
use super::rounds::{self, Entrant};
use super::runner::View;
use super::stopwatch::Argv;
use super::table::{Goal, Table, Unit};

const NAME: &str = "exec";

pub(super) fn table(
    bench_dir: &mut BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Table> {
    contender::start_boxes(bench_dir, contenders, NAME)?;
    let (plain, no_hybrid) = (bench_dir.runner(View::Plain), bench_dir.runner(View::NoHybrid));
    let msb = contenders.msb(&["exec", "-q", NAME, "--", "/bin/true"]);
    let [crun, runc] = Oci::ALL.map(|oci| contenders.oci(oci, &["exec", NAME, "/bin/true"]));
    let nsenter = nsenter(contenders);
    let measure_nsenter = || match &nsenter {
        Ok(argv) => Ok(rounds::milliseconds(no_hybrid.run(argv)?)),
        Err(error) => bail!("{error:#}"),
    };
    let entrants = vec![
        Entrant::timed("msb exec", plain, msb).ours(),
        Entrant::timed("crun exec", no_hybrid, crun),
        Entrant::timed("runc exec", no_hybrid, runc),
        Entrant { name: "nsenter", ours: false, measure: Box::new(measure_nsenter) },
        Entrant::timed("true on the host", plain, contenders.host_true()),
    ];
    let series = rounds::play(rounds, entrants)?;
    bench_dir.clear();
    let work = "exec of true into a running one";
    Ok(Table::new(work, Unit::Milliseconds, "crun exec", Some(Goal::Ratio(0.2)), &series))
}

/// Enters crun's container without a runtime: the cost of the kernel and of two execs.
fn nsenter(contenders: &Contenders) -> Result<Argv> {
    let file = contenders.pid_file(Oci::Crun, NAME);
    let pid = fs::read_to_string(&file).with_context(|| format!("cannot read `{file}`"))?;
    let words = ["/usr/bin/nsenter", "--target", pid.trim(), "--user", "--preserve-credentials"];
    let namespaces = ["--mount", "--pid", "--net", "--ipc", "--uts", "/bin/true"];
    Ok([&words[..], &namespaces[..]].concat().into_iter().map(str::to_owned).collect())
}
