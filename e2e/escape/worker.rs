//! Attacks by a worker that its guest has taken over.

use msb_e2e::Msb;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// Attack 27: with code of ours in the place of the worker's loop, after it is confined.
#[test]
fn a_compromised_worker_reaches_no_device_file_or_process_of_the_host() {
    for msb in Msb::each() {
        let canary = msb.file("canary", "home-secret");
        let before = fs::metadata(&canary).unwrap();
        let rootfs = msb.rootfs().display().to_string();
        // One that lasts, and one that counts its processes without a cgroup.
        let lasting: &[&str] = &["create", "--name", "web", &rootfs];
        let watching = &["run", "--no-net", "--memory", "256M", &rootfs, "--", "/bin/true"];
        for arguments in [lasting, watching] {
            let mut command = msb.command(arguments);
            command.env("MSB_TEST_COMPROMISED", &canary);
            let gave = msb_e2e::gives(&mut command);
            assert!(gave.stderr.contains("attempts, all refused"), "{gave:#?}");
        }
        let after = fs::metadata(&canary).unwrap();
        assert_eq!(fs::read_to_string(&canary).unwrap(), "home-secret");
        assert_eq!(after.permissions().mode(), before.permissions().mode());
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
        assert_eq!((after.mtime(), after.nlink()), (before.mtime(), before.nlink()));
        assert_eq!(devices(&msb.home()), 0);
    }
}

/// Device nodes below a directory.
fn devices(directory: &Path) -> usize {
    let of = |entry: fs::DirEntry| match entry.file_type().expect("its kind") {
        kind if kind.is_dir() => devices(&entry.path()),
        kind => usize::from(kind.is_block_device() || kind.is_char_device()),
    };
    fs::read_dir(directory).expect("a directory").map(|entry| of(entry.expect("an entry"))).sum()
}

/// Attack 27: the capabilities and the filter of a running worker, as the kernel tells them.
#[test]
fn a_worker_keeps_only_the_capabilities_that_it_uses() {
    /// CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER and CAP_KILL.
    const USED: u64 = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5;
    for msb in Msb::each() {
        msb.lasting::<&str>("web", []);
        let worker = msb.processes("web")[0].pid;
        let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let field = |name: &str| -> String {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
        };
        let allowed = if msb.is_root() { USED } else { 0 };
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            let has = u64::from_str_radix(&field(set), 16).unwrap();
            assert_eq!(has & !allowed, 0, "{set} of a worker: {has:x}");
        }
        if msb.is_root() {
            let bounding = u64::from_str_radix(&field("CapBnd"), 16).unwrap();
            assert_eq!(bounding & !allowed, 0, "CapBnd of a worker: {bounding:x}");
        }
        assert_eq!(field("Seccomp"), "2");
        assert_eq!(field("NoNewPrivs"), "1");
    }
}
