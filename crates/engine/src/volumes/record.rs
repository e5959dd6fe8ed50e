//! The record of a volume, `volume.json`. It is untrusted when it is read back.

use crate::host::{HostUser, is_sandbox_range};
use crate::store::{Home, create_private_file};
use msb_spec::{
    Bytes, Error, IdRange, Kind, Result, VolumeKind, VolumeName, VolumeSpec, VolumeStorage,
};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The format version. It is raised when an older msb could misread a record.
const VERSION: u32 = 1;
/// The most bytes of a record: labels and a few numbers.
const LIMIT: u64 = 1 << 20;

const RECORD: &str = "volume.json";
pub(super) const DIRECTORY: &str = "data";
/// Only the host kernel writes it. The name differs from that of disks that guests write.
const IMAGE: &str = "image";
const DISK: &str = "disk";
/// The temporary name of a record while it is written.
const TEMP_RECORD: &str = ".volume.json";
/// The lock file: shared by users of the volume, exclusive for its removal.
pub(super) const LOCK: &str = "lock";

/// The id range of a disk: its file system has ids of the guest.
const OWN_IDS: IdRange = IdRange { start: 0, count: 0x1_0000 };

/// The record of one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VolumeRecord {
    version: u32,
    pub(crate) name: VolumeName,
    pub(crate) kind: VolumeKind,
    pub(crate) size: Option<Bytes>,
    pub(crate) labels: BTreeMap<String, String>,
    /// Creation time in milliseconds since 1970.
    pub(crate) created: u64,
    /// The host ids of its files. `None` if they are those of the sandboxes of this user.
    pub(crate) ids: Option<IdRange>,
    /// Whether a microVM may have written to the disk. The host kernel does not mount it then.
    pub(crate) by_machine: bool,
}

impl VolumeRecord {
    /// A record for a new volume.
    pub(crate) fn new(spec: &VolumeSpec, created: u64, ids: Option<IdRange>) -> Self {
        let size = match spec.kind {
            VolumeKind::Dir => spec.size,
            VolumeKind::Disk => Some(spec.size.unwrap_or(VolumeSpec::DISK_SIZE)),
        };
        Self {
            version: VERSION,
            name: spec.name.clone(),
            kind: spec.kind,
            size,
            labels: spec.labels.clone(),
            created,
            ids,
            by_machine: false,
        }
    }

    /// Reads and checks the record of an existing volume.
    pub(crate) fn read(home: &Home, name: &VolumeName) -> Result<Self> {
        let directory = home.volume(name);
        let unreadable = |cause: &dyn std::fmt::Display| {
            Error::new(Kind::State, format!("volume `{name}` cannot be read"))
                .cause(cause)
                .hint(format!("`msb volume rm {name}` removes it with all it holds"))
        };
        match fs::symlink_metadata(&directory) {
            Ok(meta) if meta.is_dir() => {}
            _ => return Err(unknown(home, name)),
        }
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let open = File::options().read(true).custom_flags(flags).open(directory.join(RECORD));
        let file = match open {
            Ok(file) if file.metadata().is_ok_and(|meta| meta.is_file()) => file,
            Ok(_) => return Err(unreadable(&"its record is not a file")),
            // It is being removed.
            Err(_) if !directory.exists() => return Err(unknown(home, name)),
            Err(error) => return Err(unreadable(&error)),
        };
        let mut text = Vec::new();
        file.take(LIMIT + 1).read_to_end(&mut text).map_err(|error| unreadable(&error))?;
        if text.len() as u64 > LIMIT {
            return Err(unreadable(&"its record is too long"));
        }
        let record: Self = serde_json::from_slice(&text).map_err(|error| unreadable(&error))?;
        record.check(name, &directory).map_err(|error| unreadable(&error))?;
        Ok(record)
    }

