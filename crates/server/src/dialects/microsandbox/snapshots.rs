//! Saved filesystems, and files of them.
//!
//! Clients of this dialect know snapshots by name or as something on disk. Ours are known by name; what is
//! on disk is an archive, which is read under a name of its own for as long as a call needs it.

use super::archives;
use super::envelope::{Done, Failure, Outcome};
use super::rootfs::looks_like_path;
use super::selector::{each, named};
use super::sessions::unguessable;
use super::{Microsandbox, read};
use crate::dialect::Call;
use msb_api::{Api, Snapshot, Verified};
use msb_spec::clock;
use msb_spec::{Error, Kind, Name};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Archives of a directory that are looked at.
const MOST_ARCHIVES: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    name: String,
    from_sandbox: String,
    dest_dir: Option<String>,
    labels: BTreeMap<String, String>,
    force: bool,
    record_integrity: bool,
    confirm: bool,
    path_or_name: Option<String>,
    path_or_names: Vec<String>,
    verify: bool,
    dir: Option<String>,
    out: String,
    with_parents: Option<bool>,
    with_image: bool,
    plain_tar: bool,
    archive: String,
    dest: Option<String>,
}

/// What its maker wanted to be known about a snapshot, as lines of its note.
#[derive(Debug, Default, PartialEq, Eq)]
struct Note {
    labels: BTreeMap<String, String>,
    archive: Option<PathBuf>,
}

impl Note {
    fn written(&self) -> Option<String> {
        let labels = self.labels.iter().map(|(key, value)| format!("label {key}={value}"));
        let archive = self.archive.iter().map(|path| format!("archive {}", path.display()));
        let lines: Vec<String> = labels.chain(archive).collect();
        Some(lines.join("\n")).filter(|note| !note.is_empty())
    }

    fn read(note: Option<&str>) -> Self {
        let mut found = Self::default();
        for line in note.unwrap_or_default().lines() {
            if let Some((key, value)) =
                line.strip_prefix("label ").and_then(|label| label.split_once('='))
            {
                found.labels.insert(key.to_owned(), value.to_owned());
            }
            if let Some(path) = line.strip_prefix("archive ") {
                found.archive = Some(PathBuf::from(path)).filter(|path| path.is_file());
            }
        }
        found
    }
}

fn reference(snapshot: &Snapshot) -> String {
    snapshot.names.first().map_or_else(|| snapshot.id.clone(), ToString::to_string)
}

/// One line of a list.
pub(super) fn row(snapshot: &Snapshot) -> Value {
    json!({
        "reference": reference(snapshot),
        "referenceKind": "name",
        "path": Note::read(snapshot.note.as_deref()).archive,
        "digest": snapshot.digest.as_ref().unwrap_or(&snapshot.id),
        "name": reference(snapshot),
        "parentDigest": snapshot.parent,
        "scope": "disk",
        "imageRef": snapshot.image,
        "format": "oci",
        "sizeBytes": snapshot.bytes.map(|bytes| bytes.to_string()),
        "createdAt": clock::written(snapshot.created),
    })
}

/// Everything about one.
fn detail(snapshot: &Snapshot) -> Value {
    let note = Note::read(snapshot.note.as_deref());
    json!({
        "reference": reference(snapshot),
        "referenceKind": "name",
        "path": note.archive,
        "digest": snapshot.digest.as_ref().unwrap_or(&snapshot.id),
        "sizeBytes": snapshot.bytes.map(|bytes| bytes.to_string()),
        "imageRef": snapshot.image,
        "imageManifestDigest": snapshot.image_digest,
        "scope": "disk",
        "format": "oci",
        "fstype": null,
        "parent": snapshot.parent,
        "createdAt": clock::written(snapshot.created),
        "labels": note.labels,
        "sourceSandbox": snapshot.sandbox,
    })
}

/// A snapshot that a call is about. One that was read from an archive is let go at its end.
pub(super) struct Found {
    pub(super) name: Name,
    archive: Option<PathBuf>,
    api: Arc<dyn Api>,
}

impl Drop for Found {
    fn drop(&mut self) {
        if self.archive.is_some() {
            let _ = self.api.snapshot_remove(&self.name, true);
        }
    }
}

impl Found {
    /// Tells of the archive instead of the name that it had for a moment.
    fn shown(&self, mut data: Value) -> Value {
        if let Some(archive) = &self.archive {
            data["reference"] = json!(archive);
            data["referenceKind"] = json!("path");
            data["path"] = json!(archive);
        }
        data
    }
}

