//! Writes the entries of one layer into an empty directory, in the format of overlayfs.
//!
//! The process is confined to that directory. In addition every path is resolved with `openat2(2)`
//! and RESOLVE_IN_ROOT, so that a symlink of the layer cannot lead out even without the
//! confinement.

use super::tar_reader::{SparseRun, TarEntry, TarKind, broken};
use super::{Bounds, exceeded};
use msb_spec::{Error, Result};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Prefix of a whiteout: the layer removes the file from lower layers.
pub(crate) const WHITEOUT: &[u8] = b".wh.";
/// Name of an opaque whiteout: the layer hides all of the lower directory.
pub(crate) const OPAQUE: &[u8] = b".wh..wh..opq";
/// Prefix of other markers of aufs, which are ignored.
pub(crate) const WHITEOUT_META: &[u8] = b".wh..wh.";
const OPAQUE_ATTRIBUTE: &str = "user.overlay.opaque";
/// Most directories that are kept open. Archives are sorted, so few are enough.
const OPEN_LIMIT: usize = 64;
/// Limit of all directory names in memory; their times are set at the end.
const NAMES_LIMIT: usize = 64 << 20;

/// Highest id. A sandbox has 64 Ki ids; a file of another id would have no owner inside.
const HIGHEST_ID: u32 = 0xffff;

/// Counters of an unpacked layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UnpackStats {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// Whether some entry has an owner other than root.
    pub(crate) owners: bool,
    /// Number of device nodes, which are skipped.
    pub(crate) devices: u64,
    /// Files in the archive. `replaced` says that some were replaced, so that there are fewer on
    /// disk.
    pub(crate) files: u64,
    pub(crate) replaced: bool,
}

/// The directory that a layer is unpacked into.
#[derive(Debug)]
pub(crate) struct LayerDir<'a> {
    root: BorrowedFd<'a>,
    limits: &'a Bounds,
    /// Whether files can have owners other than root.
    many_owners: bool,
    open: HashMap<Vec<u8>, OwnedFd>,
    times: Vec<(Vec<u8>, Timestamps)>,
    names: usize,
    stats: UnpackStats,
    /// Directories without an entry of their own so far.
    implied: HashSet<Vec<u8>>,
    implied_bytes: usize,
}

impl<'a> LayerDir<'a> {
    pub(crate) fn new(root: BorrowedFd<'a>, limits: &'a Bounds, many_owners: bool) -> Self {
        Self {
            root,
            limits,
            many_owners,
            open: HashMap::new(),
            times: Vec::new(),
            names: 0,
            stats: UnpackStats::default(),
            implied: HashSet::from([b".".to_vec()]),
            implied_bytes: 0,
        }
    }

