//! The directory for things on their way: in the root of the workspace, so that one rename brings
//! each to its place, and closed to everybody else.

use crate::fault;
use crate::tree::Directory;
use msb_spec::{Error, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Things on their way, each under a number.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(crate) place: Directory,
    name: String,
}

impl Staging {
    pub(crate) fn make(root: &Directory, name: &str) -> Result<Self> {
        let about = |error| Error::host("cannot write to the workspace", error);
        fault::point();
        rustix::fs::mkdirat(&root.0, name, Mode::RWXU).map_err(about)?;
        fault::point();
        Self::open(root, name)?.ok_or_else(|| about(Errno::NOENT))
    }

    /// The one of somebody who died, if it is there.
    pub(crate) fn open(root: &Directory, name: &str) -> Result<Option<Self>> {
        let place = root.directory(name.as_bytes())?;
        Ok(place.map(|place| Self { place, name: name.to_owned() }))
    }

    /// A new file under this number.
    pub(crate) fn file(&self, number: u64) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(&self.place.0, number.to_string(), flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(|error| Error::host("cannot write to the workspace", error))
    }

    pub(crate) fn directory(&self, number: u64) -> Result<()> {
        rustix::fs::mkdirat(&self.place.0, number.to_string(), Mode::RWXU)
            .map_err(|error| Error::host("cannot write to the workspace", error))
    }

    pub(crate) fn link(&self, number: u64, target: &[u8]) -> Result<()> {
        rustix::fs::symlinkat(OsStr::from_bytes(target), &self.place.0, number.to_string())
            .map_err(|error| Error::host("cannot write to the workspace", error))
    }

    /// Gives something the permissions and the owner that it will have.
    pub(crate) fn dress(&self, number: u64, mode: Option<u32>, owner: (u32, u32)) -> Result<()> {
        fault::point();
        let about = |error| Error::host("cannot write to the workspace", error);
        let name = number.to_string();
        let stat = self.stat(number)?.ok_or_else(|| about(Errno::NOENT))?;
        if (stat.st_uid, stat.st_gid) != owner {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
            let given = rustix::fs::chownat(&self.place.0, &name, Some(uid), Some(gid), flags);
            // An ordinary user's files are its own.
            if rustix::process::geteuid().is_root() {
                match given {
                    Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
                    Err(error) => return Err(about(error)),
                }
            }
        }
        match mode {
            // After the owner, whose change may take permissions away. Nobody else is in here.
            Some(mode) => {
                let mode = Mode::from_raw_mode(mode & 0o777);
                rustix::fs::chmodat(&self.place.0, &name, mode, AtFlags::empty()).map_err(about)
            }
            None => Ok(()),
        }
    }

    pub(crate) fn stat(&self, number: u64) -> Result<Option<Stat>> {
        self.place.stat(number.to_string().as_bytes())
    }

    /// Brings something to a place where nothing is.
    pub(crate) fn bring(
        &self,
        number: u64,
        to: &Directory,
        name: &OsStr,
    ) -> rustix::io::Result<()> {
        fault::point();
        let flags = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&self.place.0, number.to_string(), &to.0, name, flags)
    }

    /// Lets something change places with what is there.
    pub(crate) fn exchange(
        &self,
        number: u64,
        with: &Directory,
        name: &OsStr,
    ) -> rustix::io::Result<()> {
        fault::point();
        let flags = RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(&self.place.0, number.to_string(), &with.0, name, flags)
    }

    /// Takes something away from its place.
    pub(crate) fn fetch(
        &self,
        number: u64,
        from: &Directory,
        name: &OsStr,
    ) -> rustix::io::Result<()> {
        fault::point();
        let flags = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&from.0, name, &self.place.0, number.to_string(), flags)
    }

    /// Removes it with everything that is still in it. Directories in here are empty.
    pub(crate) fn remove(self, root: &Directory) -> Result<()> {
        let about = |error| Error::host(format!("cannot remove `{}`", self.name), error);
        for name in self.place.names()? {
            fault::point();
            let name = OsStr::from_bytes(&name);
            let removed = match rustix::fs::unlinkat(&self.place.0, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => rustix::fs::unlinkat(&self.place.0, name, AtFlags::REMOVEDIR),
                removed => removed,
            };
            removed.map_err(about)?;
        }
        fault::point();
        rustix::fs::unlinkat(&root.0, self.name.as_str(), AtFlags::REMOVEDIR).map_err(about)
    }
}

/// Changes the permissions of an ordinary file or directory that is open by its place only, so that
/// it cannot have become another meanwhile.
pub(crate) fn set_mode(
    directory: &Directory,
    name: &OsStr,
    mode: u32,
    is_meant: impl FnOnce(&Stat) -> bool,
) -> Result<bool> {
    let about = |error| crate::tree::cannot_read(name, error);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened: OwnedFd =
        rustix::fs::openat2(&directory.0, name, flags, Mode::empty(), crate::tree::BENEATH)
            .map_err(about)?;
    if !is_meant(&rustix::fs::fstat(&opened).map_err(about)?) {
        return Ok(false);
    }
    fault::point();
    let path = format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd());
    rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty()).map_err(about)?;
    Ok(true)
}
