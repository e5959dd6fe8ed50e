//! Copies files and trees between this host and a server, entry by entry.
//!
//! Entries from the server are hostile: a name is a single path component, no link is followed for
//! writing, and a name that is listed twice is an error.

use crate::Client;
use msb_api::{Attributes, CopyCount, EntryKind, Files, Meta, Place};
use msb_spec::{Error, Kind, Result};
use msb_sys::draft_file::DraftFile;
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

/// Largest depth of a tree: deeper than any that users create.
const MAX_DEPTH: usize = 256;

/// Copies a file or tree of this host to the server.
pub(crate) fn push(client: &Client, at: &Place, from: &Path, to: &[u8]) -> Result<CopyCount> {
    let unreadable = |error| Error::host(format!("cannot read `{}`", from.display()), error);
    let whole = fs::canonicalize(from).map_err(unreadable)?;
    let mut target = trim_slashes(to).to_vec();
    let is_directory =
        client.file_stat(at, to, true).is_ok_and(|meta| meta.kind == EntryKind::Directory);
    if is_directory && let Some(name) = whole.file_name() {
        target = join(&target, name.as_bytes());
    }
    let mut copied = CopyCount::default();
    push_entry(client, at, &whole, &target, 0, &mut copied)?;
    Ok(copied)
}

fn push_entry(
    client: &Client,
    at: &Place,
    from: &Path,
    to: &[u8],
    depth: usize,
    copied: &mut CopyCount,
) -> Result<()> {
    let failure = |error| Error::host(format!("cannot read `{}`", from.display()), error);
    if depth > MAX_DEPTH {
        return Err(Error::new(
            Kind::Limit,
            format!("the tree is too deep at `{}`", from.display()),
        ));
    }
    let meta = fs::symlink_metadata(from).map_err(failure)?;
    let kind = meta.file_type();
    let mode = meta.permissions().mode() & 0o777;
    if kind.is_symlink() {
        let target = fs::read_link(from).map_err(failure)?;
        client.file_symlink(at, to, target.as_os_str().as_bytes())?;
    } else if kind.is_dir() {
        client.file_mkdir(at, to, true)?;
        let mut names: Vec<_> = fs::read_dir(from)
            .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect())
            .map_err(failure)?;
        names.sort();
        for name in names {
            let to = join(to, name.as_bytes());
            push_entry(client, at, &from.join(&name), &to, depth + 1, copied)?;
        }
        // Last: the mode may forbid creating entries.
        let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
        client.file_set(at, to, &attributes)?;
    } else if kind.is_file() {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            rustix::fs::open(from, flags, Mode::empty()).map_err(|error| failure(error.into()))?;
        let mut file = File::from(file);
        let seen = file.metadata().map_err(failure)?;
        if seen.ino() != meta.ino() || !seen.is_file() {
            return Err(Error::new(
                Kind::State,
                format!("the file was replaced meanwhile: `{}`", from.display()),
            ));
        }
        copied.bytes += client.file_write(at, to, mode, false, &mut file)?;
    } else {
        copied.left_out += 1;
        return Ok(());
    }
    copied.entries += 1;
    Ok(())
}

/// Copies a file or tree from the server to this host.
pub(crate) fn pull(client: &Client, at: &Place, from: &[u8], to: &Path) -> Result<CopyCount> {
    let meta = client.file_stat(at, from, false)?;
    let name = trim_slashes(from).rsplit(|byte| *byte == b'/').next().unwrap_or_default();
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
    let mut copied = CopyCount::default();
    let mut tree = TreePull { client, at, budget: Budget::default() };
    tree.pull_entry(opened.as_fd(), &name, from, &meta, 0, &mut copied)?;
    Ok(copied)
}

struct TreePull<'a> {
    client: &'a Client,
    at: &'a Place,
    budget: Budget,
}

