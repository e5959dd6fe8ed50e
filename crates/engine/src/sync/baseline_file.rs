//! Stores the baseline beside the sandbox, for the next sync of the same two directories.
//!
//! It lets the next sync remove files that were removed from the source meanwhile. Lines are only
//! appended. A baseline that cannot be written or is too large is dropped; then such files stay
//! inside.

use super::baseline::parent;
use crate::store::{create_private_file, temp_name};
use msb_spec::state;
use msb_wire::Change;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The most bytes of the file; a sync with more paths stores none.
const LIMIT: u64 = 32 << 20;

/// Paths of the baseline, and whether each is a directory.
pub(crate) type Paths = BTreeMap<Vec<u8>, bool>;

/// The baseline file, locked by one sync at a time.
#[derive(Debug)]
pub(crate) struct BaselineFile {
    path: PathBuf,
    head: Vec<u8>,
    file: File,
    length: u64,
}

impl BaselineFile {
    /// Opens the file and returns the stored paths. `None` if another sync of the same directories
    /// runs, or the file cannot be written.
    pub(crate) fn open(sandbox: &Path, source: &Path, target: &[u8]) -> Option<(Self, Paths)> {
        let head = [b"1\0", source.as_os_str().as_bytes(), b"\0", target, b"\0"].concat();
        let name = msb_image::digest_of(&head);
        let path = sandbox.join(format!("{}{}", state::SYNCED, name.hex().get(..32)?));
        let mut file = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_private_file(&path).ok()?
            }
            file => file.ok()?,
        };
        if !msb_sys::lock::try_lock(&file).unwrap_or(false) {
            return None;
        }
        let mut text = Vec::new();
        (&mut file).take(LIMIT).read_to_end(&mut text).ok()?;
        let paths = parsed(text.strip_prefix(head.as_slice()).unwrap_or_default());
        let mut baseline_file = Self { path, head, file, length: 0 };
        baseline_file
            .rewrite(paths.iter().map(|(path, is_directory)| (path.as_slice(), *is_directory)));
        Some((baseline_file, paths))
    }

    /// Appends lines. False if there is no room and the file should be rewritten.
    pub(crate) fn add(&mut self, lines: &[u8]) -> bool {
        self.length += lines.len() as u64;
        self.length <= LIMIT && self.file.write_all(lines).is_ok()
    }

    /// Rewrites the file. False if that fails; the file is removed then.
    pub(crate) fn rewrite<'a>(&mut self, paths: impl Iterator<Item = (&'a [u8], bool)>) -> bool {
        let mut text = self.head.clone();
        paths.for_each(|(path, is_directory)| text.extend(line(path, Some(is_directory))));
        self.length = text.len() as u64;
        let temp = self.path.with_file_name(temp_name("making", "synced"));
        let write = || -> io::Result<File> {
            let mut file = create_private_file(&temp)?;
            msb_sys::lock::try_lock(&file)?;
            file.write_all(&text)?;
            fs::rename(&temp, &self.path)?;
            Ok(file)
        };
        // At most half of the limit, to leave room for appended lines.
        match if self.length > LIMIT / 2 { None } else { write().ok() } {
            Some(file) => self.file = file,
            None => {
                let _ = fs::remove_file(&temp);
                let _ = fs::remove_file(&self.path);
                return false;
            }
        }
        true
    }
}

/// A line of the file: `d` or `f` for a path that was sent, `-` for one that was removed.
pub(crate) fn line(path: &[u8], sent: Option<bool>) -> Vec<u8> {
    let what = match sent {
        Some(true) => b"d",
        Some(false) => b"f",
        None => b"-",
    };
    [what, path, b"\0"].concat()
}

/// Parses untrusted lines. Only safe paths below directories that were sent are kept.
fn parsed(text: &[u8]) -> Paths {
    let mut paths = Paths::new();
    for line in text.split_inclusive(|byte| *byte == 0) {
        // A truncated line has no terminator.
        let Some((what, path)) = line.strip_suffix(b"\0").and_then(|line| line.split_first())
        else {
            continue;
        };
        match what {
            b'd' | b'f' => paths.insert(path.to_vec(), *what == b'd'),
            _ => paths.remove(path),
        };
    }
    let mut valid = Paths::new();
    for (path, is_directory) in paths {
        let change = Change::Remove { path: path.clone(), directory: is_directory };
        let above = parent(&path);
        if change.is_safe() && (above.is_empty() || valid.get(above) == Some(&true)) {
            valid.insert(path, is_directory);
        }
    }
    valid
}

/// Removes the baselines of a sandbox after its files were rolled back.
pub(crate) fn forget(sandbox: &Path) {
    let entries = fs::read_dir(sandbox).into_iter().flatten().flatten();
    for entry in entries {
        if entry.file_name().as_bytes().starts_with(state::SYNCED.as_bytes()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_lines_are_read_back_and_others_dropped() {
        let mut text = Vec::new();
        for (path, sent) in [
            ("a", Some(true)),
            ("a/b", Some(false)),
            ("gone", Some(false)),
            ("gone", None),
            ("a/../../etc", Some(false)),
            ("/etc", Some(false)),
            ("", Some(true)),
            ("b/in what was never sent", Some(false)),
            ("a/b/in a file", Some(false)),
        ] {
            text.extend(line(path.as_bytes(), sent));
        }
        text.extend(b"fcut off");
        let paths: Vec<_> = parsed(&text).into_iter().collect();
        assert_eq!(paths, [(b"a".to_vec(), true), (b"a/b".to_vec(), false)]);
        assert!(parsed(b"").is_empty() && parsed(&[0, 0, 0]).is_empty());
    }
}