fn missing(text: &str) -> Failure {
    let shown = msb_spec::shown(&text.chars().take(60).collect::<String>()).to_string();
    Failure::new(format!("[SnapshotNotFound] snapshot not found: {shown}"))
}

impl Microsandbox {
    /// A snapshot by its name, its id, or the path of its archive.
    pub(super) fn snapshot(&self, text: &str) -> Result<Found, Failure> {
        let api = Arc::clone(&self.world.api);
        if !looks_like_path(text) {
            let name = Name::parse(text).map_err(|_| missing(text))?;
            let name = match api.snapshot_inspect(&name) {
                Ok(_) => name,
                Err(error) if error.kind() == Kind::NotFound => self.by_digest(text, error)?,
                Err(error) => return Err(error.into()),
            };
            return Ok(Found { name, archive: None, api });
        }
        let path = self.host_path(text)?;
        if !path.is_file() {
            return Err(missing(text));
        }
        let name = Name::parse(&format!("archive-{}", unguessable()))?;
        api.snapshot_load(Some(&name), &mut archives::open(&path)?)?;
        Ok(Found { name, archive: Some(path), api })
    }

    fn by_digest(&self, text: &str, error: Error) -> Result<Name, Failure> {
        let all = self.world.api.snapshot_list()?;
        let found = all.iter().find(|snapshot| snapshot.digest.as_deref() == Some(text));
        match found.and_then(|snapshot| snapshot.names.first()) {
            Some(name) => Ok(name.clone()),
            None => Err(error.into()),
        }
    }

    pub(super) fn snapshot_create(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        if asked.force && !asked.confirm {
            return Err(Failure::dangerous("snapshot_create with force requires confirm: true"));
        }
        let (name, of) = (Name::parse(&asked.name)?, named(&asked.from_sandbox)?);
        let archive = match &asked.dest_dir {
            None => None,
            Some(directory) => {
                let path = Path::new(directory).join(format!("{name}.tar.zst"));
                Some(self.host_path(&path.to_string_lossy())?)
            }
        };
        let note = Note { labels: asked.labels, archive: archive.clone() };
        if let Some(label) = note.labels.iter().find(|(key, value)| {
            key.is_empty() || key.contains('=') || key.contains('\n') || value.contains('\n')
        }) {
            return Err(Failure::new(format!("not a label: {}", label.0)));
        }
        let api = self.world.api.as_ref();
        let note = note.written();
        match api.snapshot_create(&name, &of, note.as_deref()) {
            Err(error) if asked.force && error.kind() == Kind::Exists => {
                // The old one stays until there is a new one.
                let fresh = Name::parse(&format!("new-{}", unguessable()))?;
                api.snapshot_create(&fresh, &of, note.as_deref())?;
                api.snapshot_remove(&name, true)?;
                api.snapshot_tag(&fresh, &name)?;
                api.snapshot_remove(&fresh, false)?;
            }
            other => drop(other?),
        }
        if let Some(path) = &archive {
            archives::write(path, true, |out| api.snapshot_save(&name, false, out))?;
        }
        if asked.record_integrity {
            api.snapshot_verify(&name)?;
        }
        Ok(Done::new(detail(&api.snapshot_inspect(&name)?)))
    }

    pub(super) fn snapshot_list(&self) -> Outcome {
        Ok(Done::new(self.world.api.snapshot_list()?.iter().map(row).collect()))
    }

    pub(super) fn snapshot_inspect(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let found = self.snapshot(asked.path_or_name.as_deref().unwrap_or_default())?;
        let verified = match asked.verify {
            true => Some(self.verified(&found)?),
            false => None,
        };
        let mut data = found.shown(detail(&self.world.api.snapshot_inspect(&found.name)?));
        if let Some(verified) = verified {
            data["verify"] = verified;
        }
        Ok(Done::new(data))
    }

    pub(super) fn snapshot_verify(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let found = self.snapshot(asked.path_or_name.as_deref().unwrap_or_default())?;
        Ok(Done::new(self.verified(&found)?))
    }

