//! Read access to a tree of files, with symlinks that cannot lead out of its root.
//!
//! Symlinks are resolved here, component by component, so that `/etc` in an image is never that of
//! the host. Implementations only get paths without symlinks.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Metadata of a file in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileEntry {
    pub(crate) kind: FileKind,
    /// Permission bits, with set-id and sticky bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Modification time, in seconds since 1970.
    pub(crate) mtime: i64,
    pub(crate) size: u64,
    /// Device and inode, if the file has several hard links.
    pub(crate) hard_link_id: Option<(u64, u64)>,
    /// An ignored directory that exists only for included files below it.
    pub(crate) parent_only: bool,
}

/// Type of a file in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileKind {
    File,
    Directory,
    Link(OsString),
    Fifo,
    Socket,
    Device,
}

/// Names and values of extended attributes.
pub(crate) type Attributes = Vec<(String, Vec<u8>)>;

/// Files below one root. Paths are relative, without `.`, `..` and symlinks; the root is empty.
pub(crate) trait FileTree {
    /// Metadata of a path; none if it does not exist.
    fn entry(&self, path: &Path) -> io::Result<Option<FileEntry>>;
    /// Names in a directory, sorted.
    fn names(&self, path: &Path) -> io::Result<Vec<OsString>>;
    /// Opens a regular file for reading.
    fn open(&self, path: &Path) -> io::Result<File>;
    /// Extended attributes that are copied with the file.
    fn attributes(&self, path: &Path) -> io::Result<Attributes>;
}

/// Most symlinks in one lookup, as in the kernel.
pub(crate) const SYMLINK_LIMIT: usize = 40;

/// Components of a path, with `..`. An absolute path starts at the root.
pub(crate) fn steps(path: &Path) -> Vec<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

/// Resolves all symlinks of a path, the last one too. Components that do not exist are kept.
pub(crate) fn resolve(
    path: &Path,
    look: &dyn Fn(&Path) -> io::Result<Option<FileKind>>,
) -> io::Result<PathBuf> {
    let mut left = steps(path);
    left.reverse();
    let (mut at, mut links) = (PathBuf::new(), 0);
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        match look(&next)? {
            Some(FileKind::Link(target)) => {
                links += 1;
                if links > SYMLINK_LIMIT {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                if target.as_bytes().starts_with(b"/") {
                    at = PathBuf::new();
                }
                left.extend(steps(Path::new(&target)).into_iter().rev());
            }
            _ => at = next,
        }
    }
    Ok(at)
}

/// Resolves all symlinks of a path in a tree.
pub(crate) fn resolve_in(tree: &dyn FileTree, path: &Path) -> io::Result<PathBuf> {
    resolve(path, &|path| Ok(tree.entry(path)?.map(|entry| entry.kind)))
}

/// Reads a small text file through symlinks; none if it does not exist.
pub(crate) fn text(tree: &dyn FileTree, path: &Path, limit: u64) -> io::Result<Option<String>> {
    use std::io::Read;
    let path = resolve_in(tree, path)?;
    match tree.entry(&path)? {
        Some(FileEntry { kind: FileKind::File, .. }) => {}
        _ => return Ok(None),
    }
    let mut bytes = Vec::new();
    tree.open(&path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// A path for messages, with a leading slash.
pub(crate) fn shown(path: &Path) -> String {
    msb_spec::shown(&format!("/{}", path.display()))
}

/// Last component of a path; none for the root.
pub(crate) fn name(path: &Path) -> Option<&OsStr> {
    path.file_name()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(path: &Path) -> io::Result<Option<FileKind>> {
        let link = |target: &str| Ok(Some(FileKind::Link(target.into())));
        match path.to_str().unwrap() {
            "bin" => link("usr/bin"),
            "out" => link("../../../etc"),
            "abs" => link("/usr/../bin"),
            "loop" => link("loop"),
            "usr" | "usr/bin" | "etc" => Ok(Some(FileKind::Directory)),
            _ => Ok(None),
        }
    }

    #[test]
    fn links_stay_within_the_root() {
        let cases = [
            ("bin/sh", "usr/bin/sh"),
            ("/out/passwd", "etc/passwd"),
            ("abs/x", "usr/bin/x"),
            ("../../etc", "etc"),
            ("none/../bin", "usr/bin"),
            ("/", ""),
        ];
        for (path, expected) in cases {
            let found = resolve(Path::new(path), &look).unwrap();
            assert_eq!(found, Path::new(expected), "{path}");
        }
        assert!(resolve(Path::new("loop/x"), &look).is_err());
    }
}
