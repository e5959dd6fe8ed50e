//! What was sent: every path that may be inside because of us, and which version of it.
//!
//! More than is inside is allowed, less is not: what is not here is never removed.

use super::notes::line;
use super::source::{Sort, Stamp};
use std::collections::BTreeMap;

/// One path that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) sort: Sort,
    /// The version that is inside; none if that is uncertain.
    pub(crate) stamp: Option<Stamp>,
    /// Whether it was read so soon after a change that another one may bear the same time.
    pub(crate) fresh: bool,
}

/// Everything that was sent, by path. A directory is there if something below it is.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    known: BTreeMap<Vec<u8>, Known>,
    files: u64,
    /// What has come and gone, as it is noted.
    news: Vec<u8>,
}

impl Ledger {
    pub(crate) fn get(&self, path: &[u8]) -> Option<&Known> {
        self.known.get(path)
    }

    /// How many files and links there are.
    pub(crate) fn files(&self) -> u64 {
        self.files
    }

    pub(crate) fn is_directory(&self, path: &[u8]) -> bool {
        self.get(path).is_some_and(|known| known.sort == Sort::Directory)
    }

    pub(crate) fn insert(&mut self, path: &[u8], known: Known) {
        let is_directory = known.sort == Sort::Directory;
        self.files += u64::from(!is_directory);
        let before = self.known.insert(path.to_vec(), known);
        let was_directory = before.map(|before| before.sort == Sort::Directory);
        self.files -= u64::from(was_directory == Some(false));
        if was_directory != Some(is_directory) && !path.is_empty() {
            self.news.extend(line(path, Some(is_directory)));
        }
    }

    /// What has come and gone since this was asked last.
    pub(crate) fn news(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.news)
    }

    /// Every path, and whether it is a directory.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let all = self.known.iter().filter(|(path, _)| !path.is_empty());
        all.map(|(path, known)| (path.as_slice(), known.sort == Sort::Directory))
    }

    /// Says that nobody knows what is inside at this path.
    pub(crate) fn doubt(&mut self, path: &[u8]) {
        if let Some(known) = self.known.get_mut(path) {
            known.stamp = None;
        }
    }

    /// Every path below a directory, a directory before what it holds.
    pub(crate) fn all_below(&self, directory: &[u8]) -> Vec<Vec<u8>> {
        let (from, to) = below(directory);
        self.known.range(from..to).map(|(path, _)| path.clone()).collect()
    }

    /// Takes a path out, with all below it; gives them, the deepest first.
    pub(crate) fn take(&mut self, path: &[u8]) -> Vec<(Vec<u8>, Known)> {
        let mut keys = self.all_below(path);
        keys.insert(0, path.to_vec());
        keys.reverse();
        let taken: Vec<_> =
            keys.into_iter().filter_map(|key| self.known.remove_entry(&key)).collect();
        self.files -=
            taken.iter().filter(|(_, known)| known.sort != Sort::Directory).count() as u64;
        taken.iter().for_each(|(path, _)| self.news.extend(line(path, None)));
        taken
    }

    /// Moves a path with all below it.
    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) {
        for (path, known) in self.take(from) {
            self.insert(&moved(&path, from, to), known);
        }
    }

    /// The entries of a directory.
    pub(crate) fn children(&self, directory: &[u8]) -> Vec<Vec<u8>> {
        let (mut from, to) = below(directory);
        let start = from.len();
        let mut children = Vec::new();
        while let Some((path, _)) = self.known.range(from..to.clone()).next() {
            match path[start..].iter().position(|byte| *byte == b'/') {
                // Its directory came before it; over all that is below that.
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
        // The empty path is the directory itself, and no name begins with a zero byte.
        b"" => (vec![1], vec![0xff; 5000]),
        path => ([path, b"/"].concat(), [path, b"0"].concat()),
    }
}

/// A path at or below `from`, as it is called when that is called `to`.
pub(crate) fn moved(path: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    [to, &path[from.len()..]].concat()
}

/// The directory that a path is in, and its name there joined again.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash])
}

/// A name in a directory.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(paths: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        for path in paths {
            let is_directory = path.ends_with('/');
            let sort = if is_directory { Sort::Directory } else { Sort::File };
            let known = Known { sort, stamp: None, fresh: false };
            ledger.insert(path.trim_end_matches('/').as_bytes(), known);
        }
        ledger
    }

    fn texts(paths: Vec<Vec<u8>>) -> Vec<String> {
        paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    }

    const PATHS: [&str; 9] = ["/", "a/", "a-b", "a/x", "a/y/", "a/y/z", "a/y-", "a0", "b"];

    #[test]
    fn children_are_those_of_the_directory_alone() {
        let ledger = ledger(&PATHS);
        assert_eq!(texts(ledger.children(b"")), ["a", "a-b", "a0", "b"]);
        assert_eq!(texts(ledger.children(b"a")), ["a/x", "a/y", "a/y-"]);
        assert_eq!(texts(ledger.children(b"a/y")), ["a/y/z"]);
        assert_eq!(texts(ledger.children(b"a0")), [""; 0]);
    }

    #[test]
    fn what_is_taken_is_gone_with_all_below_it() {
        let mut ledger = ledger(&PATHS);
        assert_eq!(ledger.files(), 6);
        let taken = ledger.take(b"a").into_iter().map(|(path, _)| path).collect();
        assert_eq!(texts(taken), ["a/y/z", "a/y-", "a/y", "a/x", "a"]);
        assert_eq!(
            (ledger.files(), texts(ledger.children(b""))),
            (3, ["a-b", "a0", "b"].map(str::to_owned).to_vec())
        );
        assert!(ledger.take(b"none").is_empty());
    }

    #[test]
    fn what_is_renamed_takes_all_below_it_along() {
        let mut ledger = ledger(&PATHS);
        ledger.rename(b"a", b"c/d");
        assert_eq!(texts(ledger.children(b"c/d")), ["c/d/x", "c/d/y", "c/d/y-"]);
        assert!(ledger.get(b"c/d/y/z").is_some() && ledger.get(b"a").is_none());
        assert_eq!(ledger.files(), 6);
    }
}
