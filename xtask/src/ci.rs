//! Everything, on a machine that may have nothing but Rust: a Debian or Ubuntu, as root or with
//! sudo.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

use crate::packages::Need;
use crate::report::Report;
use crate::tally::{self, Tally};
use crate::{check, lab, packages, test_user, workspace};

/// What the tests call. What the lab needs, it installs itself.
const NEEDS: &[Need] = &[
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
    Need::Command("ping", "iputils-ping"),
    Need::Package("python3-requests"),
    // The clients of SSH, whose programs are also those of a sandbox with the image `host`.
    Need::Command("ssh", "openssh-client"),
    Need::Command("rsync", "rsync"),
    Need::Command("git", "git"),
    Need::Command("tmux", "tmux"),
    // With those two the tests install clients that others wrote.
    Need::Package("python3-venv"),
    Need::Command("npm", "npm"),
];

pub(crate) fn command() -> ExitCode {
    let mut report = Report::default();
    let mut msb: Option<PathBuf> = None;

    report.stage("packages", || {
        packages::install(NEEDS)?;
        Ok(Tally::default())
    });
    report.stage("build", || {
        msb = Some(workspace::build_msb()?);
        Ok(Tally::default())
    });
    check::stages(&mut report);
    match msb {
        Some(msb) => {
            report.stage("sdk tests", || sdk(&msb));
            report.stage("e2e tests", || e2e(&msb));
            lab::stages(&mut report, &msb);
        }
        None => {
            report.not_run("sdk tests");
            report.not_run("e2e tests");
            report.not_run("lab");
            report.not_run("guest kernel");
            report.not_run("nested lab");
        }
    }
    report.finish()
}

fn sdk(msb: &Path) -> Result<Tally> {
    let package = ["--package", "microsandbox", "--profile", "ci"];
    let tally = tally::cargo_test(workspace::cargo(&["test"]).args(package).env("MSB_BIN", msb))?;
    // The example that README shows.
    let home = workspace::target().join("sdk-home");
    let mut hello = workspace::cargo(&["run", "--quiet"]);
    hello.args(package).args(["--example", "hello"]).env("MSB_PATH", msb).env("MSB_HOME", &home);
    let output = hello.stderr(std::process::Stdio::inherit()).output()?;
    let _ = std::fs::remove_dir_all(home);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    anyhow::ensure!(output.status.success() && said.contains("Hello!"), "hello said `{said}`");
    Ok(tally)
}

fn e2e(msb: &Path) -> Result<Tally> {
    let mut command = workspace::cargo(&["test", "--package", "msb-e2e", "--profile", "ci"]);
    command.args(["--test", "cli", "--test", "escape", "--test", "images", "--test", "mcp"]);
    command.args(["--test", "network", "--test", "clients", "--test", "ssh"]);
    command.env("MSB_BIN", msb);
    command.env("MSB_CONFORMANCE_BIN", conformance()?);
    if let Some(user) = test_user::ensure()? {
        command.env("MSB_TEST_USER", user);
    }
    tally::cargo_test(&mut command)
}

/// The server that the conformance suite of MCP is held against.
fn conformance() -> Result<PathBuf> {
    let example = ["--package", "msb-server", "--features", "fixture", "--example", "conformance"];
    workspace::build(&[&["--profile", "ci"][..], &example].concat(), "conformance")
}
