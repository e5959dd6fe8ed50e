//! Packs layers, mounts the disks, and compares them with the expected tree and with what overlayfs
//! shows of the same layers.

use super::*;
use crate::unpack::unpack;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tar::{EntryType, Header};

const BOUNDS: Bounds = Bounds { bytes: 8 << 20, entries: 1000, depth: 8 };

/// A directory that is unmounted and removed when dropped.
struct Scratch {
    path: PathBuf,
    mounted: Vec<PathBuf>,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("msb-pack-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self { path, mounted: Vec::new() }
    }

    fn directory(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Packs layers and checks the disk.
    fn pack(&self, layers: &[Vec<u8>]) -> Result<PathBuf> {
        self.pack_as("disk.erofs", layers, None)
    }

    fn pack_as(
        &self,
        name: &str,
        layers: &[Vec<u8>],
        marks: Option<OverlayXattrs>,
    ) -> Result<PathBuf> {
        let disk = self.path.join(name);
        let mut open = File::options();
        let file = open.read(true).write(true).create(true).truncate(true).open(&disk).unwrap();
        let packed = pack(layers.iter().map(Vec::as_slice), file, &BOUNDS, [1; 16], marks)?;
        assert_eq!(packed.diff_ids.len(), layers.len());
        assert_eq!(packed.size, fs::metadata(&disk).unwrap().len());
        let told = Command::new("fsck.erofs").arg("--extract").arg(&disk).output();
        let told = told.expect("erofs-utils is installed");
        let text = String::from_utf8_lossy(&told.stderr) + String::from_utf8_lossy(&told.stdout);
        assert!(told.status.success() && !text.contains("<E>"), "{text}");
        Ok(disk)
    }

    fn mount(&mut self, arguments: &[&str], source: &Path, at: PathBuf) -> PathBuf {
        let told = Command::new("mount").args(arguments).arg(source).arg(&at).output().unwrap();
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        self.mounted.push(at.clone());
        at
    }

    fn mount_disk(&mut self, disk: &Path) -> PathBuf {
        self.mount_disk_at("mounted", disk)
    }

    fn mount_disk_at(&mut self, at: &str, disk: &Path) -> PathBuf {
        self.mount(&["-t", "erofs", "-o", "ro,loop"], disk, self.directory(at))
    }

    fn unmount(&mut self) {
        for path in self.mounted.drain(..).rev() {
            let _ = Command::new("umount").arg(path).status();
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.unmount();
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Whether disks can be mounted here; prints SKIP if not.
#[expect(clippy::print_stderr, reason = "the tally of xtask reads it")]
fn can_mount() -> bool {
    let erofs = fs::read_to_string("/proc/filesystems").unwrap().contains("erofs");
    let can =
        rustix::process::geteuid().is_root() && erofs && Path::new("/dev/loop-control").exists();
    if !can {
        eprintln!("SKIP: mounting a disk needs root, EROFS and loop devices");
    }
    can
}

/// One entry of an archive.
fn entry(kind: EntryType, name: &str, change: impl FnOnce(&mut Header)) -> Vec<u8> {
    holding(kind, name, b"", change)
}

fn holding(kind: EntryType, name: &str, body: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(body.len() as u64);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_600_000_000);
    // Not with the setter, which refuses hostile names.
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    change(&mut header);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(name: &str, body: &[u8]) -> Vec<u8> {
    holding(EntryType::Regular, name, body, |_| {})
}

fn directory(name: &str) -> Vec<u8> {
    entry(EntryType::Directory, name, |_| {})
}

fn link(kind: EntryType, name: &str, target: &str) -> Vec<u8> {
    entry(kind, name, |header| {
        header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
    })
}

/// PAX records for the next entry.
fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest;
        while length.to_string().len() + rest != length {
            length += 1;
        }
        body.extend(format!("{length} {key}=").into_bytes());
        body.extend_from_slice(value);
        body.push(b'\n');
    }
    holding(EntryType::XHeader, "pax", &body, |_| {})
}

fn layer(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Type, content and metadata of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    contents: Vec<u8>,
    xattrs: BTreeMap<String, Vec<u8>>,
}

fn look(root: &Path) -> BTreeMap<String, Found> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let stat = match rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW) {
            // overlayfs lists whiteouts in a directory that only one layer has.
            Err(rustix::io::Errno::NOENT) => continue,
            stat => stat.unwrap(),
        };
        let contents = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => fs::read(&path).unwrap(),
            FileType::Symlink => fs::read_link(&path).unwrap().into_os_string().into_vec(),
            FileType::Directory => {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                Vec::new()
            }
            _ => stat.st_rdev.to_string().into_bytes(),
        };
        let found = Found {
            mode: stat.st_mode,
            owner: (stat.st_uid, stat.st_gid),
            mtime: (stat.st_mtime, stat.st_mtime_nsec as i64),
            contents,
            xattrs: xattrs(&path),
        };
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        all.insert(name, found);
    }
    all
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0u8; 1 << 16];
    let length = rustix::fs::llistxattr(path, names.as_mut_slice()).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0u8; 1 << 16];
        let os = OsString::from_vec(name.to_vec());
        let length = rustix::fs::lgetxattr(path, &os, value.as_mut_slice()).unwrap();
        value.truncate(length);
        (String::from_utf8(name.to_vec()).unwrap(), value)
    };
    names.map(value).collect()
}

