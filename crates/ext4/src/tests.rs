//! What e2fsck and the kernel say of disks that were made.

use crate::{BLOCK, Identity, LARGEST, SMALLEST, format};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A directory that is gone when the test is.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("msb-ext4-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A disk of this size.
    fn disk(&self, size: u64) -> PathBuf {
        let path = self.0.join("disk");
        let file = File::create(&path).unwrap();
        format(&file, size, Identity { uuid: [0x5a; 16], made: 1_700_000_000 }).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A disk that is mounted as long as this is there.
struct Mounted(PathBuf);

impl Mounted {
    fn new(scratch: &Scratch, disk: &Path) -> Option<Self> {
        let at = scratch.0.join("mounted");
        fs::create_dir_all(&at).unwrap();
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            skip("only root can mount a disk");
            return None;
        }
        let told = run(Command::new("mount").args(["-o", "loop"]).args([disk, &at]));
        if told.status.success() {
            return Some(Self(at));
        }
        let ext4 = fs::read_to_string("/proc/filesystems").unwrap().contains("ext4");
        let loops = Path::new("/dev/loop-control").exists();
        assert!(!ext4 || !loops, "{told:?}");
        skip("this kernel has no ext4 or no loop devices");
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[expect(clippy::print_stderr, reason = "the tally of xtask reads it")]
fn skip(why: &str) {
    eprintln!("SKIP: {why}");
}

/// Runs a program that is in a directory that users may not have on PATH.
fn run(command: &mut Command) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).output().unwrap()
}

fn assert_clean(disk: &Path) {
    let told = run(Command::new("e2fsck").arg("-fn").arg(disk));
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    // The first line of its errors is its version.
    let errors = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success() && errors.lines().count() <= 1, "{text}\n{errors}");
}

#[test]
fn disks_of_all_sizes_are_clean() {
    let scratch = Scratch::new("sizes");
    let edges = [128 * MIB - BLOCK, 128 * MIB, 128 * MIB + BLOCK, 132 * MIB, 132 * MIB + 1];
    let sizes = [SMALLEST, 9 * MIB + 5, 100 * MIB, GIB, 2 * GIB, 2 * GIB + 10 * MIB, 10 * GIB];
    for size in sizes.into_iter().chain(edges).chain([300 * GIB + 333 * MIB]) {
        assert_clean(&scratch.disk(size));
    }
}

#[test]
fn a_large_disk_takes_little_room() {
    let scratch = Scratch::new("room");
    for (size, most) in [(10 * GIB, 128 << 10), (1 << 40, 4 << 20)] {
        let disk = scratch.disk(size);
        let found = fs::metadata(&disk).unwrap();
        assert_eq!(found.len(), size);
        assert!(found.blocks() * 512 <= most, "{} of {size}", found.blocks() * 512);
    }
}

#[test]
fn others_find_the_features_that_were_wanted() {
    let scratch = Scratch::new("features");
    let told = run(Command::new("dumpe2fs").arg("-h").arg(scratch.disk(10 * GIB)));
    let text = String::from_utf8(told.stdout).unwrap();
    let line = |start: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(start));
        line.unwrap_or_default().trim().to_owned()
    };
    assert_eq!(
        line("Filesystem features:"),
        "has_journal ext_attr dir_index sparse_super2 filetype extent flex_bg large_file \
         huge_file dir_nlink extra_isize metadata_csum"
    );
    assert_eq!(line("Inode count:"), (10 * GIB / 16_384).to_string());
    assert_eq!(line("Reserved block count:"), "0");
    assert_eq!(line("Total journal size:"), "64M");
    assert_eq!(line("Filesystem UUID:"), "5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a");
}

#[test]
fn sizes_beyond_what_can_be_are_refused() {
    let scratch = Scratch::new("refused");
    let file = File::create(scratch.0.join("disk")).unwrap();
    for size in [0, SMALLEST - 1, LARGEST + 1, u64::MAX] {
        assert!(format(&file, size, Identity { uuid: [0; 16], made: 0 }).is_err());
    }
}

#[test]
fn the_kernel_writes_what_e2fsck_finds_clean() {
    let scratch = Scratch::new("kernel");
    for size in [SMALLEST, 200 * MIB, 10 * GIB] {
        let disk = scratch.disk(size);
        let Some(mounted) = Mounted::new(&scratch, &disk) else { return };
        let at = &mounted.0;
        let names: Vec<_> =
            fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["lost+found"]);
        fs::create_dir_all(at.join("a/b/c")).unwrap();
        for n in 0..300 {
            fs::write(at.join(format!("a/b/{n}")), vec![n as u8; n * 10]).unwrap();
        }
        // Beyond the first group, where nothing was written before.
        let large = File::create(at.join("large")).unwrap();
        let bytes = vec![0xa5; 1 << 20];
        for n in 0..size.min(256 * MIB) / MIB / 4 {
            large.write_all_at(&bytes, n * MIB).unwrap();
        }
        large.sync_all().unwrap();
        fs::remove_file(at.join("a/b/7")).unwrap();
        drop((large, mounted));
        assert_clean(&disk);
        let Some(mounted) = Mounted::new(&scratch, &disk) else { return };
        assert_eq!(fs::read(mounted.0.join("a/b/299")).unwrap(), vec![43; 2990]);
        assert_eq!(fs::read_dir(mounted.0.join("a/b")).unwrap().count(), 300);
    }
}

#[test]
fn a_disk_whose_writer_was_killed_mounts_with_what_was_synced() {
    let scratch = Scratch::new("killed");
    let disk = scratch.disk(GIB);
    let Some(mounted) = Mounted::new(&scratch, &disk) else { return };
    for n in 0..500 {
        fs::write(mounted.0.join(format!("file-{n}")), b"contents").unwrap();
    }
    File::open(&mounted.0).unwrap().sync_all().unwrap();
    for n in 500..900 {
        fs::write(mounted.0.join(format!("file-{n}")), b"contents").unwrap();
    }
    // What is on the disk now is what a killed machine leaves: the journal is not empty.
    let left = scratch.0.join("left");
    let told = run(Command::new("cp").arg("--sparse=always").args([&disk, &left]));
    assert!(told.status.success());
    drop(mounted);
    let mut mark = [0; 4];
    File::open(&left).unwrap().read_exact_at(&mut mark, 1024 + 0x60).unwrap();
    assert!(u32::from_le_bytes(mark) & 4 != 0, "the journal is to be replayed");
    {
        let Some(mounted) = Mounted::new(&scratch, &left) else { return };
        for n in 0..500 {
            assert!(mounted.0.join(format!("file-{n}")).exists());
        }
    }
    assert_clean(&left);
}
