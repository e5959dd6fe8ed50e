//! Images that are stored on this host.

use super::envelope::{Outcome, ToolFailure, ToolSuccess};
use super::selector::each;
use super::{Microsandbox, read};
use crate::dialect::ToolCall;
use msb_api::{ImageInspection, ImageSummary};
use msb_spec::Reference;
use msb_spec::clock;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ImageParams {
    reference: Option<String>,
    references: Vec<String>,
    force: bool,
    confirm: bool,
}

/// Splits `linux/amd64` into its parts.
fn platform(text: &str) -> (&str, &str) {
    text.split_once('/').unwrap_or((text, ""))
}

/// An image as one item of a list.
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
    let non_empty = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
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
            "workingDir": non_empty(&config.workdir),
            "user": non_empty(&config.user),
            "labels": config.labels,
            "stopSignal": non_empty(&config.stop_signal),
        },
        "layers": layers,
    })
}

impl Microsandbox {
    pub(super) fn image_list(&self) -> Outcome {
        Ok(ToolSuccess::new(self.config.api.image_list()?.iter().map(row).collect()))
    }

    pub(super) fn image_inspect(&self, call: &ToolCall) -> Outcome {
        let params: ImageParams = read(call)?;
        let reference = Reference::parse(params.reference.as_deref().unwrap_or_default())?;
        Ok(ToolSuccess::new(detail(&self.config.api.image_inspect(&reference)?)))
    }

    pub(super) fn image_remove(&self, call: &ToolCall) -> Outcome {
        let params: ImageParams = read(call)?;
        if params.force && !params.confirm {
            return Err(ToolFailure::dangerous("image_remove with force requires confirm: true"));
        }
        let references: Vec<String> =
            params.reference.into_iter().chain(params.references).collect();
        if references.is_empty() {
            return Err(ToolFailure::new("image_remove requires reference or references"));
        }
        each("reference", references, Clone::clone, |text| {
            self.config.api.image_remove(&Reference::parse(text)?, params.force)?;
            Ok(json!({"reference": text, "removed": true}))
        })
    }

    pub(super) fn image_prune(&self, call: &ToolCall) -> Outcome {
        let params: ImageParams = read(call)?;
        if !params.confirm {
            return Err(ToolFailure::dangerous("image_prune requires confirm: true"));
        }
        let pruned = self.config.api.image_prune(true, None, false)?;
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
        Ok(ToolSuccess::new(data).warning(warning))
    }
}
