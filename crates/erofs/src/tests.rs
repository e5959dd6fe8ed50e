//! Checks written disks with the kernel and with erofs-utils.

use crate::{Attributes, BLOCK, Node, Special, Writer, holds_xattr};
use rustix::fs::{AtFlags, CWD, FileType};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory that is removed when dropped.
struct TestDir(PathBuf);

impl TestDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("msb-erofs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn disk(&self) -> PathBuf {
        self.0.join("disk")
    }

    fn writer(&self) -> Writer {
        let mut open = File::options();
        let file = open.read(true).write(true).create(true).truncate(true).open(self.disk());
        Writer::new(file.unwrap()).unwrap()
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
    /// None if disks cannot be mounted here; prints SKIP then.
    fn new(scratch: &TestDir) -> Option<Self> {
        let at = scratch.0.join("mounted");
        fs::create_dir_all(&at).unwrap();
        if !rustix::process::geteuid().is_root() {
            skip("only root can mount a disk");
            return None;
        }
        let told = Command::new("mount")
            .args(["-t", "erofs", "-o", "ro,loop"])
            .args([scratch.disk(), at.clone()])
            .output()
            .unwrap();
        if told.status.success() {
            return Some(Self(at));
        }
        let erofs = fs::read_to_string("/proc/filesystems").unwrap().contains("erofs");
        let loops = Path::new("/dev/loop-control").exists();
        assert!(!erofs || !loops, "{}", String::from_utf8_lossy(&told.stderr));
        skip("this kernel has no EROFS or no loop devices");
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

/// fsck.erofs reports no error and can read every byte.
fn assert_clean(disk: &Path) {
    let told = Command::new("fsck.erofs").arg("--extract").arg(disk).output();
    let told = told.expect("erofs-utils is installed");
    let text = String::from_utf8_lossy(&told.stderr) + String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success() && !text.contains("<E>"), "{text}");
}

/// All metadata of an entry that the kernel shows.
#[derive(Debug, PartialEq, Eq, Clone, Default)]
struct EntryInfo {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    links: u64,
    device: (u32, u32),
    size: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content of a file, or target of a symlink.
    contents: Vec<u8>,
}

fn look(root: &Path) -> BTreeMap<PathBuf, EntryInfo> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let stat = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let kind = FileType::from_raw_mode(stat.st_mode);
        let contents = match kind {
            FileType::RegularFile => fs::read(&path).unwrap(),
            FileType::Symlink => fs::read_link(&path).unwrap().into_os_string().into_vec(),
            FileType::Directory => {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                Vec::new()
            }
            _ => Vec::new(),
        };
        let special = kind.is_char_device() || kind.is_block_device();
        let device = match special {
            true => (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)),
            false => (0, 0),
        };
        let found = EntryInfo {
            mode: stat.st_mode,
            owner: (stat.st_uid, stat.st_gid),
            mtime: (stat.st_mtime, stat.st_mtime_nsec as i64),
            links: stat.st_nlink,
            device,
            size: if kind == FileType::Directory { 0 } else { stat.st_size as u64 },
            xattrs: xattrs(&path),
            contents,
        };
        all.insert(path.strip_prefix(root).unwrap().to_owned(), found);
    }
    all
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0u8; 1 << 16];
    let length = rustix::fs::llistxattr(path, names.as_mut_slice()).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0u8; 1 << 16];
        let name_text = OsString::from_vec(name.to_vec());
        let length = rustix::fs::lgetxattr(path, &name_text, value.as_mut_slice()).unwrap();
        value.truncate(length);
        (name.to_vec(), value)
    };
    names.map(value).collect()
}

/// Deterministic bytes without long runs of zeros.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(next).collect()
}

