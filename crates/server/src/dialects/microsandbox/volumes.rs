//! Tools for named volumes.

use super::create::mebibytes;
use super::envelope::{Outcome, ToolFailure, ToolSuccess};
use super::files::volume;
use super::selector::each;
use super::{Microsandbox, read};
use crate::dialect::ToolCall;
use msb_api::Volume;
use msb_spec::clock;
use msb_spec::{VolumeKind, VolumeName, VolumeSpec};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VolumeParams {
    name: Option<String>,
    names: Vec<String>,
    kind: Option<String>,
    size_mib: Option<u64>,
    quota_mib: Option<u64>,
    labels: BTreeMap<String, String>,
}

/// A volume as one item of a list. The size of a directory is its quota, that of a disk its
/// capacity.
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
    pub(super) fn volume_create(&self, call: &ToolCall) -> Outcome {
        let params: VolumeParams = read(call)?;
        let kind = match params.kind.as_deref() {
            Some("disk") => VolumeKind::Disk,
            _ => VolumeKind::Dir,
        };
        let size = match (kind, params.size_mib, params.quota_mib) {
            (_, Some(size), Some(quota)) if size != quota => {
                return Err(ToolFailure::new("sizeMib and quotaMib differ; one of them is enough"));
            }
            (_, size, quota) => size.or(quota).map(mebibytes),
        };
        let name = VolumeName::parse(params.name.as_deref().unwrap_or_default())?;
        let spec = VolumeSpec { name, kind, size, labels: params.labels };
        Ok(ToolSuccess::new(row(&self.config.api.volume_create(&spec)?)))
    }

    pub(super) fn volume_list(&self) -> Outcome {
        Ok(ToolSuccess::new(self.config.api.volume_list()?.iter().map(row).collect()))
    }

    pub(super) fn volume_inspect(&self, call: &ToolCall) -> Outcome {
        let params: VolumeParams = read(call)?;
        let name = volume(params.name.as_deref().unwrap_or_default())?;
        Ok(ToolSuccess::new(row(&self.config.api.volume_inspect(&name)?)))
    }

    pub(super) fn volume_remove(&self, call: &ToolCall) -> Outcome {
        let params: VolumeParams = read(call)?;
        let names: Vec<String> = params.name.into_iter().chain(params.names).collect();
        if names.is_empty() {
            return Err(ToolFailure::new("volume_remove requires name or names"));
        }
        each("name", names, Clone::clone, |name| {
            self.config.api.volume_remove(&volume(name)?, false)?;
            Ok(json!({"name": name, "removed": true}))
        })
    }
}
