//! Files seen from a root that nothing leads out of.
//!
//! Links are followed here, as text, one name at a time: what an image or a directory calls
//! `/etc` is never the host's. The trees themselves are only asked for paths without links.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Something in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// Permissions with the bits above them.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// In seconds since 1970.
    pub(crate) mtime: i64,
    pub(crate) size: u64,
    /// Which file it is, if it has more names than this.
    pub(crate) shared: Option<(u64, u64)>,
    /// Only there for what is below it.
    pub(crate) passage: bool,
}

/// What something in a tree is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Link(OsString),
    Fifo,
    Socket,
    Device,
}

/// Names and values of attributes.
pub(crate) type Attributes = Vec<(String, Vec<u8>)>;

/// Files below one root. Paths are relative, without `.`, `..` and links; the root is empty.
pub(crate) trait Tree {
    /// What is there, if anything.
    fn entry(&self, path: &Path) -> io::Result<Option<Entry>>;
    /// What a directory holds, sorted.
    fn names(&self, path: &Path) -> io::Result<Vec<OsString>>;
    /// A file, to be read.
    fn open(&self, path: &Path) -> io::Result<File>;
    /// Attributes of a file or directory that belong to it.
    fn attributes(&self, path: &Path) -> io::Result<Attributes>;
}

/// The kernel's own limit of links on one way.
pub(crate) const LINK_LIMIT: usize = 40;

/// The names of a path, in the order they are walked; `/` is where it begins.
pub(crate) fn steps(path: &Path) -> Vec<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

/// Follows every link of a path, the last one too. Where nothing is, the rest is taken as it
/// stands.
pub(crate) fn resolve(
    path: &Path,
    look: &dyn Fn(&Path) -> io::Result<Option<Kind>>,
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
            Some(Kind::Link(target)) => {
                links += 1;
                if links > LINK_LIMIT {
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

/// Follows every link of a path in a tree.
pub(crate) fn resolve_in(tree: &dyn Tree, path: &Path) -> io::Result<PathBuf> {
    resolve(path, &|path| Ok(tree.entry(path)?.map(|entry| entry.kind)))
}

/// Reads a small text of a tree, links followed; none if there is none.
pub(crate) fn text(tree: &dyn Tree, path: &Path, limit: u64) -> io::Result<Option<String>> {
    use std::io::Read;
    let path = resolve_in(tree, path)?;
    match tree.entry(&path)? {
        Some(Entry { kind: Kind::File, .. }) => {}
        _ => return Ok(None),
    }
    let mut bytes = Vec::new();
    tree.open(&path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Where a path leads, as people write it.
pub(crate) fn shown(path: &Path) -> String {
    msb_spec::shown(&format!("/{}", path.display()))
}

/// The last name of a path; the root has none.
pub(crate) fn name(path: &Path) -> Option<&OsStr> {
    path.file_name()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(path: &Path) -> io::Result<Option<Kind>> {
        let link = |target: &str| Ok(Some(Kind::Link(target.into())));
        match path.to_str().unwrap() {
            "bin" => link("usr/bin"),
            "out" => link("../../../etc"),
            "abs" => link("/usr/../bin"),
            "loop" => link("loop"),
            "usr" | "usr/bin" | "etc" => Ok(Some(Kind::Directory)),
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
