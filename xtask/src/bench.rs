//! Measures `msb` beside what others use for the same work: bubblewrap, crun, runc, podman, skopeo
//! with umoci, the host.
//!
//! Only ratios of one run count, and only those: machines differ and have neighbours. What is
//! wanted of them stands in docs/benchmarks.md. The commands measured are an
//! ordinary user's, and root's where a table says so; this program is root, to become that user,
//! to hide cgroup v2 from crun and to read memory.

mod archive;
mod bench_dir;
mod concurrent;
mod contender;
mod copy;
mod exec;
mod idle;
mod large;
mod layout;
mod library;
mod link;
mod network;
mod options;
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
use bench_dir::BenchDir;
use contender::Contenders;
use options::Options;
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
type Chapter = (&'static str, fn(&mut BenchDir, &Contenders, &Options) -> Result<Vec<Table>>);

/// Copies come last: they remove files, and a pull after that would measure the removal (see there).
const CHAPTERS: &[Chapter] = &[
    ("start", |bench_dir, them, asked| Ok(vec![start::table(bench_dir, them, asked.rounds)?])),
    ("exec", |bench_dir, them, asked| Ok(vec![exec::table(bench_dir, them, asked.rounds)?])),
    ("library", |bench_dir, them, asked| {
        Ok(library::table(bench_dir, them, asked.rounds)?.into_iter().collect())
    }),
    ("server", |bench_dir, them, asked| server::tables(bench_dir, them, asked.rounds)),
    ("idle", |bench_dir, them, _| Ok(vec![idle::table(bench_dir, them)?])),
    ("network", |bench_dir, them, asked| network::tables(bench_dir, them, asked.rounds)),
    ("storage", |bench_dir, them, asked| storage::tables(bench_dir, them, asked.rounds)),
    ("crowd", |bench_dir, them, asked| Ok(vec![concurrent::table(bench_dir, them, asked.rounds)?])),
    ("warm", |bench_dir, them, asked| warm::tables(bench_dir, them, asked.rounds)),
    ("review", |bench_dir, them, asked| Ok(vec![review::table(bench_dir, them, asked.rounds)?])),
    ("sync", |bench_dir, them, asked| Ok(vec![sync::table(bench_dir, them, asked.rounds)?])),
    ("ssh", |bench_dir, them, asked| ssh::tables(bench_dir, them, asked.rounds)),
    ("pull", |bench_dir, them, asked| pull::tables(bench_dir, them, asked.pulls)),
    ("copy", |bench_dir, them, asked| copy::tables(bench_dir, them, asked.rounds)),
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
    let mut bench_dir = BenchDir::make(user, msb)?;
    let contenders = Contenders::prepare(&bench_dir)?;
    let mut tables = Vec::new();
    for (name, measured) in CHAPTERS.iter().filter(|(name, _)| options.wants(name)) {
        let made = measured(&mut bench_dir, &contenders, options);
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
