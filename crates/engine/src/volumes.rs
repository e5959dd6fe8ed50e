//! The Operations on volumes.
//!
//! A volume is a directory below the state directory. It is created under a temporary name and
//! renamed, and renamed away before it is removed, so that a killed process leaves it complete or
//! absent.

mod files;
mod locks;
mod record;

pub(crate) use files::VolumeFileServer;
pub(crate) use locks::{lock_for_worker, planned, share_all};

use crate::host::{HostUser, unused_ids};
use crate::planning::now_ms;
use crate::sandboxes::Engine;
use crate::store::{
    Home, IdRangeOwner, TempDir, create_private_dir, create_private_file, id_range_taken,
    remove_tree, temp_name, write_error,
};
use crate::{doctor, hardware, images};
use msb_api::{PrunedVolumes, Volume};
use msb_image::Owners;
use msb_spec::{
    Error, IdRange, Kind, Name, Plan, Result, VolumeKind, VolumeName, VolumeSpec, VolumeStorage,
};
use record::VolumeRecord;
use rustix::fs::CWD;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The host id range of a volume, if it has one.
pub(crate) fn ids(home: &Home, name: &VolumeName) -> Option<IdRange> {
    VolumeRecord::read(home, name).ok()?.ids
}

/// The volumes of a state directory.
#[derive(Debug, Clone)]
pub struct VolumeStore {
    home: Home,
    /// The `msb` executable, which serves and removes files with the ids of a volume.
    program: PathBuf,
}

impl Engine {
    /// The volumes of this state directory.
    pub fn volumes(&self) -> VolumeStore {
        VolumeStore { home: self.home().clone(), program: self.program() }
    }
}

impl VolumeStore {
    /// Creates a volume. Fails if it exists.
    pub fn create(&self, spec: &VolumeSpec) -> Result<Volume> {
        let name = &spec.name;
        let about = |error: Error| error.under(format!("cannot make volume `{name}`"));
        spec.validate()?;
        check_supported(&self.home, spec).map_err(about)?;
        let exists = || {
            Error::new(Kind::Exists, format!("volume `{name}` already exists"))
                .hint(format!("`msb volume inspect {name}` shows it"))
        };
        let place = self.home.volume(name);
        if fs::symlink_metadata(&place).is_ok() {
            return Err(exists());
        }
        let ids = match HostUser::current().is_root() {
            true => Some(unused_ids(&self.home.taken_ids())?),
            false => None,
        };
        let record = VolumeRecord::new(spec, now_ms(), ids);
        let volumes = self.home.volumes();
        let failed = |error: io::Error| write_error("volume", error, &volumes);
        match create_private_dir(&volumes) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
        let temp = volumes.join(temp_name("making", name.as_str()));
        create_private_dir(&temp).map_err(failed)?;
        let guard = TempDir(temp.clone());
        fill(&record, &temp).map_err(about)?;
        record.write(&temp).map_err(failed)?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(CWD, &temp, CWD, &place, flags) {
            Ok(()) => std::mem::forget(guard),
            Err(rustix::io::Errno::EXIST) => return Err(exists()),
            Err(error) => return Err(failed(error.into())),
        }
        if let Some(range) = ids
            && self.home.ids_of_others(IdRangeOwner::Volume(name)).contains(&range.start)
        {
            // Another volume or sandbox took the same range at the same time.
            remove_tree(&place).map_err(failed)?;
            return Err(id_range_taken());
        }
        File::open(&volumes).and_then(|directory| directory.sync_all()).map_err(failed)?;
        self.get(name)
    }

    /// The names of all volumes, sorted, including those with a damaged record.
    pub fn names(&self) -> Vec<VolumeName> {
        self.home.volume_names()
    }

    /// All volumes with a readable record, sorted by name.
    pub fn list(&self) -> Vec<Volume> {
        self.names().iter().filter_map(|name| self.get(name).ok()).collect()
    }

    /// Record, usage and users of a volume.
    pub fn get(&self, name: &VolumeName) -> Result<Volume> {
        let record = VolumeRecord::read(&self.home, name)?;
        let used = images::size_of_tree(&record.path(&self.home.volume(name)));
        let VolumeRecord { name, kind, size, labels, created, by_machine, .. } = record;
        let (sandboxes, size) = (users(&self.home, &name), size.map(|size| size.0));
        Ok(Volume { name, kind, size, used, labels, created, sandboxes, by_machine })
    }

    /// Removes a volume with its files. It stays while a running sandbox uses it; `force` removes
    /// one that only stopped sandboxes use.
    pub fn remove(&self, name: &VolumeName, force: bool) -> Result<()> {
        let Some(_lock) = locks::lock_exclusive(&self.home, name)? else {
            let running = running_users(&self.home, name);
            return Err(match running.is_empty() {
                true => Error::new(Kind::State, format!("volume `{name}` is being used")),
                false => used(name, &running).hint(format!(
                    "`msb rm -f {0}` removes what uses it; or `msb stop {0}`, then \
                     `msb volume rm -f {name}`",
                    running.join(" ")
                )),
            });
        };
        let users = users(&self.home, name);
        if !force && !users.is_empty() {
            let users: Vec<String> = users.iter().map(Name::to_string).collect();
            return Err(used(name, &users).hint(format!(
                "`msb rm {}` removes what uses it; `msb volume rm -f {name}` removes the volume, \
                 and then that cannot start",
                users.join(" ")
            )));
        }
        self.discard(name)
    }

