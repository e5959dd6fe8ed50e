//! Fuzz body: unpacks arbitrary bytes as a layer and packs them into a disk.
//!
//! Used by the cargo-fuzz target and by `tests/layers.rs`, which runs it on fixed input. The
//! process is not confined here, so that an escape from the tree would be noticed.

use msb_image::pack::{OverlayXattrs, pack};
use msb_image::unpack::{Bounds, unpack};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tar::{EntryType, Header};

/// Small limits, so that each of them is reached.
const BOUNDS: Bounds = Bounds { bytes: 64 << 10, entries: 40, depth: 6 };
const BLOCK: usize = 512;
/// Name and content of a file next to the tree that must not change.
const CANARY: &str = "canary";

/// Unpacks the bytes as they are, then with correct checksums in all headers, and finally the layer
/// that they are a recipe for. Few inputs of a fuzzer would have correct checksums.
pub(crate) fn exercise(bytes: &[u8]) {
    let mut dir = FuzzDir::new();
    dir.unpack(bytes);
    dir.unpack(&with_checksums(bytes));
    let layer = layer_from_recipe(bytes);
    dir.unpack(&layer);
    pack_both_ways(&layer);
}

/// Packs a layer twice into one disk, so that it is also merged over itself.
fn pack_both_ways(bytes: &[u8]) {
    for marks in [None, Some(OverlayXattrs::Trusted)] {
        pack_with(bytes, marks);
    }
}

fn pack_with(bytes: &[u8], marks: Option<OverlayXattrs>) {
    let disk = rustix::fs::memfd_create("disk", rustix::fs::MemfdFlags::CLOEXEC);
    let disk = fs::File::from(disk.expect("a file in memory"));
    let kept = disk.try_clone().expect("the same file");
    if let Ok(packed) = pack([bytes, bytes], disk, &BOUNDS, [0; 16], marks) {
        assert_eq!(kept.metadata().expect("the file").len(), packed.size);
        let most = 2 * (BOUNDS.bytes + BOUNDS.entries * 8192) + 8192;
        assert!(packed.size <= most, "larger than the bound");
    }
}

/// A directory with the tree and the canary; removed when dropped.
struct FuzzDir {
    path: PathBuf,
    trees: u32,
}

impl FuzzDir {
    fn new() -> Self {
        // Prefer tmpfs: tens of thousands of trees are created and removed.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let thread = format!("{:?}", std::thread::current().id());
        let thread: String = thread.chars().filter(char::is_ascii_digit).collect();
        let path = parent.join(format!("msb-layers-{}-{thread}", std::process::id()));
        remove(&path);
        fs::create_dir(&path).expect("a directory");
        fs::set_permissions(&path, Permissions::from_mode(0o700)).expect("its permissions");
        fs::write(path.join(CANARY), CANARY).expect("a file");
        Self { path, trees: 0 }
    }

