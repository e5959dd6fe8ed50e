//! Snapshots as files: OCI archives with the written layers on top.
//!
//! Without its image, a snapshot is an image of the changes alone, with a label that names its base
//! image. The label is used only to find that image.

use super::cross_tier::stack_layers;
use super::records::SnapshotRecord;
use super::{SnapshotStore, plan_to_record};
use msb_image::build::UpperLayer;
use msb_image::{
    Image, ImageConfig, Layer, LoadOptions, Progress, RootfsIds, RunConfig, Store, WireConfig,
};
use msb_spec::{
    Digest, Error, ImageRef, IsolationChoice, Kind, Lower, Name, Plan, Platform, Reference, Result,
    Spec, ctl, lookup,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;

/// The image label that marks a snapshot.
const LABEL: &str = "dev.msb.snapshot";
/// Directories that a sandbox creates in a root without them.
const USUAL: [&str; 6] = ["dev", "proc", "root", "run", "sys", "tmp"];

/// An empty tar archive: two zero blocks.
const EMPTY_TAR: [u8; 1024] = [0; 1024];

/// The content of the snapshot label.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SnapshotLabel {
    version: u32,
    name: Name,
    /// The sandbox that the snapshot was taken of.
    of: Name,
    #[serde(default)]
    note: Option<String>,
    /// The base image: `host`, or a reference.
    on: ImageRef,
    #[serde(default)]
    digest: Option<Digest>,
    /// Whether the layers of the base image are in the archive.
    whole: bool,
}

impl SnapshotStore<'_> {
    /// Writes a snapshot as an OCI archive, with all layers of its image if `whole`.
    pub fn save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()> {
        let record = self.records().find(name)?;
        let store = self.engine.images()?;
        let plan = &record.plan;
        let base = self.base_of(plan, &store)?;
        if whole && base.is_none() {
            return Err(Error::unsupported(format!(
                "the image of snapshot `{name}` is this host, which cannot be saved"
            ))
            .hint("leave `--with-image` out: it can be loaded on hosts like this one"));
        }
        let _adding = store.adding()?;
        let mut layers = match (&base, whole) {
            (Some(image), true) => image.layers.clone(),
            _ => Vec::new(),
        };
        match plan.machine {
            Some(_) => layers.extend(self.export_layer(plan, &store)?),
            None => layers.extend(written_layers(plan, &store)?),
        }
        if layers.is_empty() {
            // Nothing was written, but an image needs a layer.
            layers.push(store.add_layer(&EMPTY_TAR[..])?);
        }
        let label = SnapshotLabel {
            version: 1,
            name: name.clone(),
            of: plan.name.clone(),
            note: record.note.clone(),
            on: plan.image.clone(),
            digest: base.as_ref().map(|image| image.digest.clone()),
            whole,
        };
        let image = add(&store, name, plan, base.as_ref(), &label, &layers)?;
        let saved = store.save_archive(std::slice::from_ref(&image), out);
        let forgotten = store.forget(&image.reference);
        saved.and(forgotten)
    }

    /// Imports a snapshot from an OCI archive, under its own name or `name`.
    pub fn load(
        &self,
        name: Option<&Name>,
        archive: &mut dyn Read,
        progress: &dyn Progress,
    ) -> Result<Name> {
        let store = self.engine.images()?;
        let load = LoadOptions { name: None, platform: None };
        let images = store.load_archive(archive, &load, progress)?;
        let imported = self.import_archive(name, &images, &store);
        // A base image that came with the snapshot stays in the store.
        let base_image = imported.as_ref().ok().and_then(|(_, base_image)| base_image.clone());
        for image in images.iter().filter(|image| Some(&image.reference) != base_image.as_ref()) {
            let _ = store.forget(&image.reference);
        }
        imported.map(|(name, _)| name)
    }

    /// Records a snapshot of the loaded image. Returns its name, and the base image if the archive
    /// contained it.
    fn import_archive(
        &self,
        name: Option<&Name>,
        images: &[Image],
        store: &Store,
    ) -> Result<(Name, Option<Reference>)> {
        let labelled = images.iter().find_map(|image| {
            let text = image.config.labels.get(LABEL)?;
            Some((image, serde_json::from_str::<SnapshotLabel>(text).ok()?))
        });
        let Some((image, label)) = labelled.filter(|(_, label)| label.version == 1) else {
            return Err(Error::invalid("the archive contains no snapshot")
                .hint("`msb load` reads images; `msb snapshot save` writes snapshots"));
        };
        let name = name.cloned().unwrap_or_else(|| label.name.clone());
        let records = self.records();
        records.check_free(&name)?;
        let trees = store.layers_of(image).ok_or_else(|| {
            Error::new(Kind::State, "the layers of the snapshot are no longer in the store")
        })?;
        let on = match (&label.on, label.whole) {
            (_, true) => ImageRef::Name(image.reference.clone()),
            (ImageRef::Host, false) => ImageRef::Host,
            (ImageRef::Name(reference), false) => {
                let wanted = label.digest.as_ref();
                let found = store.list().into_iter().find(|it| Some(&it.digest) == wanted);
                let found = found.ok_or_else(|| {
                    let what = wanted.map_or_else(|| reference.clone(), |it| reference.at(it));
                    Error::new(Kind::NotFound, format!("snapshot `{name}` needs an image that is not in the store"))
                        .cause(what.to_string())
                        .hint(format!("`msb pull {what}` fetches it; `msb snapshot save --with-image` takes it along"))
                })?;
                ImageRef::Name(found.reference)
            }
            (other, false) => {
                return Err(Error::invalid(format!("a snapshot cannot be based on `{other}`")));
            }
        };
        let spec = Spec {
            name: Some(label.of.clone()),
            image: on,
            isolation: IsolationChoice::Process,
            ephemeral: false,
            ..Spec::with_defaults()
        };
        let mut plan = self.engine.plan(&spec)?;
        if !label.whole {
            stack_layers(&mut plan.rootfs.overlays, &trees);
            take_settings(&mut plan, &image.config)?;
        }
        let mut record = SnapshotRecord::new(
            records.nearest(&plan)?,
            label.note.as_deref(),
            plan_to_record(plan),
        );
        record.paused_us = None;
        records.add(&record, &name)?;
        self.spawn_tidy();
        Ok((name, label.whole.then(|| image.reference.clone())))
    }

    /// The base image of a Plan; `None` if it is `host`.
    pub(super) fn base_of(&self, plan: &Plan, store: &Store) -> Result<Option<Image>> {
        match plan.image.clone() {
            ImageRef::Host => Ok(None),
            ImageRef::Name(reference) => {
                let wanted = plan.image_digest.as_ref();
                let found = store.list().into_iter().find(|image| match wanted {
                    Some(digest) => image.digest == *digest,
                    None => image.reference == reference,
                });
                found.map(Some).ok_or_else(|| {
                    Error::new(
                        Kind::NotFound,
                        format!("image `{reference}` is no longer in the store"),
                    )
                    .hint(format!("`msb pull {reference}` fetches it"))
                })
            }
            other => {
                Err(Error::unsupported(format!("a snapshot based on `{other}` cannot be saved"))
                    .hint("snapshots of images and of `host` can"))
            }
        }
    }
}

