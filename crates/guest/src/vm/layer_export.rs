//! Exports changes on the disks of sandboxes as an image layer.
//!
//! This runs only in a microVM that was started for it; no command ever runs there. Changed names
//! are found in the upper directories of the overlay, and content is read through the overlay,
//! because a renamed directory or a file with a changed owner has its content in lower layers.

use super::tar_writer::{TarEntry, TarType, TarWriter};
use crate::files::{FileResult, FrameStream, WithContext, as_path, failed};
use msb_spec::{ctl, lookup};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Directories that a sandbox creates if its image lacks them.
const SANDBOX_DIRS: [&[u8]; 6] = [b"dev", b"proc", b"root", b"run", b"sys", b"tmp"];
/// Directory of the sandbox's own files.
const SANDBOX_STATE: &[u8] = b".msb";
/// Mode, owner and group of a root that was not changed.
const UNCHANGED: (u32, u32, u32) = (0o755, 0, 0);
/// Prefix of a whiteout, which marks a removed file in a layer.
const WHITEOUT: &[u8] = b".wh.";
/// Marks an opaque directory, which hides lower layers.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Longest path, in the kernel and in a layer.
const PATH_LIMIT: usize = 4095;
/// The kernel's limit of an attribute list and of a value.
const XATTR_LIMIT: usize = 64 << 10;

/// An overlay with changes.
#[derive(Debug, Clone)]
pub(crate) struct OverlayChanges {
    /// Its mount point inside.
    pub(crate) at: String,
    /// Path of the mounted overlay.
    pub(crate) merged: PathBuf,
    /// The overlay without the changes.
    pub(crate) base: PathBuf,
    /// Upper directories, the topmost first.
    pub(crate) uppers: Vec<PathBuf>,
    /// Prefix of the overlay's own extended attributes.
    pub(crate) xattr_prefix: &'static str,
}

/// Writes the changes of all overlays as one layer.
pub(crate) fn write(stream: &mut FrameStream, all: &[OverlayChanges]) -> FileResult<()> {
    let mut writing = LayerWriter {
        tar: TarWriter::new(stream),
        links: HashMap::new(),
        xattr_prefix: "",
        top: 0,
    };
    for one in all {
        let open = |path: &PathBuf| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())
                .map_err(io::Error::from)
                .doing("open", path)
        };
        let (merged, base) = (open(&one.merged)?, open(&one.base)?);
        let uppers = one.uppers.iter().map(open).collect::<FileResult<Vec<_>>>()?;
        let mut path = one.at.trim_matches('/').as_bytes().to_vec();
        writing.xattr_prefix = one.xattr_prefix;
        writing.top = path.len();
        writing.write_root(&merged, &base, &uppers, &mut path)?;
    }
    writing.tar.finish()
}

/// Writes a layer as tar.
struct LayerWriter<'a> {
    tar: TarWriter<'a>,
    /// The first path of each inode with several hard links.
    links: HashMap<(u64, u64), Vec<u8>>,
    xattr_prefix: &'static str,
    /// Length of the overlay's own path.
    top: usize,
}