#[test]
fn owners_attributes_and_devices_are_those_of_the_image() {
    let mut scratch = Scratch::new("true");
    let capability = [1u8, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let said: [(&str, &[u8]); 8] = [
        ("uid", b"4000000000"),
        ("gid", b"70000"),
        ("mtime", b"1234567890.25"),
        ("SCHILY.xattr.security.capability", &capability),
        ("SCHILY.xattr.user.mime", b"text"),
        ("SCHILY.xattr.security.selinux", b"left out"),
        ("SCHILY.xattr.trusted.overlay.redirect", b"/left/out"),
        ("SCHILY.xattr.user.overlay.opaque", b"y"),
    ];
    let device = |kind, name: &str, (major, minor)| {
        entry(kind, name, |header| {
            header.set_device_major(major).unwrap();
            header.set_device_minor(minor).unwrap();
        })
    };
    let entries = [
        pax(&[("uid", b"7"), ("mtime", b"5")]),
        directory("./"),
        pax(&said),
        holding(EntryType::Regular, "ping", &[b'p'; 5000], |header| header.set_mode(0o4711)),
        device(EntryType::Char, "null", (1, 3)),
        device(EntryType::Block, "vda", (254, 0)),
        device(EntryType::Char, "removal", (0, 0)),
        entry(EntryType::Fifo, "pipe", |header| header.set_uid(9)),
        link(EntryType::Symlink, "link", "/etc/passwd"),
        link(EntryType::Link, "pong", "ping"),
    ];
    let disk = scratch.pack(&[layer(&entries)]).unwrap();
    if !can_mount() {
        return;
    }
    let found = look(&scratch.mount_disk(&disk));
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["", "link", "null", "ping", "pipe", "pong", "vda"]);
    let ping = Found {
        mode: 0o104_711,
        owner: (4_000_000_000, 70_000),
        mtime: (1_234_567_890, 250_000_000),
        contents: vec![b'p'; 5000],
        xattrs: BTreeMap::from([
            ("security.capability".to_owned(), capability.to_vec()),
            ("user.mime".to_owned(), b"text".to_vec()),
        ]),
    };
    assert_eq!((&found["ping"], &found["pong"]), (&ping, &ping));
    assert_eq!((found[""].owner, found[""].mtime), ((7, 0), (5, 0)));
    assert_eq!((found["null"].mode, &*found["null"].contents), (0o020_755, &b"259"[..]));
    assert_eq!((found["vda"].mode, &*found["vda"].contents), (0o060_755, &b"65024"[..]));
    assert_eq!((found["pipe"].mode, found["pipe"].owner), (0o010_755, (9, 0)));
    assert_eq!(found["link"].contents, b"/etc/passwd");
}

