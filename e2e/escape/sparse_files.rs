//! Attacks with sparse files: a few bytes inside that claim a whole disk outside.

use msb_e2e::{Msb, gives, skip};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// So large that copying its zeros is seen on the disk, and so small that a failing test fills none.
const SIZE: u64 = 4 << 30;
/// What a sparse file may take on the host: its few blocks of data.
const MOST: u64 = 8 << 20;

/// More than may come to the host, and less than ext4 takes.
const HUGE: u64 = 8 << 40;

/// Makes a sparse file inside: one letter at 1 GiB, one at 3 GiB.
fn make_sparse(msb: &Msb, path: &str) {
    let script = format!(
        "truncate -s {SIZE} {path}; for at in 1 3; do printf x | \
         dd of={path} bs=1 seek=$((at << 30)) conv=notrunc status=none; done"
    );
    msb.run(["exec", "box", "--", "sh", "-c", &script]).ok();
}

fn check_sparse(path: &Path) {
    let meta = fs::metadata(path).expect("a file");
    assert_eq!(meta.len(), SIZE);
    assert!(meta.blocks() * 512 < MOST, "{} bytes on the host", meta.blocks() * 512);
    let file = fs::File::open(path).expect("a file");
    for (at, expected) in [(0, 0), (1 << 30, b'x'), (2 << 30, 0), (3 << 30, b'x')] {
        let mut byte = [7];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, at).expect("a byte");
        assert_eq!(byte[0], expected, "{at}");
    }
}

fn project(msb: &Msb) -> PathBuf {
    let root = msb.scratch().join("project");
    fs::create_dir(&root).expect("a directory");
    msb.chown(&root);
    msb.words("create -n box --workspace project").ok();
    root
}

/// Attack 88.
#[test]
fn holes_stay_holes_in_copies_and_applies() {
    for msb in Msb::each() {
        let root = project(&msb);
        make_sparse(&msb, "/var/tmp/sparse");
        make_sparse(&msb, "/workspace/sparse");
        let out = msb.scratch().join("out");
        msb.run(["cp", "box:/var/tmp/sparse", out.to_str().unwrap()]).ok();
        check_sparse(&out);
        msb.words("diff box").ok();
        msb.words("apply box").ok();
        check_sparse(&root.join("sparse"));
        // And back: what the sandbox writes lies on the host's disk, too.
        msb.run(["cp", out.to_str().unwrap(), "box:/var/tmp/again"]).ok();
        let blocks = msb.run(["exec", "box", "--", "stat", "-c", "%b %s", "/var/tmp/again"]).line();
        let (blocks, size) = blocks.split_once(' ').unwrap();
        assert!(blocks.parse::<u64>().unwrap() * 512 < MOST && size == SIZE.to_string());
    }
}

/// Attack 88: sizes that no reader comes to the end of.
#[test]
fn files_of_terabytes_are_refused_and_nothing_is_left() {
    for msb in Msb::each() {
        let root = project(&msb);
        let script =
            format!("truncate -s {HUGE} /var/tmp/huge /workspace/huge; echo 1 > /workspace/small");
        msb.run(["exec", "box", "--", "sh", "-c", &script]).ok();
        let out = msb.scratch().join("out");
        let copied = msb.run(["cp", "box:/var/tmp/huge", out.to_str().unwrap()]);
        let applied = msb.words("apply box");
        for gave in [copied, applied] {
            assert_eq!(gave.code, 125, "{gave:?}");
            assert!(gave.stderr.contains("more than 1 TiB of holes"), "{}", gave.stderr);
        }
        assert!(!out.exists());
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        // What it takes to look at them is not hours either.
        let shown = msb.json(["diff", "box", "--json"]);
        assert_eq!(shown["changes"][0]["after"]["size"], HUGE);
        assert!(shown["changes"][0]["after"]["sha256"].is_null());
        msb.words("apply box --exclude huge").ok();
        assert_eq!(fs::read_to_string(root.join("small")).unwrap(), "1\n");
    }
}

/// Attack 88: a snapshot with such a file is written down and compared without reading its holes.
#[test]
fn a_snapshot_of_terabytes_of_holes_is_verified() {
    for msb in Msb::each() {
        msb.words("create -n box").ok();
        msb.run(["exec", "box", "--", "truncate", "-s", &HUGE.to_string(), "/var/tmp/huge"]).ok();
        msb.words("stop box").ok();
        msb.words("snapshot create base --from box").ok();
        // Twice: the first may be the one that writes it down.
        for _ in 0..2 {
            msb.words("snapshot verify base").ok();
        }
        msb.words("rm -f box").ok();
    }
}

/// Attack 88: a copy leaves the host's file system its reserve, and takes back what it has written.
#[test]
fn a_copy_does_not_fill_the_file_system_of_the_host() {
    let msb = Msb::new();
    if !msb.is_root() {
        return skip("only root can mount a small file system");
    }
    msb.words("create -n box").ok();
    msb.run(["exec", "box", "--", "sh", "-c", "yes | head -c 104857600 > /var/tmp/large"]).ok();
    let small = msb.scratch().join("small");
    fs::create_dir(&small).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=64m", "tmpfs"];
    gives(Command::new("mount").args(mount).arg(&small)).ok();
    let gave = msb.run(["cp", "box:/var/tmp/large", small.join("out").to_str().unwrap()]);
    let left = fs::read_dir(&small).unwrap().count();
    msb.run(["exec", "box", "--", "truncate", "-s", "1048576", "/var/tmp/large"]).ok();
    let fits = msb.run(["cp", "box:/var/tmp/large", small.join("out").to_str().unwrap()]);
    gives(Command::new("umount").arg("-l").arg(&small)).ok();
    assert_eq!(gave.code, 125, "{gave:?}");
    assert!(gave.stderr.contains("less free space than its reserve"), "{}", gave.stderr);
    assert_eq!(left, 0);
    fits.ok();
}