impl TreePull<'_> {
    fn pull_entry(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        from: &[u8],
        meta: &Meta,
        depth: usize,
        copied: &mut CopyCount,
    ) -> Result<()> {
        let shown = msb_api::escape_bytes(name);
        if name.is_empty()
            || matches!(name, b"." | b"..")
            || name.contains(&b'/')
            || name.contains(&0)
        {
            return Err(Error::new(Kind::Protocol, format!("not a valid file name: `{shown}`")));
        }
        if depth > MAX_DEPTH {
            return Err(Error::new(Kind::Limit, format!("the tree is too deep at `{shown}`")));
        }
        let failure = |error: Errno| Error::host(format!("cannot write `{shown}`"), error);
        let path = OsStr::from_bytes(name);
        match &meta.kind {
            EntryKind::File => {
                let unwritable = |error| Error::host(format!("cannot write `{shown}`"), error);
                let parent = directory.try_clone_to_owned().map_err(unwritable)?;
                let draft =
                    DraftFile::create(parent, path, Mode::RUSR | Mode::WUSR).map_err(unwritable)?;
                copied.bytes += self.write_content(draft.file(), from, &shown)?;
                let mode = Mode::from_raw_mode(meta.mode & 0o777);
                rustix::fs::fchmod(draft.file(), mode).map_err(failure)?;
                draft.keep().map_err(unwritable)?;
            }
            EntryKind::Symlink(target) => {
                unlink_existing(directory, path).map_err(failure)?;
                rustix::fs::symlinkat(OsStr::from_bytes(target), directory, path)
                    .map_err(failure)?;
            }
            EntryKind::Directory => {
                let inside = open_or_create_dir(directory, path).map_err(failure)?;
                let mut seen = BTreeSet::new();
                for entry in self.client.file_list(self.at, from)? {
                    if !seen.insert(entry.name.clone()) {
                        return Err(Error::new(
                            Kind::Protocol,
                            format!("a name is listed twice in `{shown}`"),
                        ));
                    }
                    let from = join(trim_slashes(from), &entry.name);
                    self.pull_entry(inside.as_fd(), &entry.name, &from, &entry, depth + 1, copied)?;
                }
                rustix::fs::fchmod(&inside, Mode::from_raw_mode(meta.mode & 0o777))
                    .map_err(failure)?;
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

impl TreePull<'_> {
    /// Writes the content of a new file. Over HTTP holes arrive as zeros; they become holes again.
    fn write_content(&mut self, file: &File, from: &[u8], shown: &str) -> Result<u64> {
        let failure = |error: std::io::Error| match OverBudget::of(&error) {
            Some(why) => Error::new(Kind::Limit, format!("cannot write `{shown}`"))
                .cause(why)
                .hint("free some space, or leave large files out"),
            None => Error::host(format!("cannot write `{shown}`"), error),
        };
        let mut writer = SparseWriter::new(file, &mut self.budget);
        self.client.file_read(self.at, from, 0, None, &mut |piece| {
            writer.data_or_holes(piece).map_err(failure)
        })?;
        writer.finish().map_err(failure)
    }
}

/// Unlinks an existing entry that is no directory.
fn unlink_existing(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

/// Opens a directory, created if it is missing; fails for a symbolic link.
fn open_or_create_dir(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    match rustix::fs::mkdirat(directory, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    match path {
        [rest @ .., b'/'] if !rest.is_empty() => trim_slashes(rest),
        _ => path,
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory {
        b"/" => [b"/", name].concat(),
        _ => [directory, b"/", name].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A temporary directory, removed on drop.
    struct TempDir(PathBuf);

    impl TempDir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("msb-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn link(name: &[u8]) -> Meta {
        let (kind, modified, created) = (EntryKind::Symlink(b"x".to_vec()), 0, None);
        Meta { name: name.to_vec(), kind, mode: 0o777, size: 0, modified, created, uid: 0, gid: 0 }
    }

    /// No request is sent: the name is checked first.
    #[test]
    fn names_that_leave_the_directory_are_refused() {
        let client = Client::connect("http://127.0.0.1:1", None).unwrap();
        let at = Place::sandbox(&msb_spec::Name::parse("box").unwrap());
        let dir = TempDir::new("names");
        let directory = File::open(&dir.0).unwrap();
        let mut tree = TreePull { client: &client, at: &at, budget: Budget::default() };
        for name in [&b""[..], b".", b"..", b"../x", b"a/b", b"/etc", b"a\0b"] {
            let mut copied = CopyCount::default();
            let done = tree.pull_entry(directory.as_fd(), name, b"/x", &link(name), 0, &mut copied);
            assert_eq!(done.unwrap_err().kind(), Kind::Protocol, "{name:?}");
        }
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let (dir, other) = (TempDir::new("links"), TempDir::new("other"));
        std::os::unix::fs::symlink(&other.0, dir.0.join("link")).unwrap();
        let directory = File::open(&dir.0).unwrap();
        assert!(open_or_create_dir(directory.as_fd(), OsStr::new("link")).is_err());
        unlink_existing(directory.as_fd(), OsStr::new("link")).unwrap();
        assert!(open_or_create_dir(directory.as_fd(), OsStr::new("link")).is_ok());
        assert!(dir.0.join("link").symlink_metadata().unwrap().is_dir());
        assert!(other.0.is_dir());
    }
}