    fn unpack(&mut self, bytes: &[u8]) {
        let tree = self.path.join(format!("tree{}", self.trees));
        self.trees += 1;
        fs::create_dir(&tree).expect("a directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&tree, flags, Mode::empty()).expect("the tree");
        let many_owners = rustix::process::geteuid().is_root();
        if let Ok(contents) = unpack(bytes, root.as_fd(), &BOUNDS, many_owners) {
            assert!(contents.bytes <= BOUNDS.bytes, "more bytes than the bound");
            assert!(contents.entries <= BOUNDS.entries, "more entries than the bound");
        }
        let beside = fs::read_dir(&self.path).expect("the directory").count();
        assert_eq!(beside, 1 + self.trees as usize, "something next to the tree");
        let canary = self.path.join(CANARY);
        let meta = fs::symlink_metadata(&canary).expect("the canary");
        assert!(meta.is_file() && meta.nlink() == 1 && meta.mode() & 0o7000 == 0);
        assert_eq!(fs::read(&canary).expect("the canary"), CANARY.as_bytes());
        check_tree(&tree, 0);
        remove(&tree);
        fs::create_dir(&tree).expect("a directory");
    }
}

impl Drop for FuzzDir {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Checks that a tree has nothing that a layer must not create.
fn check_tree(directory: &Path, depth: u64) {
    let _ = fs::set_permissions(directory, Permissions::from_mode(0o700));
    for entry in fs::read_dir(directory).expect("a directory of our own") {
        let path = entry.expect("an entry").path();
        assert!(depth < BOUNDS.depth, "deeper than the bound: {}", path.display());
        let meta = fs::symlink_metadata(&path).expect("what was listed");
        let kind = meta.file_type();
        let is_whiteout = kind.is_char_device() && meta.rdev() == 0;
        assert!(!kind.is_block_device() && (!kind.is_char_device() || is_whiteout), "a device");
        assert!(meta.blocks() * 512 <= 2 * BOUNDS.bytes, "larger than the bound");
        let mut names = [0; 4096];
        let length = rustix::fs::llistxattr(&path, &mut names).unwrap_or(0);
        for name in names[..length].split(|byte| *byte == 0) {
            let is_ours = name == b"user.overlay.opaque" || name == b"security.selinux";
            let is_bad = [&b"security."[..], b"trusted.", b"user.overlay."]
                .iter()
                .any(|begin| name.starts_with(begin));
            assert!(is_ours || !is_bad, "{}", String::from_utf8_lossy(name));
        }
        if kind.is_dir() {
            check_tree(&path, depth + 1);
        }
    }
}

/// Removes a tree. `check_tree` has made its directories accessible.
fn remove(tree: &Path) {
    let _ = fs::remove_dir_all(tree);
}

/// Sets the checksum of every block that looks like a header.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for block in bytes.as_chunks_mut::<BLOCK>().0 {
        if &block[257..262] == b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    bytes
}

/// Builds a layer from a recipe: of four bytes one selects a piece, and the others change one byte
/// of it. So a fuzzer finds sequences of entries without finding the format first.
fn layer_from_recipe(recipe: &[u8]) -> Vec<u8> {
    let seeds = seeds();
    let mut layer = Vec::new();
    for [piece, field, at, value] in recipe.as_chunks::<4>().0.iter().take(PIECES) {
        let begin = layer.len();
        layer.extend_from_slice(&seeds[usize::from(*piece) % seeds.len()]);
        // An odd field leaves the piece unchanged.
        if field % 2 == 0 {
            let at = begin + FIELDS[usize::from(*field / 2) % FIELDS.len()] + usize::from(*at);
            if let Some(byte) = layer.get_mut(at) {
                *byte = *value;
            }
        }
    }
    with_checksums(&layer)
}

/// A few more than the limit of entries.
const PIECES: usize = 48;
/// Offsets of name, mode, owner, size, type, target, device, prefix, sparse map and body.
pub(crate) const FIELDS: [usize; 10] = [0, 100, 108, 124, 156, 157, 329, 345, 386, 512];

/// Pieces that attacks are made of, in any order.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let records = |text: &str| {
        let record = |length: usize| format!("{length} {text}\n");
        let mut length = text.len() + 3;
        while record(length).len() != length {
            length += 1;
        }
        record(length).into_bytes()
    };
    let pax = |text: &str| entry(EntryType::XHeader, "pax", "", &records(text));
    vec![
        entry(EntryType::Directory, "./", "", b""),
        entry(EntryType::Directory, "a/", "", b""),
        entry(EntryType::Directory, "a/b/c/d/", "", b""),
        entry(EntryType::Regular, "a", "", b"content"),
        entry(EntryType::Regular, "a/b", "", &[b'x'; 700]),
        entry(EntryType::Regular, "l/b/l/b/a", "", b""),
        entry(EntryType::Regular, "l/canary", "", b"intruder"),
        entry(EntryType::Regular, "../canary", "", b"intruder"),
        entry(EntryType::Symlink, "l", "..", b""),
        entry(EntryType::Symlink, "l", "/", b""),
        entry(EntryType::Symlink, "a", "a/b/c", b""),
        entry(EntryType::Symlink, "l", "a/b/c/d", b""),
        entry(EntryType::Symlink, "a/b/l", "../../..", b""),
        entry(EntryType::Link, "h", "a/b", b""),
        entry(EntryType::Link, "h", "l", b""),
        entry(EntryType::Link, "a", "l/canary", b""),
        entry(EntryType::Link, "h", "../canary", b""),
        entry(EntryType::Regular, ".wh.a", "", b""),
        entry(EntryType::Regular, "a/.wh..wh..opq", "", b""),
        entry(EntryType::Regular, "l/.wh.canary", "", b""),
        entry(EntryType::Regular, ".wh...", "", b""),
        entry(EntryType::Fifo, "a/p", "", b""),
        entry(EntryType::Char, "a", "", b""),
        entry(EntryType::Block, "b", "", b""),
        entry(EntryType::GNULongName, "././@LongLink", "", b"l/canary\0"),
        entry(EntryType::GNULongLink, "././@LongLink", "", b"../canary\0"),
        entry(EntryType::GNUSparse, "s", "", b"data"),
        entry(EntryType::XGlobalHeader, "pax", "", &records("path=../canary")),
        pax("path=l/canary"),
        pax("linkpath=../canary"),
        pax("size=600"),
        pax("GNU.sparse.map=0,4,9,3"),
        pax("GNU.sparse.realsize=99999999"),
        pax("GNU.sparse.major=1"),
        pax("SCHILY.xattr.security.capability=\u{1}\u{1}"),
        pax("SCHILY.xattr.user.overlay.redirect=/"),
        pax("SCHILY.xattr.user.mime=text"),
        pax("mtime=-1.5"),
        vec![0; 512],
    ]
}

/// A header and its body, padded to whole blocks.
fn entry(kind: EntryType, name: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(body.len() as u64);
    header.set_mode(0o6755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_600_000_000);
    // Not with the setters, which refuse hostile names.
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}
