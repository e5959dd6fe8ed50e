//! What sandboxes wrote to their disks, as a layer of an image.
//!
//! Only a machine that was started for this does it: it has the disks, and nothing ever runs in
//! it. What was written is looked for where an overlay keeps it, and read as an overlay shows it:
//! a directory that was renamed and a file whose owner was changed have their contents in the
//! layers below.

use super::tape::{Entry, Sort, Tape};
use crate::files::{Doing, Done, Stream, as_path, failed};
use msb_spec::{ctl, lookup};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Directories that a sandbox makes for itself where its image has none.
const SANDBOX_OWN: [&[u8]; 6] = [b"dev", b"proc", b"root", b"run", b"sys", b"tmp"];
/// Where a sandbox keeps what is its own.
const SANDBOX_PLACE: &[u8] = b".msb";
/// How every sandbox finds its own root: mode, owner and group.
const UNCHANGED: (u32, u32, u32) = (0o755, 0, 0);
/// How layers write that something is gone: no file can be called so.
const WHITEOUT: &[u8] = b".wh.";
/// How they write that a directory hides what is below it.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The kernel's limit of a path, and of a path in a layer.
const PATH_LIMIT: usize = 4095;
/// The kernel's limit of a list of attributes and of a value.
const ATTRIBUTE_LIMIT: usize = 64 << 10;

/// One overlay of the machine that was written to.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    /// Where it appears inside.
    pub(crate) at: String,
    /// What the overlay shows.
    pub(crate) merged: PathBuf,
    /// What it showed before anybody wrote.
    pub(crate) base: PathBuf,
    /// What was written, the topmost first.
    pub(crate) uppers: Vec<PathBuf>,
    /// How the names of attributes begin that are the overlay's.
    pub(crate) marks: &'static str,
}

/// Writes all overlays as one layer.
pub(crate) fn write(stream: &mut Stream, all: &[Written]) -> Done<()> {
    let mut writing = Writing { tape: Tape::new(stream), links: HashMap::new(), marks: "", top: 0 };
    for one in all {
        let place = |path: &PathBuf| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())
                .map_err(io::Error::from)
                .doing("open", path)
        };
        let (merged, base) = (place(&one.merged)?, place(&one.base)?);
        let uppers = one.uppers.iter().map(place).collect::<Done<Vec<_>>>()?;
        let mut path = one.at.trim_matches('/').as_bytes().to_vec();
        writing.marks = one.marks;
        writing.top = path.len();
        writing.root(&merged, &base, &uppers, &mut path)?;
    }
    writing.tape.finish()
}

/// A layer that is written.
struct Writing<'a> {
    tape: Tape<'a>,
    /// The first name of files that have several.
    links: HashMap<(u64, u64), Vec<u8>>,
    marks: &'static str,
    /// How long the path of the overlay itself is.
    top: usize,
}

