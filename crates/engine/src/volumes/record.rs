//! What is known of a volume, in its `volume.json`. Read back as something that anybody could have
//! written.

use crate::host::{User, is_unused};
use crate::store::{Home, create_private};
use msb_spec::{Bytes, Error, IdRange, Kind, Result, Stored, VolumeKind, VolumeName, VolumeSpec};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Raised whenever an older msb could misread a record.
const VERSION: u32 = 1;
/// Labels and a few numbers.
const LIMIT: u64 = 1 << 20;

const RECORD: &str = "volume.json";
pub(super) const DIRECTORY: &str = "data";
/// Only ever written by the host's kernel, and never to be mistaken for a disk that was not.
const IMAGE: &str = "image";
const DISK: &str = "disk";
/// The next record.
const ASIDE: &str = ".volume.json";
/// Held by whoever uses the volume.
pub(super) const LOCK: &str = "lock";

/// The ids of a disk are those inside: it is the business of its file system.
const OWN_IDS: IdRange = IdRange { start: 0, count: 0x1_0000 };

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    version: u32,
    pub(crate) name: VolumeName,
    pub(crate) kind: VolumeKind,
    pub(crate) size: Option<Bytes>,
    pub(crate) labels: BTreeMap<String, String>,
    /// In milliseconds since 1970.
    pub(crate) created: u64,
    /// The host ids of its files, if they are not those of every sandbox of this user.
    pub(crate) ids: Option<IdRange>,
    /// Whether a microVM may have written to the disk itself: then the host's kernel never mounts
    /// it again.
    pub(crate) by_machine: bool,
}

impl Record {
    /// A new volume, as asked for and as this user can have it.
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

    /// Reads the record of a volume that is there.
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
            // Somebody removes it at this moment.
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
            return Err(Error::invalid("its record is another's"));
        }
        VolumeSpec {
            name: self.name.clone(),
            kind: self.kind,
            size: self.size,
            labels: self.labels.clone(),
        }
        .validate()?;
        let root = User::current().is_root();
        match self.ids {
            // Ids that belong to somebody would be handed to sandboxes.
            Some(range) if !root || !is_unused(range) => {
                return Err(Error::invalid("its ids are not ours to give"));
            }
            None if root && self.kind == VolumeKind::Dir => {
                return Err(Error::invalid("it has no ids"));
            }
            _ => {}
        }
        let path = self.path(directory);
        let meta = fs::symlink_metadata(&path)
            .map_err(|error| Error::host("what it holds is missing", error))?;
        let well = match self.stored() {
            Stored::Directory => meta.is_dir(),
            Stored::Image | Stored::Disk => meta.is_file(),
        };
        if well { Ok(()) } else { Err(Error::invalid("what it holds is something else")) }
    }

    /// How it lies on the host.
    pub(crate) fn stored(&self) -> Stored {
        match (self.kind, self.size) {
            (VolumeKind::Disk, _) => Stored::Disk,
            (VolumeKind::Dir, Some(_)) => Stored::Image,
            (VolumeKind::Dir, None) => Stored::Directory,
        }
    }

    /// The directory or image that holds it, in the volume's directory.
    pub(crate) fn path(&self, directory: &Path) -> PathBuf {
        directory.join(match self.stored() {
            Stored::Directory => DIRECTORY,
            Stored::Image => IMAGE,
            Stored::Disk => DISK,
        })
    }

    /// The host ids of its files, for whoever mounts it as root.
    pub(crate) fn range(&self) -> Option<IdRange> {
        match self.kind {
            VolumeKind::Dir => self.ids,
            VolumeKind::Disk => Some(OWN_IDS),
        }
    }

    /// Writes it into a volume's directory, replacing what is there at once.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).expect("our own types always serialise");
        // One of a writer who was killed; there is one at a time.
        let aside = directory.join(ASIDE);
        let _ = fs::remove_file(&aside);
        let mut file = create_private(&aside)?;
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        let replaced = written.and_then(|()| fs::rename(&aside, directory.join(RECORD)));
        if replaced.is_err() {
            let _ = fs::remove_file(&aside);
        }
        replaced.and_then(|()| File::open(directory)?.sync_all())
    }
}

/// There is no such volume; perhaps another was meant.
pub(crate) fn unknown(home: &Home, name: &VolumeName) -> Error {
    let error = Error::new(Kind::NotFound, format!("no volume `{name}`"));
    let names = home.volume_names();
    if let Some(near) = msb_spec::nearest(name.as_str(), names.iter().map(VolumeName::as_str)) {
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
