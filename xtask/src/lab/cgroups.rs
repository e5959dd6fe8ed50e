//! The machine with cgroup v2 and all its controllers, for tests of limits on the process tier.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::console::Console;
use super::kernel::Kernel;
use super::machine::{self, Kind};
use super::root::Root;
use crate::stream::{self, End};
use crate::tally::Tally;

/// The kernel is up in seconds; emulation makes the tests some twenty times slower than life.
const LIMIT: Duration = Duration::from_secs(300);

const INIT: &str = include_str!("../../lab/cgroups/init.sh");

/// What the tests share; not a test itself.
const VERDICTS: &str = include_str!("../../lab/cgroups/verdicts.sh");

const TESTS: &[(&str, &str)] = &[
    ("memory", include_str!("../../lab/cgroups/memory.sh")),
    ("pids", include_str!("../../lab/cgroups/pids.sh")),
    ("cpus", include_str!("../../lab/cgroups/cpus.sh")),
    ("pause", include_str!("../../lab/cgroups/pause.sh")),
    ("user", include_str!("../../lab/cgroups/user.sh")),
];

/// Room for an unstripped `msb` and what sandboxes write; the file is sparse.
const SIZE: u64 = 1 << 30;

pub(super) fn run(dir: &Path, kernel: &Kernel, msb: &Path) -> Result<Tally> {
    let root = fill(dir, kernel, msb).context("cannot lay out the lab's disk")?;
    let disk = root.disk(&dir.join("cgroups.img"), SIZE)?;

    let mut console = Console::default();
    let mut machine = machine::command(Kind::Cgroups, kernel, &disk);
    let end = stream::lines(&mut machine, LIMIT, |line| console.read(line))?;
    let why = match end {
        End::Exited(status) | End::LeftBehind(status) => format!("the machine ended: {status}"),
        End::TimedOut | End::Silent => {
            format!("the machine still ran after {} s", LIMIT.as_secs())
        }
    };
    Ok(console.finish(&why))
}

fn fill(dir: &Path, kernel: &Kernel, msb: &Path) -> Result<Root> {
    let root = Root::make(&dir.join("cgroups"), INIT)?;
    root.file("usr/bin/msb", msb)?;
    root.modules(kernel)?;
    fs::create_dir(root.path("lab/tests"))?;
    for (name, script) in TESTS {
        root.program(&format!("lab/tests/{name}.sh"), script)?;
    }
    root.program("lab/verdicts.sh", VERDICTS)?;
    root.rootfs("lab/rootfs")?;
    Ok(root)
}