impl LayerWriter<'_> {
    /// Writes the root of an overlay, with the image's attributes unless they were changed.
    fn write_root(
        &mut self,
        merged: &OwnedFd,
        base: &OwnedFd,
        uppers: &[OwnedFd],
        path: &mut Vec<u8>,
    ) -> FileResult<()> {
        let stat = |fd: &OwnedFd| {
            rustix::fs::fstat(fd).map_err(io::Error::from).doing("stat", as_path(path))
        };
        let own = stat(merged)?;
        let unchanged = (own.st_mode & 0o7777, own.st_uid, own.st_gid) == UNCHANGED;
        let (shown, from) = if unchanged { (stat(base)?, base) } else { (own, merged) };
        let names = names_in(uppers, path)?;
        let mut kept = BTreeSet::new();
        for name in names {
            if !self.is_sandbox_dir(merged, base, &name) {
                kept.insert(name);
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        let xattrs = xattrs(from.as_fd(), path)?;
        self.tar.put(&TarEntry { xattrs, ..entry(path, TarType::Directory, &shown) })?;
        self.write_changes(merged, base, uppers, kept, path)
    }

    /// Whether a top-level name exists only because the sandbox needed it.
    fn is_sandbox_dir(&self, merged: &OwnedFd, base: &OwnedFd, name: &[u8]) -> bool {
        if self.top > 0 {
            return false;
        }
        let is_empty = || {
            let directory = open_directory(merged, name).ok();
            directory.and_then(|it| names(it.as_fd()).ok()).is_some_and(|names| names.is_empty())
        };
        let missing = || stat_nofollow(base, name).is_ok_and(|found| found.is_none());
        name == SANDBOX_STATE || SANDBOX_DIRS.contains(&name) && missing() && is_empty()
    }

    /// Writes changes in a directory that the image has as well.
    fn write_changes(
        &mut self,
        merged: &OwnedFd,
        base: &OwnedFd,
        uppers: &[OwnedFd],
        names: BTreeSet<Vec<u8>>,
        path: &mut Vec<u8>,
    ) -> FileResult<()> {
        for name in names {
            let length = push_name(path, &name)?;
            let about = |done: io::Result<Option<Stat>>| done.doing("stat", as_path(path));
            let (now, before) =
                (about(stat_nofollow(merged, &name))?, about(stat_nofollow(base, &name))?);
            match (now, before) {
                (None, None) => {}
                (None, Some(before)) => {
                    let mut hidden = path[..path.len() - name.len()].to_vec();
                    hidden.extend_from_slice(WHITEOUT);
                    hidden.extend_from_slice(&name);
                    self.whiteout(&hidden, &before)?;
                }
                (Some(now), before) if is_directory(&now) => {
                    let own = open_directory(merged, &name).doing("open", as_path(path))?;
                    let xattrs = xattrs(own.as_fd(), path)?;
                    self.tar.put(&TarEntry { xattrs, ..entry(path, TarType::Directory, &now) })?;
                    let over = before.as_ref().is_some_and(is_directory);
                    match self.upper_dirs(uppers, &name, path)?.filter(|_| over) {
                        Some(uppers) => {
                            let base = open_directory(base, &name).doing("open", as_path(path))?;
                            let names = names_in(&uppers, path)?;
                            self.write_changes(&own, &base, &uppers, names, path)?;
                        }
                        None => {
                            if before.is_some() {
                                let mut mark = path.clone();
                                mark.push(b'/');
                                mark.extend_from_slice(OPAQUE);
                                self.whiteout(&mark, &now)?;
                            }
                            self.write_tree(&own, path)?;
                        }
                    }
                }
                (Some(now), before) => {
                    let covered = before.is_none() && self.is_mount_point(path, &now);
                    if !covered {
                        self.write_entry(merged, &name, &now, path)?;
                    }
                }
            }
            path.truncate(length);
        }
        Ok(())
    }

    /// Whether a file is only a mount point that the sandbox created.
    fn is_mount_point(&self, path: &[u8], stat: &Stat) -> bool {
        let is_place = |place: &&str| place.trim_start_matches('/').as_bytes() == path;
        stat.st_size == 0
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && lookup::PLACES.iter().chain(&ctl::PLACES).any(is_place)
    }

    /// Upper directories of a path, the topmost first. None if no lower layer is visible: one of
    /// them is opaque, or was renamed from elsewhere.
    fn upper_dirs(
        &self,
        uppers: &[OwnedFd],
        name: &[u8],
        path: &[u8],
    ) -> FileResult<Option<Vec<OwnedFd>>> {
        let mut found = Vec::new();
        for upper in uppers {
            match stat_nofollow(upper, name).doing("stat", as_path(path))? {
                None => {}
                Some(stat) if is_directory(&stat) => {
                    let directory = open_directory(upper, name).doing("open", as_path(path))?;
                    let mark = |mark: &str| {
                        xattr(directory.as_fd(), &format!("{}{mark}", self.xattr_prefix))
                            .doing("stat", as_path(path))
                    };
                    if mark("opaque")?.is_some_and(|xattr| xattr == b"y")
                        || mark("redirect")?.is_some()
                    {
                        return Ok(None);
                    }
                    found.push(directory);
                }
                Some(_) => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    /// Writes a directory that is not in the image, with its content.
    fn write_tree(&mut self, directory: &OwnedFd, path: &mut Vec<u8>) -> FileResult<()> {
        for name in names(directory.as_fd()).doing("list", as_path(path))? {
            let length = push_name(path, &name)?;
            if let Some(stat) = stat_nofollow(directory, &name).doing("stat", as_path(path))? {
                if is_directory(&stat) {
                    let below = open_directory(directory, &name).doing("open", as_path(path))?;
                    let xattrs = xattrs(below.as_fd(), path)?;
                    self.tar.put(&TarEntry { xattrs, ..entry(path, TarType::Directory, &stat) })?;
                    self.write_tree(&below, path)?;
                } else {
                    self.write_entry(directory, &name, &stat, path)?;
                }
            }
            path.truncate(length);
        }
        Ok(())
    }

    /// Writes anything but a directory.
    fn write_entry(
        &mut self,
        parent: &OwnedFd,
        name: &[u8],
        stat: &Stat,
        path: &[u8],
    ) -> FileResult<()> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => TarType::File,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent, name, Vec::new())
                    .map_err(io::Error::from)
                    .doing("read", as_path(path))?;
                let target = target.as_bytes();
                let link = TarEntry { target, mode: 0o777, ..entry(path, TarType::Symlink, stat) };
                return self.tar.put(&link);
            }
            FileType::Fifo => TarType::Fifo,
            FileType::CharacterDevice => TarType::CharDevice,
            FileType::BlockDevice => TarType::BlockDevice,
            // Sockets are not exported: no process listens on them.
            _ => return Ok(()),
        };
        if kind != TarType::File {
            return self.tar.put(&entry(path, kind, stat));
        }
        let shared = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&shared) {
                let link = TarEntry { target: first, ..entry(path, TarType::HardLink, stat) };
                return self.tar.put(&link);
            }
            self.links.insert(shared, path.to_vec());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(parent, name, flags, Mode::empty())
            .map_err(io::Error::from)
            .doing("open", as_path(path))?;
        let xattrs = xattrs(file.as_fd(), path)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let entry = TarEntry { size, xattrs, ..entry(path, kind, stat) };
        self.tar.put_file(&entry, &File::from(file))
    }

    /// Writes a whiteout or opaque marker.
    fn whiteout(&mut self, path: &[u8], about: &Stat) -> FileResult<()> {
        self.tar.put(&TarEntry { mode: 0o644, ..entry(path, TarType::File, about) })
    }
}