impl Writing<'_> {
    /// The root of an overlay, as its image has it unless that was changed.
    fn root(
        &mut self,
        merged: &OwnedFd,
        base: &OwnedFd,
        uppers: &[OwnedFd],
        path: &mut Vec<u8>,
    ) -> Done<()> {
        let stat = |fd: &OwnedFd| {
            rustix::fs::fstat(fd).map_err(io::Error::from).doing("look at", as_path(path))
        };
        let own = stat(merged)?;
        let unchanged = (own.st_mode & 0o7777, own.st_uid, own.st_gid) == UNCHANGED;
        let (shown, from) = if unchanged { (stat(base)?, base) } else { (own, merged) };
        let names = written(uppers, path)?;
        let mut kept = BTreeSet::new();
        for name in names {
            if !self.is_own(merged, base, &name) {
                kept.insert(name);
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        let attributes = attributes(from.as_fd(), path)?;
        self.tape.put(&Entry { attributes, ..entry(path, Sort::Directory, &shown) })?;
        self.changed(merged, base, uppers, kept, path)
    }

    /// Whether a name at the top is only there because the sandbox needed it.
    fn is_own(&self, merged: &OwnedFd, base: &OwnedFd, name: &[u8]) -> bool {
        if self.top > 0 {
            return false;
        }
        let is_empty = || {
            let directory = open_directory(merged, name).ok();
            directory.and_then(|it| names(it.as_fd()).ok()).is_some_and(|names| names.is_empty())
        };
        let missing = || look(base, name).is_ok_and(|found| found.is_none());
        name == SANDBOX_PLACE || SANDBOX_OWN.contains(&name) && missing() && is_empty()
    }

    /// What was changed in a directory that the image has as well.
    fn changed(
        &mut self,
        merged: &OwnedFd,
        base: &OwnedFd,
        uppers: &[OwnedFd],
        names: BTreeSet<Vec<u8>>,
        path: &mut Vec<u8>,
    ) -> Done<()> {
        for name in names {
            let length = descend(path, &name)?;
            let about = |done: io::Result<Option<Stat>>| done.doing("look at", as_path(path));
            let (now, before) = (about(look(merged, &name))?, about(look(base, &name))?);
            match (now, before) {
                (None, None) => {}
                (None, Some(before)) => {
                    let mut hidden = path[..path.len() - name.len()].to_vec();
                    hidden.extend_from_slice(WHITEOUT);
                    hidden.extend_from_slice(&name);
                    self.hide(&hidden, &before)?;
                }
                (Some(now), before) if is_directory(&now) => {
                    let own = open_directory(merged, &name).doing("open", as_path(path))?;
                    let attributes = attributes(own.as_fd(), path)?;
                    self.tape.put(&Entry { attributes, ..entry(path, Sort::Directory, &now) })?;
                    let over = before.as_ref().is_some_and(is_directory);
                    match self.above(uppers, &name, path)?.filter(|_| over) {
                        Some(uppers) => {
                            let base = open_directory(base, &name).doing("open", as_path(path))?;
                            let names = written(&uppers, path)?;
                            self.changed(&own, &base, &uppers, names, path)?;
                        }
                        None => {
                            if before.is_some() {
                                let mut mark = path.clone();
                                mark.push(b'/');
                                mark.extend_from_slice(OPAQUE);
                                self.hide(&mark, &now)?;
                            }
                            self.everything(&own, path)?;
                        }
                    }
                }
                (Some(now), before) => {
                    let covered = before.is_none() && self.is_covered(path, &now);
                    if !covered {
                        self.one(merged, &name, &now, path)?;
                    }
                }
            }
            path.truncate(length);
        }
        Ok(())
    }

    /// Whether a file is only there because the sandbox showed one of its own over it.
    fn is_covered(&self, path: &[u8], stat: &Stat) -> bool {
        let is_place = |place: &&str| place.trim_start_matches('/').as_bytes() == path;
        stat.st_size == 0
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && lookup::PLACES.iter().chain(&ctl::PLACES).any(is_place)
    }

    /// What was written below a directory, the topmost first. None if nothing of the image is seen
    /// in it: one of these hides what is below, or has it from elsewhere.
    fn above(&self, uppers: &[OwnedFd], name: &[u8], path: &[u8]) -> Done<Option<Vec<OwnedFd>>> {
        let mut found = Vec::new();
        for upper in uppers {
            match look(upper, name).doing("look at", as_path(path))? {
                None => {}
                Some(stat) if is_directory(&stat) => {
                    let directory = open_directory(upper, name).doing("open", as_path(path))?;
                    let mark = |mark: &str| {
                        value(directory.as_fd(), &format!("{}{mark}", self.marks))
                            .doing("look at", as_path(path))
                    };
                    if mark("opaque")?.is_some_and(|value| value == b"y")
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

    /// Everything in a directory of which the image has nothing.
    fn everything(&mut self, directory: &OwnedFd, path: &mut Vec<u8>) -> Done<()> {
        for name in names(directory.as_fd()).doing("list", as_path(path))? {
            let length = descend(path, &name)?;
            if let Some(stat) = look(directory, &name).doing("look at", as_path(path))? {
                if is_directory(&stat) {
                    let below = open_directory(directory, &name).doing("open", as_path(path))?;
                    let attributes = attributes(below.as_fd(), path)?;
                    self.tape.put(&Entry { attributes, ..entry(path, Sort::Directory, &stat) })?;
                    self.everything(&below, path)?;
                } else {
                    self.one(directory, &name, &stat, path)?;
                }
            }
            path.truncate(length);
        }
        Ok(())
    }

    /// Anything but a directory.
    fn one(&mut self, parent: &OwnedFd, name: &[u8], stat: &Stat, path: &[u8]) -> Done<()> {
        let sort = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Sort::File,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent, name, Vec::new())
                    .map_err(io::Error::from)
                    .doing("read", as_path(path))?;
                let target = target.as_bytes();
                let link = Entry { target, mode: 0o777, ..entry(path, Sort::Symlink, stat) };
                return self.tape.put(&link);
            }
            FileType::Fifo => Sort::Fifo,
            FileType::CharacterDevice => Sort::CharDevice,
            FileType::BlockDevice => Sort::BlockDevice,
            // Nobody listens on a socket any more.
            _ => return Ok(()),
        };
        if sort != Sort::File {
            return self.tape.put(&entry(path, sort, stat));
        }
        let shared = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&shared) {
                let link = Entry { target: first, ..entry(path, Sort::HardLink, stat) };
                return self.tape.put(&link);
            }
            self.links.insert(shared, path.to_vec());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(parent, name, flags, Mode::empty())
            .map_err(io::Error::from)
            .doing("open", as_path(path))?;
        let attributes = attributes(file.as_fd(), path)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let entry = Entry { size, attributes, ..entry(path, sort, stat) };
        self.tape.put_file(&entry, &File::from(file))
    }

    /// Notes that something of the image is gone.
    fn hide(&mut self, path: &[u8], about: &Stat) -> Done<()> {
        self.tape.put(&Entry { mode: 0o644, ..entry(path, Sort::File, about) })
    }
}

fn entry<'a>(path: &'a [u8], sort: Sort, stat: &Stat) -> Entry<'a> {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let is_device = matches!(sort, Sort::CharDevice | Sort::BlockDevice);
    Entry {
        path,
        sort,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: u64::try_from(stat.st_mtime).unwrap_or(0),
        size: 0,
        target: b"",
        device: if is_device { (major, minor) } else { (0, 0) },
        attributes: Vec::new(),
    }
}