#[test]
fn upper_layers_replace_remove_and_describe() {
    let mut scratch = Scratch::new("stack");
    let lowest = layer(&[
        directory("keep/"),
        file("keep/below", b"1"),
        file("replaced", &[b'x'; 10_000]),
        file("removed", b"1"),
        directory("emptied/"),
        file("emptied/old", b"1"),
        entry(EntryType::Directory, "described/", |header| header.set_mode(0o1777)),
        directory("again/"),
        file("again/old", b"1"),
        link(EntryType::Symlink, "lib", "keep"),
    ]);
    let middle = layer(&[
        file("replaced", b"2"),
        file(".wh.removed", b""),
        directory("emptied/"),
        file("emptied/.wh..wh..opq", b""),
        file("emptied/new", b"2"),
        // An implied directory keeps the metadata of the lower layer.
        file("described/inside", b"2"),
        file(".wh.again", b""),
        directory("again/"),
        file("again/new", b"2"),
        // A symlink of a lower layer is not followed: a directory replaces it.
        file("lib/own", b"2"),
        file(".wh.absent", b""),
    ]);
    let topmost = layer(&[
        entry(EntryType::Directory, "keep/", |header| header.set_mode(0o700)),
        file("removed", b"3"),
        directory("replaced/"),
        file("replaced/now", b"3"),
        file("emptied/.wh.new", b""),
    ]);
    let disk = scratch.pack(&[lowest, middle, topmost]).unwrap();
    if !can_mount() {
        return;
    }
    let found = look(&scratch.mount_disk(&disk));
    let shown: Vec<(&str, u32, &str)> = found
        .iter()
        .map(|(name, found)| {
            (name.as_str(), found.mode & 0o7777, std::str::from_utf8(&found.contents).unwrap())
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("", 0o755, ""),
            ("again", 0o755, ""),
            ("again/new", 0o755, "2"),
            ("described", 0o1777, ""),
            ("described/inside", 0o755, "2"),
            ("emptied", 0o755, ""),
            ("keep", 0o700, ""),
            ("keep/below", 0o755, "1"),
            ("lib", 0o755, ""),
            ("lib/own", 0o755, "2"),
            ("removed", 0o755, "3"),
            ("replaced", 0o755, ""),
            ("replaced/now", 0o755, "3"),
        ]
    );
}

#[test]
fn hostile_layers_are_refused() {
    let deep = format!("{}x", "d/".repeat(8));
    let sparse = [("GNU.sparse.map", &b"0,4"[..]), ("GNU.sparse.realsize", b"999999999999")];
    let hostile: [(&str, Vec<Vec<u8>>); 12] = [
        ("leads up", vec![file("../out", b"")]),
        ("absolute", vec![file("/etc/passwd", b"")]),
        ("hard link up", vec![link(EntryType::Link, "a", "../../etc/shadow")]),
        ("hard link nowhere", vec![link(EntryType::Link, "a", "etc/shadow")]),
        (
            "hard link through a link",
            vec![link(EntryType::Symlink, "l", "/.."), link(EntryType::Link, "a", "l/etc/shadow")],
        ),
        ("hard link to a directory", vec![directory("d/"), link(EntryType::Link, "a", "d")]),
        (
            "hard link into what it replaces",
            vec![file("d/f", b""), link(EntryType::Link, "d", "d/f")],
        ),
        ("below a removal", vec![file(".wh.d", b""), file("d/f", b"")]),
        ("removal of the parent", vec![file("d/.wh...", b"")]),
        (
            "links in a circle",
            vec![
                link(EntryType::Symlink, "a", "b"),
                link(EntryType::Symlink, "b", "a"),
                file("a/f", b""),
            ],
        ),
        ("deeper than allowed", vec![file(&deep, b"")]),
        ("larger than allowed", vec![pax(&sparse), file("s", b"data")]),
    ];
    let scratch = Scratch::new("hostile");
    for (what, entries) in hostile {
        let error = scratch.pack(&[layer(&entries)]).expect_err(what);
        assert!(matches!(error.kind(), Kind::Invalid | Kind::Limit), "{what}: {error:?}");
    }
    let many: Vec<Vec<u8>> = (0..1001).map(|n| file(&n.to_string(), b"")).collect();
    assert_eq!(scratch.pack(&[layer(&many)]).unwrap_err().kind(), Kind::Limit);
    // Limits of entries apply to each layer, as in unpacking.
    let some: Vec<Vec<u8>> = many[..900].to_vec();
    scratch.pack(&[layer(&some), layer(&some)]).unwrap();
}

#[test]
fn links_that_lead_out_stay_inside() {
    let mut scratch = Scratch::new("inside");
    let entries = [
        link(EntryType::Symlink, "out", "/../../tmp"),
        directory("tmp/"),
        file("out/msb-pack-canary", b"inside"),
        file("out/.wh.other", b""),
        link(EntryType::Link, "tmp/second", "out/msb-pack-canary"),
    ];
    let disk = scratch.pack(&[layer(&entries)]).unwrap();
    assert!(!Path::new("/tmp/msb-pack-canary").exists());
    if !can_mount() {
        return;
    }
    let found = look(&scratch.mount_disk(&disk));
    assert_eq!(found["tmp/msb-pack-canary"].contents, b"inside");
    assert_eq!(found["tmp/second"].contents, b"inside");
}

#[test]
fn what_was_replaced_takes_no_room() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new("room");
    let large = vec![b'x'; 4 << 20];
    let disk = scratch.pack(&[layer(&[file("a", &large)]), layer(&[file(".wh.a", b"")])]).unwrap();
    let found = fs::metadata(disk).unwrap();
    assert!(found.len() >= 4 << 20 && found.blocks() * 512 < 1 << 20);
}