fn entry<'a>(path: &'a [u8], kind: TarType, stat: &Stat) -> TarEntry<'a> {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let is_device = matches!(kind, TarType::CharDevice | TarType::BlockDevice);
    TarEntry {
        path,
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: u64::try_from(stat.st_mtime).unwrap_or(0),
        size: 0,
        target: b"",
        device: if is_device { (major, minor) } else { (0, 0) },
        xattrs: Vec::new(),
    }
}

/// Appends a name to the path. Returns the previous length.
fn push_name(path: &mut Vec<u8>, name: &[u8]) -> FileResult<usize> {
    let length = path.len();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    if path.len() > PATH_LIMIT {
        return Err(failed("descend into", as_path(path), libc::ENAMETOOLONG));
    }
    if name.starts_with(WHITEOUT) {
        let doing = "export (the name is reserved for whiteouts)";
        return Err(failed(doing, as_path(path), libc::EINVAL));
    }
    Ok(length)
}

/// Names in any of these directories.
fn names_in(uppers: &[OwnedFd], path: &[u8]) -> FileResult<BTreeSet<Vec<u8>>> {
    let mut all = BTreeSet::new();
    for upper in uppers {
        all.extend(names(upper.as_fd()).doing("list", as_path(path))?);
    }
    Ok(all)
}

fn names(directory: BorrowedFd<'_>) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut names = BTreeSet::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.insert(name.to_vec());
        }
    }
    Ok(names)
}

fn stat_nofollow(parent: &OwnedFd, name: &[u8]) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        stat => Ok(Some(stat?)),
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn open_directory(parent: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Whether an attribute is exported: those of users, ACLs and capabilities.
fn is_exported(name: &str) -> bool {
    let users = name.starts_with("user.") && !name.starts_with("user.overlay.");
    let others = name.starts_with("system.posix_acl_") || name == "security.capability";
    // `=` ends a name in a PAX record.
    (users || others) && !name.contains('=')
}

/// Extended attributes of an open file, by name.
fn xattrs(file: BorrowedFd<'_>, path: &[u8]) -> FileResult<Vec<(String, Vec<u8>)>> {
    let list = || -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut list = vec![0; XATTR_LIMIT];
        let length = match rustix::fs::flistxattr(file, &mut list[..]) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            length => length?,
        };
        let mut kept = Vec::new();
        for name in list[..length].split(|byte| *byte == 0) {
            let Some(name) = std::str::from_utf8(name).ok().filter(|name| is_exported(name)) else {
                continue;
            };
            if let Some(xattr) = xattr(file, name)? {
                kept.push((name.to_owned(), xattr));
            }
        }
        kept.sort();
        Ok(kept)
    };
    list().doing("read the attributes of", as_path(path))
}

