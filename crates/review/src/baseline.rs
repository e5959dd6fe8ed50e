//! What the sandbox has seen of the host's directory: everything that was there when it was first
//! shown, and what was brought there since by ourselves.
//!
//! A file of the host is still the one that was seen if it was not touched after that moment. The
//! moment is told by the clock that stamps the files, so that no two clocks are compared.

use crate::tree::{Directory, kind};
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

/// A point in time, as files are stamped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Moment {
    seconds: i64,
    nanoseconds: i64,
}

impl Moment {
    /// When something was last touched: its content, its name, its mode or its owner.
    pub(crate) fn touched(stat: &Stat) -> Self {
        let nanoseconds = stat.st_ctime_nsec as i64;
        Self { seconds: stat.st_ctime, nanoseconds }
    }

    /// When its content was last written.
    pub(crate) fn written(stat: &Stat) -> Self {
        let nanoseconds = stat.st_mtime_nsec as i64;
        Self { seconds: stat.st_mtime, nanoseconds }
    }
}

/// What tells a file from every other and from itself at another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    size: i64,
    written: Moment,
    touched: Moment,
}

impl Identity {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size: stat.st_size,
            written: Moment::written(stat),
            touched: Moment::touched(stat),
        }
    }

    /// Whether it is the same file with the same content. To give it another name touches it.
    pub(crate) fn is_same_content(&self, stat: &Stat) -> bool {
        let other = Self::of(stat);
        Self { touched: other.touched, ..*self } == other
    }
}

/// What is remembered of one path that was brought to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    /// What is on the host since; none if that was to be nothing.
    pub(crate) host: Option<Identity>,
    /// What it was made from; none for a directory that something was only put into.
    pub(crate) upper: Option<Identity>,
}

/// What the sandbox has seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Baseline {
    since: Moment,
    /// The directory itself, which could be another by now.
    root: (u64, u64),
    #[serde(default)]
    known: BTreeMap<RelPath, Known>,
}

/// A few hundred bytes for each path that was brought to the host.
const LONGEST: u64 = 512 << 20;

impl Baseline {
    /// Notes that the host's directory is about to be shown for the first time.
    pub(crate) fn take(host: &Path) -> Result<Self> {
        let root = Directory::open(host)?;
        let stat = root.own_stat()?;
        let since = now(&root, host)?;
        wait_for_next(since);
        Ok(Self { since, root: (stat.st_dev, stat.st_ino), known: BTreeMap::new() })
    }

    /// Whether this is still the directory that was shown.
    pub(crate) fn check_root(&self, root: &Directory, host: &Path) -> Result<()> {
        let stat = root.own_stat()?;
        if (stat.st_dev, stat.st_ino) == self.root {
            return Ok(());
        }
        Err(Error::new(Kind::State, format!("not the directory it was: `{}`", host.display()))
            .cause("it was moved or made anew since the sandbox was shown it")
            .hint("move the old one back, or `msb discard` the changes"))
    }

    /// Whether something on the host is what the sandbox has seen there.
    pub(crate) fn is_seen(&self, path: &RelPath, stat: &Stat) -> bool {
        Moment::touched(stat) <= self.since
            || self.known.get(path).and_then(|known| known.host) == Some(Identity::of(stat))
    }

    /// Whether a directory of the host was moved here, or had its mode changed, after it was seen.
    /// That something was put into it or taken out stamps both times alike.
    pub(crate) fn is_moved(&self, path: &RelPath, stat: &Stat) -> bool {
        kind(stat) == FileType::Directory
            && !self.is_seen(path, stat)
            && Moment::written(stat) != Moment::touched(stat)
    }

    /// Whether what the sandbox has there was brought to the host already.
    pub(crate) fn is_settled(&self, path: &RelPath, upper: &Stat) -> bool {
        self.known.get(path).and_then(|known| known.upper) == Some(Identity::of(upper))
    }

    /// Whether we have deleted it on the host. What overlayfs puts in its place has no identity: one
    /// file stands for all that is gone.
    pub(crate) fn is_deleted(&self, path: &RelPath) -> bool {
        self.known.get(path).is_some_and(|known| known.host.is_none())
    }