    fn verified(&self, found: &Found) -> Result<Value, Failure> {
        let Verified { intact, recorded, differences, .. } =
            self.world.api.snapshot_verify(&found.name)?;
        if !intact {
            let text = format!("snapshot {} is not as it was", found.name);
            return Err(Failure::new(text).detail("differences", differences));
        }
        let snapshot = self.world.api.snapshot_inspect(&found.name)?;
        let upper = match recorded {
            0 => json!({"kind": "verified", "algorithm": "sha256", "digest": snapshot.digest}),
            // It is from now on.
            _ => json!({"kind": "notRecorded"}),
        };
        let detail = found.shown(detail(&snapshot));
        Ok(json!({"digest": detail["digest"], "path": detail["path"], "upper": upper}))
    }

    pub(super) fn snapshot_remove(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        if asked.force && !asked.confirm {
            return Err(Failure::dangerous("snapshot_remove with force requires confirm: true"));
        }
        let targets: Vec<String> =
            asked.path_or_name.into_iter().chain(asked.path_or_names).collect();
        if targets.is_empty() {
            return Err(Failure::new("snapshot_remove requires pathOrName or pathOrNames"));
        }
        each("pathOrName", targets, Clone::clone, |target| {
            let found = self.snapshot(target)?;
            match &found.archive {
                // It is a snapshot: nothing else of the host is removed this way.
                Some(path) => archives::remove(path)?,
                None => self.world.api.snapshot_remove(&found.name, asked.force)?,
            }
            Ok(json!({"pathOrName": target, "removed": true}))
        })
    }

    pub(super) fn snapshot_reindex(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let Some(dir) = asked.dir else {
            let indexed = self.world.api.snapshot_list()?.len();
            return Ok(Done::new(json!({"dir": null, "indexed": indexed})));
        };
        let directory = self.host_path(&dir)?;
        let entries = std::fs::read_dir(&directory).map_err(|error| {
            Error::host(format!("cannot read `{}`", directory.display()), error)
        })?;
        let mut paths: Vec<PathBuf> = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .map(|entry| entry.path())
            .filter(|path| {
                let name = path.to_string_lossy();
                name.ends_with(".tar") || name.ends_with(".tar.zst")
            })
            .take(MOST_ARCHIVES)
            .collect();
        paths.sort();
        let (mut indexed, mut failed) = (0_usize, Vec::new());
        for path in paths {
            let loaded = archives::open(&path)
                .and_then(|mut archive| self.world.api.snapshot_load(None, &mut archive));
            match loaded {
                Ok(_) => indexed += 1,
                Err(error) if error.kind() == Kind::Exists => indexed += 1,
                Err(error) => failed.push(format!("{}: {error}", path.display())),
            }
        }
        let warning = (!failed.is_empty()).then(|| format!("left out: {}", failed.join("; ")));
        Ok(Done::new(json!({"dir": dir, "indexed": indexed})).warning(warning))
    }

    /// `snapshot_save`, which was called `snapshot_export` before.
    pub(super) fn snapshot_save(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let path = self.host_path(&asked.out)?;
        let text = asked.path_or_name.unwrap_or_default();
        let found = self.snapshot(&text)?;
        archives::write(&path, !asked.plain_tar, |out| {
            self.world.api.snapshot_save(&found.name, asked.with_image, out)
        })?;
        let said = if call.tool == "snapshot_export" { "exported" } else { "saved" };
        let warning = (asked.with_parents == Some(false))
            .then_some("layers of the snapshots below are always part of an archive");
        Ok(Done::new(json!({"pathOrName": text, "out": path, said: true})).warning(warning))
    }

    /// `snapshot_load`, which was called `snapshot_import` before.
    pub(super) fn snapshot_load(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let path = self.host_path(&asked.archive)?;
        let copy = match &asked.dest {
            None => None,
            Some(directory) => {
                let name = path.file_name().unwrap_or_default();
                let copy = Path::new(directory).join(name);
                Some(self.host_path(&copy.to_string_lossy())?).filter(|copy| *copy != path)
            }
        };
        let snapshot = self.world.api.snapshot_load(None, &mut archives::open(&path)?)?;
        let mut data = row(&snapshot);
        if let Some(copy) = copy {
            archives::copy(&path, &copy)?;
            data["path"] = json!(copy);
        }
        Ok(Done::new(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_are_written() {
        let note = Note {
            labels: BTreeMap::from([("a".to_owned(), "b=c".to_owned())]),
            archive: Some(PathBuf::from("/proc/self/status")),
        };
        assert_eq!(Note::read(note.written().as_deref()), note);
        assert_eq!(Note::default().written(), None);
        assert_eq!(Note::read(Some("what a person wrote")), Note::default());
    }
}
