//! Tests what the host's kernel may not offer, on an emulated machine of its own: cgroup v2 with
//! all controllers.
//!
//! The machine is QEMU without hardware virtualisation, so it runs wherever the tests do. It
//! boots Debian's cloud kernel and a disk with busybox, `msb` and the scripts of `xtask/lab`.
//! Everything is kept under `target/lab`; remove that to fetch a newer kernel.

mod console;
mod disk;
mod kernel;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::packages::{self, Need};
use crate::report::Report;
use crate::stream::{self, End};
use crate::tally::Tally;
use crate::workspace;
use console::Console;
use kernel::Kernel;

const NEEDS: &[Need] = &[
    Need::Command("qemu-system-x86_64", "qemu-system-x86"),
    Need::Package("busybox-static"),
    Need::Command("mkfs.ext4", "e2fsprogs"),
];

/// The kernel is up in seconds; emulation makes the tests some twenty times slower than life.
const LIMIT: Duration = Duration::from_secs(300);

pub(crate) fn command(msb: Option<&Path>) -> Result<ExitCode> {
    let msb = match msb {
        Some(msb) => fs::canonicalize(msb).with_context(|| format!("no `{}`", msb.display()))?,
        None => workspace::build_msb()?,
    };
    let mut report = Report::default();
    report.stage("lab", || run(&msb));
    Ok(report.finish())
}

pub(crate) fn run(msb: &Path) -> Result<Tally> {
    if !cfg!(target_arch = "x86_64") {
        let mut tally = Tally::default();
        tally.skip("lab: its kernel is for x86_64");
        return Ok(tally);
    }
    packages::install(NEEDS)?;
    let dir = workspace::target().join("lab");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
    let Some(kernel) = Kernel::cached_or_fetched(&dir)? else {
        let mut tally = Tally::default();
        tally.skip(format!("lab: this distribution has no package {}", kernel::PACKAGE));
        return Ok(tally);
    };
    let disk = disk::build(&dir, msb, &kernel)?;

    let mut console = Console::default();
    let end = stream::lines(&mut machine(&kernel, &disk), LIMIT, |line| console.read(line))?;
    let why = match end {
        End::Exited(status) | End::LeftBehind(status) => format!("the machine ended: {status}"),
        End::TimedOut => format!("the machine still ran after {} s", LIMIT.as_secs()),
    };
    Ok(console.finish(&why))
}

fn machine(kernel: &Kernel, disk: &Path) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"])
        .args(["-m", "1024", "-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none", "-serial", "stdio"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-drive")
        .arg(format!("file={},if=none,id=root,format=raw,cache=unsafe", disk.display()))
        // Of the disks QEMU knows, the one whose driver is built into the cloud kernel.
        .args(["-device", "nvme,drive=root,serial=root"])
        // `loglevel=1`: the kernel's word on each killed process would tear our lines apart.
        // `panic=-1` with `-no-reboot`: a panic ends the machine at once.
        .arg("-append")
        .arg(
            "console=ttyS0 quiet loglevel=1 panic=-1 cgroup_no_v1=all \
             root=/dev/nvme0n1 rw init=/init",
        );
    command
}
