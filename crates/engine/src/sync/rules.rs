//! What of the source is left out.
//!
//! As in git: of all lines that match, the last one of the nearest file decides, and nothing below
//! a directory that is left out can be brought back. Whoever asks has found the directory above
//! to be part of the copy.

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

/// The file that the rules of a directory are in.
pub(crate) const FILE: &[u8] = b".gitignore";

/// Longer than any that a person wrote.
const FILE_LIMIT: u64 = 1 << 20;

/// The rules of a source.
#[derive(Debug)]
pub(crate) struct Rules {
    /// What was asked for; it comes before all others.
    asked: Gitignore,
    defaults: bool,
    /// By directory of the source.
    within: BTreeMap<Vec<u8>, Gitignore>,
    /// Those of the repository around it, the nearest first, each with the source's place in it.
    above: Vec<(PathBuf, Gitignore)>,
    /// The state directory, if it lies in the source: to write the status is no change of it.
    own: Option<Vec<u8>>,
}

impl Rules {
    /// Reads what is known from the start. The source is a canonical path.
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

    /// Takes the rules of a directory, in place of those it had.
    pub(crate) fn set(&mut self, directory: &[u8], file: Option<File>) {
        match file.and_then(read) {
            Some(rules) => self.within.insert(directory.to_vec(), rules),
            None => self.within.remove(directory),
        };
    }

    /// Forgets the rules of a directory and of all below it.
    pub(crate) fn forget(&mut self, directory: &[u8]) {
        self.within.remove(directory);
        let (from, to) = super::ledger::below(directory);
        let gone: Vec<Vec<u8>> =
            self.within.range(from..to).map(|(path, _)| path.clone()).collect();
        gone.iter().for_each(|path| drop(self.within.remove(path)));
    }

    /// Whether a path is left out. The source itself never is.
    pub(crate) fn leave_out(&self, path: &[u8], directory: bool) -> bool {
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
            if let Some(rules) = self.within.get(place.as_os_str().as_bytes()) {
                let below = whole.strip_prefix(place).unwrap_or(whole);
                match rules.matched(below, directory) {
                    Match::Ignore(_) => return true,
                    Match::Whitelist(_) => return false,
                    Match::None => {}
                }
            }
            above = place.parent();
        }
        for (place, rules) in &self.above {
            match rules.matched(place.join(whole), directory) {
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

/// The rules of the repository that the source is a part of, if it is.
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

/// Rules as git reads them: a line that makes no sense matches nothing.
fn read(file: File) -> Option<Gitignore> {
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(FILE_LIMIT).read_to_end(&mut text).ok()?;
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
    let mut rules = GitignoreBuilder::new("");
    for line in String::from_utf8_lossy(text).lines() {
        let _ = rules.add_line(None, line);
    }
    rules.build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Name;

    fn rules(excludes: &[&str], files: &[(&str, &str)]) -> Rules {
        let spec = SyncSpec {
            source: "/src".into(),
            sandbox: Name::parse("box").unwrap(),
            target: b"/app".to_vec(),
            excludes: excludes.iter().map(|line| (*line).to_owned()).collect(),
            default_excludes: true,
        };
        let mut rules = Rules::new(&spec, Path::new("/src"), Path::new("/src/x/.msb")).unwrap();
        for (directory, text) in files {
            let mut built = GitignoreBuilder::new("");
            text.lines().for_each(|line| drop(built.add_line(None, line)));
            rules.within.insert(directory.as_bytes().to_vec(), built.build().unwrap());
        }
        rules
    }

    #[test]
    fn the_nearest_file_decides() {
        let rules = rules(&[], &[("", "*.log\n/top\nbuild/\n"), ("a", "!keep.log\nx\n")]);
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
            assert_eq!(rules.leave_out(path.as_bytes(), directory), left_out, "{path}");
        }
        assert!(rules.leave_out(b"a/\xff.log", false));
    }

    #[test]
    fn the_usual_is_left_out_until_it_is_brought_back() {
        let plain = rules(&[], &[("", "!.git")]);
        for usual in DEFAULT_EXCLUDES {
            assert!(plain.leave_out(usual.as_bytes(), true), "{usual}");
            assert!(plain.leave_out(format!("a/{usual}").as_bytes(), true), "{usual}");
        }
        assert!(plain.leave_out(b"x/.msb", true), "our own state is no part of the source");
        let asked = rules(&["!.venv", "/only-here", "*.tmp"], &[("", "!a.tmp")]);
        assert!(!asked.leave_out(b".venv", true));
        assert!(asked.leave_out(b"only-here", false) && !asked.leave_out(b"a/only-here", false));
        assert!(asked.leave_out(b"a.tmp", false));
    }
}
