//! Images that are on this machine.

use super::envelope::{Done, Failure, Outcome};
use super::selector::each;
use super::{Microsandbox, read};
use crate::dialect::Call;
use msb_api::{ImageInspection, ImageSummary};
use msb_spec::clock;
use msb_spec::{Prune, Reference};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Asked {
    reference: Option<String>,
    references: Vec<String>,
    force: bool,
    confirm: bool,
}

/// `linux/amd64` in its parts.
fn platform(text: &str) -> (&str, &str) {
    text.split_once('/').unwrap_or((text, ""))
}

/// One line of a list.
pub(super) fn row(image: &ImageSummary) -> Value {
    let (os, architecture) = platform(&image.platform);
    json!({
        "reference": image.reference,
        "sizeBytes": image.size,
        "manifestDigest": image.digest,
        "architecture": architecture,
        "os": os,
        "layerCount": image.layers,
        "lastUsedAt": image.used.map(clock::written),
        "createdAt": clock::written(image.pulled),
    })
}

fn detail(image: &ImageInspection) -> Value {
    let (os, architecture) = platform(&image.platform);
    let config = &image.config;
    let said = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let list = |words: &Vec<String>| Some(words.clone()).filter(|words| !words.is_empty());
    let layers: Vec<Value> = image
        .layers
        .iter()
        .enumerate()
        .map(|(position, layer)| {
            json!({
                "diffId": layer.diff_id,
                "blobDigest": layer.digest,
                "mediaType": layer.media_type,
                "compressedSizeBytes": layer.size,
                "erofsSizeBytes": layer.unpacked,
                "position": position,
            })
        })
        .collect();
    json!({
        "handle": {
            "reference": image.reference,
            "sizeBytes": image.size,
            "manifestDigest": image.digest,
            "architecture": architecture,
            "os": os,
            "layerCount": image.layers.len(),
            "lastUsedAt": image.used.map(clock::written),
            "createdAt": clock::written(image.pulled),
        },
        "config": {
            "digest": image.digest,
            "env": config.env,
            "cmd": list(&config.cmd),
            "entrypoint": list(&config.entrypoint),
            "workingDir": said(&config.workdir),
            "user": said(&config.user),
            "labels": config.labels,
            "stopSignal": said(&config.stop_signal),
        },
        "layers": layers,
    })
}

impl Microsandbox {
    pub(super) fn image_list(&self) -> Outcome {
        Ok(Done::new(self.world.api.image_list()?.iter().map(row).collect()))
    }

    pub(super) fn image_inspect(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let reference = Reference::parse(asked.reference.as_deref().unwrap_or_default())?;
        Ok(Done::new(detail(&self.world.api.image_inspect(&reference)?)))
    }

    pub(super) fn image_remove(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        if asked.force && !asked.confirm {
            return Err(Failure::dangerous("image_remove with force requires confirm: true"));
        }
        let references: Vec<String> = asked.reference.into_iter().chain(asked.references).collect();
        if references.is_empty() {
            return Err(Failure::new("image_remove requires reference or references"));
        }
        each("reference", references, Clone::clone, |text| {
            self.world.api.image_remove(&Reference::parse(text)?, asked.force)?;
            Ok(json!({"reference": text, "removed": true}))
        })
    }

    pub(super) fn image_prune(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        if !asked.confirm {
            return Err(Failure::dangerous("image_prune requires confirm: true"));
        }
        let prune = Prune { all: true, ..Prune::default() };
        let pruned = self.world.api.image_prune(&prune)?;
        let warning = (!pruned.failed.is_empty())
            .then(|| format!("not all of it could be removed: {}", pruned.failed.join("; ")));
        let data = json!({
            "imageRefsRemoved": pruned.images.len(),
            "manifestsRemoved": pruned.images.len(),
            "layersRemoved": pruned.layers,
            "fsmetaRemoved": pruned.blobs + pruned.unfinished,
            "vmdkRemoved": pruned.disks,
            "bytesReclaimed": pruned.bytes,
        });
        Ok(Done::new(data).warning(warning))
    }
}