    /// Removes the volumes that no sandbox uses, running or not.
    pub fn prune(&self, dry_run: bool) -> Result<PrunedVolumes> {
        let mut pruned = PrunedVolumes::default();
        for volume in self.list() {
            if !volume.sandboxes.is_empty() {
                continue;
            }
            if !dry_run {
                match self.remove(&volume.name, false) {
                    // A sandbox has started to use it.
                    Err(error) if error.kind() == Kind::State => continue,
                    Err(error) if error.kind() == Kind::NotFound => continue,
                    removed => removed?,
                }
            }
            pruned.volume_bytes += volume.used;
            pruned.volumes.push(volume.name);
        }
        Ok(pruned)
    }

    /// Renames the volume away, then removes its files. The caller holds its lock.
    fn discard(&self, name: &VolumeName) -> Result<()> {
        let about = |error| Error::host(format!("cannot remove volume `{name}`"), error);
        let gone = self.home.volumes().join(temp_name("gone", name.as_str()));
        fs::rename(self.home.volume(name), &gone).map_err(about)?;
        self.clear(&gone)
    }

    /// Removes the directory of a volume that was renamed away.
    fn clear(&self, gone: &Path) -> Result<()> {
        let about = |error| Error::host(format!("cannot remove `{}`", gone.display()), error);
        let data = gone.join(record::DIRECTORY);
        let owners = HostUser::current().owners();
        // Files of other users than root belong to ids that exist only in a user namespace.
        if matches!(owners, Owners::Granted { .. })
            && fs::symlink_metadata(&data).is_ok_and(|meta| meta.is_dir())
        {
            msb_image::clear(self.program.clone(), owners, &data)?;
        }
        remove_tree(gone).map_err(about)
    }

    /// Removes temporary directories of killed processes.
    pub(crate) fn repair(&self) {
        for path in self.home.stale_volume_dirs() {
            msb_log::warn_on_failure!(self.clear(&path), "cannot remove the files of a volume");
        }
    }
}

/// Fails if this host cannot provide such a volume. Nothing is created before.
fn check_supported(home: &Home, spec: &VolumeSpec) -> Result<()> {
    let root = HostUser::current().is_root();
    let mounts = root && doctor::has_loop_devices();
    match spec.kind {
        VolumeKind::Dir if spec.size.is_none() || mounts => Ok(()),
        VolumeKind::Dir if root => {
            Err(Error::unsupported("a directory of a limited size needs a loop device")
                .hint("`modprobe loop`, or leave `--size` out; `msb doctor` tells more"))
        }
        VolumeKind::Dir => {
            Err(Error::unsupported("a directory of a limited size needs root on this host")
                .cause("an ordinary user can set no quota and mount no disk")
                .hint("leave `--size` out, run msb as root, or use `--kind disk` with microVMs"))
        }
        VolumeKind::Disk if mounts || hardware::usable(home).is_ok() => Ok(()),
        VolumeKind::Disk => Err(Error::unsupported(
            "a disk volume needs a microVM or root, and this host has neither",
        )
        .cause("only root can mount a disk on isolation `process`, by a loop device")
        .hint("leave `--kind` out for a directory; `msb doctor` tells why there is no microVM")),
    }
}

/// Fills the directory of a new volume.
fn fill(record: &VolumeRecord, directory: &Path) -> Result<()> {
    let failed = |error: io::Error| write_error("volume", error, directory);
    create_private_file(&directory.join(record::LOCK)).map_err(failed)?;
    let path = record.path(directory);
    match (record.stored(), record.size) {
        (VolumeStorage::Directory, _) | (_, None) => {
            fs::create_dir(&path).map_err(failed)?;
            // Every user inside may write there, as in /tmp. On the host the parent directory has
            // mode 0700.
            fs::set_permissions(&path, Permissions::from_mode(0o777)).map_err(failed)?;
            match record.ids {
                Some(range) => {
                    std::os::unix::fs::chown(&path, Some(range.start), Some(range.start))
                        .map_err(failed)
                }
                None => Ok(()),
            }
        }
        (VolumeStorage::Image | VolumeStorage::Disk, Some(size)) => {
            msb_image::blank_disk(&path, size.0)?;
            File::open(&path).and_then(|disk| disk.sync_all()).map_err(failed)
        }
    }
}

/// The sandboxes with Plans that refer to a volume.
fn users(home: &Home, name: &VolumeName) -> Vec<Name> {
    let uses = |plan: &Plan| {
        let mut volumes = plan.mounts.iter().filter_map(|mount| mount.volume.as_ref());
        volumes.any(|volume| volume.name == *name)
    };
    home.names().into_iter().filter(|one| home.plan(one).is_ok_and(|plan| uses(&plan))).collect()
}

/// The running sandboxes that use a volume.
fn running_users(home: &Home, name: &VolumeName) -> Vec<String> {
    let running = users(home, name).into_iter().filter(|user| home.is_running(user));
    running.map(|user| user.to_string()).collect()
}

fn used(name: &VolumeName, users: &[String]) -> Error {
    Error::new(Kind::State, format!("volume `{name}` is used by `{}`", users.join("`, `")))
}
