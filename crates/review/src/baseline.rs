//! The state of the host directory that the sandbox has seen: all files as they were when it was
//! first mounted, and what `apply` has written since.
//!
//! A file of the host is unchanged if its ctime is not after that moment. The moment is taken from
//! the clock of the same file system, so that no two clocks are compared.

use crate::dir_fd::{DirFd, kind};
use msb_api::RelPath;
use msb_spec::{Error, Kind, Result};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// A timestamp of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct FileTime {
    seconds: i64,
    nanoseconds: i64,
}

impl FileTime {
    /// The ctime: last change of content, name, mode or owner.
    pub(crate) fn ctime(stat: &Stat) -> Self {
        let nanoseconds = stat.st_ctime_nsec as i64;
        Self { seconds: stat.st_ctime, nanoseconds }
    }

    /// The mtime: last change of the content.
    pub(crate) fn mtime(stat: &Stat) -> Self {
        let nanoseconds = stat.st_mtime_nsec as i64;
        Self { seconds: stat.st_mtime, nanoseconds }
    }
}

/// Identifies a version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileIdentity {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    size: i64,
    #[serde(rename = "written")]
    mtime: FileTime,
    #[serde(rename = "touched")]
    ctime: FileTime,
}

impl FileIdentity {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size: stat.st_size,
            mtime: FileTime::mtime(stat),
            ctime: FileTime::ctime(stat),
        }
    }

    /// Whether it is the same file with the same content. A rename changes the ctime.
    pub(crate) fn is_same_content(&self, stat: &Stat) -> bool {
        let other = Self::of(stat);
        Self { ctime: other.ctime, ..*self } == other
    }
}

/// What is recorded about an applied path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AppliedEntry {
    /// The file on the host after the apply; none if it was deleted.
    pub(crate) host: Option<FileIdentity>,
    /// The file in the upper directory; none for a parent directory of an applied path.
    pub(crate) upper: Option<FileIdentity>,
}

/// What the sandbox has seen of the host directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Baseline {
    since: FileTime,
    /// Device and inode of the host directory.
    root: (u64, u64),
    #[serde(default, rename = "known")]
    applied: BTreeMap<RelPath, AppliedEntry>,
}

/// Largest baseline file that is read, in bytes.
const SIZE_LIMIT: u64 = 512 << 20;

impl Baseline {
    /// Records the state of the host directory before its first mount.
    pub(crate) fn take(host: &Path) -> Result<Self> {
        let root = DirFd::open(host)?;
        let stat = root.own_stat()?;
        let since = now(&root, host)?;
        wait_for_tick(since);
        Ok(Self { since, root: (stat.st_dev, stat.st_ino), applied: BTreeMap::new() })
    }

    /// Fails if the host directory was replaced by another one.
    pub(crate) fn check_root(&self, root: &DirFd, host: &Path) -> Result<()> {
        let stat = root.own_stat()?;
        if (stat.st_dev, stat.st_ino) == self.root {
            return Ok(());
        }
        Err(Error::new(
            Kind::State,
            format!("`{}` is not the directory that the sandbox was started with", host.display()),
        )
        .cause("it was moved or replaced since")
        .hint("move the old one back, or `msb discard` the changes"))
    }

    /// Whether a file on the host is the one that the sandbox has seen.
    pub(crate) fn is_as_seen(&self, path: &RelPath, stat: &Stat) -> bool {
        FileTime::ctime(stat) <= self.since
            || self.applied.get(path).and_then(|entry| entry.host) == Some(FileIdentity::of(stat))
    }

    /// Whether a directory of the host was moved here, or had its mode changed, after the baseline.
    /// Adding or removing entries sets mtime and ctime alike.
    pub(crate) fn is_moved(&self, path: &RelPath, stat: &Stat) -> bool {
        kind(stat) == FileType::Directory
            && !self.is_as_seen(path, stat)
            && FileTime::mtime(stat) != FileTime::ctime(stat)
    }

    /// Whether the file of the sandbox was applied already.
    pub(crate) fn is_applied(&self, path: &RelPath, upper: &Stat) -> bool {
        self.applied.get(path).and_then(|entry| entry.upper) == Some(FileIdentity::of(upper))
    }

