//! Named storage.

use super::create::mebibytes;
use super::envelope::{Done, Failure, Outcome};
use super::files::volume;
use super::selector::each;
use super::{Microsandbox, read};
use crate::dialect::Call;
use msb_api::Volume;
use msb_spec::clock;
use msb_spec::{VolumeKind, VolumeName, VolumeSpec};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    name: Option<String>,
    names: Vec<String>,
    kind: Option<String>,
    size_mib: Option<u64>,
    quota_mib: Option<u64>,
    labels: BTreeMap<String, String>,
}

/// One line of a list. What a directory may hold is its quota, what a disk may is its capacity.
pub(super) fn row(volume: &Volume) -> Value {
    let disk = volume.kind == VolumeKind::Disk;
    json!({
        "name": volume.name,
        "kind": volume.kind,
        "quotaMib": volume.size.filter(|_| !disk).map(|size| size >> 20),
        "usedBytes": volume.used,
        "capacityBytes": volume.size.filter(|_| disk),
        "diskFormat": disk.then_some("raw"),
        "diskFstype": disk.then_some("ext4"),
        "labels": volume.labels,
        "createdAt": clock::written(volume.created),
    })
}

impl Microsandbox {
    pub(super) fn volume_create(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let kind = match asked.kind.as_deref() {
            Some("disk") => VolumeKind::Disk,
            _ => VolumeKind::Dir,
        };
        let size = match (kind, asked.size_mib, asked.quota_mib) {
            (_, Some(size), Some(quota)) if size != quota => {
                return Err(Failure::new("sizeMib and quotaMib differ; one of them is enough"));
            }
            (_, size, quota) => size.or(quota).map(mebibytes),
        };
        let name = VolumeName::parse(asked.name.as_deref().unwrap_or_default())?;
        let spec = VolumeSpec { name, kind, size, labels: asked.labels };
        Ok(Done::new(row(&self.world.api.volume_create(&spec)?)))
    }

    pub(super) fn volume_list(&self) -> Outcome {
        Ok(Done::new(self.world.api.volume_list()?.iter().map(row).collect()))
    }

    pub(super) fn volume_inspect(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let name = volume(asked.name.as_deref().unwrap_or_default())?;
        Ok(Done::new(row(&self.world.api.volume_inspect(&name)?)))
    }

    pub(super) fn volume_remove(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let names: Vec<String> = asked.name.into_iter().chain(asked.names).collect();
        if names.is_empty() {
            return Err(Failure::new("volume_remove requires name or names"));
        }
        each("name", names, Clone::clone, |name| {
            self.world.api.volume_remove(&volume(name)?, false)?;
            Ok(json!({"name": name, "removed": true}))
        })
    }
}
