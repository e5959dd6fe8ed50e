//! What it costs to keep the state of a sandbox: snapshots, clones and the ways back, beside copies
//! of the same tree and `podman commit`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::bench_dir::BenchDir;
use super::contender::Contenders;
use super::rounds::{self, Entrant};
use super::runner::{Runner, View};
use super::stopwatch::Argv;
use super::table::{Goal, Table, Unit};

const BOX: &str = "store";
const PODMAN: &str = "localhost/bench-store";

/// A name, what is done inside before, what is measured, and what is done after.
type Work<'a> = (&'a str, &'a [&'a str], &'a [&'a str], &'a [&'a str]);

/// 50,000 files of together 1 GiB.
const FILL: &str = "\
import os
block = os.urandom(21474)
for d in range(500):
    os.makedirs(f'/root/tree/{d}')
    for f in range(100):
        with open(f'/root/tree/{d}/{f}', 'wb') as file: file.write(block)
";

pub(super) fn tables(
    bench_dir: &mut BenchDir,
    contenders: &Contenders,
    rounds: usize,
) -> Result<Vec<Table>> {
    let few = rounds.min(3);
    let create = ["create", "-q", "--no-net", "--isolation", "process", "--name", BOX, "host"];
    let remove = contenders.msb(&["rm", "-q", "-f", BOX]);
    bench_dir.start(View::Plain, &contenders.msb(&create), remove)?;
    let runner = bench_dir.runner(View::Plain);
    runner.run(&contenders.msb(&["exec", BOX, "--", "/usr/bin/python3", "-c", FILL]))?;
    let tree = Path::new(&bench_dir.path("home")).join(".msb/sandboxes/store/layer/upper0");
    let tree = fs::canonicalize(&tree).with_context(|| format!("no `{}`", tree.display()))?;
    let copy = bench_dir.path("host") + "/copy";
    let copied = |runner: &Runner| -> Result<f64> {
        let argv = ["cp", "-a", &tree.display().to_string(), &copy].map(str::to_owned).to_vec();
        let took = rounds::milliseconds(runner.run(&argv)?);
        runner.run(&["rm", "-rf", &copy].map(str::to_owned).to_vec())?;
        Ok(took)
    };
    let podman = podman(runner, &tree)?;
    let committed = |runner: &Runner| -> Result<f64> {
        let commit = ["podman", "commit", "-q", "bench-store", PODMAN].map(str::to_owned);
        let took = rounds::milliseconds(runner.run(&commit.to_vec())?);
        runner.run(&["podman", "rmi", "-f", PODMAN].map(str::to_owned).to_vec())?;
        Ok(took)
    };
    // While it runs first: nothing of it is frozen yet.
    let live = |runner: &Runner| -> Result<f64> {
        let make = contenders.msb(&["snapshot", "create", "live", "--from", BOX]);
        let took = rounds::milliseconds(runner.run(&make)?);
        runner.run(&contenders.msb(&["snapshot", "rm", "live"]))?;
        Ok(took)
    };
    let mut entrants = vec![
        Entrant { name: "msb", ours: true, measure: Box::new(|| live(runner)) },
        Entrant { name: "cp -a", ours: false, measure: Box::new(|| copied(runner)) },
    ];
    if podman {
        let measure = Box::new(|| committed(runner));
        entrants.push(Entrant { name: "podman commit", ours: false, measure });
    }
    let series = rounds::play_cold(few, entrants)?;
    let work = "snapshot of a running sandbox, 1 GiB in 50,000 files";
    let mut tables = vec![Table::new(work, Unit::Milliseconds, "cp -a", None, &series)];
    let ran = |words: &[&str]| runner.run(&contenders.msb(words));
    ran(&["stop", "-q", "-f", BOX])?;
    let timed = |first: &[&str], words: &[&str], after: &[&str]| -> Result<f64> {
        if !first.is_empty() {
            ran(&["start", "-q", BOX])?;
            ran(first)?;
            ran(&["stop", "-q", "-f", BOX])?;
        }
        let took = rounds::milliseconds(ran(words)?);
        if !after.is_empty() {
            ran(after)?;
        }
        Ok(took)
    };
    let touch = ["exec", BOX, "--", "touch", "/root/tree/0/new"];
    ran(&["snapshot", "create", "base", "--from", BOX])?;
    // What the others have left to be written is not ours to wait for.
    runner.run(&vec!["sync".to_owned()])?;
    let works: [Work<'_>; 4] = [
        (
            "snapshot of a stopped sandbox, 1 GiB in 50,000 files",
            &touch,
            &["snapshot", "create", "s", "--from", BOX],
            &["snapshot", "rm", "s"],
        ),
        ("clone of one", &touch, &["clone", BOX, "c"], &["rm", "c"]),
        ("restore", &[], &["restore", "base", "--name", "r"], &["rm", "r"]),
        ("rollback", &touch, &["rollback", BOX, "base"], &[]),
    ];
    for (name, first, words, after) in works {
        let measure = Box::new(|| timed(first, words, after));
        let entrant = Entrant { name: "msb", ours: true, measure };
        let series = rounds::play(rounds, vec![entrant])?;
        // Single digits, whatever there is.
        tables.push(Table::new(name, Unit::Milliseconds, "msb", Some(Goal::Value(9.9)), &series));
    }
    ran(&["snapshot", "rm", "base"])?;
    if podman {
        runner.run(&["podman", "rm", "-f", "bench-store"].map(str::to_owned).to_vec())?;
    }
    bench_dir.clear();
    Ok(tables)
}

/// A container with the same files; false if there can be none here.
fn podman(runner: &Runner, tree: &Path) -> Result<bool> {
    let shell = |script: &str| -> Argv { ["/bin/sh", "-c", script].map(str::to_owned).to_vec() };
    let made = runner.run(&shell(
        "cd \"$HOME\" && mkdir -p empty/bin && cp /bin/busybox empty/bin/sleep && \
         tar -C empty -c . | podman import -q - localhost/bench-empty && \
         podman create -q --name bench-store localhost/bench-empty sleep 1",
    ));
    if made.is_err() {
        return Ok(false);
    }
    let tree = tree.join("root/tree");
    runner.run(&shell(&format!("podman cp '{}' bench-store:/tree", tree.display())))?;
    Ok(true)
}
