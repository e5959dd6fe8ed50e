//! An Exec from the Rust library, its output captured, in a sandbox that runs.
//!
//! This program depends on no crate of the workspace, so an example of the library does the
//! measuring: `EXAMPLE ROOTFS` makes a sandbox from the directory and then, for each line on
//! stdin, runs `/bin/true` in it once and prints how many nanoseconds that took. At the end of
//! stdin it removes the sandbox.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::bench_dir::BenchDir;
use super::contender::Contenders;
use super::link::Link;
use super::rounds::{self, Entrant};
use super::runner::View;
use super::table::{Goal, Table, Unit};
use crate::workspace;

const EXAMPLE: &str = "exec_latency";

/// None as long as the library has no such example.
pub(super) fn table(
    bench_dir: &BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Option<Table>> {
    let source = format!("crates/microsandbox/examples/{EXAMPLE}.rs");
    if !workspace::root().join(&source).exists() {
        eprintln!("warning: the library is not measured: there is no `{source}`");
        return Ok(None);
    }
    let measure = latency(bench_dir)?;
    let spawn = "spawn on the host";
    let series = rounds::play(
        rounds,
        vec![
            Entrant { name: "library Exec", ours: true, measure },
            Entrant::timed(spawn, bench_dir.runner(View::Plain), contenders.host_true()),
        ],
    )?;
    let work = "Exec of true from the library";
    let goal = Some(Goal::Ratio(1.5));
    Ok(Some(Table::new(work, Unit::Milliseconds, spawn, goal, &series)))
}

/// Measures an Exec in a sandbox that was made for it.
pub(super) fn latency<'a>(bench_dir: &BenchDir) -> Result<Box<dyn FnMut() -> Result<f64> + 'a>> {
    let example = bench_dir.program(EXAMPLE, &build()?)?;
    let mut command = bench_dir.user.command(View::Plain);
    command.arg(example).arg(bench_dir.path("rootfs"));
    let link = Link::start(&mut command)?;
    Ok(Box::new(move || {
        let answer = link.ask("")?;
        let nanoseconds: f64 =
            answer.parse().with_context(|| format!("no number of nanoseconds: `{answer}`"))?;
        Ok(nanoseconds / 1e6)
    }))
}

fn build() -> Result<PathBuf> {
    workspace::build(
        &["--profile", "dist", "--package", "microsandbox", "--example", EXAMPLE],
        EXAMPLE,
    )
}