    /// Creates one entry. A regular file is returned open, for its data.
    pub(crate) fn put(&mut self, entry: &TarEntry) -> Result<Option<OwnedFd>> {
        self.count(entry)?;
        let path = clean_path(&entry.path, self.limits.depth)?;
        let Some((parent, name)) = split(&path) else {
            if entry.kind != TarKind::Directory {
                return Err(broken("its root is not a directory"));
            }
            return self.root_entry(entry).map(|()| None);
        };
        self.enter(parent)?;
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return self.whiteout(parent, name, hidden).map(|()| None);
        }
        let made = match entry.kind {
            TarKind::Directory => self.directory(parent, name, entry).map(|()| None),
            TarKind::File => self.file(parent, name, entry).map(Some),
            TarKind::Symlink => self.symlink(parent, name, entry).map(|()| None),
            TarKind::HardLink => self.hard_link(parent, name, entry).map(|()| None),
            TarKind::Fifo => self.fifo(parent, name, entry).map(|()| None),
            TarKind::Device => {
                self.stats.devices += 1;
                Ok(None)
            }
        };
        made.map_err(|error| at_path(error, &path))
    }

    /// Sets the times of directories. Returns the counters and the implied directories.
    pub(crate) fn finish(mut self) -> Result<(UnpackStats, Vec<Vec<u8>>)> {
        self.open.clear();
        for (path, times) in std::mem::take(&mut self.times) {
            // Of several entries for one directory the last counts. A later entry may have replaced
            // it.
            if let Ok(directory) = self.resolve(&path) {
                rustix::fs::futimens(&directory, &times).map_err(failed)?;
            }
        }
        let mut implied: Vec<Vec<u8>> = self.implied.into_iter().collect();
        implied.sort();
        Ok((self.stats, implied))
    }

    /// Counts one more inode.
    fn count_one(&mut self) -> Result<()> {
        self.stats.entries += 1;
        match self.stats.entries > self.limits.entries {
            true => Err(exceeded("entries", self.limits.entries)),
            false => Ok(()),
        }
    }

    fn count(&mut self, entry: &TarEntry) -> Result<()> {
        self.count_one()?;
        if entry.kind == TarKind::File {
            self.stats.files += 1;
            let bytes = self.stats.bytes.checked_add(entry.size);
            self.stats.bytes = bytes
                .filter(|bytes| *bytes <= self.limits.bytes)
                .ok_or_else(|| exceeded("bytes", self.limits.bytes))?;
        }
        self.stats.owners |= (entry.uid, entry.gid) != (0, 0);
        if self.many_owners && entry.uid.max(entry.gid) > HIGHEST_ID {
            return Err(unowned(Errno::INVAL, entry));
        }
        Ok(())
    }

    fn root_entry(&mut self, entry: &TarEntry) -> Result<()> {
        let root = self.resolve(b"").map_err(failed)?;
        self.set_owner(root.as_fd(), entry)?;
        rustix::fs::fchmod(&root, Mode::from_raw_mode(entry.mode)).map_err(failed)?;
        self.implied.remove(b".".as_slice());
        self.times.push((Vec::new(), times(entry)));
        Ok(())
    }

    /// Opens a directory, and creates it and its parents if they are missing.
    fn enter(&mut self, path: &[u8]) -> Result<()> {
        if self.open.contains_key(path) {
            return Ok(());
        }
        if self.open.len() >= OPEN_LIMIT {
            self.open.clear();
        }
        let directory = match self.reach(path)? {
            Some(directory) => directory,
            None => self.make_parents(path)?,
        };
        self.open.insert(path.to_vec(), directory);
        Ok(())
    }

    /// Opens a directory; none if it does not exist. Its real depth is checked, because a chain of
    /// symlinks leads to any depth with short names.
    fn reach(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        match self.open_below(path, ResolveFlags::NO_SYMLINKS) {
            Ok(directory) => return Ok(Some(directory)),
            Err(Errno::NOENT) => return Ok(None),
            // A component is a symlink.
            Err(Errno::LOOP) => {}
            Err(Errno::NOTDIR) => return Err(below_no_directory()),
            Err(error) => return Err(failed(error)),
        }
        match self.resolve(path) {
            Ok(directory) if self.depth_of(&directory)? >= self.limits.depth => {
                Err(exceeded("depth", self.limits.depth))
            }
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(below_no_directory()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Number of directories between this one and the root, up to the limit.
    fn depth_of(&self, directory: &OwnedFd) -> Result<u64> {
        let identity = |file: BorrowedFd<'_>| {
            rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino)).map_err(failed)
        };
        let root = identity(self.root)?;
        let mut above =
            directory.try_clone().map_err(|error| Error::host("cannot open a layer", error))?;
        for depth in 0..self.limits.depth {
            if identity(above.as_fd())? == root {
                return Ok(depth);
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            above = rustix::fs::openat(&above, "..", flags, Mode::empty()).map_err(failed)?;
        }
        Ok(self.limits.depth)
    }

    /// Opens a directory. Symlinks are resolved inside of the root.
    fn resolve(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open_below(path, ResolveFlags::empty())
    }

    fn open_below(&self, path: &[u8], also: ResolveFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b".".as_slice() } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        rustix::fs::openat2(self.root, os(path), flags, Mode::empty(), within | also)
    }

    /// Creates missing parents. They count as entries: one name can imply hundreds.
    fn make_parents(&mut self, path: &[u8]) -> Result<OwnedFd> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let ends: Vec<usize> = ends.map(|(at, _)| at).chain([path.len()]).collect();
        let mut directory = self.resolve(b"").map_err(failed)?;
        for end in ends {
            directory = match self.reach(&path[..end])? {
                Some(found) => found,
                None => {
                    self.count_one()?;
                    let (_, name) = split(&path[..end]).ok_or_else(|| broken("an empty name"))?;
                    let mode = Mode::from_raw_mode(0o755);
                    rustix::fs::mkdirat(&directory, os(name), mode).map_err(
                        |error| match error {
                            Errno::EXIST => broken("a name below a dangling symlink"),
                            other => failed(other),
                        },
                    )?;
                    self.note_implied(&path[..end]);
                    self.reach(&path[..end])?.ok_or_else(below_no_directory)?
                }
            };
        }
        Ok(directory)
    }

    /// Records an implied directory. Beyond the limits only metadata of lower layers is lost.
    fn note_implied(&mut self, path: &[u8]) {
        /// More than most builders leave out.
        const IMPLIED_LIMIT: usize = 4096;
        /// Limit of all their names, which are part of the reply and of `layer.json`.
        const IMPLIED_BYTES: usize = 512 << 10;
        let bytes = self.implied_bytes + path.len();
        if self.implied.len() < IMPLIED_LIMIT && bytes <= IMPLIED_BYTES {
            self.implied_bytes = bytes;
            self.implied.insert(path.to_vec());
        }
    }

    fn parent(&self, path: &[u8]) -> BorrowedFd<'_> {
        self.open.get(path).map_or(self.root, AsFd::as_fd)
    }

    fn directory(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<()> {
        let mode = Mode::from_raw_mode(entry.mode);
        let mut opaque = false;
        loop {
            match rustix::fs::mkdirat(self.parent(parent), os(name), mode) {
                Ok(()) => break,
                Err(Errno::EXIST) => match self.type_of(parent, name)? {
                    FileType::Directory => break,
                    // The layer has removed the lower directory and creates a new one: it is
                    // opaque.
                    FileType::CharacterDevice => {
                        opaque = true;
                        self.remove_existing(parent, name)?;
                    }
                    _ => self.remove_existing(parent, name)?,
                },
                Err(error) => return Err(failed(error)),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(self.parent(parent), os(name), flags, Mode::empty())
            .map_err(failed)?;
        self.set_owner(made.as_fd(), entry)?;
        rustix::fs::fchmod(&made, mode).map_err(failed)?;
        if opaque {
            set_opaque(made.as_fd())?;
        }
        let path = joined(parent, name);
        self.implied.remove(&path);
        self.names += path.len();
        if self.names > NAMES_LIMIT {
            return Err(exceeded("entries", self.limits.entries));
        }
        self.times.push((path, times(entry)));
        Ok(())
    }

    fn file(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(entry.mode);
        let open = |tree: &Self| rustix::fs::openat(tree.parent(parent), os(name), flags, mode);
        let file = match open(self) {
            Err(Errno::EXIST) => {
                self.remove_existing(parent, name)?;
                open(self).map_err(failed)?
            }
            file => file.map_err(failed)?,
        };
        if entry.sparse_runs.is_some() {
            rustix::fs::ftruncate(&file, entry.size).map_err(failed)?;
        }
        Ok(file)
    }

    /// Sets owner, mode and times after the data: a write changes the mtime and clears set-id bits.
    pub(crate) fn finish_file(&self, file: BorrowedFd<'_>, entry: &TarEntry) -> Result<()> {
        self.set_owner(file, entry)?;
        if entry.mode & 0o6000 != 0 {
            rustix::fs::fchmod(file, Mode::from_raw_mode(entry.mode)).map_err(failed)?;
        }
        rustix::fs::futimens(file, &times(entry)).map_err(failed)
    }

    fn symlink(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<()> {
        if entry.link.is_empty() {
            return Err(broken("a symlink without a target"));
        }
        let make =
            |tree: &Self| rustix::fs::symlinkat(os(&entry.link), tree.parent(parent), os(name));
        self.replace_with(parent, name, make)?;
        self.set_owner_by_name(parent, name, entry)
    }

    fn hard_link(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<()> {
        let target = clean_path(&entry.link, self.limits.depth)?;
        let Some((above, last)) = split(&target) else {
            return Err(broken("a hard link to its root"));
        };
        let above = self.resolve(above).map_err(|_| broken("a hard link to a missing file"))?;
        let none = AtFlags::empty();
        let make =
            |tree: &Self| rustix::fs::linkat(&above, os(last), tree.parent(parent), os(name), none);
        if joined(parent, name) == target {
            return Err(broken("a hard link to itself"));
        }
        match self.replace_with(parent, name, make) {
            Err(error) if error.kind() == msb_spec::Kind::Host => {
                Err(broken("a hard link to a missing file"))
            }
            made => made,
        }
    }

    fn fifo(&mut self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<()> {
        let mode = Mode::from_raw_mode(entry.mode);
        self.replace_with(parent, name, |tree| {
            rustix::fs::mknodat(tree.parent(parent), os(name), FileType::Fifo, mode, 0)
        })?;
        self.set_owner_by_name(parent, name, entry)
    }

    /// Creates something; replaces what exists.
    fn replace_with(
        &mut self,
        parent: &[u8],
        name: &[u8],
        make: impl Fn(&Self) -> rustix::io::Result<()>,
    ) -> Result<()> {
        match make(self) {
            Err(Errno::EXIST) => {
                self.remove_existing(parent, name)?;
                make(self).map_err(failed)
            }
            made => made.map_err(failed),
        }
    }

    /// Creates a whiteout for a name of lower layers.
    fn whiteout(&mut self, parent: &[u8], name: &[u8], hidden: &[u8]) -> Result<()> {
        if name == OPAQUE {
            return set_opaque(self.parent(parent));
        }
        if name.starts_with(WHITEOUT_META) {
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(broken("a whiteout without a valid name"));
        }
        let device = FileType::CharacterDevice;
        match rustix::fs::mknodat(self.parent(parent), os(hidden), device, Mode::empty(), 0) {
            Ok(()) => Ok(()),
            // A whiteout removes the file of lower layers, not the one of this layer.
            Err(Errno::EXIST) => match self.type_of(parent, hidden)? {
                FileType::Directory => {
                    let path = joined(parent, hidden);
                    let below = self.resolve(&path).map_err(failed)?;
                    set_opaque(below.as_fd())
                }
                _ => Ok(()),
            },
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes what a later entry replaces. Open directories may be below it.
    fn remove_existing(&mut self, parent: &[u8], name: &[u8]) -> Result<()> {
        self.stats.replaced = true;
        let directory = self.parent(parent).try_clone_to_owned();
        let directory = directory.map_err(|error| Error::host("cannot open a layer", error))?;
        self.open.clear();
        self.open.insert(
            parent.to_vec(),
            directory.try_clone().map_err(|error| Error::host("cannot open a layer", error))?,
        );
        remove(directory.as_fd(), name, self.limits.depth).map_err(failed)
    }

    fn type_of(&self, parent: &[u8], name: &[u8]) -> Result<FileType> {
        let stat = rustix::fs::statat(self.parent(parent), os(name), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed)?;
        Ok(FileType::from_raw_mode(stat.st_mode))
    }

    fn set_owner(&self, file: BorrowedFd<'_>, entry: &TarEntry) -> Result<()> {
        if self.many_owners && (entry.uid, entry.gid) != (0, 0) {
            let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
            rustix::fs::fchown(file, Some(uid), Some(gid))
                .map_err(|error| unowned(error, entry))?;
        }
        for (name, value) in entry.xattrs.iter().filter(|(name, _)| may_be_set(name)) {
            rustix::fs::fsetxattr(file, os(name), value, XattrFlags::empty()).map_err(failed)?;
        }
        Ok(())
    }

    fn set_owner_by_name(&self, parent: &[u8], name: &[u8], entry: &TarEntry) -> Result<()> {
        let (parent, itself) = (self.parent(parent), AtFlags::SYMLINK_NOFOLLOW);
        if self.many_owners && (entry.uid, entry.gid) != (0, 0) {
            let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
            rustix::fs::chownat(parent, os(name), Some(uid), Some(gid), itself)
                .map_err(|error| unowned(error, entry))?;
        }
        rustix::fs::utimensat(parent, os(name), &times(entry), itself).map_err(failed)
    }
}

/// Writes the data of a file. A sparse map gives the offsets. Without one, blocks of zeros become
/// holes: a few compressed bytes can stand for any number of them.
#[derive(Debug)]
pub(crate) struct FileWriter<'a> {
    file: BorrowedFd<'a>,
    pieces: Option<std::slice::Iter<'a, SparseRun>>,
    at: u64,
    left: u64,
}

impl<'a> FileWriter<'a> {
    pub(crate) fn new(file: BorrowedFd<'a>, entry: &'a TarEntry) -> Self {
        let pieces = entry.sparse_runs.as_ref().map(|pieces| pieces.iter());
        Self { file, pieces, at: 0, left: 0 }
    }

    pub(crate) fn write(&mut self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let n = match &mut self.pieces {
                None => {
                    let n = match is_hole(data) {
                        true => data.len(),
                        false => rustix::io::pwrite(self.file, data, self.at).map_err(failed)?,
                    };
                    self.at += n as u64;
                    n
                }
                Some(pieces) => {
                    while self.left == 0 {
                        let piece = pieces
                            .next()
                            .ok_or_else(|| broken("data outside of the sparse map"))?;
                        (self.at, self.left) = (piece.at, piece.len);
                    }
                    let most = data.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                    let n =
                        rustix::io::pwrite(self.file, &data[..most], self.at).map_err(failed)?;
                    self.at += n as u64;
                    self.left -= n as u64;
                    n
                }
            };
            data = &data[n..];
        }
        Ok(())
    }

    /// Sets the size of a file that ends in a hole.
    pub(crate) fn end(self) -> Result<()> {
        match self.pieces {
            None => rustix::fs::ftruncate(self.file, self.at).map_err(failed),
            Some(_) => Ok(()),
        }
    }
}

/// Smallest hole; less would save no block.
const SMALLEST_HOLE: usize = 4096;

fn is_hole(data: &[u8]) -> bool {
    data.len() >= SMALLEST_HOLE && data.iter().all(|byte| *byte == 0)
}

/// Removes `.` components and repeated slashes. Absolute paths and `..` are refused.
pub(crate) fn clean_path(name: &[u8], depth: u64) -> Result<Vec<u8>> {
    // Some tools name the root of a layer `/`.
    if name.starts_with(b"/") && name != b"/" {
        return Err(broken("an absolute path").cause(shown(name)));
    }
    let mut clean_path = Vec::with_capacity(name.len());
    let mut components = 0;
    for component in name.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => continue,
            b".." => return Err(broken("a path with `..`").cause(shown(name))),
            long if long.len() > 255 => return Err(broken("a name longer than 255 bytes")),
            _ => {}
        }
        components += 1;
        if components > depth {
            return Err(exceeded("depth", depth));
        }
        if !clean_path.is_empty() {
            clean_path.push(b'/');
        }
        clean_path.extend_from_slice(component);
    }
    Ok(clean_path)
}

/// Whether a layer may set this attribute. Others have meaning to the kernel or to overlayfs.
fn may_be_set(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") && name.len() <= 255
}

fn set_opaque(directory: BorrowedFd<'_>) -> Result<()> {
    rustix::fs::fsetxattr(directory, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty()).map_err(failed)
}

pub(crate) fn below_no_directory() -> Error {
    broken("a name below something that is not a directory")
}

/// Counts the files of a tree and their bytes. Hard links count once.
pub(crate) fn measure(directory: BorrowedFd<'_>, depth: u64) -> rustix::io::Result<(u64, u64)> {
    fn add(
        directory: BorrowedFd<'_>,
        depth: u64,
        seen: &mut HashSet<u64>,
        sum: &mut (u64, u64),
    ) -> rustix::io::Result<()> {
        for entry in rustix::fs::Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile if stat.st_nlink == 1 || seen.insert(stat.st_ino) => {
                    sum.0 += 1;
                    sum.1 += u64::try_from(stat.st_size).unwrap_or(0);
                }
                FileType::Directory if depth > 0 => {
                    let flags =
                        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let below = rustix::fs::openat(directory, name, flags, Mode::empty())?;
                    add(below.as_fd(), depth - 1, seen, sum)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
    let mut sum = (0, 0);
    add(directory, depth, &mut HashSet::new(), &mut sum)?;
    Ok(sum)
}

/// Removes a file or a whole tree, without following symlinks.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &[u8], depth: u64) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(parent, os(name), AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        removed => return removed,
    }
    if depth == 0 {
        return Err(Errno::NAMETOOLONG);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, os(name), flags, Mode::empty())?;
    for entry in rustix::fs::Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            remove(directory.as_fd(), name, depth - 1)?;
        }
    }
    rustix::fs::unlinkat(parent, os(name), AtFlags::REMOVEDIR)
}

fn times(entry: &TarEntry) -> Timestamps {
    let (tv_sec, tv_nsec) = entry.mtime;
    let time = Timespec { tv_sec, tv_nsec: tv_nsec.into() };
    Timestamps { last_access: time, last_modification: time }
}

pub(crate) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    Some(match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    })
}

