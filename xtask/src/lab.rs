//! Tests what the host's kernel may not offer, on emulated machines of their own: cgroup v2 with
//! all controllers, and KVM for the vm tier.
//!
//! The machines are QEMU without hardware virtualisation, so they run wherever the tests do. They
//! boot Debian's cloud kernel and a disk with busybox, `msb` and the scripts of `xtask/lab`.
//! Everything is kept under `target/lab`; remove that to fetch a newer kernel.

mod cgroups;
mod console;
mod kernel;
mod machine;
mod nested;
mod options;
mod root;
mod systemd;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::packages::{self, Need};
use crate::report::Report;
use crate::suite::Suite;
use crate::tally::Tally;
use crate::{areas, workspace};
use kernel::Kernel;
pub(crate) use machine::Kind;
pub(crate) use nested::Nested;
use options::{Options, Part};

pub(crate) const NEEDS: &[Need] = &[
    Need::Command("qemu-system-x86_64", "qemu-system-x86"),
    Need::Package("busybox-static"),
    Need::Command("mkfs.ext4", "e2fsprogs"),
    Need::Command("newuidmap", "uidmap"),
    Need::Command("setpriv", "util-linux"),
    Need::Command("script", "bsdutils"),
    Need::Command("ssh", "openssh-client"),
    Need::Command("s6-svscan", "s6"),
    Need::Command("execlineb", "execline"),
    Need::Command("mmdebstrap", "mmdebstrap"),
];

pub(crate) fn command(options: &[&str]) -> Result<ExitCode> {
    let options = Options::parse(options)?;
    let msb = match &options.msb {
        Some(msb) => fs::canonicalize(msb).with_context(|| format!("no `{}`", msb.display()))?,
        None => workspace::build_msb()?,
    };
    let mut report = Report::default();
    let filter = match &options.part {
        Part::Everything => {
            let suite = Suite::build(areas::VM_TARGETS)?;
            stages(&mut report, &suite);
            return Ok(report.finish());
        }
        Part::Cgroups => {
            report.stage("lab", || cgroups(&msb));
            return Ok(report.finish());
        }
        Part::Nested(filter) => filter.as_deref(),
        Part::Script(_) | Part::Shell => None,
    };

    let lab = Lab::ready()?.context(NO_KERNEL)?;
    let nested = Nested::new(&lab, &msb, &options.with);
    match &options.part {
        Part::Script(script) => nested.script(script),
        Part::Shell => nested.shell(),
        _ => {
            let suite = Suite::build(areas::VM_TARGETS)?;
            report.stage("nested lab", || nested.tests(&suite, filter));
            Ok(report.finish())
        }
    }
}

/// All machines, one after the other.
pub(crate) fn stages(report: &mut Report, suite: &Suite) {
    report.stage("guest kernel", || {
        crate::kernel::made_by(suite.program("msb")?)?;
        Ok(Tally::default())
    });
    report.stage("lab", || cgroups(suite.program("msb")?));
    report.stage("nested lab", || nested(suite, None));
}

/// Runs the tests of the vm tier with names that contain the filter.
pub(crate) fn nested(suite: &Suite, filter: Option<&str>) -> Result<Tally> {
    match Lab::ready()? {
        Some(lab) => Nested::new(&lab, suite.program("msb")?, &[]).tests(suite, filter),
        None => Ok(skipped()),
    }
}

fn cgroups(msb: &Path) -> Result<Tally> {
    match Lab::ready()? {
        Some(lab) => cgroups::run(&lab.dir, &lab.kernel, msb),
        None => Ok(skipped()),
    }
}

/// Why there is no lab.
const NO_KERNEL: &str = "the lab's kernel is Debian's for x86_64, which is not to be had here";

fn skipped() -> Tally {
    let mut tally = Tally::default();
    tally.skip(format!("lab: {NO_KERNEL}"));
    tally
}

/// Where the lab is kept and what its machines boot.
pub(crate) struct Lab {
    dir: PathBuf,
    kernel: Kernel,
}

impl Lab {
    /// None where there is no kernel for it.
    pub(crate) fn ready() -> Result<Option<Self>> {
        if !cfg!(target_arch = "x86_64") {
            return Ok(None);
        }
        packages::install(NEEDS)?;
        let dir = workspace::target().join("lab");
        fs::create_dir_all(&dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
        Ok(Kernel::cached_or_fetched(&dir)?.map(|kernel| Self { dir, kernel }))
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}
