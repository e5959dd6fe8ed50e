//! A file that is written beside its name: nothing reads half of it, whenever the writer is killed.

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Bytes of the final name in that of the draft: with the rest, a name stays below NAME_MAX.
const NAME_BYTES: usize = 200;

/// A new file in a directory. It gets its name by [`DraftFile::keep`], and is removed otherwise.
#[derive(Debug)]
pub struct DraftFile {
    directory: OwnedFd,
    /// Name until it is kept; empty afterwards.
    draft: OsString,
    name: OsString,
    file: File,
}

impl DraftFile {
    /// Creates an empty file with this mode, which will be `name` in the directory.
    pub fn create(directory: OwnedFd, name: &OsStr, mode: Mode) -> io::Result<Self> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            let mut random = [0; 8];
            getrandom(&mut random, GetRandomFlags::empty())?;
            let short = &name.as_bytes()[..name.len().min(NAME_BYTES)];
            let mut draft = OsString::from(".");
            draft.push(OsStr::from_bytes(short));
            draft.push(format!(".msb-{:016x}", u64::from_ne_bytes(random)));
            match rustix::fs::openat(&directory, &draft, flags, mode) {
                Ok(file) => {
                    let (name, file) = (name.to_owned(), File::from(file));
                    return Ok(Self { directory, draft, name, file });
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The file, for writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name by `rename(2)`. It replaces any file or link, but no directory.
    pub fn keep(mut self) -> io::Result<()> {
        let directory = self.directory.as_fd();
        rustix::fs::renameat(directory, &self.draft, directory, &self.name)?;
        self.draft.clear();
        Ok(())
    }
}

impl Drop for DraftFile {
    fn drop(&mut self) {
        if !self.draft.is_empty() {
            let _ = rustix::fs::unlinkat(&self.directory, &self.draft, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{TempDir, temp_name};
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_name_has_the_old_file_or_the_whole_new_one() {
        let dir = TempDir(std::env::temp_dir().join(temp_name("draft", "test")));
        fs::create_dir(&dir.0).unwrap();
        fs::write(dir.0.join("other"), "untouched").unwrap();
        symlink("other", dir.0.join("x")).unwrap();
        let draft = |name: &str| {
            let directory = OwnedFd::from(File::open(&dir.0).unwrap());
            let draft = DraftFile::create(directory, OsStr::new(name), Mode::RUSR | Mode::WUSR);
            let draft = draft.unwrap();
            draft.file().write_all(b"new").unwrap();
            draft
        };
        let names = || fs::read_dir(&dir.0).unwrap().count();
        let made = draft("x");
        assert_eq!(
            (names(), fs::read_to_string(dir.0.join("x")).unwrap()),
            (3, "untouched".into())
        );
        drop(made);
        assert_eq!(names(), 2);
        draft("x").keep().unwrap();
        assert_eq!(fs::read_to_string(dir.0.join("x")).unwrap(), "new");
        assert_eq!(fs::read_to_string(dir.0.join("other")).unwrap(), "untouched");
        draft(&"n".repeat(255)).keep().unwrap();
        fs::create_dir(dir.0.join("directory")).unwrap();
        draft("directory").keep().unwrap_err();
        assert_eq!(names(), 4);
    }
}
