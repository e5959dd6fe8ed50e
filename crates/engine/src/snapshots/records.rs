//! Snapshot records on disk: one JSON file per id, and one symlink per name.
//!
//! A record without a name is the leftover of a process that was killed.

use crate::host::random;
use crate::planning::now_ms;
use crate::store;
use msb_spec::encoding::hex;
use msb_spec::{Error, Kind, Name, Plan, Result};
use msb_sys::files;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// The format version. It is raised when an older `msb` could misread a record.
const VERSION: u32 = 1;
/// The most bytes of a record: a Plan and a note.
const LIMIT: u64 = 64 << 20;
/// The most bytes of a note.
const NOTE: usize = 4096;

/// The record of one snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SnapshotRecord {
    version: u32,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) note: Option<String>,
    pub(super) parent: Option<String>,
    #[serde(default)]
    pub(super) paused_us: Option<u64>,
    /// The Plan of the sandbox, without Secrets, ports and command.
    pub(super) plan: Plan,
    /// The Plan for the other tier, once it was requested.
    #[serde(default)]
    pub(super) other: Option<Box<Plan>>,
}

impl SnapshotRecord {
    pub(super) fn new(parent: Option<String>, note: Option<&str>, plan: Plan) -> Self {
        let id = hex(random::<8>());
        let (note, paused_us) = (note.map(str::to_owned), None);
        Self { version: VERSION, id, created: now_ms(), note, parent, paused_us, plan, other: None }
    }
}

/// The directory of all records.
pub(super) struct SnapshotRecords {
    directory: PathBuf,
}

impl SnapshotRecords {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn names(&self) -> PathBuf {
        self.directory.join("names")
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.json"))
    }

