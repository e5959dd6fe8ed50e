//! Test hook that plays a compromised VMM or worker. It runs in place of the VMM or of the loop,
//! after the process was confined, and reports what it could reach.

use msb_sys::intrusion;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;

/// Tries to open the canary file, files of the host, and more than a VMM needs.
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
    intrusion::report(&tried)
}

/// Tries to leave the directory of the sandbox, which is all that a worker has.
pub(crate) fn report_worker(canary: &OsStr, directory: &Path) -> String {
    let readable = |path: &Path| File::open(path).is_ok();
    let sandboxes = directory.parent().unwrap_or(directory);
    let mut tried = vec![
        ("/etc/passwd", readable(Path::new("/etc/passwd"))),
        ("other sandboxes", fs::read_dir(sandboxes).is_ok()),
        ("making a file beside", File::create(sandboxes.join("new")).is_ok()),
        ("the environment of init", fs::read("/proc/1/environ").is_ok()),
        ("the root of init", fs::read_dir("/proc/1/root").is_ok()),
        (
            "a setting of the host",
            File::options().write(true).open("/proc/sys/kernel/panic").is_ok(),
        ),
    ];
    tried.extend(intrusion::attempts());
    tried.extend(intrusion::attempts_on(Path::new(canary), directory));
    intrusion::report(&tried)
}
