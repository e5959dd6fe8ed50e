//! The SSH files of sandboxes: host key, known_hosts and authorized_keys. Their content is not
//! parsed here.

use crate::Engine;
use crate::store;
use msb_spec::{Error, Kind, Name, Result};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The most bytes of a file: some thousand keys.
const FILE_LIMIT: u64 = 1 << 20;

/// The kinds of SSH files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SshFile {
    /// The private host key of a sandbox.
    HostKey,
    /// The public host key, in the known_hosts format of OpenSSH.
    KnownHosts,
    /// The public keys that may log in.
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

/// The SSH files of one sandbox, or those for all.
#[derive(Debug, Clone)]
pub struct SshFiles {
    directory: PathBuf,
}

impl Engine {
    /// The SSH files of an existing sandbox.
    pub fn ssh_files(&self, name: &Name) -> Result<SshFiles> {
        self.existing(name)?;
        Ok(SshFiles { directory: self.home().ssh(Some(name)) })
    }

    /// The SSH files for all sandboxes, and then those of each.
    pub fn ssh_files_everywhere(&self) -> Vec<(Option<Name>, SshFiles)> {
        let each = self.home().names().into_iter().map(|name| {
            let directory = self.home().ssh(Some(&name));
            (Some(name), SshFiles { directory })
        });
        std::iter::once((None, self.ssh_files_of_all())).chain(each).collect()
    }

    /// The SSH files that apply to all sandboxes.
    pub fn ssh_files_of_all(&self) -> SshFiles {
        SshFiles { directory: self.home().ssh(None) }
    }
}

impl SshFiles {
    /// The path of a file.
    pub fn path(&self, file: SshFile) -> PathBuf {
        self.directory.join(file.name())
    }

    /// The content of a file; `None` if it is missing.
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

    /// Writes a file unless it exists, and returns its content. Concurrent callers all get the
    /// content of the first one.
    pub fn write_once(&self, file: SshFile, text: &str) -> Result<String> {
        let (path, temp) = (self.path(file), self.write_temp(file, text)?);
        match fs::hard_link(&temp.0, &path) {
            Ok(()) => Ok(text.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.read(file)?.ok_or_else(|| self.removed_meanwhile(file))
            }
            Err(error) => Err(Error::host(format!("cannot write `{}`", path.display()), error)),
        }
    }

    /// Creates or replaces a file.
    pub fn replace(&self, file: SshFile, text: &str) -> Result<()> {
        let (path, temp) = (self.path(file), self.write_temp(file, text)?);
        fs::rename(&temp.0, &path)
            .map_err(|error| Error::host(format!("cannot write `{}`", path.display()), error))
    }

    /// Changes a file under a lock. `change` gets the present content and returns the new one.
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
        let (text, result) = change(&self.read(file)?.unwrap_or_default())?;
        self.replace(file, &text)?;
        Ok(result)
    }

    fn write_temp(&self, file: SshFile, text: &str) -> Result<TempFile> {
        self.make()?;
        let temp = self.directory.join(store::temp_name("making", file.name()));
        let write = |path: &Path| -> io::Result<()> {
            let mut file = store::create_private_file(path)?;
            file.write_all(text.as_bytes())?;
            msb_sys::files::write_before_rename(&file)
        };
        let removed = TempFile(temp);
        write(&removed.0).map_err(|error| store::write_error("file", error, &self.directory))?;
        Ok(removed)
    }

    fn make(&self) -> Result<()> {
        match store::create_private_dir(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(store::write_error("directory", error, &self.directory))
            }
            _ => Ok(()),
        }
    }

    fn removed_meanwhile(&self, file: SshFile) -> Error {
        let path = self.path(file);
        Error::new(Kind::State, format!("`{}` was removed while it was read", path.display()))
    }
}

/// A temporary file, removed on drop.
struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::TempDir;

    #[test]
    fn concurrent_writers_of_a_key_agree_on_one() {
        let place = tempdir();
        let files = SshFiles { directory: place.0.join("ssh") };
        let result: Vec<String> = std::thread::scope(|scope| {
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
        assert!(result.iter().all(|text| *text == kept), "{result:?} {kept}");
        let left = fs::read_dir(&files.directory).unwrap().count();
        assert_eq!(left, 1, "nothing is left aside");
    }

    #[test]
    fn concurrent_changes_are_all_kept() {
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

    fn tempdir() -> TempDir {
        let path = std::env::temp_dir().join(store::temp_name("ssh", "test"));
        store::create_private_dir(&path).unwrap();
        TempDir(path)
    }
}
