//! Checks created disks with e2fsck and the kernel.

use crate::{BLOCK, DiskIdentity, MAX_SIZE, MIN_SIZE, format};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A directory that is removed when dropped.
struct TestDir(PathBuf);

impl TestDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("msb-ext4-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Creates a disk of this size.
    fn disk(&self, size: u64) -> PathBuf {
        let path = self.0.join("disk");
        let file = File::create(&path).unwrap();
        format(&file, size, DiskIdentity { uuid: [0x5a; 16], created: 1_700_000_000 }).unwrap();
        path
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A disk that is mounted until this is dropped.
struct MountedDisk(PathBuf);

impl MountedDisk {
    fn new(scratch: &TestDir, disk: &Path) -> Option<Self> {
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

impl Drop for MountedDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[expect(clippy::print_stderr, reason = "the tally of xtask reads it")]
fn skip(why: &str) {
    eprintln!("SKIP: {why}");
}

/// Runs a program from sbin, which may not be on PATH.
fn run(command: &mut Command) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).output().unwrap()
}

fn assert_clean(disk: &Path) {
    let told = run(Command::new("e2fsck").arg("-fn").arg(disk));
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    // The first line on stderr is the version.
    let errors = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success() && errors.lines().count() <= 1, "{text}\n{errors}");
}

#[test]
fn disks_of_all_sizes_are_clean() {
    let scratch = TestDir::new("sizes");
    let edges = [128 * MIB - BLOCK, 128 * MIB, 128 * MIB + BLOCK, 132 * MIB, 132 * MIB + 1];
    let sizes = [MIN_SIZE, 9 * MIB + 5, 100 * MIB, GIB, 2 * GIB, 2 * GIB + 10 * MIB, 10 * GIB];
    for size in sizes.into_iter().chain(edges).chain([300 * GIB + 333 * MIB]) {
        assert_clean(&scratch.disk(size));
    }
}

#[test]
fn a_large_disk_takes_little_room() {
    let scratch = TestDir::new("room");
    for (size, most) in [(10 * GIB, 128 << 10), (1 << 40, 4 << 20)] {
        let disk = scratch.disk(size);
        let found = fs::metadata(&disk).unwrap();
        assert_eq!(found.len(), size);
        assert!(found.blocks() * 512 <= most, "{} of {size}", found.blocks() * 512);
    }
}

#[test]
fn others_find_the_features_that_were_wanted() {
    let scratch = TestDir::new("features");
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
    let scratch = TestDir::new("refused");
    let file = File::create(scratch.0.join("disk")).unwrap();
    for size in [0, MIN_SIZE - 1, MAX_SIZE + 1, u64::MAX] {
        assert!(format(&file, size, DiskIdentity { uuid: [0; 16], created: 0 }).is_err());
    }
}

#[test]
fn the_kernel_writes_what_e2fsck_finds_clean() {
    let scratch = TestDir::new("kernel");
    for size in [MIN_SIZE, 200 * MIB, 10 * GIB] {
        let disk = scratch.disk(size);
        let Some(mounted) = MountedDisk::new(&scratch, &disk) else { return };
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
        let Some(mounted) = MountedDisk::new(&scratch, &disk) else { return };
        assert_eq!(fs::read(mounted.0.join("a/b/299")).unwrap(), vec![43; 2990]);
        assert_eq!(fs::read_dir(mounted.0.join("a/b")).unwrap().count(), 300);
    }
}

#[test]
fn a_disk_whose_writer_was_killed_mounts_with_what_was_synced() {
    let scratch = TestDir::new("killed");
    let disk = scratch.disk(GIB);
    let Some(mounted) = MountedDisk::new(&scratch, &disk) else { return };
    for n in 0..500 {
        fs::write(mounted.0.join(format!("file-{n}")), b"contents").unwrap();
    }
    File::open(&mounted.0).unwrap().sync_all().unwrap();
    for n in 500..900 {
        fs::write(mounted.0.join(format!("file-{n}")), b"contents").unwrap();
    }
    // The disk is now as after a killed VM: the journal is not empty.
    let left = scratch.0.join("left");
    let told = run(Command::new("cp").arg("--sparse=always").args([&disk, &left]));
    assert!(told.status.success());
    drop(mounted);
    let mut mark = [0; 4];
    File::open(&left).unwrap().read_exact_at(&mut mark, 1024 + 0x60).unwrap();
    assert!(u32::from_le_bytes(mark) & 4 != 0, "the journal is to be replayed");
    {
        let Some(mounted) = MountedDisk::new(&scratch, &left) else { return };
        for n in 0..500 {
            assert!(mounted.0.join(format!("file-{n}")).exists());
        }
    }
    assert_clean(&left);
}
