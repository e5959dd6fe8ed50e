//! The memory of sandboxes that wait for work.

use std::process::id;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::bench_dir::BenchDir;
use super::contender::{Contenders, Oci};
use super::processes;
use super::rounds::Series;
use super::runner::View;
use super::table::{Goal, Table, Unit};

/// Enough that pages which all of them share count as shared.
const SANDBOXES: usize = 10;

/// What was needed only to start has been given back by then.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) fn table(bench_dir: &mut BenchDir, contenders: &Contenders) -> Result<Table> {
    let name = |of: &str, number: usize| format!("{of}-{}-{number}", id());
    let mut crun = Ok(());
    let mut bwrap = Ok(());
    for number in 0..SANDBOXES {
        let [start, end] = contenders.msb_box(&name("msb", number));
        bench_dir.start(View::Plain, &start, end).context("cannot create a sandbox")?;
        let [start, end] = contenders.oci_box(Oci::Crun, &name("crun", number));
        crun = crun.and_then(|()| bench_dir.start(View::NoHybrid, &start, end));
        bwrap = bwrap.and_then(|()| {
            bench_dir.runner(View::Plain).keep(&contenders.bwrap_box(&name("bwrap", number)))
        });
    }
    thread::sleep(SETTLE);

    // An idle sandbox of ours has no payload; crun and bwrap cannot be without.
    let sizes = |of: &str, payload: &str| -> Result<Vec<f64>> {
        (0..SANDBOXES)
            .map(|number| {
                let size = processes::resident(&name(of, number), payload)?;
                Ok(f64::from(u32::try_from(size)?))
            })
            .collect()
    };
    let msb = sizes("msb", "")?;
    ensure!(msb.iter().all(|&size| size > 0.0), "a sandbox has ended by itself");
    let series = [
        Series { name: "msb".to_owned(), ours: true, samples: Ok(msb) },
        other("bwrap", bwrap.and_then(|()| sizes("bwrap", "sleep"))),
        other("crun", crun.and_then(|()| sizes("crun", "sleep"))),
    ];
    bench_dir.clear();
    let work = "idle PSS of a sandbox, payload not counted, 10 at once";
    Ok(Table::new(work, Unit::Kibibytes, "bwrap", Some(Goal::Value(2048.0)), &series))
}

fn other(name: &str, samples: Result<Vec<f64>>) -> Series {
    let samples = samples.map_err(|error| format!("{error:#}"));
    Series { name: name.to_owned(), ours: false, samples }
}