    /// Remembers what was brought to the host.
    pub(crate) fn remember(&mut self, path: RelPath, known: Known) {
        self.known.insert(path, known);
    }

    /// What was brought to the host, seen from a copy of the upper tree: `both` looks at a path in
    /// the original and in the copy. What has changed since it was brought has in neither.
    pub(crate) fn carry(
        &mut self,
        both: impl Fn(&RelPath) -> Result<(Option<Stat>, Option<Stat>)>,
    ) -> Result<()> {
        for (path, known) in &mut self.known {
            let Some(upper) = known.upper else { continue };
            if let (Some(original), Some(copy)) = both(path)?
                && Identity::of(&original) == upper
            {
                known.upper = Some(Identity::of(&copy));
            }
        }
        Ok(())
    }

    /// Whether what the sandbox had there was brought to the host once.
    pub(crate) fn was_brought(&self, path: &RelPath) -> bool {
        self.known.get(path).is_some_and(|known| known.upper.is_some())
    }

    /// Whether we have put something there on the host.
    pub(crate) fn was_put(&self, path: &RelPath) -> bool {
        self.known.get(path).is_some_and(|known| known.host.is_some() && known.upper.is_some())
    }

    /// Whether something has come to a directory of the host or gone from it since it was seen,
    /// other than by us. Of the topmost one that cannot be told once we have brought anything.
    pub(crate) fn is_touched(&self, path: Option<&RelPath>, stat: &Stat) -> bool {
        match path {
            Some(path) => !self.is_seen(path, stat),
            None => self.known.is_empty() && Moment::touched(stat) > self.since,
        }
    }

    /// What is remembered of a path.
    pub(crate) fn known(&self, path: &RelPath) -> Option<Known> {
        self.known.get(path).copied()
    }

    /// Reads what was written down, as something that anybody could have written.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let about = |error: &dyn std::fmt::Display| {
            Error::new(Kind::State, "what was seen of the workspace cannot be read").cause(error)
        };
        let mut text = Vec::new();
        File::open(path)
            .and_then(|file| file.take(LONGEST).read_to_end(&mut text))
            .map_err(|error| about(&error))?;
        serde_json::from_slice(&text).map_err(|error| about(&error))
    }

    /// Writes it down beside its place, to be renamed there.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).expect("our own types always serialise");
        write_synced(path, &text)
            .map_err(|error| Error::host("cannot note what was seen of the workspace", error))
    }
}

/// Writes a file of ours, which is on the disk when this returns.
pub(crate) fn write_synced(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

/// Makes the names in a directory of ours last.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// The time by the clock that stamps the files of this directory, without touching anything in it:
/// a file that never has a name is stamped as all others are.
fn now(root: &Directory, host: &Path) -> Result<Moment> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::openat(&root.0, ".", flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => {
            let stat = rustix::fs::fstat(&file)
                .map_err(|error| Error::host("cannot read the file system's clock", error))?;
            Ok(Moment::touched(&stat))
        }
        // Nothing can be brought there by us, and the kernel's own clock stamps local files.
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::NOSPC | Errno::DQUOT) => {
            let now = clock_gettime(ClockId::RealtimeCoarse);
            Ok(Moment { seconds: now.tv_sec, nanoseconds: now.tv_nsec })
        }
        Err(error) => Err(Error::unsupported(format!(
            "cannot watch over the files of `{}`",
            host.display()
        ))
        .cause(error)
        .hint("a workspace is on a local file system (ext4, xfs, btrfs, tmpfs); copy it there")),
    }
}

/// Waits until files are stamped with a later time, some milliseconds: whatever has this stamp was
/// there before the sandbox saw anything.
fn wait_for_next(moment: Moment) {
    /// Clocks tick at least every ten milliseconds; one that stands still is not waited for.
    const TICKS: u32 = 100;
    for _ in 0..TICKS {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        if (Moment { seconds: now.tv_sec, nanoseconds: now.tv_nsec }) > moment {
            return;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}
