//! Volumes that somebody uses: found, checked and locked.
//!
//! Whoever uses a volume shares its lock, and whoever removes it has the lock alone. A sandbox's
//! worker holds it for as long as it lives; its Plan tells of it when it does not.

use super::record::{self, LOCK, Record};
use crate::host::User;
use crate::store::Home;
use msb_spec::{
    Error, Isolation, Kind, Plan, PlannedVolume, Result, Stage, Stored, VolumeKind, VolumeName,
};
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Whoever removes a volume has its lock for as long as it takes to read every Plan.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10);

/// A volume as a sandbox of this tier can have it.
pub(crate) fn planned(
    home: &Home,
    name: &VolumeName,
    isolation: Isolation,
) -> Result<(PathBuf, PlannedVolume)> {
    let record = Record::read(home, name).map_err(|error| error.at(Stage::Plan))?;
    possible(&record, isolation).map_err(|error| error.at(Stage::Plan))?;
    let planned = PlannedVolume {
        name: name.clone(),
        stored: record.stored(),
        range: record.range().filter(|_| User::current().is_root()),
    };
    Ok((record.path(&home.volume(name)), planned))
}

/// Whether a sandbox of this tier can have it at all.
fn possible(record: &Record, isolation: Isolation) -> Result<()> {
    let name = &record.name;
    match (record.kind, isolation) {
        (VolumeKind::Disk, Isolation::Process) if !User::current().is_root() => {
            Err(Error::unsupported(format!("volume `{name}` is a disk, which needs a microVM"))
                .cause("only root can mount a disk on isolation `process`")
                .hint("`--isolation vm`, or a volume that is a directory"))
        }
        (VolumeKind::Disk, Isolation::Process) if record.by_machine => {
            Err(Error::unsupported(format!("volume `{name}` is a disk that a microVM has written"))
                .cause("the host's kernel does not mount what a guest's has made")
                .hint("`--isolation vm` mounts it"))
        }
        _ => Ok(()),
    }
}

/// Locks the volumes of a Plan for a worker, and brings what the Plan says of them up to date: one
/// may have been removed and made anew since.
pub(crate) fn take(home: &Home, plan: &mut Plan) -> Result<Vec<OwnedFd>> {
    let mut held = Vec::new();
    let isolation = plan.isolation;
    for mount in &mut plan.mounts {
        let Some(volume) = &mount.volume else { continue };
        let name = volume.name.clone();
        held.push(OwnedFd::from(share(home, &name)?));
        let (host, volume) = planned(home, &name, isolation)?;
        if volume.stored == Stored::Disk {
            held.push(OwnedFd::from(reserve(home, &name, &host, mount.read_only)?));
            if isolation == Isolation::Vm && !mount.read_only {
                remember_machine(home, &name)?;
            }
        }
        (mount.host, mount.volume) = (host, Some(volume));
    }
    Ok(held)
}

/// Keeps the volumes of a Plan from being removed until it can be read by whoever would. One that
/// is gone already is told of when the sandbox starts.
pub(crate) fn hold(home: &Home, plan: &Plan) -> Vec<File> {
    let volumes = plan.mounts.iter().filter_map(|mount| mount.volume.as_ref());
    volumes.filter_map(|volume| share(home, &volume.name).ok()).collect()
}

/// Shares the lock of a volume.
pub(crate) fn share(home: &Home, name: &VolumeName) -> Result<File> {
    let since = Instant::now();
    loop {
        let Some(lock) = open_lock(home, name)? else { return Err(record::unknown(home, name)) };
        let about = |error| Error::host(format!("cannot lock volume `{name}`"), error);
        if msb_sys::lock::try_share(&lock).map_err(about)? {
            if is_same(&lock, &home.volume(name)) {
                return Ok(lock);
            }
        } else if since.elapsed() > REMOVAL_LIMIT {
            return Err(Error::new(Kind::State, format!("volume `{name}` is being removed")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes the lock of a volume for oneself; none if somebody uses it.
pub(super) fn alone(home: &Home, name: &VolumeName) -> Result<Option<File>> {
    let Some(lock) = open_lock(home, name)? else { return Err(record::unknown(home, name)) };
    let about = |error| Error::host(format!("cannot lock volume `{name}`"), error);
    let ours = msb_sys::lock::try_lock(&lock).map_err(about)?;
    match is_same(&lock, &home.volume(name)) {
        true => Ok(ours.then_some(lock)),
        false => Err(record::unknown(home, name)),
    }
}

/// The lock file of a volume that is there. What was damaged can still be removed, so a missing one
/// is made.
fn open_lock(home: &Home, name: &VolumeName) -> Result<Option<File>> {
    let directory = home.volume(name);
    if !fs::symlink_metadata(&directory).is_ok_and(|meta| meta.is_dir()) {
        return Ok(None);
    }
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let opened = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(directory.join(LOCK));
    match opened {
        Ok(lock) => Ok(Some(lock)),
        Err(_) if !directory.exists() => Ok(None),
        Err(error) => Err(Error::host(format!("cannot lock volume `{name}`"), error)),
    }
}

/// Whether the lock is still that of the volume: it may have been removed while we waited.
fn is_same(lock: &File, directory: &Path) -> bool {
    let there = fs::symlink_metadata(directory.join(LOCK));
    matches!((there, lock.metadata()), (Ok(there), Ok(ours))
        if (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
}

/// A disk has one writer or several readers: its file systems do not know of each other.
fn reserve(home: &Home, name: &VolumeName, disk: &Path, read_only: bool) -> Result<File> {
    let about = |error| Error::host(format!("cannot lock volume `{name}`"), error);
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let disk = File::options().read(true).write(true).custom_flags(flags).open(disk);
    let disk = disk.map_err(about)?;
    let ours = match read_only {
        true => msb_sys::lock::try_share(&disk),
        false => msb_sys::lock::try_lock(&disk),
    };
    if ours.map_err(about)? {
        return Ok(disk);
    }
    let users = super::running_users(home, name);
    let error = Error::new(Kind::State, format!("volume `{name}` is a disk that is in use"))
        .cause("a disk has one sandbox that writes, or several that read");
    Err(match users.is_empty() {
        true => error,
        false => error.hint(format!("`msb stop {}` ends its use", users.join(" "))),
    })
}

/// Before a machine can write the first byte: what follows cannot be undone.
fn remember_machine(home: &Home, name: &VolumeName) -> Result<()> {
    let mut record = Record::read(home, name)?;
    if record.by_machine {
        return Ok(());
    }
    record.by_machine = true;
    record
        .write(&home.volume(name))
        .map_err(|error| Error::host(format!("cannot write the record of volume `{name}`"), error))
}