/// `user::rw-, user:1000:r--, group::r--, mask::r--, other::r--` in the encoding of the kernel.
fn access_list() -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    let all = u32::MAX;
    for (tag, permission, id) in
        [(1u16, 6u16, all), (2, 4, 1000), (4, 4, all), (0x10, 4, all), (0x20, 4, all)]
    {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permission.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// The capability `cap_net_raw=ep`, encoded.
fn capability() -> Vec<u8> {
    let words = [0x0200_0001u32, 1 << 13, 0, 0, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn attributes(mode: u16, uid: u32, gid: u32, mtime: (i64, u32)) -> Attributes {
    Attributes { mode, uid, gid, mtime, xattrs: Vec::new() }
}

fn with(mut attributes: Attributes, xattrs: &[(&str, Vec<u8>)]) -> Attributes {
    let owned = xattrs.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.clone()));
    attributes.xattrs = owned.collect();
    attributes
}

/// Writes files and records what should be found.
struct ExpectedDisk {
    disk: Writer,
    wanted: BTreeMap<PathBuf, EntryInfo>,
}

impl ExpectedDisk {
    fn expect(&mut self, path: &str, bits: u32, attributes: &Attributes, contents: &[u8]) {
        let symlink = bits == 0o120_000;
        let found = EntryInfo {
            mode: bits | if symlink { 0o777 } else { u32::from(attributes.mode) },
            owner: (attributes.uid, attributes.gid),
            mtime: (attributes.mtime.0, attributes.mtime.1.into()),
            links: 1,
            size: contents.len() as u64,
            xattrs: attributes.xattrs.iter().cloned().collect(),
            contents: contents.to_vec(),
            ..EntryInfo::default()
        };
        self.wanted.insert(path.into(), found);
    }

    fn file(&mut self, parent: Node, path: &str, attributes: Attributes, contents: &[u8]) -> Node {
        self.expect(path, 0o100_000, &attributes, contents);
        let name = Path::new(path).file_name().unwrap().as_bytes().to_vec();
        self.disk.file_of(parent, &name, attributes, &mut &*contents).unwrap()
    }

    fn symlink(&mut self, parent: Node, path: &str, attributes: &Attributes, target: &[u8]) {
        self.expect(path, 0o120_000, attributes, target);
        let name = Path::new(path).file_name().unwrap().as_bytes().to_vec();
        self.disk.symlink(parent, &name, attributes, target).unwrap();
    }

    fn special(&mut self, path: &str, bits: u32, device: (u32, u32), special: Special) {
        let plain = attributes(0o640, 7, 8, (9, 10));
        self.expect(path, bits, &plain, b"");
        self.wanted.get_mut(Path::new(path)).unwrap().device = device;
        self.disk.special(self.disk.root(), path.as_bytes(), &plain, special).unwrap();
    }
}

fn one_of_each(scratch: &TestDir) -> ExpectedDisk {
    let mut making = ExpectedDisk { disk: scratch.writer(), wanted: BTreeMap::new() };
    let root = making.disk.root();
    let above = attributes(0o1755, 1, 2, (1_600_000_000, 123_456_789));
    let above = with(above, &[("user.root", b"yes".to_vec())]);
    making.disk.describe(root, above.clone()).unwrap();
    making.expect("", 0o040_000, &above, b"");
    making.wanted.get_mut(Path::new("")).unwrap().links = 3;

    // Sizes around block boundaries, and around what fits after an inode.
    for size in [0, 1, 63, 4031, 4032, 4033, 4095, 4096, 4097, 8191, 8192, 70_001, 3 << 20] {
        let name = format!("size-{size}");
        let contents = noise(size, size as u64 + 1);
        making.file(root, &name, attributes(0o644, 0, 0, (size as i64, 5)), &contents);
    }
    let highest = attributes(0o6751, u32::MAX - 1, 70_000, (-5, 999_999_999));
    making.file(root, "owned", highest, b"mine");
    let plain = attributes(0o755, 0, 0, (1, 0));
    let xattrs = [
        ("security.capability", capability()),
        ("user.empty", Vec::new()),
        ("user.large", noise(3000, 3)),
        ("trusted.one", b"1".to_vec()),
    ];
    making.file(root, "ping", with(plain.clone(), &xattrs), &noise(2000, 4));
    let huge = [("user.huge", noise(60_000, 5)), ("user.more", noise(9_001, 6))];
    making.file(root, "huge-xattrs", with(plain.clone(), &huge), b"small");
    let listed = [("system.posix_acl_access", access_list())];
    making.file(root, "listed", with(attributes(0o644, 0, 0, (2, 0)), &listed), b"acl");

    making.symlink(root, "link", &attributes(0o777, 5, 6, (7, 8)), b"size-1");
    making.symlink(root, "long-link", &attributes(0o777, 5, 6, (7, 8)), &[b'x'; 4095]);
    making.symlink(root, "fitting-link", &attributes(0o777, 5, 6, (7, 8)), &[b'y'; 4032]);
    making.special("null", 0o020_000, (1, 3), Special::CharDevice(1, 3));
    making.special("disk", 0o060_000, (259, 0x12345), Special::BlockDevice(259, 0x12345));
    making.special("pipe", 0o010_000, (0, 0), Special::Fifo);
    making.special("socket", 0o140_000, (0, 0), Special::Socket);

    let inside = with(attributes(0o2770, 3, 4, (11, 12)), &[("user.dir", vec![0, 1, 255])]);
    let below = making.disk.directory(root, b"below", inside.clone()).unwrap();
    making.expect("below", 0o040_000, &inside, b"");
    making.wanted.get_mut(Path::new("below")).unwrap().links = 2;
    // Names that sort before and after `.` and `..`.
    for name in ["!", "-", "...", ".hidden", "zz", "ü", "with space", &"n".repeat(255)] {
        let path = format!("below/{name}");
        making.file(below, &path, attributes(0o600, 0, 0, (0, 0)), name.as_bytes());
    }
    let node = making.file(below, "below/linked", plain, &noise(5000, 9));
    making.disk.link(root, b"other-name", node).unwrap();
    making.disk.link(below, b"third-name", node).unwrap();
    let mut linked = making.wanted[Path::new("below/linked")].clone();
    linked.links = 3;
    for path in ["below/linked", "other-name", "below/third-name"] {
        making.wanted.insert(path.into(), linked.clone());
    }
    making
}

#[test]
fn the_kernel_finds_what_was_written() {
    let scratch = TestDir::new("each");
    let making = one_of_each(&scratch);
    making.disk.finish([7; 16]).unwrap();
    assert_clean(&scratch.disk());
    let Some(mounted) = MountedDisk::new(&scratch) else { return };
    let found = look(&mounted.0);
    assert_eq!(found.keys().collect::<Vec<_>>(), making.wanted.keys().collect::<Vec<_>>());
    for (path, wanted) in &making.wanted {
        assert_eq!(&found[path], wanted, "{}", path.display());
    }
}

#[test]
fn the_same_calls_give_the_same_bytes() {
    let (one, other) = (TestDir::new("one"), TestDir::new("other"));
    for scratch in [&one, &other] {
        one_of_each(scratch).disk.finish([1; 16]).unwrap();
    }
    assert!(fs::read(one.disk()).unwrap() == fs::read(other.disk()).unwrap());
}

#[test]
fn large_directories_are_whole_and_searched() {
    let scratch = TestDir::new("many");
    let mut disk = scratch.writer();
    let many = disk.directory(disk.root(), b"many", Attributes::directory()).unwrap();
    let name = |n: u32| format!("{n:x}-{}", "y".repeat((n % 40) as usize));
    for n in 0..100_000 {
        let mut contents = name(n).into_bytes();
        contents.truncate(8);
        disk.file_of(many, name(n).as_bytes(), Attributes::file(), &mut &*contents).unwrap();
    }
    let deep = (0..300).fold(disk.root(), |parent, _| {
        disk.directory(parent, b"d", Attributes::directory()).unwrap()
    });
    disk.file_of(deep, b"end", Attributes::file(), &mut &b"here"[..]).unwrap();
    disk.finish([0; 16]).unwrap();
    assert_clean(&scratch.disk());
    let Some(mounted) = MountedDisk::new(&scratch) else { return };
    let many = mounted.0.join("many");
    assert_eq!(fs::read_dir(&many).unwrap().count(), 100_000);
    for n in (0..100_000).step_by(97) {
        let contents = fs::read_to_string(many.join(name(n))).unwrap();
        assert!(name(n).starts_with(&contents));
    }
    assert!(!many.join("absent").exists());
    let end = mounted.0.join("d/".repeat(300)).join("end");
    assert_eq!(fs::read(end).unwrap(), b"here");
    assert_eq!(fs::metadata(&mounted.0).unwrap().nlink(), 4);
}

#[test]
fn what_was_removed_is_not_there_and_what_moved_is() {
    let scratch = TestDir::new("removed");
    let mut disk = scratch.writer();
    let root = disk.root();
    let detached = disk.detached_directory(Attributes::directory()).unwrap();
    let large = noise(100_000, 1);
    let file = disk.file_of(detached, b"moves", Attributes::file(), &mut &*large).unwrap();
    disk.link(root, b"stays", file).unwrap();
    disk.link(root, b"goes", file).unwrap();
    disk.file_of(root, b"gone", Attributes::file(), &mut &*large).unwrap();
    let below = disk.directory(detached, b"below", Attributes::directory()).unwrap();
    disk.file_of(below, b"also-gone", Attributes::file(), &mut &*large).unwrap();
    assert!(disk.remove(root, b"goes") && disk.remove(root, b"gone"));
    assert!(!disk.remove(root, b"gone"));
    disk.clear(below);
    for (name, node) in disk.take_all(detached) {
        disk.attach(root, &name, node).unwrap();
    }
    let finished = disk.finish([0; 16]).unwrap();
    let unused: u64 = finished.unused.iter().map(|range| range.end - range.start).sum();
    assert_eq!(unused, 2 * (100_000 / BLOCK) * BLOCK);
    assert_clean(&scratch.disk());
    let Some(mounted) = MountedDisk::new(&scratch) else { return };
    let found = look(&mounted.0);
    let names: Vec<_> = found.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(names, ["", "below", "moves", "stays"]);
    assert_eq!((found[Path::new("moves")].links, &found[Path::new("stays")].contents), (2, &large));
}

#[test]
fn a_sparse_file_of_many_gigabytes_takes_no_room() {
    let scratch = TestDir::new("sparse");
    let mut disk = scratch.writer();
    let root = disk.root();
    let size = (5u64 << 30) + 10;
    let mut file = disk.file(root, b"sparse", Attributes::file()).unwrap();
    file.write(b"start").unwrap();
    file.skip(size - 8).unwrap();
    file.write(b"end").unwrap();
    assert_eq!(file.size(), size);
    file.end().unwrap();
    disk.file_of(root, b"next", Attributes::file(), &mut &b"intact"[..]).unwrap();
    disk.finish([0; 16]).unwrap();
    assert!(fs::metadata(scratch.disk()).unwrap().blocks() * 512 < 1 << 20);
    let Some(mounted) = MountedDisk::new(&scratch) else { return };
    let sparse = File::open(mounted.0.join("sparse")).unwrap();
    assert_eq!(sparse.metadata().unwrap().size(), size);
    let mut bytes = [1; 16];
    sparse.read_exact_at(&mut bytes, size - 16).unwrap();
    assert_eq!(&bytes, b"\0\0\0\0\0\0\0\0\0\0\0\0\0end");
    sparse.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"start\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(fs::read(mounted.0.join("next")).unwrap(), b"intact");
}

#[test]
fn what_cannot_be_written_is_refused_at_once() {
    let scratch = TestDir::new("refused");
    let mut disk = scratch.writer();
    let root = disk.root();
    let long = [b'a'; 256];
    for name in [b"".as_slice(), b".", b"..", b"a/b", b"a\0", &long] {
        assert!(disk.directory(root, name, Attributes::directory()).is_err());
        assert!(disk.file(root, name, Attributes::file()).is_err());
    }
    let file = disk.file_of(root, b"file", Attributes::file(), &mut &b""[..]).unwrap();
    assert!(disk.file(root, b"file", Attributes::file()).is_err());
    assert!(disk.directory(file, b"below", Attributes::directory()).is_err());
    assert!(disk.link(root, b"loop", root).is_err());
    for name in ["system.other", "plain"] {
        let odd = with(Attributes::file(), &[(name, Vec::new())]);
        assert!(disk.file(root, b"odd", odd).is_err());
        assert!(!holds_xattr(name.as_bytes()));
    }
    let twice = with(Attributes::directory(), &[("user.a", vec![1]), ("user.a", vec![2])]);
    assert!(disk.describe(root, twice).is_err());
    let large = with(Attributes::directory(), &[("user.a", vec![1; 3000])]);
    assert!(disk.describe(root, large).is_err());
    // A file that was not ended does not exist, and does not harm the next one.
    disk.file(root, b"half", Attributes::file()).unwrap().write(b"some").unwrap();
    disk.file_of(root, b"whole", Attributes::file(), &mut &b"whole"[..]).unwrap();
    let names: Vec<&[u8]> = disk.entries(root).map(|(name, _)| name).collect();
    assert_eq!(names, [b"file".as_slice(), b"whole"]);
    disk.finish([0; 16]).unwrap();
    assert_clean(&scratch.disk());
}