    /// Whether an apply has deleted the path. Whiteouts cannot be compared: overlayfs hard-links
    /// one inode for all of them.
    pub(crate) fn is_deleted(&self, path: &RelPath) -> bool {
        self.applied.get(path).is_some_and(|entry| entry.host.is_none())
    }

    /// Records an applied path.
    pub(crate) fn record(&mut self, path: RelPath, entry: AppliedEntry) {
        self.applied.insert(path, entry);
    }

    /// Converts the baseline for a copy of the upper directory. `both` stats a path in the original
    /// and in the copy. Entries that have changed since the apply stay changed.
    pub(crate) fn carry(
        &mut self,
        both: impl Fn(&RelPath) -> Result<(Option<Stat>, Option<Stat>)>,
    ) -> Result<()> {
        for (path, entry) in &mut self.applied {
            let Some(upper) = entry.upper else { continue };
            if let (Some(original), Some(copy)) = both(path)?
                && FileIdentity::of(&original) == upper
            {
                entry.upper = Some(FileIdentity::of(&copy));
            }
        }
        Ok(())
    }

    /// Whether a file of the sandbox was ever applied at this path.
    pub(crate) fn was_applied(&self, path: &RelPath) -> bool {
        self.applied.get(path).is_some_and(|entry| entry.upper.is_some())
    }

    /// Whether an apply has written a file at this path.
    pub(crate) fn was_written(&self, path: &RelPath) -> bool {
        self.applied.get(path).is_some_and(|entry| entry.host.is_some() && entry.upper.is_some())
    }

    /// Whether entries of a directory of the host were added or removed, other than by an apply.
    /// For the root this is unknown after the first apply.
    pub(crate) fn has_changed_entries(&self, path: Option<&RelPath>, stat: &Stat) -> bool {
        match path {
            Some(path) => !self.is_as_seen(path, stat),
            None => self.applied.is_empty() && FileTime::ctime(stat) > self.since,
        }
    }

    /// What is recorded about a path.
    pub(crate) fn applied_entry(&self, path: &RelPath) -> Option<AppliedEntry> {
        self.applied.get(path).copied()
    }

    /// Reads a baseline file. Its content is not trusted.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let about = |error: &dyn std::fmt::Display| {
            Error::new(Kind::State, "cannot read the baseline of the workspace").cause(error)
        };
        let mut text = Vec::new();
        File::open(path)
            .and_then(|file| file.take(SIZE_LIMIT).read_to_end(&mut text))
            .map_err(|error| about(&error))?;
        serde_json::from_slice(&text).map_err(|error| about(&error))
    }

    /// Writes a baseline file, which the caller renames.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).expect("our own types always serialise");
        write_synced(path, &text)
            .map_err(|error| Error::host("cannot write the baseline of the workspace", error))
    }
}

/// Writes a file and syncs it.
pub(crate) fn write_synced(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

/// Syncs the entries of a directory.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// The current time of the clock that stamps files of this directory, from the ctime of an
/// O_TMPFILE file.
fn now(root: &DirFd, host: &Path) -> Result<FileTime> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(&root.0, ".", flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => {
            let stat = rustix::fs::fstat(&file)
                .map_err(|error| Error::host("cannot read the file system's clock", error))?;
            Ok(FileTime::ctime(&stat))
        }
        // The directory is not writable. Local files are stamped by the coarse clock of the kernel.
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::NOSPC | Errno::DQUOT) => {
            let now = clock_gettime(ClockId::RealtimeCoarse);
            Ok(FileTime { seconds: now.tv_sec, nanoseconds: now.tv_nsec })
        }
        Err(error) => Err(Error::unsupported(format!(
            "cannot track changes of `{}`",
            host.display()
        ))
        .cause(error)
        .hint(
            "a workspace must be on a local file system (ext4, xfs, btrfs, tmpfs); copy it there",
        )),
    }
}

/// Waits some milliseconds until new files get a later timestamp: files with this one existed
/// before the sandbox.
fn wait_for_tick(moment: FileTime) {
    /// Limit of the wait, 300 µs each. Clocks tick at least every 10 ms.
    const TICKS: u32 = 100;
    for _ in 0..TICKS {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        if (FileTime { seconds: now.tv_sec, nanoseconds: now.tv_nsec }) > moment {
            return;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}