fn joined(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

fn shown(name: &[u8]) -> String {
    format!("`{}`", msb_spec::shown(&String::from_utf8_lossy(name)))
}

pub(crate) fn at_path(error: Error, path: &[u8]) -> Error {
    match error.kind() {
        msb_spec::Kind::Limit => error,
        _ => error.cause(format!("at {}", shown(path))),
    }
}

fn unowned(error: Errno, entry: &TarEntry) -> Error {
    let owner = format!("{}:{}", entry.uid, entry.gid);
    match error {
        // The id is not mapped in the user namespace.
        Errno::INVAL => Error::unsupported(format!("a file of the image belongs to `{owner}`"))
            .cause("a sandbox has no such id")
            .hint("ids go up to 65535, as far as /etc/subuid and /etc/subgid grant them"),
        other => failed(other),
    }
}

fn failed(error: Errno) -> Error {
    let wrapped = Error::host("cannot unpack a layer of the image", std::io::Error::from(error));
    match error {
        Errno::NOSPC | Errno::DQUOT => {
            wrapped.hint("`msb prune` frees space; MSB_HOME can name a directory on another disk")
        }
        _ => wrapped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_are_refused() {
        assert_eq!(clean_path(b"./a//b/./c/", 9).unwrap(), b"a/b/c");
        assert_eq!(clean_path(b"./", 9).unwrap(), b"");
        assert_eq!(clean_path(b"/", 9).unwrap(), b"");
        for name in [b"/a".as_slice(), b"..", b"a/../b", b"a/..", b"./.."] {
            assert!(clean_path(name, 9).is_err());
        }
        assert_eq!(clean_path(b"a/b/c", 2).unwrap_err().kind(), msb_spec::Kind::Limit);
    }

    #[test]
    fn only_attributes_of_users_are_taken() {
        assert!(may_be_set(b"user.mime"));
        for name in ["user.overlay.redirect", "trusted.overlay.opaque", "security.capability"] {
            assert!(!may_be_set(name.as_bytes()));
        }
    }
}
