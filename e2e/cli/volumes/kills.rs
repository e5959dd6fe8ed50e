//! Kills while a volume is created, removed or copied: the result is all or nothing.

use super::shell;
use msb_e2e::{Msb, ends, eventually};
use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

/// From before anything is touched until well after all is done.
const MOMENTS: [u64; 10] = [0, 1, 2, 3, 5, 8, 13, 20, 40, 90];

fn kill_after(mut child: Child, milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
    let _ = child.kill();
    ends(child);
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn killed_while_making_there_is_a_volume_or_none() {
    for msb in Msb::each() {
        let sizes: &[&str] = if msb.is_root() { &["", "--size 64M"] } else { &[""] };
        for size in sizes {
            for moment in MOMENTS {
                let words = format!("volume create data {size}");
                kill_after(msb.spawn(words.split_whitespace()), moment);
                let listed = msb.words("volume ls -q").ok();
                assert_eq!(listed.stderr, "", "after {moment} ms");
                assert_eq!(names(&msb.home().join("volumes")).join("\n"), listed.line());
                if msb.words("volume ls -q").line() == "data" {
                    shell(&msb, &["data:/data"], "echo works > /data/x").ok();
                    msb.words("volume rm data").ok();
                }
            }
        }
    }
}

#[test]
fn killed_while_removing_there_is_the_volume_or_none() {
    for msb in Msb::each() {
        for moment in MOMENTS {
            msb.words("volume create data").ok();
            let fill = "mkdir /data/d; for i in $(seq 300); do echo $i > /data/d/$i; done; \
                        chown -R 33:33 /data/d; chmod 700 /data/d";
            shell(&msb, &["data:/data"], fill).ok();
            kill_after(msb.spawn(["volume", "rm", "data"]), moment);
            eventually("no process that removes is left", || {
                let listed = msb.words("volume ls -q").line();
                names(&msb.home().join("volumes")).join("\n") == listed
            });
            if msb.words("volume ls -q").line() == "data" {
                let count = shell(&msb, &["data:/data"], "ls /data/d | wc -l").line();
                assert_eq!(count.trim(), "300", "after {moment} ms");
                msb.words("volume rm data").ok();
            }
        }
    }
}

#[test]
fn killed_while_copying_there_is_the_old_file_or_the_new() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        let (old, new) = (vec![b'o'; 64 << 20], vec![b'n'; 64 << 20]);
        msb.file("old", &old);
        msb.file("new/a", &new[..1 << 20]);
        msb.file("new/b", &new[..1 << 20]);
        msb.file("large", &new);
        for moment in MOMENTS {
            msb.words("volume cp old data:/file").ok();
            kill_after(msb.spawn(["volume", "cp", "large", "data:/file"]), moment);
            kill_after(msb.spawn(["volume", "cp", "new", "data:/tree"]), moment);
            let left = msb.words("volume ls -q data:/").line();
            assert!(["file", "file\ntree"].contains(&left.as_str()), "after {moment} ms: {left}");
            let script = "tr -d o < /data/file | wc -c; tr -d n < /data/file | wc -c; \
                          wc -c < /data/file; ls /data/tree 2>/dev/null | wc -l; rm -rf /data/tree";
            let counted = shell(&msb, &["data:/data"], script).line();
            let counted: Vec<u64> = counted.lines().map(|n| n.trim().parse().unwrap()).collect();
            let size = 64 << 20;
            assert!(
                counted[..3] == [0, size, size] || counted[..3] == [size, 0, size],
                "after {moment} ms: {counted:?}"
            );
            assert!(counted[3] == 0 || counted[3] == 2, "after {moment} ms: {counted:?}");
        }
    }
}

/// The process that writes is killed, too, so that no process cleans up.
#[test]
fn what_a_killed_copy_has_left_is_removed_by_the_next() {
    for msb in Msb::each() {
        msb.words("volume create data").ok();
        let left = "mkdir /data/.msb-copying-0123456789abcdef; \
                    echo half > /data/.msb-copying-0123456789abcdef/x";
        shell(&msb, &["data:/data"], left).ok();
        assert_eq!(msb.words("volume ls -q data:/").line(), "");
    }
}
