//! Which paths of the source are excluded.
//!
//! The rules are those of git: the last matching line of the nearest file decides, and nothing
//! below an excluded directory can be included again. Callers check the parent directory first.

use super::{DEFAULT_EXCLUDES, SyncSpec};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use msb_spec::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The ignore file of a directory.
pub(crate) const FILE: &[u8] = b".gitignore";

/// The most bytes of an ignore file that are read.
const FILE_LIMIT: u64 = 1 << 20;

/// The exclude rules of a source.
#[derive(Debug)]
pub(crate) struct ExcludeRules {
    /// The patterns of the Spec, which take precedence.
    asked: Gitignore,
    defaults: bool,
    /// Ignore files of the source, by directory.
    within: BTreeMap<Vec<u8>, Gitignore>,
    /// Ignore files of the enclosing git repository, the nearest first, each with the path of the
    /// source in it.
    above: Vec<(PathBuf, Gitignore)>,
    /// The state directory, if it is in the source: writing the status would cause events.
    own: Option<Vec<u8>>,
}

impl ExcludeRules {
    /// Reads the patterns and the enclosing repository. The source is a canonical path.
    pub(crate) fn new(spec: &SyncSpec, source: &Path, home: &Path) -> Result<Self> {
        let mut asked = GitignoreBuilder::new("");
        for line in &spec.excludes {
            asked.add_line(None, line).map_err(|error| wrong(line, &error))?;
        }
        let asked = asked.build().map_err(|error| wrong(&spec.excludes.join(" "), &error))?;
        let home = fs::canonicalize(home).unwrap_or_else(|_| home.to_owned());
        let own = home.strip_prefix(source).ok().map(|own| own.as_os_str().as_bytes().to_vec());
        let above = above(source);
        let defaults = spec.default_excludes;
        Ok(Self { asked, defaults, within: BTreeMap::new(), above, own })
    }

    /// Replaces the ignore rules of a directory.
    pub(crate) fn set(&mut self, directory: &[u8], file: Option<File>) {
        match file.and_then(read) {
            Some(excludes) => self.within.insert(directory.to_vec(), excludes),
            None => self.within.remove(directory),
        };
    }

    /// Removes the rules of a directory and of everything below it.
    pub(crate) fn forget(&mut self, directory: &[u8]) {
        self.within.remove(directory);
        let (from, to) = super::baseline::below(directory);
        let gone: Vec<Vec<u8>> =
            self.within.range(from..to).map(|(path, _)| path.clone()).collect();
        gone.iter().for_each(|path| drop(self.within.remove(path)));
    }

    /// Whether a path is excluded. The source itself never is.
    pub(crate) fn is_excluded(&self, path: &[u8], directory: bool) -> bool {
        if self.own.as_deref() == Some(path) {
            return true;
        }
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let whole = Path::new(OsStr::from_bytes(path));
        match self.asked.matched(whole, directory) {
            Match::Ignore(_) => return true,
            Match::Whitelist(_) => return false,
            Match::None => {}
        }
        if self.defaults && DEFAULT_EXCLUDES.iter().any(|usual| usual.as_bytes() == name) {
            return true;
        }
        let mut above = whole.parent();
        while let Some(place) = above {
            if let Some(excludes) = self.within.get(place.as_os_str().as_bytes()) {
                let below = whole.strip_prefix(place).unwrap_or(whole);
                match excludes.matched(below, directory) {
                    Match::Ignore(_) => return true,
                    Match::Whitelist(_) => return false,
                    Match::None => {}
                }
            }
            above = place.parent();
        }
        for (place, excludes) in &self.above {
            match excludes.matched(place.join(whole), directory) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }
}

fn wrong(line: &str, error: &ignore::Error) -> Error {
    Error::invalid(format!("not a pattern for files: `{line}`")).cause(error)
}

/// The ignore files of the git repository around the source, if there is one.
fn above(source: &Path) -> Vec<(PathBuf, Gitignore)> {
    let is_top = |directory: &Path| directory.join(".git").exists();
    let Some(top) = source.ancestors().find(|directory| is_top(directory)) else {
        return Vec::new();
    };
    let between = source.ancestors().skip(1).take_while(|directory| directory.starts_with(top));
    let found = between.filter_map(|directory| {
        let file = File::open(directory.join(OsStr::from_bytes(FILE))).ok()?;
        let place = source.strip_prefix(directory).ok()?.to_owned();
        Some((place, read(file)?))
    });
    found.collect()
}

/// Parses an ignore file as git does: an invalid line matches nothing.
fn read(file: File) -> Option<Gitignore> {
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(FILE_LIMIT).read_to_end(&mut text).ok()?;
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    let mut excludes = GitignoreBuilder::new("");
    for line in String::from_utf8_lossy(text).lines() {
        let _ = excludes.add_line(None, line);
    }
    excludes.build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Name;

    fn excludes(excludes: &[&str], files: &[(&str, &str)]) -> ExcludeRules {
        let spec = SyncSpec {
            source: "/src".into(),
            sandbox: Name::parse("box").unwrap(),
            target: b"/app".to_vec(),
            excludes: excludes.iter().map(|line| (*line).to_owned()).collect(),
            default_excludes: true,
        };
        let mut excludes =
            ExcludeRules::new(&spec, Path::new("/src"), Path::new("/src/x/.msb")).unwrap();
        for (directory, text) in files {
            let mut built = GitignoreBuilder::new("");
            text.lines().for_each(|line| drop(built.add_line(None, line)));
            excludes.within.insert(directory.as_bytes().to_vec(), built.build().unwrap());
        }
        excludes
    }

    #[test]
    fn the_nearest_gitignore_decides() {
        let excludes = excludes(&[], &[("", "*.log\n/top\nbuild/\n"), ("a", "!keep.log\nx\n")]);
        for (path, directory, left_out) in [
            ("b.log", false, true),
            ("a/b.log", false, true),
            ("a/keep.log", false, false),
            ("a/c/keep.log", false, false),
            ("keep.log", false, true),
            ("top", false, true),
            ("a/top", false, false),
            ("build", true, true),
            ("build", false, false),
            ("a/x", false, true),
            ("ax", false, false),
            ("x", false, false),
        ] {
            assert_eq!(excludes.is_excluded(path.as_bytes(), directory), left_out, "{path}");
        }
        assert!(excludes.is_excluded(b"a/\xff.log", false));
    }

    #[test]
    fn default_excludes_apply_until_negated() {
        let plain = excludes(&[], &[("", "!.git")]);
        for usual in DEFAULT_EXCLUDES {
            assert!(plain.is_excluded(usual.as_bytes(), true), "{usual}");
            assert!(plain.is_excluded(format!("a/{usual}").as_bytes(), true), "{usual}");
        }
        assert!(plain.is_excluded(b"x/.msb", true), "our own state is no part of the source");
        let asked = excludes(&["!.venv", "/only-here", "*.tmp"], &[("", "!a.tmp")]);
        assert!(!asked.is_excluded(b".venv", true));
        assert!(
            asked.is_excluded(b"only-here", false) && !asked.is_excluded(b"a/only-here", false)
        );
        assert!(asked.is_excluded(b"a.tmp", false));
    }
}
