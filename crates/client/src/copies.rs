//! Copies between this machine and what a server has, entry by entry.
//!
//! What comes from there is hostile: a name is one name, nothing is written through a link, and a
//! directory that is listed twice is no directory.

use crate::Client;
use msb_api::{Attributes, Copied, EntryKind, Files, Meta, Place};
use msb_spec::{Error, Kind, Result};
use msb_sys::sparse::{Budget, OverBudget, SparseWriter};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Deeper than any tree that a person made.
const DEEPEST: usize = 256;

/// Copies a file or tree of this machine in.
pub(crate) fn push(client: &Client, at: &Place, from: &Path, to: &[u8]) -> Result<Copied> {
    let unreadable = |error| Error::host(format!("cannot read `{}`", from.display()), error);
    let whole = fs::canonicalize(from).map_err(unreadable)?;
    let mut target = trimmed(to).to_vec();
    let is_directory =
        client.file_stat(at, to, true).is_ok_and(|meta| meta.kind == EntryKind::Directory);
    if is_directory && let Some(name) = whole.file_name() {
        target = joined(&target, name.as_bytes());
    }
    let mut copied = Copied::default();
    push_one(client, at, &whole, &target, 0, &mut copied)?;
    Ok(copied)
}

fn push_one(
    client: &Client,
    at: &Place,
    from: &Path,
    to: &[u8],
    depth: usize,
    copied: &mut Copied,
) -> Result<()> {
    let about = |error| Error::host(format!("cannot read `{}`", from.display()), error);
    if depth > DEEPEST {
        return Err(Error::new(Kind::Limit, format!("too deep: `{}`", from.display())));
    }
    let meta = fs::symlink_metadata(from).map_err(about)?;
    let kind = meta.file_type();
    let mode = meta.permissions().mode() & 0o777;
    if kind.is_symlink() {
        let target = fs::read_link(from).map_err(about)?;
        client.file_symlink(at, to, target.as_os_str().as_bytes())?;
    } else if kind.is_dir() {
        client.file_mkdir(at, to, true)?;
        let mut names: Vec<_> = fs::read_dir(from)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
            .map_err(about)?;
        names.sort();
        for name in names {
            let to = joined(to, name.as_bytes());
            push_one(client, at, &from.join(&name), &to, depth + 1, copied)?;
        }
        // Last: it may be one that nobody writes into.
        let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
        client.file_set(at, to, &attributes)?;
    } else if kind.is_file() {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            rustix::fs::open(from, flags, Mode::empty()).map_err(|error| about(error.into()))?;
        let mut file = File::from(file);
        let seen = file.metadata().map_err(about)?;
        if seen.ino() != meta.ino() || !seen.is_file() {
            return Err(Error::new(Kind::State, format!("it changed: `{}`", from.display())));
        }
        copied.bytes += client.file_write(at, to, mode, false, &mut file)?;
    } else {
        copied.left_out += 1;
        return Ok(());
    }
    copied.entries += 1;
    Ok(())
}

/// Copies a file or tree out to this machine.
pub(crate) fn pull(client: &Client, at: &Place, from: &[u8], to: &Path) -> Result<Copied> {
    let meta = client.file_stat(at, from, false)?;
    let name = trimmed(from).rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let (directory, name) = match fs::metadata(to) {
        Ok(there) if there.is_dir() => (to.to_owned(), name.to_vec()),
        _ => {
            let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
            let name = to.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
            (parent.unwrap_or(Path::new(".")).to_owned(), name)
        }
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, &directory, flags, Mode::empty());
    let opened = opened
        .map_err(|error| Error::host(format!("cannot open `{}`", directory.display()), error))?;
    let mut copied = Copied::default();
    let mut pulling = Pulling { client, at, budget: Budget::default() };
    pulling.one(opened.as_fd(), &name, from, &meta, 0, &mut copied)?;
    Ok(copied)
}

struct Pulling<'a> {
    client: &'a Client,
    at: &'a Place,
    budget: Budget,
}

