//! Everything, on a machine that may have nothing but Rust: a Debian or Ubuntu, as root or with
//! sudo.

use std::process::ExitCode;

use crate::packages::Need;
use crate::report::Report;
use crate::suite::Suite;
use crate::tally::Tally;
use crate::workspace::background_cargo;
use crate::{areas, check, dependencies, lab, packages};

/// What the tests call. What the lab needs, it installs itself.
pub(crate) const NEEDS: &[Need] = &[
    Need::Command("python3", "python3"),
    Need::Command("node", "nodejs"),
    Need::Command("git", "git"),
    Need::Command("gcc", "gcc"),
    Need::File("/usr/include/stdlib.h", "libc6-dev"),
    // `busybox` alone may be the dynamic one, which does not run in an empty root.
    Need::Package("busybox-static"),
    Need::Command("newuidmap", "uidmap"),
    Need::Command("unshare", "util-linux"),
    Need::Command("mkfs.ext4", "e2fsprogs"),
    Need::Command("mkfs.xfs", "xfsprogs"),
    Need::Command("fsck.erofs", "erofs-utils"),
    // Without it `msb setup vm` says what is missing, and builds no kernel.
    Need::File("/usr/include/gelf.h", "libelf-dev"),
    // An init system that images have, and what its scripts are written in.
    Need::Command("s6-svscan", "s6"),
    Need::Command("execlineb", "execline"),
    Need::Command("ps", "procps"),
    Need::Command("setpriv", "util-linux"),
    // Reads the installer.
    Need::Command("shellcheck", "shellcheck"),
    Need::Command("zsh", "zsh"),
    Need::Command("fish", "fish"),
    // For the host image's own pip, which is the distribution's.
    Need::Package("python3-pip"),
    Need::Package("python3-setuptools"),
    // Registries and images to test against, and tools that must read what we write.
    Need::Command("docker-registry", "docker-registry"),
    Need::Command("skopeo", "skopeo"),
    Need::Command("umoci", "umoci"),
    Need::Command("podman", "podman"),
    Need::Command("buildah", "buildah"),
    Need::Command("mmdebstrap", "mmdebstrap"),
    // With it mmdebstrap finds the key of a mirror.
    Need::Command("gpg", "gpg"),
    Need::Command("openssl", "openssl"),
    Need::Command("zstd", "zstd"),
    Need::Command("xz", "xz-utils"),
    Need::Command("bzip2", "bzip2"),
    // The servers and clients of the world in which networks are tested.
    Need::Command("ip", "iproute2"),
    Need::Command("nginx", "nginx-light"),
    Need::Command("dnsmasq", "dnsmasq-base"),
    Need::Command("fcgiwrap", "fcgiwrap"),
    Need::Command("curl", "curl"),
    // What the pages of the documentation call, or are written in.
    Need::Command("jq", "jq"),
    Need::Command("make", "make"),
    Need::Package("python3-yaml"),
    Need::Command("ping", "iputils-ping"),
    Need::Package("python3-requests"),
    // SSH clients, which sandboxes with the image `host` use as well.
    Need::Command("ssh", "openssh-client"),
    Need::Command("rsync", "rsync"),
    Need::Command("git", "git"),
    Need::Command("tmux", "tmux"),
    // With those two the tests install clients that others wrote.
    Need::Package("python3-venv"),
    Need::Command("npm", "npm"),
    // Another compiler of seccomp filters, to compare ours with.
    Need::Package("python3-seccomp"),
];

pub(crate) fn command() -> ExitCode {
    let mut report = Report::default();
    let mut vm: Option<Suite> = None;
    let made = &mut vm;
    report.side_by_side(vec![
        Box::new(|report| {
            report.stage("packages", || {
                packages::install(NEEDS)?;
                packages::install(lab::NEEDS)?;
                Ok(Tally::default())
            });
        }),
        Box::new(|report| {
            report.stage("build for the labs", || {
                *made = Some(Suite::built_by(background_cargo, areas::VM_TARGETS)?);
                Ok(Tally::default())
            });
        }),
    ]);
    let Some(vm) = &vm else {
        report.not_run("everything else");
        return report.finish();
    };
    // The nested lab computes longest, on one processor: it begins first, the rest is built beside it.
    report.side_by_side(vec![Box::new(|report| lab::stages(report, vm)), Box::new(build_and_test)]);
    report.finish()
}

/// What needs no lab.
fn build_and_test(report: &mut Report) {
    let mut built: Option<Suite> = None;
    report.stage("build", || {
        built = Some(Suite::built_by(background_cargo, &["--all-targets"])?);
        Ok(Tally::default())
    });
    let Some(suite) = &built else {
        report.not_run("lints and tests");
        return;
    };
    // Clippy computes while the tests wait.
    report.side_by_side(vec![
        Box::new(|report| {
            check::lints(report, background_cargo);
            report.stage("dependencies", || {
                dependencies::run()?;
                Ok(Tally::default())
            });
            report.stage("documentation tests", areas::documentation);
        }),
        Box::new(|report| {
            report.stage("unit tests", || areas::unit(suite, None));
            report.stage("sdk tests", || areas::sdk(suite, None));
            report.stage("python sdk tests", || areas::sdk_python(suite, None));
            for area in areas::E2E {
                report.stage(area, || areas::e2e(suite, area, None));
            }
        }),
    ]);
}
