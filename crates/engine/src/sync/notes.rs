//! What was sent, kept beside the sandbox for the next sync of the same two directories.
//!
//! What is removed from the source while nobody follows it is removed inside by whoever follows it
//! next, if it stands here. Lines are only added, and what cannot be written or is too much is not
//! kept: then it stays inside, as what the sandbox made does.

use super::ledger::parent;
use crate::store::{create_private, passing};
use msb_spec::state;
use msb_wire::Change;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Far more than the paths of a large project; a sync of more keeps nothing.
const LIMIT: u64 = 32 << 20;

/// Paths that were sent, and whether each is a directory.
pub(crate) type Paths = BTreeMap<Vec<u8>, bool>;

/// The file, held by one sync at a time.
#[derive(Debug)]
pub(crate) struct Notes {
    path: PathBuf,
    head: Vec<u8>,
    file: File,
    length: u64,
}

impl Notes {
    /// What the last sync of these two has left, and where to note what this one does. None if
    /// another one is doing the same, or nothing can be written.
    pub(crate) fn open(sandbox: &Path, source: &Path, target: &[u8]) -> Option<(Self, Paths)> {
        let head = [b"1\0", source.as_os_str().as_bytes(), b"\0", target, b"\0"].concat();
        let name = msb_image::digest_of(&head);
        let path = sandbox.join(format!("{}{}", state::SYNCED, name.hex().get(..32)?));
        let mut file = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create_private(&path).ok()?,
            file => file.ok()?,
        };
        if !msb_sys::lock::try_lock(&file).unwrap_or(false) {
            return None;
        }
        let mut text = Vec::new();
        (&mut file).take(LIMIT).read_to_end(&mut text).ok()?;
        let paths = parsed(text.strip_prefix(head.as_slice()).unwrap_or_default());
        let mut notes = Self { path, head, file, length: 0 };
        notes.write_anew(paths.iter().map(|(path, is_directory)| (path.as_slice(), *is_directory)));
        Some((notes, paths))
    }

    /// Adds lines. False if there is no room, and all should be written anew.
    pub(crate) fn add(&mut self, lines: &[u8]) -> bool {
        self.length += lines.len() as u64;
        self.length <= LIMIT && self.file.write_all(lines).is_ok()
    }

    /// Writes everything anew. Gives whether that could be done; without it there are no notes.
    pub(crate) fn write_anew<'a>(&mut self, paths: impl Iterator<Item = (&'a [u8], bool)>) -> bool {
        let mut text = self.head.clone();
        paths.for_each(|(path, is_directory)| text.extend(line(path, Some(is_directory))));
        self.length = text.len() as u64;
        let aside = self.path.with_file_name(passing("making", "synced"));
        let write = || -> io::Result<File> {
            let mut file = create_private(&aside)?;
            msb_sys::lock::try_lock(&file)?;
            file.write_all(&text)?;
            fs::rename(&aside, &self.path)?;
            Ok(file)
        };
        // Half as much at most: there is to be room for what comes.
        match if self.length > LIMIT / 2 { None } else { write().ok() } {
            Some(file) => self.file = file,
            None => {
                let _ = fs::remove_file(&aside);
                let _ = fs::remove_file(&self.path);
                return false;
            }
        }
        true
    }
}

/// How a path is noted: that it was sent, or that it was removed.
pub(crate) fn line(path: &[u8], sent: Option<bool>) -> Vec<u8> {
    let what = match sent {
        Some(true) => b"d",
        Some(false) => b"f",
        None => b"-",
    };
    [what, path, b"\0"].concat()
}

/// Reads lines that anybody could have written. Only what lies in a directory that was sent counts.
fn parsed(text: &[u8]) -> Paths {
    let mut paths = Paths::new();
    for line in text.split_inclusive(|byte| *byte == 0) {
        // One that was cut off has no end.
        let Some((what, path)) = line.strip_suffix(b"\0").and_then(|line| line.split_first())
        else {
            continue;
        };
        match what {
            b'd' | b'f' => paths.insert(path.to_vec(), *what == b'd'),
            _ => paths.remove(path),
        };
    }
    let mut sound = Paths::new();
    for (path, is_directory) in paths {
        let change = Change::Remove { path: path.clone(), directory: is_directory };
        let above = parent(&path);
        if change.is_safe() && (above.is_empty() || sound.get(above) == Some(&true)) {
            sound.insert(path, is_directory);
        }
    }
    sound
}

/// Forgets what syncs have sent to a sandbox whose files are put back.
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
    fn what_is_noted_is_read_back_and_nonsense_is_not() {
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
