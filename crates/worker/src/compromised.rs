//! A VMM or a worker that was taken over, for the tests of their jails: runs in the place of the
//! machine or of the loop, after the jail is shut, and tells what it could reach.

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
    told(&tried)
}

/// The same for a worker, which has the directory of its sandbox.
pub(crate) fn report_worker(canary: &OsStr, directory: &Path) -> String {
    let readable = |path: &Path| File::open(path).is_ok();
    let beside = directory.parent().unwrap_or(directory);
    let mut tried = vec![
        ("/etc/passwd", readable(Path::new("/etc/passwd"))),
        ("other sandboxes", fs::read_dir(beside).is_ok()),
        ("making a file beside", File::create(beside.join("new")).is_ok()),
        ("the environment of init", fs::read("/proc/1/environ").is_ok()),
        ("the root of init", fs::read_dir("/proc/1/root").is_ok()),
        (
            "a setting of the host",
            File::options().write(true).open("/proc/sys/kernel/panic").is_ok(),
        ),
    ];
    // A pidfd alone does nothing; what can be done with it is tried below.
    tried.extend(intrusion::attempts().into_iter().filter(|(name, _)| *name != "pidfd"));
    tried.extend(intrusion::attempts_on(Path::new(canary), directory));
    told(&tried)
}

fn told(tried: &[(&str, bool)]) -> String {
    let reached: Vec<&str> =
        tried.iter().filter(|(_, done)| *done).map(|(name, _)| *name).collect();
    match reached.is_empty() {
        true => format!("compromised: {} attempts, all refused", tried.len()),
        false => format!("compromised: reached {}", reached.join(", ")),
    }
}