    fn check(&self, name: &VolumeName, directory: &Path) -> Result<()> {
        if self.version != VERSION {
            return Err(Error::unsupported("it was made by another version of msb"));
        }
        if self.name != *name {
            return Err(Error::invalid("its record belongs to another volume"));
        }
        VolumeSpec {
            name: self.name.clone(),
            kind: self.kind,
            size: self.size,
            labels: self.labels.clone(),
        }
        .validate()?;
        let root = HostUser::current().is_root();
        match self.ids {
            // Ids of other users would be handed to sandboxes.
            Some(range) if !root || !is_sandbox_range(range) => {
                return Err(Error::invalid("its ids are outside of the range for volumes"));
            }
            None if root && self.kind == VolumeKind::Dir => {
                return Err(Error::invalid("it has no ids"));
            }
            _ => {}
        }
        let path = self.path(directory);
        let meta = fs::symlink_metadata(&path)
            .map_err(|error| Error::host("its data is missing", error))?;
        let well = match self.stored() {
            VolumeStorage::Directory => meta.is_dir(),
            VolumeStorage::Image | VolumeStorage::Disk => meta.is_file(),
        };
        if well { Ok(()) } else { Err(Error::invalid("its data has the wrong file type")) }
    }

    /// How the volume is stored on the host.
    pub(crate) fn stored(&self) -> VolumeStorage {
        match (self.kind, self.size) {
            (VolumeKind::Disk, _) => VolumeStorage::Disk,
            (VolumeKind::Dir, Some(_)) => VolumeStorage::Image,
            (VolumeKind::Dir, None) => VolumeStorage::Directory,
        }
    }

    /// The path of its data in the directory of the volume.
    pub(crate) fn path(&self, directory: &Path) -> PathBuf {
        directory.join(match self.stored() {
            VolumeStorage::Directory => DIRECTORY,
            VolumeStorage::Image => IMAGE,
            VolumeStorage::Disk => DISK,
        })
    }

    /// The host ids of its files, for a mount by root.
    pub(crate) fn range(&self) -> Option<IdRange> {
        match self.kind {
            VolumeKind::Dir => self.ids,
            VolumeKind::Disk => Some(OWN_IDS),
        }
    }

    /// Writes the record to the directory of a volume, by `rename(2)`.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).expect("our own types always serialise");
        // Left by a killed process; there is one writer at a time.
        let temp = directory.join(TEMP_RECORD);
        let _ = fs::remove_file(&temp);
        let mut file = create_private_file(&temp)?;
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        let replaced = written.and_then(|()| fs::rename(&temp, directory.join(RECORD)));
        if replaced.is_err() {
            let _ = fs::remove_file(&temp);
        }
        replaced.and_then(|()| File::open(directory)?.sync_all())
    }
}

/// The error for a missing volume, with the nearest name as a hint.
pub(crate) fn unknown(home: &Home, name: &VolumeName) -> Error {
    let error = Error::new(Kind::NotFound, format!("no volume `{name}`"));
    match nearest(home, name) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("`msb volume ls` lists the volumes there are"),
    }
}

fn nearest(home: &Home, name: &VolumeName) -> Option<String> {
    let names = home.volume_names();
    msb_spec::nearest(name.as_str(), names.iter().map(VolumeName::as_str)).map(str::to_owned)
}

/// The error for a missing volume that is to be mounted. It may still have to be created, or a
/// directory of that name may be meant.
pub(crate) fn unknown_mount(home: &Home, name: &VolumeName) -> Error {
    let error = Error::new(Kind::NotFound, format!("no volume `{name}`"));
    if let Some(near) = nearest(home, name) {
        return error
            .hint(format!("did you mean `{near}`? `msb volume create {name}` makes a new one"));
    }
    match Path::new(name.as_str()).exists() {
        true => error.hint(format!(
            "`./{name}` is the directory or file; `msb volume create {name}` makes a volume"
        )),
        false => error.hint(format!("`msb volume create {name}` makes it")),
    }
}