    /// Writes a record and its first name.
    pub(super) fn add(&self, record: &SnapshotRecord, name: &Name) -> Result<()> {
        if record.note.as_ref().is_some_and(|note| note.len() > NOTE) {
            return Err(Error::invalid("a note is at most 4096 bytes long"));
        }
        let write = || -> io::Result<()> {
            for directory in [&self.directory, &self.names()] {
                match store::create_private_dir(directory) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    _ => {}
                }
            }
            self.put(record)
        };
        write().map_err(|error| Error::host(format!("cannot write snapshot `{name}`"), error))?;
        let named = self.name(&record.id, name);
        if named.is_err() {
            let _ = fs::remove_file(self.path(&record.id));
        }
        named
    }

    /// Adds the Plan for the other tier to a record. A record that was removed meanwhile stays
    /// removed.
    pub(super) fn set_other_tier(&self, record: &SnapshotRecord, other: &Plan) -> Result<()> {
        let record = SnapshotRecord { other: Some(Box::new(other.clone())), ..record.clone() };
        if self.read(&record.id)?.is_none() {
            return Ok(());
        }
        self.put(&record)
            .map_err(|error| Error::host(format!("cannot write snapshot `{}`", record.id), error))
    }

    fn put(&self, record: &SnapshotRecord) -> io::Result<()> {
        let text = serde_json::to_vec(record).expect("our own types always serialise");
        let temp = self.directory.join(store::temp_name("making", &record.id));
        let mut file = store::create_private_file(&temp)?;
        let written = file.write_all(&text).and_then(|()| files::write_before_rename(&file));
        let put = written.and_then(|()| fs::rename(&temp, self.path(&record.id)));
        if put.is_err() {
            let _ = fs::remove_file(&temp);
        }
        put
    }

    /// Adds a name to a snapshot. Fails if it is taken.
    pub(super) fn name(&self, id: &str, name: &Name) -> Result<()> {
        // A symlink to the id, which is no file: `symlink(2)` is atomic and fails if the name
        // exists.
        symlink(id, self.names().join(name.as_str())).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => name_taken(name),
            _ => Error::host(format!("cannot name a snapshot `{name}`"), error),
        })
    }

    pub(super) fn check_free(&self, name: &Name) -> Result<()> {
        match fs::symlink_metadata(self.names().join(name.as_str())) {
            Ok(_) => Err(name_taken(name)),
            Err(_) => Ok(()),
        }
    }

    /// Removes one name of a snapshot.
    pub(super) fn remove_name(&self, name: &Name) -> Result<()> {
        fs::remove_file(self.names().join(name.as_str()))
            .map_err(|error| Error::host(format!("cannot remove snapshot `{name}`"), error))
    }

    /// Removes a snapshot with all its names, the names first.
    pub(super) fn remove(&self, id: &str) -> Result<()> {
        for name in self.names_of(id) {
            self.remove_name(&name)?;
        }
        fs::remove_file(self.path(id))
            .map_err(|error| Error::host(format!("cannot remove snapshot `{id}`"), error))
    }

    /// Finds a snapshot by a name or its id.
    pub(super) fn find(&self, name: &Name) -> Result<SnapshotRecord> {
        let id = match self.id_of(name) {
            Some(id) => id,
            None if !self.names_of(name.as_str()).is_empty() => name.to_string(),
            None => return Err(self.unknown(name)),
        };
        self.read(&id)?.ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &Name) -> Error {
        let error = Error::new(Kind::NotFound, format!("no snapshot `{name}`"));
        let names = self.all_names();
        match msb_spec::nearest(name.as_str(), names.iter().map(Name::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint("`msb snapshot ls` lists the snapshots there are"),
        }
    }

    fn id_of(&self, name: &Name) -> Option<String> {
        let text = fs::read_link(self.names().join(name.as_str())).ok()?;
        let text = text.into_os_string().into_string().ok()?;
        is_id(&text).then_some(text)
    }

    fn all_names(&self) -> Vec<Name> {
        let entries = fs::read_dir(self.names()).into_iter().flatten().filter_map(Result::ok);
        let mut names: Vec<Name> =
            entries.filter_map(|entry| Name::parse(entry.file_name().to_str()?).ok()).collect();
        names.sort();
        names
    }

    /// The names of a snapshot, sorted.
    pub(super) fn names_of(&self, id: &str) -> Vec<Name> {
        let mut names = self.all_names();
        names.retain(|name| self.id_of(name).as_deref() == Some(id));
        names
    }

    /// The display name of a snapshot: its first name, else its id.
    pub(super) fn shown(&self, id: &str) -> String {
        self.names_of(id).first().map_or_else(|| id.to_owned(), ToString::to_string)
    }

    fn read(&self, id: &str) -> Result<Option<SnapshotRecord>> {
        let about = |error: &dyn std::fmt::Display| {
            Error::new(Kind::State, format!("snapshot `{id}` cannot be read")).cause(error)
        };
        let file = match File::open(self.path(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| about(&error))?,
        };
        let mut text = Vec::new();
        file.take(LIMIT).read_to_end(&mut text).map_err(|error| about(&error))?;
        let record: SnapshotRecord =
            serde_json::from_slice(&text).map_err(|error| about(&error))?;
        if record.version != VERSION || record.id != id {
            return Err(about(&"another version of msb wrote it"));
        }
        record.plan.check()?;
        record.other.as_ref().map_or(Ok(()), |other| other.check())?;
        Ok(Some(record))
    }

    /// All snapshots that have a name.
    pub(super) fn all(&self) -> Result<Vec<SnapshotRecord>> {
        let mut ids: Vec<String> =
            self.all_names().iter().filter_map(|name| self.id_of(name)).collect();
        ids.sort();
        ids.dedup();
        let read = |id: &String| self.read(id).transpose();
        ids.iter().filter_map(read).collect()
    }

    /// The parent of a Plan: the snapshot with the most layers that are all below it.
    pub(super) fn nearest(&self, plan: &Plan) -> Result<Option<String>> {
        // On the `vm` tier the layers are the disk of the image and frozen disks.
        let base = |plan: &Plan| plan.machine.as_ref().map(|machine| machine.base.clone());
        let layers = |plan: &Plan| -> Vec<PathBuf> {
            let lowers = plan.rootfs.overlays.first().map(|overlay| &overlay.lowers);
            let lowers = lowers.into_iter().flatten().map(|lower| lower.path.clone());
            match &plan.machine {
                Some(machine) => machine.written.clone(),
                None => lowers.collect(),
            }
        };
        let own = layers(plan);
        let below = |record: &SnapshotRecord| {
            let theirs = layers(&record.plan);
            let same = plan.isolation == record.plan.isolation && base(plan) == base(&record.plan);
            (same && own.ends_with(&theirs)).then_some(theirs.len())
        };
        let all = self.all()?;
        let nearest =
            all.iter().filter_map(|record| Some((below(record)?, record.created, record)));
        let nearest = nearest.max_by_key(|(depth, created, _)| (*depth, *created));
        Ok(nearest.map(|(_, _, record)| record.id.clone()))
    }
}

fn is_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn name_taken(name: &Name) -> Error {
    Error::new(Kind::Exists, format!("snapshot `{name}` already exists"))
        .hint(format!("`msb snapshot rm {name}` removes it"))
}
