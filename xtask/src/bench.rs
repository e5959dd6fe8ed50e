//! Measures `msb` beside what others use for the same work: bubblewrap, crun, runc, the host.
//!
//! Only ratios of one run count, and only those: machines differ and have neighbours. What is
//! wanted of them stands in DESIGN.md section 10. The commands measured are an ordinary user's;
//! this program is root, to become that user, to hide cgroup v2 from crun and to read memory.

mod contender;
mod copy;
mod crowd;
mod exec;
mod idle;
mod library;
mod link;
mod options;
mod place;
mod processes;
mod rounds;
mod runner;
mod start;
mod stopwatch;
mod table;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::packages::{self, Need};
use crate::{test_user, workspace};
use contender::Contenders;
use options::Options;
use place::Place;
pub(crate) use stopwatch::serve as stopwatch;
use table::Table;

const NEEDS: &[Need] = &[
    Need::Command("bwrap", "bubblewrap"),
    Need::Command("crun", "crun"),
    Need::Command("runc", "runc"),
    Need::Package("busybox-static"),
    Need::Command("newuidmap", "uidmap"),
    Need::Command("nsenter", "util-linux"),
];

/// All that a run gave, with what is needed to judge it later.
#[derive(Serialize)]
struct Record {
    /// First lines of `--version`.
    versions: Vec<String>,
    kernel: String,
    cpus: usize,
    tables: Vec<Table>,
}

pub(crate) fn command(options: &[&str]) -> Result<ExitCode> {
    let options = Options::parse(options)?;
    let user = test_user::ensure()?
        .context("the benchmark becomes an ordinary user by itself: run it as root")?;
    packages::install(NEEDS)?;
    let msb = match &options.msb {
        Some(msb) => fs::canonicalize(msb).with_context(|| format!("no `{}`", msb.display()))?,
        None => workspace::build(&["--release"], "msb")?,
    };

    let record = Record {
        versions: versions(&msb)?,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        cpus: thread::available_parallelism()?.get(),
        tables: measure(user, &msb, options.rounds)?,
    };
    let json = serde_json::to_string_pretty(&record)? + "\n";
    let always = workspace::target().join("bench.json");
    for path in [Some(always), options.json].iter().flatten() {
        fs::write(path, &json).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints each table as soon as it is there.
fn measure(user: &'static str, msb: &Path, rounds: usize) -> Result<Vec<Table>> {
    let mut place = Place::make(user, msb)?;
    let contenders = Contenders::prepare(&place)?;
    let mut tables = Vec::new();
    let mut show = |table: Table| {
        println!("{table}");
        tables.push(table);
    };
    show(start::table(&place, &contenders, rounds)?);
    show(exec::table(&mut place, &contenders, rounds)?);
    library::table(&place, &contenders, rounds)?.into_iter().for_each(&mut show);
    show(idle::table(&mut place, &contenders)?);
    show(crowd::table(&place, &contenders, rounds)?);
    copy::tables(&mut place, &contenders, rounds)?.into_iter().for_each(&mut show);
    Ok(tables)
}

fn versions(msb: &Path) -> Result<Vec<String>> {
    let programs = [msb, Path::new("bwrap"), Path::new("crun"), Path::new("runc")];
    let version = |program: &Path| {
        let text = workspace::output(Command::new(program).arg("--version"))?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    };
    programs.into_iter().map(version).collect()
}
