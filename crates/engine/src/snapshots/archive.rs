//! Snapshots as files: OCI archives whose top layers are what sandboxes wrote.
//!
//! A snapshot without its image is an image of the changes alone, with a note of what they lie
//! on. What a file says of itself is only ever used to find that.

use super::recorded;
use super::records::Record;
use super::tiers::lay_on;
use crate::sandboxes::Engine;
use msb_image::build::Written;
use msb_image::{
    Image, ImageConfig, Layer, Load, Progress, RootfsIds, RunConfig, Store, WireConfig,
};
use msb_spec::{
    Digest, Error, ImageRef, IsolationChoice, Kind, Lower, Name, Plan, Platform, Reference, Result,
    Spec, ctl, lookup,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;

/// The label that tells a snapshot from other images.
const LABEL: &str = "dev.msb.snapshot";
/// What is made at the top of a root that lacks it.
const USUAL: [&str; 6] = ["dev", "proc", "root", "run", "sys", "tmp"];

/// A tar of nothing is its end alone.
const EMPTY_TAR: [u8; 1024] = [0; 1024];

/// What a file says of the snapshot in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Label {
    version: u32,
    name: Name,
    /// The sandbox that it was taken of.
    of: Name,
    #[serde(default)]
    note: Option<String>,
    /// What it lies on: `host`, or the name of an image.
    on: ImageRef,
    #[serde(default)]
    digest: Option<Digest>,
    /// Whether that is in the file as well.
    whole: bool,
}

impl Engine {
    /// Writes a snapshot as an OCI archive, with all layers of its image if `whole`.
    pub fn save_snapshot(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()> {
        let record = self.records().find(name)?;
        let store = self.images()?;
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
            Some(_) => layers.extend(self.told_layer(plan, &store)?),
            None => layers.extend(written_layers(plan, &store)?),
        }
        if layers.is_empty() {
            // Nothing was written, and an image has a layer.
            layers.push(store.add_layer(&EMPTY_TAR[..])?);
        }
        let label = Label {
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

    /// Reads a snapshot from an OCI archive, under its own name or another.
    pub fn load_snapshot(
        &self,
        name: Option<&Name>,
        archive: &mut dyn Read,
        progress: &dyn Progress,
    ) -> Result<Name> {
        let store = self.images()?;
        let load = Load { name: None, platform: None };
        let images = store.load_archive(archive, &load, progress)?;
        let told = self.take_in(name, &images, &store);
        // What a snapshot lies on stays an image of its own.
        let needed = told.as_ref().ok().and_then(|(_, needed)| needed.clone());
        for image in images.iter().filter(|image| Some(&image.reference) != needed.as_ref()) {
            let _ = store.forget(&image.reference);
        }
        told.map(|(name, _)| name)
    }

    /// Makes a snapshot of what was loaded; its name, and the image that it lies on if that came
    /// with it.
    fn take_in(
        &self,
        name: Option<&Name>,
        images: &[Image],
        store: &Store,
    ) -> Result<(Name, Option<Reference>)> {
        let labelled = images.iter().find_map(|image| {
            let text = image.config.labels.get(LABEL)?;
            Some((image, serde_json::from_str::<Label>(text).ok()?))
        });
        let Some((image, label)) = labelled.filter(|(_, label)| label.version == 1) else {
            return Err(Error::invalid("there is no snapshot in it")
                .hint("`msb load` reads images; `msb snapshot save` writes snapshots"));
        };
        let name = name.cloned().unwrap_or_else(|| label.name.clone());
        let records = self.records();
        records.check_free(&name)?;
        let trees = store.layers_of(image).ok_or_else(|| {
            Error::new(Kind::State, "the layers of the snapshot are not here any more")
        })?;
        let on = match (&label.on, label.whole) {
            (_, true) => ImageRef::Name(image.reference.clone()),
            (ImageRef::Host, false) => ImageRef::Host,
            (ImageRef::Name(reference), false) => {
                let wanted = label.digest.as_ref();
                let found = store.list().into_iter().find(|it| Some(&it.digest) == wanted);
                let found = found.ok_or_else(|| {
                    let what = wanted.map_or_else(|| reference.clone(), |it| reference.at(it));
                    Error::new(Kind::NotFound, format!("snapshot `{name}` lies on an image that is not here"))
                        .cause(what.to_string())
                        .hint(format!("`msb pull {what}` fetches it; `msb snapshot save --with-image` takes it along"))
                })?;
                ImageRef::Name(found.reference)
            }
            (other, false) => {
                return Err(Error::invalid(format!("a snapshot cannot lie on `{other}`")));
            }
        };
        let spec = Spec {
            name: Some(label.of.clone()),
            image: on,
            isolation: IsolationChoice::Process,
            ephemeral: false,
            ..Spec::with_defaults()
        };
        let mut plan = self.plan(&spec)?;
        if !label.whole {
            lay_on(&mut plan.rootfs.overlays, &trees);
            take_settings(&mut plan, &image.config)?;
        }
        let mut record =
            Record::new(records.nearest(&plan)?, label.note.as_deref(), recorded(plan));
        record.paused_us = None;
        records.add(&record, &name)?;
        self.tidy_later();
        Ok((name, label.whole.then(|| image.reference.clone())))
    }

    /// The image that a Plan lies on; none if it is this host.
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
                    Error::new(Kind::NotFound, format!("image `{reference}` is not here any more"))
                        .hint(format!("`msb pull {reference}` fetches it"))
                })
            }
            other => Err(Error::unsupported(format!("what lies on `{other}` cannot be saved"))
                .hint("snapshots of images and of `host` can")),
        }
    }
}

/// What sandboxes wrote over an image, as layers of one, from the lowest up. No two overlays have
/// a path in common, so that one may come before the other.
fn written_layers(plan: &Plan, store: &Store) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    for overlay in &plan.rootfs.overlays {
        let (written, image): (Vec<&Lower>, Vec<&Lower>) =
            overlay.lowers.iter().partition(|lower| lower.written_as.is_some());
        let below: Vec<PathBuf> = image.into_iter().map(|lower| lower.path.clone()).collect();
        let top = overlay.at == "/";
        let missing = if top { missing(&below) } else { Vec::new() };
        let places = lookup::PLACES.into_iter().chain(ctl::PLACES).filter(|_| top);
        let covered: Vec<String> = places.map(str::to_owned).collect();
        for lower in written.into_iter().rev() {
            layers.extend(store.pack(Written {
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

/// The usual names at the top that none of these layers has.
fn missing(below: &[PathBuf]) -> Vec<String> {
    let there = |name: &str| below.iter().any(|layer| layer.join(name).symlink_metadata().is_ok());
    USUAL.iter().filter(|name| !there(name)).map(|name| (*name).to_owned()).collect()
}

/// Adds the image that a snapshot is, until it is saved.
fn add(
    store: &Store,
    name: &Name,
    plan: &Plan,
    base: Option<&Image>,
    label: &Label,
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

/// Names of images have no capitals.
fn lowered(name: &Name) -> String {
    name.as_str().to_ascii_lowercase()
}

/// What the sandbox was set to, as its image tells it.
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
