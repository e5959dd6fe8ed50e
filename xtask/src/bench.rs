//! Measures `msb` beside what others use for the same work: bubblewrap, crun, runc, podman, skopeo
//! with umoci, the host.
//!
//! Only ratios of one run count, and only those: machines differ and have neighbours. What is
//! wanted of them stands in DESIGN.md section 10 and in the issues. The commands measured are an
//! ordinary user's, and root's where a table says so; this program is root, to become that user,
//! to hide cgroup v2 from crun and to read memory.

mod archive;
mod contender;
mod copy;
mod crowd;
mod exec;
mod idle;
mod large;
mod layout;
mod library;
mod link;
mod network;
mod options;
mod place;
mod processes;
mod pull;
mod registry;
mod review;
mod rounds;
mod runner;
mod server;
mod ssh;
mod start;
mod stopwatch;
mod storage;
mod sync;
mod table;
mod vm;
mod warm;

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
pub(crate) use vm::inside;

const NEEDS: &[Need] = &[
    Need::Command("bwrap", "bubblewrap"),
    Need::Command("crun", "crun"),
    Need::Command("git", "git"),
    Need::Command("runc", "runc"),
    Need::Package("busybox-static"),
    Need::Command("newuidmap", "uidmap"),
    Need::Command("nsenter", "util-linux"),
    Need::Command("podman", "podman"),
    Need::Command("skopeo", "skopeo"),
    Need::Command("umoci", "umoci"),
    Need::Command("docker-registry", "docker-registry"),
    Need::Command("zstd", "zstd"),
    Need::Command("rsync", "rsync"),
    Need::Command("ssh", "openssh-client"),
    Need::File("/usr/sbin/sshd", "openssh-server"),
    Need::Command("pasta", "passt"),
    Need::Command("slirp4netns", "slirp4netns"),
    Need::Command("iperf3", "iperf3"),
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

/// A part of the benchmark, by the name that `--only` takes.
type Chapter = (&'static str, fn(&mut Place, &Contenders, &Options) -> Result<Vec<Table>>);

/// Copies come last: they remove files, and a pull after that would measure the removal (see there).
const CHAPTERS: &[Chapter] = &[
    ("start", |place, them, asked| Ok(vec![start::table(place, them, asked.rounds)?])),
    ("exec", |place, them, asked| Ok(vec![exec::table(place, them, asked.rounds)?])),
    ("library", |place, them, asked| {
        Ok(library::table(place, them, asked.rounds)?.into_iter().collect())
    }),
    ("server", |place, them, asked| server::tables(place, them, asked.rounds)),
    ("idle", |place, them, _| Ok(vec![idle::table(place, them)?])),
    ("network", |place, them, asked| network::tables(place, them, asked.rounds)),
    ("storage", |place, them, asked| storage::tables(place, them, asked.rounds)),
    ("crowd", |place, them, asked| Ok(vec![crowd::table(place, them, asked.rounds)?])),
    ("warm", |place, them, asked| warm::tables(place, them, asked.rounds)),
    ("review", |place, them, asked| Ok(vec![review::table(place, them, asked.rounds)?])),
    ("sync", |place, them, asked| Ok(vec![sync::table(place, them, asked.rounds)?])),
    ("ssh", |place, them, asked| ssh::tables(place, them, asked.rounds)),
    ("pull", |place, them, asked| pull::tables(place, them, asked.pulls)),
    ("copy", |place, them, asked| copy::tables(place, them, asked.rounds)),
];

pub(crate) fn command(options: &[&str]) -> Result<ExitCode> {
    let options = Options::parse(options)?;
    if options.lab {
        return vm::command(&options);
    }
    let user = test_user::ensure()?
        .context("the benchmark becomes an ordinary user by itself: run it as root")?;
    packages::install(NEEDS)?;
    let msb = options.build()?;

    let record = Record {
        versions: versions(&msb)?,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        cpus: thread::available_parallelism()?.get(),
        tables: measure(user, &msb, &options)?,
    };
    let json = serde_json::to_string_pretty(&record)? + "\n";
    let always = workspace::target().join("bench.json");
    for path in [Some(always), options.json].iter().flatten() {
        fs::write(path, &json).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints each table as soon as it is there.
fn measure(user: &'static str, msb: &Path, options: &Options) -> Result<Vec<Table>> {
    let mut place = Place::make(user, msb)?;
    let contenders = Contenders::prepare(&place)?;
    let mut tables = Vec::new();
    for (name, measured) in CHAPTERS.iter().filter(|(name, _)| options.wants(name)) {
        let made = measured(&mut place, &contenders, options);
        for table in made.with_context(|| format!("cannot measure `{name}`"))? {
            println!("{table}");
            tables.push(table);
        }
    }
    Ok(tables)
}

fn versions(msb: &Path) -> Result<Vec<String>> {
    let others = ["bwrap", "crun", "runc", "podman", "skopeo", "umoci", "docker-registry"];
    let programs = [msb].into_iter().chain(others.map(Path::new));
    let version = |program: &Path| {
        let text = workspace::output(Command::new(program).arg("--version"))?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    };
    programs.map(version).collect()
}