impl Pulling<'_> {
    fn one(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        from: &[u8],
        meta: &Meta,
        depth: usize,
        copied: &mut Copied,
    ) -> Result<()> {
        let shown = msb_api::spelled(name);
        if name.is_empty()
            || matches!(name, b"." | b"..")
            || name.contains(&b'/')
            || name.contains(&0)
        {
            return Err(Error::new(Kind::Protocol, format!("not the name of a file: `{shown}`")));
        }
        if depth > DEEPEST {
            return Err(Error::new(Kind::Limit, format!("too deep: `{shown}`")));
        }
        let about = |error: Errno| Error::host(format!("cannot write `{shown}`"), error);
        let path = OsStr::from_bytes(name);
        match &meta.kind {
            EntryKind::File => {
                clear(directory, path).map_err(about)?;
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let mode = Mode::from_raw_mode(meta.mode & 0o777);
                let file = rustix::fs::openat(directory, path, flags, Mode::RUSR | Mode::WUSR)
                    .map_err(about)?;
                let file = File::from(file);
                let filled = self.fill(&file, from, &shown);
                // Half a file is of no use, and its space may be what others need.
                copied.bytes += filled.inspect_err(|_| {
                    let _ = clear(directory, path);
                })?;
                rustix::fs::fchmod(&file, mode).map_err(about)?;
            }
            EntryKind::Symlink(target) => {
                clear(directory, path).map_err(about)?;
                rustix::fs::symlinkat(OsStr::from_bytes(target), directory, path).map_err(about)?;
            }
            EntryKind::Directory => {
                let inside = enter(directory, path).map_err(about)?;
                let mut seen = BTreeSet::new();
                for entry in self.client.file_list(self.at, from)? {
                    if !seen.insert(entry.name.clone()) {
                        return Err(Error::new(
                            Kind::Protocol,
                            format!("a name that is there twice in `{shown}`"),
                        ));
                    }
                    let from = joined(trimmed(from), &entry.name);
                    self.one(inside.as_fd(), &entry.name, &from, &entry, depth + 1, copied)?;
                }
                rustix::fs::fchmod(&inside, Mode::from_raw_mode(meta.mode & 0o777))
                    .map_err(about)?;
            }
            _ => {
                copied.left_out += 1;
                return Ok(());
            }
        }
        copied.entries += 1;
        Ok(())
    }
}

impl Pulling<'_> {
    /// Fills a new file. Over HTTP zeros come as bytes; they become holes again here.
    fn fill(&mut self, file: &File, from: &[u8], shown: &str) -> Result<u64> {
        let about = |error: std::io::Error| match OverBudget::of(&error) {
            Some(why) => Error::new(Kind::Limit, format!("cannot write `{shown}`"))
                .cause(why)
                .hint("free some space, or leave large files out"),
            None => Error::host(format!("cannot write `{shown}`"), error),
        };
        let mut writer = SparseWriter::new(file, &mut self.budget);
        self.client.file_read(self.at, from, 0, None, &mut |piece| {
            writer.data_or_holes(piece).map_err(about)
        })?;
        writer.finish().map_err(about)
    }
}

/// Removes what is there, unless it is a directory.
fn clear(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

/// A directory of that name, made if it is not there; a link is none.
fn enter(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(directory, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

fn trimmed(path: &[u8]) -> &[u8] {
    match path {
        [rest @ .., b'/'] if !rest.is_empty() => trimmed(rest),
        _ => path,
    }
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"/" => [b"/", name].concat(),
        _ => [directory, b"/", name].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A directory that goes with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("msb-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn link(name: &[u8]) -> Meta {
        let (kind, modified, created) = (EntryKind::Symlink(b"x".to_vec()), 0, None);
        Meta { name: name.to_vec(), kind, mode: 0o777, size: 0, modified, created, uid: 0, gid: 0 }
    }

    /// Nobody is asked: a name is looked at first.
    #[test]
    fn a_name_that_leads_elsewhere_is_none() {
        let client = Client::connect("http://127.0.0.1:1", None).unwrap();
        let at = Place::sandbox(&msb_spec::Name::parse("box").unwrap());
        let here = Scratch::new("names");
        let directory = File::open(&here.0).unwrap();
        let mut pulling = Pulling { client: &client, at: &at, budget: Budget::default() };
        for name in [&b""[..], b".", b"..", b"../x", b"a/b", b"/etc", b"a\0b"] {
            let mut copied = Copied::default();
            let done = pulling.one(directory.as_fd(), name, b"/x", &link(name), 0, &mut copied);
            assert_eq!(done.unwrap_err().kind(), Kind::Protocol, "{name:?}");
        }
        assert_eq!(fs::read_dir(&here.0).unwrap().count(), 0);
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let (here, elsewhere) = (Scratch::new("links"), Scratch::new("elsewhere"));
        std::os::unix::fs::symlink(&elsewhere.0, here.0.join("link")).unwrap();
        let directory = File::open(&here.0).unwrap();
        assert!(enter(directory.as_fd(), OsStr::new("link")).is_err());
        clear(directory.as_fd(), OsStr::new("link")).unwrap();
        assert!(enter(directory.as_fd(), OsStr::new("link")).is_ok());
        assert!(here.0.join("link").symlink_metadata().unwrap().is_dir());
        assert!(elsewhere.0.is_dir());
    }
}
