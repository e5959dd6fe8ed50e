//! The baseline of a sync: every path that may exist inside because of it, and its version.
//!
//! The baseline may have more paths than exist inside, but not fewer: only its paths are ever
//! removed.

use super::baseline_file::line;
use super::source::{FileStamp, SourceKind};
use std::collections::BTreeMap;

/// One path of the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BaselineEntry {
    pub(crate) kind: SourceKind,
    /// The version inside; `None` if that is unknown.
    pub(crate) stamp: Option<FileStamp>,
    /// Whether it was read so soon after a change that a later one may have the same timestamp.
    pub(crate) fresh: bool,
}

/// All paths that were sent. The parents of a path are included.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    known: BTreeMap<Vec<u8>, BaselineEntry>,
    files: u64,
    /// Changes not yet written to the baseline file, in its format.
    pending_lines: Vec<u8>,
}

impl Baseline {
    pub(crate) fn get(&self, path: &[u8]) -> Option<&BaselineEntry> {
        self.known.get(path)
    }

    /// The number of files and symlinks.
    pub(crate) fn files(&self) -> u64 {
        self.files
    }

    pub(crate) fn is_directory(&self, path: &[u8]) -> bool {
        self.get(path).is_some_and(|known| known.kind == SourceKind::Directory)
    }

    pub(crate) fn insert(&mut self, path: &[u8], known: BaselineEntry) {
        let is_directory = known.kind == SourceKind::Directory;
        self.files += u64::from(!is_directory);
        let before = self.known.insert(path.to_vec(), known);
        let was_directory = before.map(|before| before.kind == SourceKind::Directory);
        self.files -= u64::from(was_directory == Some(false));
        if was_directory != Some(is_directory) && !path.is_empty() {
            self.pending_lines.extend(line(path, Some(is_directory)));
        }
    }

    /// Takes the changes since the last call.
    pub(crate) fn pending_lines(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending_lines)
    }

    /// Every path, and whether it is a directory.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let all = self.known.iter().filter(|(path, _)| !path.is_empty());
        all.map(|(path, known)| (path.as_slice(), known.kind == SourceKind::Directory))
    }

    /// Marks the version inside as unknown.
    pub(crate) fn mark_unknown(&mut self, path: &[u8]) {
        if let Some(known) = self.known.get_mut(path) {
            known.stamp = None;
        }
    }

    /// Every path below a directory, parents first.
    pub(crate) fn all_below(&self, directory: &[u8]) -> Vec<Vec<u8>> {
        let (from, to) = below(directory);
        self.known.range(from..to).map(|(path, _)| path.clone()).collect()
    }

    /// Removes a path with its subtree; returns them, the deepest first.
    pub(crate) fn take(&mut self, path: &[u8]) -> Vec<(Vec<u8>, BaselineEntry)> {
        let mut keys = self.all_below(path);
        keys.insert(0, path.to_vec());
        keys.reverse();
        let taken: Vec<_> =
            keys.into_iter().filter_map(|key| self.known.remove_entry(&key)).collect();
        self.files -=
            taken.iter().filter(|(_, known)| known.kind != SourceKind::Directory).count() as u64;
        taken.iter().for_each(|(path, _)| self.pending_lines.extend(line(path, None)));
        taken
    }

    /// Renames a path with its subtree.
    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) {
        for (path, known) in self.take(from) {
            self.insert(&moved(&path, from, to), known);
        }
    }

    /// The direct entries of a directory.
    pub(crate) fn children(&self, directory: &[u8]) -> Vec<Vec<u8>> {
        let (mut from, to) = below(directory);
        let start = from.len();
        let mut children = Vec::new();
        while let Some((path, _)) = self.known.range(from..to.clone()).next() {
            match path[start..].iter().position(|byte| *byte == b'/') {
                // The parent came before; skip its subtree.
                Some(slash) => from = [&path[..start + slash], b"0"].concat(),
                None => {
                    from = [path, &b"\0"[..]].concat();
                    if !path.is_empty() {
                        children.push(path.clone());
                    }
                }
            }
        }
        children
    }
}

/// The range of all paths below a directory: `a/` up to `a0`, since `0` follows the slash.
pub(crate) fn below(directory: &[u8]) -> (Vec<u8>, Vec<u8>) {
    match directory {
        // The empty path is the root itself, and no name begins with a zero byte.
        b"" => (vec![1], vec![0xff; 5000]),
        path => ([path, b"/"].concat(), [path, b"0"].concat()),
    }
}

/// A path at or below `from`, after `from` was renamed to `to`.
pub(crate) fn moved(path: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    [to, &path[from.len()..]].concat()
}

/// The parent of a path.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash])
}

/// Joins a directory and a name.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(paths: &[&str]) -> Baseline {
        let mut baseline = Baseline::default();
        for path in paths {
            let is_directory = path.ends_with('/');
            let kind = if is_directory { SourceKind::Directory } else { SourceKind::File };
            let known = BaselineEntry { kind, stamp: None, fresh: false };
            baseline.insert(path.trim_end_matches('/').as_bytes(), known);
        }
        baseline
    }

    fn texts(paths: Vec<Vec<u8>>) -> Vec<String> {
        paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    }

    const PATHS: [&str; 9] = ["/", "a/", "a-b", "a/x", "a/y/", "a/y/z", "a/y-", "a0", "b"];

    #[test]
    fn children_lists_direct_entries_only() {
        let baseline = baseline(&PATHS);
        assert_eq!(texts(baseline.children(b"")), ["a", "a-b", "a0", "b"]);
        assert_eq!(texts(baseline.children(b"a")), ["a/x", "a/y", "a/y-"]);
        assert_eq!(texts(baseline.children(b"a/y")), ["a/y/z"]);
        assert_eq!(texts(baseline.children(b"a0")), [""; 0]);
    }

    #[test]
    fn take_removes_a_path_with_its_subtree() {
        let mut baseline = baseline(&PATHS);
        assert_eq!(baseline.files(), 6);
        let taken = baseline.take(b"a").into_iter().map(|(path, _)| path).collect();
        assert_eq!(texts(taken), ["a/y/z", "a/y-", "a/y", "a/x", "a"]);
        assert_eq!(
            (baseline.files(), texts(baseline.children(b""))),
            (3, ["a-b", "a0", "b"].map(str::to_owned).to_vec())
        );
        assert!(baseline.take(b"none").is_empty());
    }

    #[test]
    fn rename_moves_the_subtree() {
        let mut baseline = baseline(&PATHS);
        baseline.rename(b"a", b"c/d");
        assert_eq!(texts(baseline.children(b"c/d")), ["c/d/x", "c/d/y", "c/d/y-"]);
        assert!(baseline.get(b"c/d/y/z").is_some() && baseline.get(b"a").is_none());
        assert_eq!(baseline.files(), 6);
    }
}
