//! A VMM that was taken over, for the test of its jail: runs in the place of the machine, after
//! the jail is shut, and tells what it could reach.

use msb_sys::intrusion;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;

/// Tries to get at this file, at the host, and at more than a machine needs.
pub(crate) fn report(canary: &OsStr) -> String {
    let canary = Path::new(canary);
    let readable = |path: &Path| File::open(path).is_ok();
    let writable = |path: &str| File::options().write(true).open(path).is_ok();
    let mut tried = vec![
        ("a file of the user's", readable(canary)),
        ("the user's directory", canary.parent().is_some_and(|path| fs::read_dir(path).is_ok())),
        ("/etc/passwd", readable(Path::new("/etc/passwd"))),
        ("writing the kernel", writable("/kernel")),
        ("writing the guest", writable("/guest")),
        ("making a file", File::create("/new").is_ok()),
        ("the memory of others", readable(Path::new("/proc/2/mem"))),
    ];
    tried.extend(intrusion::attempts());
    let reached: Vec<&str> =
        tried.iter().filter(|(_, done)| *done).map(|(name, _)| *name).collect();
    match reached.is_empty() {
        true => format!("compromised: {} attempts, all refused", tried.len()),
        false => format!("compromised: reached {}", reached.join(", ")),
    }
}
