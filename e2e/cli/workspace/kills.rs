//! `apply` killed at any moment, on a full disk, and while the sandbox writes.

use super::{described, inside, keep, project};
use msb_e2e::{Msb, gives, signal_group, skip};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

fn is_ours(root: &std::path::Path) -> bool {
    let names = fs::read_dir(root).expect("a directory").flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.to_string_lossy().starts_with(".msb-"))
}

#[test]
fn a_killed_apply_has_done_all_or_nothing() {
    for msb in Msb::each() {
        let root = project(&msb, &[("old/a", "1"), ("old/b", "1"), ("keep", "1")]);
        keep(&msb);
        // Many files: the first kill arrives before they are all applied.
        let script = "rm -r old; for i in $(seq 1000); do echo $i > f$i; done; echo 2 > keep";
        inside(&msb, script).ok();
        let before = described(&root);
        let mut done = false;
        let mut undone = 0;
        for moment in 0..60u64 {
            // The review is a child process: both are in one process group, and killed together.
            let mut apply = msb.command(["apply", "box"]);
            let apply = apply.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = apply.spawn().unwrap();
            std::thread::sleep(Duration::from_micros(moment * 1500));
            // What has ended already cannot be killed.
            if child.try_wait().unwrap().is_none() {
                signal_group(child.id(), "KILL");
            }
            let killed = !child.wait().unwrap().success();
            // The kernel takes a moment to release the lock of a killed process.
            let shown = loop {
                let gave = msb.words("diff box");
                if !gave.stderr.contains("another process uses this workspace") {
                    break gave.ok();
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            assert!(!is_ours(&root), "killed at {moment}");
            let now = described(&root);
            if shown.stdout.is_empty() {
                assert_eq!(now.len(), 1002, "killed at {moment}");
                done = true;
                break;
            }
            assert!(killed, "it ended and did nothing");
            assert_eq!(now, before, "killed at {moment}");
            undone += 1;
        }
        if !done {
            msb.words("apply box").ok();
        }
        assert_eq!(described(&root).len(), 1002);
        assert!(undone > 0);
    }
}

#[test]
fn a_full_disk_is_reported_and_its_space_is_freed() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root can mount a small file system");
    }
    let root = project(&msb, &[]);
    let mount = ["-t", "tmpfs", "-o", "size=2m", "tmpfs"];
    gives(Command::new("mount").args(mount).arg(&root)).ok();
    fs::write(root.join("small"), "1").unwrap();
    keep(&msb);
    inside(&msb, "echo 2 > small; head -c 3000000 /dev/zero > large").ok();
    let gave = msb.words("apply box");
    let (tree, left) = (described(&root), is_ours(&root));
    let chosen = msb.words("apply box --exclude large");
    let after = fs::read_to_string(root.join("small")).unwrap();
    msb.words("rm -f box");
    gives(Command::new("umount").arg("-l").arg(&root)).ok();
    assert_eq!(gave.code, 125);
    assert!(gave.stderr.contains("no space left on device"), "{}", gave.stderr);
    assert!(gave.stderr.contains("free some space"), "{}", gave.stderr);
    assert_eq!(tree[1..], ["small 644 1"]);
    assert!(!left);
    chosen.ok();
    assert_eq!(after, "2\n");
}

#[test]
fn a_sandbox_that_goes_on_writing_can_be_reviewed() {
    for msb in Msb::each() {
        let root = project(&msb, &[("a", "1")]);
        keep(&msb);
        let script = "while :; do for i in 1 2 3 4; do echo $i > n$i; mkdir -p d/$i; mv n$i d/$i/x; \
                      rm -rf d; done; done";
        msb.run(["exec", "-d", "box", "--", "sh", "-c", script]).ok();
        for _ in 0..20 {
            // Either it held still for long enough, or that is said.
            let diff = msb.words("diff box -p");
            let apply = msb.words("apply box");
            for gave in [diff, apply] {
                assert!(
                    gave.code == 0
                        || gave.stderr.contains("changed while it was read")
                        || gave.stderr.contains("conflict"),
                    "{gave:#?}"
                );
            }
            assert!(!is_ours(&root));
        }
        msb.words("stop -f box").ok();
    }
}
