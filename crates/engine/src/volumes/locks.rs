//! Locks of volumes.
//!
//! Users of a volume hold its lock shared; removing it takes the lock exclusively. The worker of a
//! sandbox holds the locks while it lives. Plans of stopped sandboxes refer to volumes without a
//! lock.

use super::record::{self, LOCK, VolumeRecord};
use crate::host::HostUser;
use crate::store::Home;
use msb_spec::{
    Error, Isolation, Kind, Plan, PlannedVolume, Result, Stage, VolumeKind, VolumeName,
    VolumeStorage,
};
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for the removal of a volume, which holds the lock while it reads every Plan.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10);

/// The host path and the planned volume for a sandbox of this tier.
pub(crate) fn planned(
    home: &Home,
    name: &VolumeName,
    isolation: Isolation,
) -> Result<(PathBuf, PlannedVolume)> {
    let record = VolumeRecord::read(home, name)
        .map_err(|error| mount_error(home, name, error).at(Stage::Plan))?;
    check_supported(&record, isolation).map_err(|error| error.at(Stage::Plan))?;
    let planned = PlannedVolume {
        name: name.clone(),
        stored: record.stored(),
        range: record.range().filter(|_| HostUser::current().is_root()),
    };
    Ok((record.path(&home.volume(name)), planned))
}

/// The error for a volume to mount; a missing one may still have to be created.
fn mount_error(home: &Home, name: &VolumeName, error: Error) -> Error {
    match error.kind() {
        Kind::NotFound => record::unknown_mount(home, name),
        _ => error,
    }
}

/// Fails if a sandbox of this tier cannot use the volume.
fn check_supported(record: &VolumeRecord, isolation: Isolation) -> Result<()> {
    let name = &record.name;
    match (record.kind, isolation) {
        (VolumeKind::Disk, Isolation::Process) if !HostUser::current().is_root() => {
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

/// Locks the volumes of a Plan for its worker and updates the Plan: a volume may have been removed
/// and created again.
pub(crate) fn lock_for_worker(home: &Home, plan: &mut Plan) -> Result<Vec<OwnedFd>> {
    let mut locks = Vec::new();
    let isolation = plan.isolation;
    for mount in &mut plan.mounts {
        let Some(volume) = &mount.volume else { continue };
        let name = volume.name.clone();
        locks.push(OwnedFd::from(share(home, &name).map_err(|e| mount_error(home, &name, e))?));
        let (host, volume) = planned(home, &name, isolation)?;
        if volume.stored == VolumeStorage::Disk {
            locks.push(OwnedFd::from(lock_disk(home, &name, &host, mount.read_only)?));
            if isolation == Isolation::Vm && !mount.read_only {
                mark_written_by_vm(home, &name)?;
            }
        }
        (mount.host, mount.volume) = (host, Some(volume));
    }
    Ok(locks)
}

/// Locks the volumes of a Plan until its file exists, which removal reads. A missing volume is
/// reported when the sandbox starts.
pub(crate) fn share_all(home: &Home, plan: &Plan) -> Vec<File> {
    let volumes = plan.mounts.iter().filter_map(|mount| mount.volume.as_ref());
    volumes.filter_map(|volume| share(home, &volume.name).ok()).collect()
}

/// Takes the lock of a volume shared. Waits up to 10 s for a removal.
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

/// Takes the lock of a volume exclusively; `None` if it is in use.
pub(super) fn lock_exclusive(home: &Home, name: &VolumeName) -> Result<Option<File>> {
    let Some(lock) = open_lock(home, name)? else { return Err(record::unknown(home, name)) };
    let about = |error| Error::host(format!("cannot lock volume `{name}`"), error);
    let ours = msb_sys::lock::try_lock(&lock).map_err(about)?;
    match is_same(&lock, &home.volume(name)) {
        true => Ok(ours.then_some(lock)),
        false => Err(record::unknown(home, name)),
    }
}

/// Opens the lock file of an existing volume. A missing lock file is created, so that a damaged
/// volume can be removed.
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

/// Whether the lock file is still that of the volume, which may have been removed meanwhile.
fn is_same(lock: &File, directory: &Path) -> bool {
    let there = fs::symlink_metadata(directory.join(LOCK));
    matches!((there, lock.metadata()), (Ok(there), Ok(ours))
        if (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
}

/// Locks a disk for one writer or several readers: a mounted file system does not notice other
/// writers.
fn lock_disk(home: &Home, name: &VolumeName, disk: &Path, read_only: bool) -> Result<File> {
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

/// Marks a disk as written by a microVM, before it starts. The host kernel never mounts it again.
fn mark_written_by_vm(home: &Home, name: &VolumeName) -> Result<()> {
    let mut record = VolumeRecord::read(home, name)?;
    if record.by_machine {
        return Ok(());
    }
    record.by_machine = true;
    record
        .write(&home.volume(name))
        .map_err(|error| Error::host(format!("cannot write the record of volume `{name}`"), error))
}
