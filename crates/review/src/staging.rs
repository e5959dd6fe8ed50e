//! The staging directory: in the root of the workspace, so that one rename moves each file to its
//! target, and with mode 0700.

use crate::dir_fd::DirFd;
use crate::failpoint;
use msb_spec::{Error, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Staged files, named by numbers.
#[derive(Debug)]
pub(crate) struct StagingDir {
    pub(crate) dir: DirFd,
    name: String,
}

impl StagingDir {
    pub(crate) fn make(root: &DirFd, name: &str) -> Result<Self> {
        let about = |error| Error::host("cannot write to the workspace", error);
        failpoint::hit();
        rustix::fs::mkdirat(&root.0, name, Mode::RWXU).map_err(about)?;
        failpoint::hit();
        Self::open(root, name)?.ok_or_else(|| about(Errno::NOENT))
    }

    /// Opens the staging directory of an unfinished apply; none if it does not exist.
    pub(crate) fn open(root: &DirFd, name: &str) -> Result<Option<Self>> {
        let dir = root.directory(name.as_bytes())?;
        Ok(dir.map(|dir| Self { dir, name: name.to_owned() }))
    }

    /// Creates a regular file with this number.
    pub(crate) fn file(&self, number: u64) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir.0, number.to_string(), flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(|error| Error::host("cannot write to the workspace", error))
    }

    pub(crate) fn directory(&self, number: u64) -> Result<()> {
        rustix::fs::mkdirat(&self.dir.0, number.to_string(), Mode::RWXU)
            .map_err(|error| Error::host("cannot write to the workspace", error))
    }

    pub(crate) fn link(&self, number: u64, target: &[u8]) -> Result<()> {
        rustix::fs::symlinkat(OsStr::from_bytes(target), &self.dir.0, number.to_string())
            .map_err(|error| Error::host("cannot write to the workspace", error))
    }

    /// Sets owner and mode of a staged file.
    pub(crate) fn set_metadata(
        &self,
        number: u64,
        mode: Option<u32>,
        owner: (u32, u32),
    ) -> Result<()> {
        failpoint::hit();
        let about = |error| Error::host("cannot write to the workspace", error);
        let name = number.to_string();
        let stat = self.stat(number)?.ok_or_else(|| about(Errno::NOENT))?;
        if (stat.st_uid, stat.st_gid) != owner {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
            let given = rustix::fs::chownat(&self.dir.0, &name, Some(uid), Some(gid), flags);
            // An ordinary user cannot change the owner, and need not.
            if rustix::process::geteuid().is_root() {
                match given {
                    Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
                    Err(error) => return Err(about(error)),
                }
            }
        }
        match mode {
            // After chown, which may clear mode bits. No other user can enter the directory.
            Some(mode) => {
                let mode = Mode::from_raw_mode(mode & 0o777);
                rustix::fs::chmodat(&self.dir.0, &name, mode, AtFlags::empty()).map_err(about)
            }
            None => Ok(()),
        }
    }

    pub(crate) fn stat(&self, number: u64) -> Result<Option<Stat>> {
        self.dir.stat(number.to_string().as_bytes())
    }

    /// Moves a staged file to a name that does not exist.
    pub(crate) fn move_to_host(
        &self,
        number: u64,
        to: &DirFd,
        name: &OsStr,
    ) -> rustix::io::Result<()> {
        failpoint::hit();
        let flags = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&self.dir.0, number.to_string(), &to.0, name, flags)
    }

    /// Exchanges a staged file with an existing one.
    pub(crate) fn exchange(
        &self,
        number: u64,
        with: &DirFd,
        name: &OsStr,
    ) -> rustix::io::Result<()> {
        failpoint::hit();
        let flags = RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(&self.dir.0, number.to_string(), &with.0, name, flags)
    }

    /// Moves an existing file into the staging directory.
    pub(crate) fn move_from_host(
        &self,
        number: u64,
        from: &DirFd,
        name: &OsStr,
    ) -> rustix::io::Result<()> {
        failpoint::hit();
        let flags = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&from.0, name, &self.dir.0, number.to_string(), flags)
    }

    /// Removes the directory with all its entries. Directories in it are empty.
    pub(crate) fn remove(self, root: &DirFd) -> Result<()> {
        let about = |error| Error::host(format!("cannot remove `{}`", self.name), error);
        for name in self.dir.names()? {
            failpoint::hit();
            let name = OsStr::from_bytes(&name);
            let removed = match rustix::fs::unlinkat(&self.dir.0, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => rustix::fs::unlinkat(&self.dir.0, name, AtFlags::REMOVEDIR),
                removed => removed,
            };
            removed.map_err(about)?;
        }
        failpoint::hit();
        rustix::fs::unlinkat(&root.0, self.name.as_str(), AtFlags::REMOVEDIR).map_err(about)
    }
}

/// Changes the mode of a file or directory through an O_PATH descriptor, so that it cannot be
/// replaced meanwhile. Returns false if `is_meant` refuses it.
pub(crate) fn set_mode(
    directory: &DirFd,
    name: &OsStr,
    mode: u32,
    is_meant: impl FnOnce(&Stat) -> bool,
) -> Result<bool> {
    let about = |error| crate::dir_fd::cannot_read(name, error);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened: OwnedFd =
        rustix::fs::openat2(&directory.0, name, flags, Mode::empty(), crate::dir_fd::BENEATH)
            .map_err(about)?;
    if !is_meant(&rustix::fs::fstat(&opened).map_err(about)?) {
        return Ok(false);
    }
    failpoint::hit();
    let path = format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd());
    rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty()).map_err(about)?;
    Ok(true)
}