/// The written layers of a Plan as image layers, from the lowest up. Overlays have no path in
/// common, so their order does not matter.
fn written_layers(plan: &Plan, store: &Store) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    for overlay in &plan.rootfs.overlays {
        let (written, image): (Vec<&Lower>, Vec<&Lower>) =
            overlay.lowers.iter().partition(|lower| lower.written_as.is_some());
        let below: Vec<PathBuf> = image.into_iter().map(|lower| lower.path.clone()).collect();
        let top = overlay.at == "/";
        let missing = if top { missing(&below) } else { Vec::new() };
        let paths = lookup::PLACES.into_iter().chain(ctl::PLACES).filter(|_| top);
        let covered: Vec<String> = paths.map(str::to_owned).collect();
        for lower in written.into_iter().rev() {
            layers.extend(store.pack(UpperLayer {
                upper: &lower.path,
                at: overlay.at.trim_matches('/').to_owned(),
                below: below.clone(),
                shift: lower.written_as.unwrap_or(0),
                missing: missing.clone(),
                covered: covered.clone(),
                latest: None,
            })?);
        }
    }
    Ok(layers)
}

/// The directories of `USUAL` that none of these layers has.
fn missing(below: &[PathBuf]) -> Vec<String> {
    let there = |name: &str| below.iter().any(|layer| layer.join(name).symlink_metadata().is_ok());
    USUAL.iter().filter(|name| !there(name)).map(|name| (*name).to_owned()).collect()
}

/// Adds the snapshot to the store as a temporary image, to save it.
fn add(
    store: &Store,
    name: &Name,
    plan: &Plan,
    base: Option<&Image>,
    label: &SnapshotLabel,
    layers: &[Layer],
) -> Result<Image> {
    let reference = Reference::parse(&format!("localhost/snapshots/{}", lowered(name)))?;
    let of_base = base.map(|image| store.config(image)).transpose()?;
    let platform = base.map_or_else(Platform::host, |image| image.platform.clone());
    let text = serde_json::to_string(label).expect("our own types always serialise");
    let mut labels =
        of_base.as_ref().and_then(|config| config.config.labels.clone()).unwrap_or_default();
    labels.insert(LABEL.to_owned(), text);
    let mut variables = plan.env.clone();
    variables.remove(msb_spec::env::SANDBOX);
    let wire = of_base.as_ref().map(|config| config.config.clone()).unwrap_or_default();
    let config = ImageConfig {
        created: of_base.as_ref().and_then(|config| config.created.clone()),
        author: None,
        architecture: platform.architecture,
        os: platform.os,
        variant: platform.variant,
        config: WireConfig {
            env: Some(variables.into_iter().map(|(k, v)| format!("{k}={v}")).collect()),
            working_dir: Some(plan.workdir.clone()),
            user: plan.user.as_ref().map(ToString::to_string),
            labels: Some(labels),
            ..wire
        },
        rootfs: RootfsIds {
            kind: "layers".to_owned(),
            diff_ids: layers.iter().map(|layer| layer.diff_id.clone()).collect(),
        },
        history: Vec::new(),
    };
    store.add_image(&reference, &config, layers)
}

/// Image references are lower case.
fn lowered(name: &Name) -> String {
    name.as_str().to_ascii_lowercase()
}

/// Takes environment, working directory and user from the image config.
fn take_settings(plan: &mut Plan, config: &RunConfig) -> Result<()> {
    let variables = config.env.iter().filter_map(|variable| variable.split_once('='));
    let variables: BTreeMap<String, String> =
        variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    plan.env.extend(variables);
    if config.workdir.starts_with('/') {
        plan.workdir.clone_from(&config.workdir);
    }
    if !config.user.is_empty() {
        plan.user = Some(msb_spec::UserRef::parse(&config.user)?);
    }
    plan.check()
}
