//! Where tests keep their files: in memory, where that can be had.
//!
//! The tests make and remove hundreds of thousands of small files. ext4 without a journal, as
//! virtual machines often have it, searches long for an inode that was not freed just now: a third
//! of the suite's time. The labs test on ext4 with a journal.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

/// How programs are started that make many files.
pub(crate) enum Scratch {
    /// In a mount namespace of their own, with a tmpfs for temporary files.
    Memory,
    /// With temporary files on the disk.
    Disk,
}

/// The largest files of the tests, several at once.
const SIZE: &str = "size=60%,mode=1777";

/// Mounts it where temporary files go, in a namespace that ends with its last process. Attributes of
/// users (`user.*`) on it came with Linux 6.6; without them overlays of ordinary users do not work.
const SCRIPT: &str = r#"
directory=${TMPDIR:-/tmp}
mount -t tmpfs -o "$0" tmpfs "$directory" && [ -w "$directory" ] || exit 125
exec "$@"
"#;

/// Whether a file there takes an attribute of a user.
const PROBE: &str = r#"
import os, sys, tempfile
with tempfile.NamedTemporaryFile() as file:
    os.setxattr(file.name, "user.msb", b"1")
"#;

impl Scratch {
    /// Memory if this machine lets us mount it and no other place was asked for by `TMPDIR`.
    pub(crate) fn find() -> Self {
        if env::var_os("TMPDIR").is_some() {
            return Self::Disk;
        }
        let mut probe = Self::Memory.command(Path::new("python3"));
        probe.args(["-c", PROBE]).stdout(Stdio::null()).stderr(Stdio::null());
        match probe.status() {
            Ok(status) if status.success() => Self::Memory,
            _ => Self::Disk,
        }
    }

    /// Such a program. Ctrl-C ends it also where the caller ignores it, as shells have it for what
    /// runs in the background: tests send that signal.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,QUIT");
        if let Self::Memory = self {
            command.args(["unshare", "--mount", "--propagation", "private"]);
            command.args(["sh", "-c", SCRIPT, SIZE]);
        }
        command.arg(program);
        command
    }
}