/// xorshift64: the same sequence on every machine.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.below(3);
        let names: Vec<&str> = (0..depth).map(|_| ["a", "b", "c"][self.below(3)]).collect();
        names.join("/")
    }

    fn entry(&mut self) -> Vec<u8> {
        let path = self.path();
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", &path));
        match self.below(18) {
            0..=5 => file(&path, format!("{}", self.below(1000)).repeat(40).as_bytes()),
            6..=9 => entry(EntryType::Directory, &format!("{path}/"), |header| {
                header.set_uid(self.below(3) as u64);
            }),
            10 | 11 => file(&format!("{parent}/.wh.{name}"), b""),
            12 => file(&format!("{path}/.wh..wh..opq"), b""),
            13..=15 => {
                let target = self.path();
                let target = ["", "/", "../"][self.below(3)].to_owned() + &target;
                link(EntryType::Symlink, &path, &target)
            }
            _ => link(EntryType::Link, &path, &self.path()),
        }
    }
}

/// What can be compared. Not compared: attributes of overlayfs, and metadata of implied
/// directories, which `implied_dirs` restores for whole images only.
fn comparable(mut all: BTreeMap<String, Found>) -> BTreeMap<String, Found> {
    for found in all.values_mut() {
        (found.mtime, found.xattrs) = ((0, 0), BTreeMap::new());
        if FileType::from_raw_mode(found.mode) == FileType::Directory {
            (found.mode, found.owner) = (0, (0, 0));
        }
    }
    all
}

#[test]
fn disks_hold_what_overlayfs_shows_of_the_same_layers() {
    if !can_mount() {
        return;
    }
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut compared, mut refused) = (0, 0);
    for round in 0..80 {
        let mut scratch = Scratch::new("same");
        let layers: Vec<Vec<u8>> = (0..3)
            .map(|_| layer(&(0..=numbers.below(5)).map(|_| numbers.entry()).collect::<Vec<_>>()))
            .collect();
        // Topmost first, above an empty one: overlayfs needs two lower directories.
        let mut lowers = vec![scratch.directory("empty").display().to_string()];
        let mut whole = true;
        for (number, layer) in layers.iter().enumerate() {
            let tree = scratch.directory(&number.to_string());
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = rustix::fs::open(&tree, flags, Mode::empty()).unwrap();
            whole &= unpack(layer.as_slice(), root.as_fd(), &BOUNDS, true).is_ok();
            lowers.insert(0, tree.display().to_string());
        }
        let disk = scratch.pack(&layers);
        assert_eq!(disk.is_ok(), whole, "round {round}: {disk:?}");
        let Ok(disk) = disk else {
            refused += 1;
            continue;
        };
        let options = format!("ro,userxattr,lowerdir={}", lowers.join(":"));
        let at = scratch.directory("overlay");
        let overlay = scratch.mount(&["-t", "overlay", "-o", &options], Path::new("none"), at);
        let mounted = scratch.mount_disk(&disk);
        assert_eq!(comparable(look(&mounted)), comparable(look(&overlay)), "round {round}");
        compared += 1;
    }
    assert!(compared > 15 && refused > 15, "{compared} compared, {refused} refused");
}

#[test]
fn a_disk_with_marks_over_another_shows_what_one_of_all_layers_holds() {
    if !can_mount() {
        return;
    }
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let mut compared = 0;
    for round in 0..80 {
        let mut scratch = Scratch::new("over");
        let layers: Vec<Vec<u8>> = (0..3)
            .map(|_| layer(&(0..=numbers.below(5)).map(|_| numbers.entry()).collect::<Vec<_>>()))
            .collect();
        let Ok(all) = scratch.pack(&layers) else { continue };
        let (marks, options) = match round % 2 {
            0 => (OverlayXattrs::Trusted, "ro"),
            _ => (OverlayXattrs::User, "ro,userxattr"),
        };
        let below = scratch.pack_as("below.erofs", &layers[..1], None).unwrap();
        let above = scratch.pack_as("above.erofs", &layers[1..], Some(marks)).unwrap();
        let below = scratch.mount_disk_at("below", &below).display().to_string();
        let above = scratch.mount_disk_at("above", &above).display().to_string();
        let options = format!("{options},lowerdir={above}:{below}");
        let at = scratch.directory("overlay");
        let overlay = scratch.mount(&["-t", "overlay", "-o", &options], Path::new("none"), at);
        let all = scratch.mount_disk(&all);
        assert_eq!(comparable(look(&overlay)), comparable(look(&all)), "round {round}");
        compared += 1;
    }
    assert!(compared > 15, "{compared} compared");
}