/// Goes one name further; how long the path was before.
fn descend(path: &mut Vec<u8>, name: &[u8]) -> Done<usize> {
    let length = path.len();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    if path.len() > PATH_LIMIT {
        return Err(failed("descend into", as_path(path), libc::ENAMETOOLONG));
    }
    if name.starts_with(WHITEOUT) {
        let doing = "keep (by such a name layers write that something is gone)";
        return Err(failed(doing, as_path(path), libc::EINVAL));
    }
    Ok(length)
}

/// Every name that is in one of these directories.
fn written(uppers: &[OwnedFd], path: &[u8]) -> Done<BTreeSet<Vec<u8>>> {
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

fn look(parent: &OwnedFd, name: &[u8]) -> io::Result<Option<Stat>> {
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

/// Whether a layer brings an attribute along: the user's, who may what, and capabilities do.
fn is_kept(name: &str) -> bool {
    let users = name.starts_with("user.") && !name.starts_with("user.overlay.");
    let others = name.starts_with("system.posix_acl_") || name == "security.capability";
    // The sign ends a name in a layer.
    (users || others) && !name.contains('=')
}

/// Attributes of something that is open, by name.
fn attributes(file: BorrowedFd<'_>, path: &[u8]) -> Done<Vec<(String, Vec<u8>)>> {
    let list = || -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut list = vec![0; ATTRIBUTE_LIMIT];
        let length = match rustix::fs::flistxattr(file, &mut list[..]) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            length => length?,
        };
        let mut kept = Vec::new();
        for name in list[..length].split(|byte| *byte == 0) {
            let Some(name) = std::str::from_utf8(name).ok().filter(|name| is_kept(name)) else {
                continue;
            };
            if let Some(value) = value(file, name)? {
                kept.push((name.to_owned(), value));
            }
        }
        kept.sort();
        Ok(kept)
    };
    list().doing("read the attributes of", as_path(path))
}

fn value(file: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; ATTRIBUTE_LIMIT];
    match rustix::fs::fgetxattr(file, name, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_wire::{Decoder, FileReply, FrameKind, MAX_REQUEST};
    use rustix::fs::{CWD, XattrFlags};
    use std::fs;
    use std::io::{Read, Write};
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// What `tar` lists of a layer: kind and mode, owner, name and where a link leads.
    fn listed(written: &Written) -> Vec<String> {
        let (ours, theirs) = msb_sys::socket::pair().unwrap();
        let mut stream = Stream::new(theirs, usize::MAX);
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            File::from(ours).read_to_end(&mut all).unwrap();
            all
        });
        assert!(write(&mut stream, std::slice::from_ref(written)).is_ok());
        assert!(stream.flush().is_ok());
        drop(stream);
        let mut decoder = Decoder::new(MAX_REQUEST);
        decoder.push(&reading.join().unwrap());
        let (mut tar, mut done) = (Vec::new(), false);
        while let Some(frame) = decoder.next_frame().unwrap() {
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
        let mark = |path: &str, name: &str, value: &[u8]| {
            let path = root.join(path);
            rustix::fs::setxattr(&path, name, value, XattrFlags::empty()).unwrap();
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
        let written = Written {
            at: "/".to_owned(),
            merged: place("merged"),
            base: place("base"),
            uppers: vec![place("upper"), place("under")],
            marks: "user.overlay.",
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
        // Elsewhere than at the top nothing is the sandbox's own.
        let below = listed(&Written { at: "/usr".to_owned(), ..written });
        assert_eq!(below.first().map(String::as_str), Some("drwxr-xr-x usr/"));
        assert!(below.contains(&"drwxr-xr-x usr/tmp/".to_owned()), "{below:#?}");
        assert!(below.contains(&"hrw-r--r-- usr/etc/b link to usr/etc/a".to_owned()));
        fs::remove_dir_all(Path::new(&root)).unwrap();
    }
}
