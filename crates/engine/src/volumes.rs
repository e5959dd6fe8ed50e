//! The Operations on volumes.
//!
//! A volume is a directory of the state directory: made aside and renamed, renamed away and then
//! removed, so that it is there or not whenever somebody dies.

mod files;
mod held;
mod record;

pub(crate) use files::Served;
pub(crate) use held::{hold, planned, take};

use crate::host::{User, unused_ids};
use crate::planning::now_ms;
use crate::sandboxes::Engine;
use crate::store::{
    Aside, Home, Owner, create_private, full_disk, make_private, passing, remove_tree, taken_twice,
};
use crate::{doctor, hardware, images};
use msb_api::{PrunedVolumes, Volume};
use msb_image::Owners;
use msb_spec::{
    Error, IdRange, Kind, Name, Plan, Result, Stored, VolumeKind, VolumeName, VolumeSpec,
};
use record::Record;
use rustix::fs::CWD;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The host ids of a volume, if it has some of its own.
pub(crate) fn ids(home: &Home, name: &VolumeName) -> Option<IdRange> {
    Record::read(home, name).ok()?.ids
}

impl Engine {
    /// Makes a volume.
    pub fn volume_create(&self, spec: &VolumeSpec) -> Result<Volume> {
        let name = &spec.name;
        let about = |error: Error| error.under(format!("cannot make volume `{name}`"));
        spec.validate()?;
        possible(self.home(), spec).map_err(about)?;
        let exists = || {
            Error::new(Kind::Exists, format!("volume `{name}` already exists"))
                .hint(format!("`msb volume inspect {name}` shows it"))
        };
        let place = self.home().volume(name);
        if fs::symlink_metadata(&place).is_ok() {
            return Err(exists());
        }
        let ids = match User::current().is_root() {
            true => Some(unused_ids(&self.home().taken_ids())?),
            false => None,
        };
        let record = Record::new(spec, now_ms(), ids);
        let volumes = self.home().volumes();
        let failed = |error: io::Error| full_disk("volume", error, &volumes);
        match make_private(&volumes) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
        let aside = volumes.join(passing("making", name.as_str()));
        make_private(&aside).map_err(failed)?;
        let guard = Aside(aside.clone());
        fill(&record, &aside).map_err(about)?;
        record.write(&aside).map_err(failed)?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(CWD, &aside, CWD, &place, flags) {
            Ok(()) => std::mem::forget(guard),
            Err(rustix::io::Errno::EXIST) => return Err(exists()),
            Err(error) => return Err(failed(error.into())),
        }
        if let Some(range) = ids
            && self.home().ids_of_others(Owner::Volume(name)).contains(&range.start)
        {
            // Made at the same moment as another that has the same: one of the two is enough.
            remove_tree(&place).map_err(failed)?;
            return Err(taken_twice());
        }
        File::open(&volumes).and_then(|directory| directory.sync_all()).map_err(failed)?;
        self.volume(name)
    }

    /// The names of all volumes, sorted; one whose record is damaged has one, too.
    pub fn volume_names(&self) -> Vec<VolumeName> {
        self.home().volume_names()
    }

    /// Every volume that can be read, sorted by name.
    pub fn volume_list(&self) -> Vec<Volume> {
        self.volume_names().iter().filter_map(|name| self.volume(name).ok()).collect()
    }

    /// Everything about a volume.
    pub fn volume(&self, name: &VolumeName) -> Result<Volume> {
        let record = Record::read(self.home(), name)?;
        let used = images::size_of_tree(&record.path(&self.home().volume(name)));
        let Record { name, kind, size, labels, created, by_machine, .. } = record;
        let (sandboxes, size) = (users(self.home(), &name), size.map(|size| size.0));
        Ok(Volume { name, kind, size, used, labels, created, sandboxes, by_machine })
    }

    /// Removes a volume with all it holds. One that a sandbox uses stays; one that is used by
    /// sandboxes which have all stopped goes with `force`.
    pub fn volume_remove(&self, name: &VolumeName, force: bool) -> Result<()> {
        let Some(_lock) = held::alone(self.home(), name)? else {
            let running = running_users(self.home(), name);
            return Err(match running.is_empty() {
                true => Error::new(Kind::State, format!("volume `{name}` is being used")),
                false => used(name, &running)
                    .hint(format!("`msb stop {}` ends its use", running.join(" "))),
            });
        };
        let users = users(self.home(), name);
        if !force && !users.is_empty() {
            let users: Vec<String> = users.iter().map(Name::to_string).collect();
            return Err(used(name, &users).hint(
                "`msb rm` removes sandboxes; `-f` removes the volume, and then they cannot start",
            ));
        }
        self.volume_discard(name)
    }

