//! What the tests of the vm tier share.
//!
//! Under emulation a microVM takes seconds to boot, so tests that change nothing share one.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use msb_e2e::{CmdOutput, Msb, Process};

/// The directory of the lab; none outside it.
fn directory() -> Option<PathBuf> {
    env::var_os("MSB_LAB").map(PathBuf::from)
}

/// Whether this is the lab.
pub(crate) fn is_here() -> bool {
    directory().is_some()
}

/// As an ordinary user, which is how most run it; none outside the lab.
pub(crate) fn user() -> Option<Msb> {
    is_here().then(|| Msb::as_user().unwrap_or_default())
}

/// As root and as an ordinary user; empty outside the lab.
pub(crate) fn each() -> Vec<Msb> {
    if is_here() { Msb::each() } else { Vec::new() }
}

/// The program for inside.
pub(crate) fn inside() -> PathBuf {
    directory().expect("only in the lab").join("inside")
}

/// Puts the program for inside into [`Msb::rootfs`].
pub(crate) fn with_inside(msb: &Msb) {
    let program = msb.rootfs().join("bin/inside");
    fs::copy(inside(), &program).expect("a program");
    msb.chown(&program);
}

/// One running sandbox for all tests that leave it as it is. It ends with the lab.
pub(crate) struct SharedSandbox {
    pub(crate) msb: Msb,
}

impl SharedSandbox {
    /// None outside the lab.
    pub(crate) fn get() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<SharedSandbox>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| {
            let msb = user()?;
            with_inside(&msb);
            msb.file("tree/file", "shared");
            let tree = format!("{}:/tree:ro", msb.scratch().join("tree").display());
            let flags = ["--cpus", "2", "-m", "256M", "--pids", "200", "-e", "A=1", "-v", &tree];
            msb.lasting("box", flags);
            Some(Self { msb })
        });
        let shared = shared.as_ref()?;
        // Whatever a test before did to it: each fails for itself.
        if shared.msb.json(["inspect", "box"])["status"] != "running" {
            shared.msb.words("start -q box").ok();
        }
        Some(shared)
    }

    /// Runs a shell script in it.
    #[track_caller]
    pub(crate) fn shell(&self, script: &str) -> CmdOutput {
        self.msb.shell_in("box", script)
    }
}

/// Processor time of a sandbox, in hundredths of a second.
pub(crate) fn ticks(msb: &Msb, name: &str) -> u64 {
    let of = |process: &Process| -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
    };
    msb.processes(name).iter().filter_map(of).sum()
}

/// A number that a line of text gives behind a word.
pub(crate) fn number_after(text: &str, word: &str) -> Option<u64> {
    let rest = text.split(word).nth(1)?;
    rest.split_whitespace().next()?.parse().ok()
}
