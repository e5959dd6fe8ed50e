//! The files of SSH: a sandbox's host key, and lists of who may come in. What is in them is for others to read.

use crate::Engine;
use crate::store;
use msb_spec::{Error, Kind, Name, Result};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// A list of some thousand keys; more is not one.
const FILE_LIMIT: u64 = 1 << 20;

/// Which file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SshFile {
    /// The private key by which a sandbox is known.
    HostKey,
    /// The same for clients, as OpenSSH reads it.
    KnownHosts,
    /// Who may come in.
    AuthorizedKeys,
}

impl SshFile {
    fn name(self) -> &'static str {
        match self {
            Self::HostKey => "host_key",
            Self::KnownHosts => "known_hosts",
            Self::AuthorizedKeys => "authorized_keys",
        }
    }
}

/// The files of one sandbox, or those for all.
#[derive(Debug, Clone)]
pub struct SshFiles {
    directory: PathBuf,
}

impl Engine {
    /// The files of a sandbox that exists.
    pub fn ssh_files(&self, name: &Name) -> Result<SshFiles> {
        self.existing(name)?;
        Ok(SshFiles { directory: self.home().ssh(Some(name)) })
    }

    /// The files for all sandboxes, and then those of each.
    pub fn ssh_files_everywhere(&self) -> Vec<(Option<Name>, SshFiles)> {
        let each = self.home().names().into_iter().map(|name| {
            let directory = self.home().ssh(Some(&name));
            (Some(name), SshFiles { directory })
        });
        std::iter::once((None, self.ssh_files_of_all())).chain(each).collect()
    }

    /// The files for all sandboxes.
    pub fn ssh_files_of_all(&self) -> SshFiles {
        SshFiles { directory: self.home().ssh(None) }
    }
}

impl SshFiles {
    /// Where a file is.
    pub fn path(&self, file: SshFile) -> PathBuf {
        self.directory.join(file.name())
    }

    /// What a file holds; none if it is not there.
    pub fn read(&self, file: SshFile) -> Result<Option<String>> {
        let path = self.path(file);
        let about = |error| Error::host(format!("cannot read `{}`", path.display()), error);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(about)?,
        };
        let mut text = String::new();
        file.take(FILE_LIMIT + 1).read_to_string(&mut text).map_err(about)?;
        if text.len() as u64 > FILE_LIMIT {
            return Err(Error::new(Kind::State, format!("`{}` is too long", path.display())));
        }
        Ok(Some(text))
    }

    /// Writes a file that is not there yet. Of two who try one wins, and both are told what it holds.
    pub fn write_once(&self, file: SshFile, text: &str) -> Result<String> {
        let (path, aside) = (self.path(file), self.written_aside(file, text)?);
        match fs::hard_link(&aside.0, &path) {
            Ok(()) => Ok(text.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.read(file)?.ok_or_else(|| self.changes(file))
            }
            Err(error) => Err(Error::host(format!("cannot write `{}`", path.display()), error)),
        }
    }

    /// Replaces a file, or makes it.
    pub fn replace(&self, file: SshFile, text: &str) -> Result<()> {
        let (path, aside) = (self.path(file), self.written_aside(file, text)?);
        fs::rename(&aside.0, &path)
            .map_err(|error| Error::host(format!("cannot write `{}`", path.display()), error))
    }

    /// Changes a file while nobody else does; what is returned is written.
    pub fn change<T>(
        &self,
        file: SshFile,
        change: impl FnOnce(&str) -> Result<(String, T)>,
    ) -> Result<T> {
        self.make()?;
        let lock = self.directory.join("lock");
        let about = |error| Error::host(format!("cannot lock `{}`", lock.display()), error);
        let held = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock)
            .map_err(about)?;
        held.lock().map_err(about)?;
        let (text, told) = change(&self.read(file)?.unwrap_or_default())?;
        self.replace(file, &text)?;
        Ok(told)
    }

    fn written_aside(&self, file: SshFile, text: &str) -> Result<Removed> {
        self.make()?;
        let aside = self.directory.join(store::passing("making", file.name()));
        let write = |path: &Path| -> io::Result<()> {
            let mut file = store::create_private(path)?;
            file.write_all(text.as_bytes())?;
            msb_sys::files::write_before_rename(&file)
        };
        let removed = Removed(aside);
        write(&removed.0).map_err(|error| store::full_disk("file", error, &self.directory))?;
        Ok(removed)
    }

    fn make(&self) -> Result<()> {
        match store::make_private(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(store::full_disk("directory", error, &self.directory))
            }
            _ => Ok(()),
        }
    }

    fn changes(&self, file: SshFile) -> Error {
        let path = self.path(file);
        Error::new(Kind::State, format!("`{}` was removed while it was read", path.display()))
    }
}

/// A file that is only there for a moment.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Aside;

    #[test]
    fn of_many_who_make_a_key_one_wins_and_all_agree() {
        let place = tempdir();
        let files = SshFiles { directory: place.0.join("ssh") };
        let told: Vec<String> = std::thread::scope(|scope| {
            let made: Vec<_> = (0..8)
                .map(|n| {
                    let files = files.clone();
                    scope.spawn(move || {
                        files.write_once(SshFile::HostKey, &format!("key {n}")).unwrap()
                    })
                })
                .collect();
            made.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let kept = files.read(SshFile::HostKey).unwrap().unwrap();
        assert!(told.iter().all(|text| *text == kept), "{told:?} {kept}");
        let left = fs::read_dir(&files.directory).unwrap().count();
        assert_eq!(left, 1, "nothing is left aside");
    }

    #[test]
    fn changes_of_many_are_all_kept() {
        let place = tempdir();
        let files = SshFiles { directory: place.0.join("ssh") };
        std::thread::scope(|scope| {
            for n in 0..8 {
                let files = files.clone();
                scope.spawn(move || {
                    let add = |old: &str| Ok((format!("{old}{n}\n"), ()));
                    files.change(SshFile::AuthorizedKeys, add).unwrap();
                });
            }
        });
        assert_eq!(files.read(SshFile::AuthorizedKeys).unwrap().unwrap().lines().count(), 8);
    }

    fn tempdir() -> Aside {
        let path = std::env::temp_dir().join(store::passing("ssh", "test"));
        store::make_private(&path).unwrap();
        Aside(path)
    }
}