    /// Removes the volumes that no sandbox uses, running or not.
    pub fn volume_prune(&self, dry_run: bool) -> Result<PrunedVolumes> {
        let mut pruned = PrunedVolumes::default();
        for volume in self.volume_list() {
            if !volume.sandboxes.is_empty() {
                continue;
            }
            if !dry_run {
                match self.volume_remove(&volume.name, false) {
                    // Somebody has begun to use it.
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

    /// First its name goes, at once, then what it holds. We have its lock.
    fn volume_discard(&self, name: &VolumeName) -> Result<()> {
        let about = |error| Error::host(format!("cannot remove volume `{name}`"), error);
        let gone = self.home().volumes().join(passing("gone", name.as_str()));
        fs::rename(self.home().volume(name), &gone).map_err(about)?;
        self.volume_clear(&gone)
    }

    /// Removes the directory of a volume that has no name any more.
    fn volume_clear(&self, gone: &Path) -> Result<()> {
        let about = |error| Error::host(format!("cannot remove `{}`", gone.display()), error);
        let data = gone.join(record::DIRECTORY);
        let owners = User::current().owners();
        // Files of users 1 and up belong to ids that only exist in a user namespace.
        if matches!(owners, Owners::Granted { .. })
            && fs::symlink_metadata(&data).is_ok_and(|meta| meta.is_dir())
        {
            msb_image::clear(self.program(), owners, &data)?;
        }
        remove_tree(gone).map_err(about)
    }

    /// Removes what makers and removers of volumes have left who were killed.
    pub(crate) fn volume_repair(&self) {
        for path in self.home().volume_debris() {
            let _ = self.volume_clear(&path);
        }
    }
}

/// Whether this host can give what is asked for. Nothing is made before.
fn possible(home: &Home, spec: &VolumeSpec) -> Result<()> {
    let root = User::current().is_root();
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
            "a disk needs a microVM or root, and here is neither",
        )
        .cause("only root can mount a disk on isolation `process`, by a loop device")
        .hint("leave `--kind` out for a directory; `msb doctor` tells why there is no microVM")),
    }
}

/// What a new volume's directory holds besides its record.
fn fill(record: &Record, directory: &Path) -> Result<()> {
    let failed = |error: io::Error| full_disk("volume", error, directory);
    create_private(&directory.join(record::LOCK)).map_err(failed)?;
    let path = record.path(directory);
    match (record.stored(), record.size) {
        (Stored::Directory, _) | (_, None) => {
            fs::create_dir(&path).map_err(failed)?;
            // Whoever a command runs as may write there, as in /tmp; outside nobody gets so far.
            fs::set_permissions(&path, Permissions::from_mode(0o777)).map_err(failed)?;
            match record.ids {
                Some(range) => {
                    std::os::unix::fs::chown(&path, Some(range.start), Some(range.start))
                        .map_err(failed)
                }
                None => Ok(()),
            }
        }
        (Stored::Image | Stored::Disk, Some(size)) => {
            msb_image::blank_disk(&path, size.0)?;
            File::open(&path).and_then(|disk| disk.sync_all()).map_err(failed)
        }
    }
}

/// The sandboxes whose Plans name a volume.
fn users(home: &Home, name: &VolumeName) -> Vec<Name> {
    let uses = |plan: &Plan| {
        let mut volumes = plan.mounts.iter().filter_map(|mount| mount.volume.as_ref());
        volumes.any(|volume| volume.name == *name)
    };
    home.names().into_iter().filter(|one| home.plan(one).is_ok_and(|plan| uses(&plan))).collect()
}

/// Those of them that run.
fn running_users(home: &Home, name: &VolumeName) -> Vec<String> {
    let running = users(home, name).into_iter().filter(|user| home.is_running(user));
    running.map(|user| user.to_string()).collect()
}

fn used(name: &VolumeName, users: &[String]) -> Error {
    Error::new(Kind::State, format!("volume `{name}` is used by `{}`", users.join("`, `")))
}
