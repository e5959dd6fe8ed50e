//! Snapshots, and archives of them.
//!
//! Clients of this dialect name snapshots by name or by path. Ours have names; a path is that of an
//! archive, which is loaded under a temporary name for the duration of a call.

use super::archives;
use super::envelope::{Outcome, ToolFailure, ToolSuccess};
use super::exec_sessions::unguessable;
use super::rootfs::looks_like_path;
use super::selector::{each, named};
use super::{Microsandbox, read};
use crate::dialect::ToolCall;
use msb_api::{Api, Snapshot, VerifyReport};
use msb_spec::clock;
use msb_spec::{Error, Kind, Name};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most archives of a directory that are read.
const MOST_ARCHIVES: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SnapshotParams {
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

/// The client's data about a snapshot, stored as lines of its note.
#[derive(Debug, Default, PartialEq, Eq)]
struct SnapshotNote {
    labels: BTreeMap<String, String>,
    archive: Option<PathBuf>,
}

impl SnapshotNote {
    fn to_text(&self) -> Option<String> {
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

/// A snapshot as one item of a list.
pub(super) fn row(snapshot: &Snapshot) -> Value {
    json!({
        "reference": reference(snapshot),
        "referenceKind": "name",
        "path": SnapshotNote::read(snapshot.note.as_deref()).archive,
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

/// All details of a snapshot.
fn detail(snapshot: &Snapshot) -> Value {
    let note = SnapshotNote::read(snapshot.note.as_deref());
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

/// The snapshot of a call. One that was loaded from an archive is removed at its end.
pub(super) struct SnapshotRef {
    pub(super) name: Name,
    archive: Option<PathBuf>,
    api: Arc<dyn Api>,
}

impl Drop for SnapshotRef {
    fn drop(&mut self) {
        if self.archive.is_some() {
            let _ = self.api.snapshot_remove(&self.name, true);
        }
    }
}

impl SnapshotRef {
    /// Replaces the temporary name by the path of the archive.
    fn with_archive_path(&self, mut data: Value) -> Value {
        if let Some(archive) = &self.archive {
            data["reference"] = json!(archive);
            data["referenceKind"] = json!("path");
            data["path"] = json!(archive);
        }
        data
    }
}

fn missing(text: &str) -> ToolFailure {
    let with_archive_path = msb_spec::shown(&text.chars().take(60).collect::<String>()).to_string();
    ToolFailure::new(format!("[SnapshotNotFound] snapshot not found: {with_archive_path}"))
}

impl Microsandbox {
    /// A snapshot by its name, its id, or the path of its archive.
    pub(super) fn snapshot(&self, text: &str) -> Result<SnapshotRef, ToolFailure> {
        let api = Arc::clone(&self.config.api);
        if !looks_like_path(text) {
            let name = Name::parse(text).map_err(|_| missing(text))?;
            let name = match api.snapshot_inspect(&name) {
                Ok(_) => name,
                Err(error) if error.kind() == Kind::NotFound => self.by_digest(text, error)?,
                Err(error) => return Err(error.into()),
            };
            return Ok(SnapshotRef { name, archive: None, api });
        }
        let path = self.host_path(text)?;
        if !path.is_file() {
            return Err(missing(text));
        }
        let name = Name::parse(&format!("archive-{}", unguessable()))?;
        api.snapshot_load(Some(&name), &mut archives::open(&path)?)?;
        Ok(SnapshotRef { name, archive: Some(path), api })
    }

    fn by_digest(&self, text: &str, error: Error) -> Result<Name, ToolFailure> {
        let all = self.config.api.snapshot_list()?;
        let found = all.iter().find(|snapshot| snapshot.digest.as_deref() == Some(text));
        match found.and_then(|snapshot| snapshot.names.first()) {
            Some(name) => Ok(name.clone()),
            None => Err(error.into()),
        }
    }

    pub(super) fn snapshot_create(&self, call: &ToolCall) -> Outcome {
        let params: SnapshotParams = read(call)?;
        if params.force && !params.confirm {
            return Err(ToolFailure::dangerous(
                "snapshot_create with force requires confirm: true",
            ));
        }
        let (name, of) = (Name::parse(&params.name)?, named(&params.from_sandbox)?);
        let archive = match &params.dest_dir {
            None => None,
            Some(directory) => {
                let path = Path::new(directory).join(format!("{name}.tar.zst"));
                Some(self.host_path(&path.to_string_lossy())?)
            }
        };
        let note = SnapshotNote { labels: params.labels, archive: archive.clone() };
        if let Some(label) = note.labels.iter().find(|(key, value)| {
            key.is_empty() || key.contains('=') || key.contains('\n') || value.contains('\n')
        }) {
            return Err(ToolFailure::new(format!("not a label: {}", label.0)));
        }
        let api = self.config.api.as_ref();
        let note = note.to_text();
        match api.snapshot_create(&name, &of, note.as_deref()) {
            Err(error) if params.force && error.kind() == Kind::Exists => {
                // The old snapshot stays until the new one exists.
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
        if params.record_integrity {
            api.snapshot_verify(&name)?;
        }
        Ok(ToolSuccess::new(detail(&api.snapshot_inspect(&name)?)))
    }

    pub(super) fn snapshot_list(&self) -> Outcome {
        Ok(ToolSuccess::new(self.config.api.snapshot_list()?.iter().map(row).collect()))
    }

    pub(super) fn snapshot_inspect(&self, call: &ToolCall) -> Outcome {
        let params: SnapshotParams = read(call)?;
        let found = self.snapshot(params.path_or_name.as_deref().unwrap_or_default())?;
        let verified = match params.verify {
            true => Some(self.verified(&found)?),
            false => None,
        };
        let mut data =
            found.with_archive_path(detail(&self.config.api.snapshot_inspect(&found.name)?));
        if let Some(verified) = verified {
            data["verify"] = verified;
        }
        Ok(ToolSuccess::new(data))
    }

    pub(super) fn snapshot_verify(&self, call: &ToolCall) -> Outcome {
        let params: SnapshotParams = read(call)?;
        let found = self.snapshot(params.path_or_name.as_deref().unwrap_or_default())?;
        Ok(ToolSuccess::new(self.verified(&found)?))
    }

    fn verified(&self, found: &SnapshotRef) -> Result<Value, ToolFailure> {
        let VerifyReport { intact, recorded, differences, .. } =
            self.config.api.snapshot_verify(&found.name)?;
        if !intact {
            let text = format!("snapshot {} was modified", found.name);
            return Err(ToolFailure::new(text).detail("differences", differences));
        }
        let snapshot = self.config.api.snapshot_inspect(&found.name)?;
        let upper = match recorded {
            0 => json!({"kind": "verified", "algorithm": "sha256", "digest": snapshot.digest}),
            // The digest is recorded from now on.
            _ => json!({"kind": "notRecorded"}),
        };
        let detail = found.with_archive_path(detail(&snapshot));
        Ok(json!({"digest": detail["digest"], "path": detail["path"], "upper": upper}))
    }

    pub(super) fn snapshot_remove(&self, call: &ToolCall) -> Outcome {
        let params: SnapshotParams = read(call)?;
        if params.force && !params.confirm {
            return Err(ToolFailure::dangerous(
                "snapshot_remove with force requires confirm: true",
            ));
        }
        let targets: Vec<String> =
            params.path_or_name.into_iter().chain(params.path_or_names).collect();
        if targets.is_empty() {
            return Err(ToolFailure::new("snapshot_remove requires pathOrName or pathOrNames"));
        }
        each("pathOrName", targets, Clone::clone, |target| {
            let found = self.snapshot(target)?;
            match &found.archive {
                // It was loaded as a snapshot before: no other host file is removed this way.
                Some(path) => archives::remove(path)?,
                None => self.config.api.snapshot_remove(&found.name, params.force)?,
            }
            Ok(json!({"pathOrName": target, "removed": true}))
        })
    }

    pub(super) fn snapshot_reindex(&self, call: &ToolCall) -> Outcome {
        let params: SnapshotParams = read(call)?;
        let Some(dir) = params.dir else {
            let indexed = self.config.api.snapshot_list()?.len();
            return Ok(ToolSuccess::new(json!({"dir": null, "indexed": indexed})));
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
                .and_then(|mut archive| self.config.api.snapshot_load(None, &mut archive));
            match loaded {
                Ok(_) => indexed += 1,
                Err(error) if error.kind() == Kind::Exists => indexed += 1,
                Err(error) => failed.push(format!("{}: {error}", path.display())),
            }
        }
        let warning = (!failed.is_empty()).then(|| format!("skipped: {}", failed.join("; ")));
        Ok(ToolSuccess::new(json!({"dir": dir, "indexed": indexed})).warning(warning))
    }

    /// The tool `snapshot_save`, formerly `snapshot_export`.
    pub(super) fn snapshot_save(&self, call: &ToolCall) -> Outcome {
        let params: SnapshotParams = read(call)?;
        let path = self.host_path(&params.out)?;
        let text = params.path_or_name.unwrap_or_default();
        let found = self.snapshot(&text)?;
        archives::write(&path, !params.plain_tar, |out| {
            self.config.api.snapshot_save(&found.name, params.with_image, out)
        })?;
        let member = if call.tool == "snapshot_export" { "exported" } else { "saved" };
        let warning = (params.with_parents == Some(false))
            .then_some("layers of parent snapshots are always part of an archive");
        Ok(ToolSuccess::new(json!({"pathOrName": text, "out": path, member: true}))
            .warning(warning))
    }

    /// The tool `snapshot_load`, formerly `snapshot_import`.
    pub(super) fn snapshot_load(&self, call: &ToolCall) -> Outcome {
        let params: SnapshotParams = read(call)?;
        let path = self.host_path(&params.archive)?;
        let copy = match &params.dest {
            None => None,
            Some(directory) => {
                let name = path.file_name().unwrap_or_default();
                let copy = Path::new(directory).join(name);
                Some(self.host_path(&copy.to_string_lossy())?).filter(|copy| *copy != path)
            }
        };
        let snapshot = self.config.api.snapshot_load(None, &mut archives::open(&path)?)?;
        let mut data = row(&snapshot);
        if let Some(copy) = copy {
            archives::copy(&path, &copy)?;
            data["path"] = json!(copy);
        }
        Ok(ToolSuccess::new(data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_are_written() {
        let note = SnapshotNote {
            labels: BTreeMap::from([("a".to_owned(), "b=c".to_owned())]),
            archive: Some(PathBuf::from("/proc/self/status")),
        };
        assert_eq!(SnapshotNote::read(note.to_text().as_deref()), note);
        assert_eq!(SnapshotNote::default().to_text(), None);
        assert_eq!(SnapshotNote::read(Some("what a person wrote")), SnapshotNote::default());
    }
}