fn xattr(file: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut xattr = vec![0; XATTR_LIMIT];
    match rustix::fs::fgetxattr(file, name, &mut xattr[..]) {
        Ok(length) => {
            xattr.truncate(length);
            Ok(Some(xattr))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_wire::{FileReply, FrameKind, FramedSocket, MAX_REQUEST};
    use rustix::fs::{CWD, XattrFlags};
    use std::fs;
    use std::io::{Read, Write};
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// What `tar` lists for a layer: type and mode, name, link target.
    fn listed(written: &OverlayChanges) -> Vec<String> {
        let (ours, theirs) = msb_sys::socket::pair().unwrap();
        let mut stream = FrameStream::new(theirs, usize::MAX);
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            File::from(ours).read_to_end(&mut all).unwrap();
            all
        });
        assert!(write(&mut stream, std::slice::from_ref(written)).is_ok());
        assert!(stream.flush().is_ok());
        drop(stream);
        let bytes = reading.join().unwrap();
        let mut frames = FramedSocket::new(&bytes[..], MAX_REQUEST);
        let (mut tar, mut done) = (Vec::new(), false);
        while let Some(frame) = frames.read_frame(&mut [0; 4096]).unwrap() {
            match frame.kind {
                FrameKind::Bytes => tar.extend(frame.payload),
                _ => done = matches!(frame.value(), Ok(FileReply::Done { .. })),
            }
        }
        assert!(done);
        let mut list = Command::new("tar")
            .args(["--list", "--verbose", "--numeric-owner", "--file=-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        list.stdin.take().unwrap().write_all(&tar).unwrap();
        let output = list.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let short = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            [&words[..1], &words[5..]].concat().join(" ")
        };
        text.lines().map(short).collect()
    }

    #[test]
    fn a_layer_says_what_was_written_and_what_is_gone() {
        let root = std::env::temp_dir().join(format!("msb-layer-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for path in ["etc/a", "gone", "hidden/below", "moved/deep", "became/x"] {
            put(&format!("base/{path}"), "base");
        }
        // The lower of two disks, then the upper one.
        put("under/etc/old", "");
        put("under/gone-again", "");
        put("upper/etc/a", "changed");
        for path in ["gone", "gone-again", "etc/old", "moved"] {
            let path = root.join("upper").join(path);
            rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        }
        put("upper/hidden/new", "new");
        put("upper/became", "a file");
        fs::create_dir(root.join("upper/renamed")).unwrap();
        fs::create_dir_all(root.join("upper/tmp")).unwrap();
        let mark = |path: &str, name: &str, xattr: &[u8]| {
            let path = root.join(path);
            rustix::fs::setxattr(&path, name, xattr, XattrFlags::empty()).unwrap();
        };
        mark("upper/hidden", "user.overlay.opaque", b"y");
        mark("upper/renamed", "user.overlay.redirect", b"/moved");
        // What an overlay of these shows.
        put("merged/etc/a", "changed");
        put("merged/hidden/new", "new");
        put("merged/became", "a file");
        put("merged/renamed/deep", "base");
        put(
            "merged/renamed/with a name that is longer than a header has room for, which is a hundred bytes as ever/x",
            "",
        );
        fs::create_dir(root.join("merged/tmp")).unwrap();
        fs::hard_link(root.join("merged/etc/a"), root.join("merged/etc/b")).unwrap();
        put("upper/etc/b", "");
        std::os::unix::fs::symlink("nowhere", root.join("merged/renamed/link")).unwrap();
        mark("merged/hidden/new", "user.note", b"text");
        let place = |name: &str| root.join(name);
        let written = OverlayChanges {
            at: "/".to_owned(),
            merged: place("merged"),
            base: place("base"),
            uppers: vec![place("upper"), place("under")],
            xattr_prefix: "user.overlay.",
        };
        let wanted = [
            "drwxr-xr-x ./",
            "-rw-r--r-- became",
            "drwxr-xr-x etc/",
            "-rw-r--r-- etc/a",
            "hrw-r--r-- etc/b link to etc/a",
            "-rw-r--r-- .wh.gone",
            "drwxr-xr-x hidden/",
            "-rw-r--r-- hidden/.wh..wh..opq",
            "-rw-r--r-- hidden/new",
            "-rw-r--r-- .wh.moved",
            "drwxr-xr-x renamed/",
            "-rw-r--r-- renamed/deep",
            "lrwxrwxrwx renamed/link -> nowhere",
            "drwxr-xr-x renamed/with a name that is longer than a header has room for, which is a hundred bytes as ever/",
            "-rw-r--r-- renamed/with a name that is longer than a header has room for, which is a hundred bytes as ever/x",
        ];
        assert_eq!(listed(&written), wanted);
        // Only the root has directories of the sandbox itself.
        let below = listed(&OverlayChanges { at: "/usr".to_owned(), ..written });
        assert_eq!(below.first().map(String::as_str), Some("drwxr-xr-x usr/"));
        assert!(below.contains(&"drwxr-xr-x usr/tmp/".to_owned()), "{below:#?}");
        assert!(below.contains(&"hrw-r--r-- usr/etc/b link to usr/etc/a".to_owned()));
        fs::remove_dir_all(Path::new(&root)).unwrap();
    }
}
