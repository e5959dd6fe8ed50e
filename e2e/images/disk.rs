//! Disks that are full or may not be written.
//!
//! Each test mounts in a mount namespace of its own, which goes with its last process.

use msb_e2e::images::Image;
use msb_e2e::registry::Registry;
use msb_e2e::tar::Entry;
use msb_e2e::{CmdOutput, Msb, ends, skip};
use std::process::Stdio;

/// Runs a script as root where `$home` is a memory file system of this size and `$msb` is msb.
fn with_disk(size: &str, script: &str) -> Option<CmdOutput> {
    let msb = Msb::with_own_layers();
    if !msb.is_root() {
        skip("only root can mount a small disk");
        return None;
    }
    let begin = "set -u; home=$MSB_HOME; mount -t tmpfs -o mode=700,size=$1 tests \"$home\" || exit 99; \
                 msb=$2; ";
    let mut command = msb.user_command("unshare");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-c"]);
    command.arg(format!("{begin}{script}")).arg("sh").arg(size).arg(msb.binary());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let gave = ends(command.spawn().expect("unshare is installed"));
    assert_ne!(gave.code, 99, "{gave:?}");
    Some(gave)
}

#[test]
fn a_pull_onto_a_full_disk_fails_cleanly_and_works_when_there_is_room() {
    let layout = Image::busybox().entries([Entry::file("large", vec![7; 12 << 20])]).layout();
    let name = Registry::shared().push(&layout, "disk/full:1");
    let script = format!(
        "$msb pull {name}; echo pull $?; \
         $msb image ls --json; \
         $msb run {name} -- true; echo run $?; \
         mount -o remount,size=64m \"$home\"; \
         $msb run {name} -- sh -c 'wc -c </large'; \
         $msb image prune --all >/dev/null; echo prune $?"
    );
    let Some(gave) = with_disk("6m", &script) else { return };
    let expected = "pull 125\n[]\nrun 125\n12582912\nprune 0\n";
    assert_eq!(gave.stdout.replace(" \n", "\n"), expected, "{gave:?}");
    assert!(gave.stderr.to_lowercase().contains("no space left on device"), "{gave:?}");
    assert!(!gave.stderr.contains("panicked"), "{gave:?}");
    assert!(!gave.stderr.contains("https"), "the registry has no part in it: {gave:?}");
}

#[test]
fn a_disk_that_may_not_be_written_is_said_to_be_one() {
    let layout = Image::busybox().layout();
    let name = Registry::shared().push(&layout, "disk/read-only:1");
    let script = format!(
        "$msb pull -q {name} >/dev/null; echo pull $?; \
         mount -o remount,ro \"$home\"; \
         $msb image ls --json | grep -c {name}; \
         $msb run {name} -- true; echo run $?; \
         $msb pull {name}; echo pull $?; \
         $msb image rm {name}; echo rm $?; \
         mount -o remount,rw \"$home\"; \
         $msb run {name} -- echo there"
    );
    let Some(gave) = with_disk("64m", &script) else { return };
    let lines: Vec<&str> = gave.stdout.lines().collect();
    assert_eq!(lines[..3], ["pull 0", "1", "run 125"], "{gave:?}");
    assert!(lines.contains(&"rm 125") && lines.last() == Some(&"there"), "{gave:?}");
    assert!(gave.stderr.to_lowercase().contains("read-only file system"), "{gave:?}");
    assert!(!gave.stderr.contains("panicked"), "{gave:?}");
    assert!(!gave.stderr.contains("https"), "the registry has no part in it: {gave:?}");
}
