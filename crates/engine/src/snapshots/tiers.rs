//! Snapshots on the tier that they were not taken on.
//!
//! What was written is brought into the other tier's form once, when somebody first asks: a disk
//! that a machine wrote becomes a layer of the image store, told by a machine; directories become
//! a packed disk. The Plan that lies on it is kept with the snapshot, and goes with it.

use super::live::owners_of;
use super::records::Record;
use super::{make_directory, new_id, recorded, wait_for};
use crate::host::random;
use crate::sandboxes::Engine;
use crate::store::{Aside, passing};
use msb_image::build::Written;
use msb_image::{Marks, Store};
use msb_spec::{
    Error, ImageRef, Isolation, IsolationChoice, Lower, MachineBase, Overlay, Plan, PullWhen,
    Result, Spec, state,
};
use msb_sys::lock::Held;
use std::fs;
use std::path::{Path, PathBuf};

impl Engine {
    /// The Plan of a snapshot on a tier.
    pub(super) fn on_tier(&self, record: &Record, isolation: Isolation) -> Result<Plan> {
        if record.plan.isolation == isolation {
            return Ok(record.plan.clone());
        }
        if let Some(other) = record.other.as_ref().filter(|other| is_whole(other)) {
            return Ok(other.as_ref().clone());
        }
        let store = self.images()?;
        // Until the record says that it is needed, nobody may clean it away.
        let _adding = store.adding()?;
        let kept = Held(self.frozen_lock()?);
        wait_for(|| msb_sys::lock::try_share(&kept.0))?;
        let mut plan = self.plan_of_image(&record.plan, isolation, &store)?;
        match &mut plan.machine {
            Some(machine) => {
                let marks = match machine.base {
                    MachineBase::Image { .. } => Marks::Trusted,
                    MachineBase::Shares => Marks::User,
                };
                machine.written = self.packed(&record.plan, marks, &store)?.into_iter().collect();
            }
            None => {
                let layer = self.told_layer(&record.plan, &store)?;
                let trees = layer.map(|layer| store.trees(&[layer])).transpose()?;
                lay_on(&mut plan.rootfs.overlays, &trees.unwrap_or_default());
            }
        }
        self.records().complete(record, &plan)?;
        Ok(plan)
    }

    /// A Plan on a tier for what a snapshot lies on, with the settings of its sandbox.
    fn plan_of_image(&self, of: &Plan, isolation: Isolation, store: &Store) -> Result<Plan> {
        let image = match &of.image {
            ImageRef::Name(_) => match self.base_of(of, store)? {
                Some(image) => ImageRef::Name(image.reference),
                None => of.image.clone(),
            },
            other => other.clone(),
        };
        let spec = Spec {
            name: Some(of.name.clone()),
            image,
            isolation: match isolation {
                Isolation::Vm => IsolationChoice::Vm,
                Isolation::Process => IsolationChoice::Process,
            },
            pull: PullWhen::Never,
            ephemeral: false,
            ..Spec::with_defaults()
        };
        let plan = recorded(self.plan(&spec)?);
        Ok(Plan {
            env: of.env.clone(),
            workdir: of.workdir.clone(),
            user: of.user.clone(),
            image: of.image.clone(),
            image_digest: of.image_digest.clone(),
            ..plan
        })
    }

    /// What sandboxes wrote into directories, as a disk for machines; none if nothing.
    fn packed(&self, plan: &Plan, marks: Marks, store: &Store) -> Result<Option<PathBuf>> {
        let about = |error: std::io::Error| Error::host("cannot pack a snapshot", error);
        let frozen = self.home().frozen();
        let id = new_id();
        let aside = Aside(frozen.join(passing("making", &id)));
        make_directory(&aside.0)?;
        let mut written = Vec::new();
        for (index, overlay) in plan.rootfs.overlays.iter().enumerate() {
            let (own, image): (Vec<&Lower>, Vec<&Lower>) =
                overlay.lowers.iter().partition(|lower| lower.written_as.is_some());
            let below: Vec<PathBuf> = image.into_iter().map(|lower| lower.path.clone()).collect();
            written.extend(own.into_iter().rev().map(|lower| Written {
                upper: &lower.path,
                at: format!("upper{index}"),
                below: below.clone(),
                shift: lower.written_as.unwrap_or(0),
                missing: Vec::new(),
                covered: Vec::new(),
                latest: None,
            }));
        }
        let packed = store.pack_disk(written, marks, random(), owners_of(&plan.ids), &aside.0)?;
        let Some(disk) = packed else {
            return Ok(None);
        };
        fs::rename(disk, aside.0.join(state::PACKED_DISK)).map_err(about)?;
        let place = frozen.join(id);
        fs::rename(&aside.0, &place).map_err(about)?;
        std::mem::forget(aside);
        Ok(Some(place.join(state::PACKED_DISK)))
    }
}

/// Whether everything that a Plan lies on is there.
fn is_whole(plan: &Plan) -> bool {
    let lowers = plan.rootfs.overlays.iter().flat_map(|overlay| &overlay.lowers);
    let base = plan.machine.iter().filter_map(|machine| match &machine.base {
        MachineBase::Image { path, .. } => Some(path),
        MachineBase::Shares => None,
    });
    let lowers = lowers.filter(|_| base.clone().next().is_none()).map(|lower| &lower.path);
    lowers.chain(base.clone()).map(PathBuf::as_path).chain(plan.written()).all(Path::exists)
}

/// Puts layers, topmost first, over each overlay: what is for `/usr` lies in their `usr`.
pub(super) fn lay_on(overlays: &mut [Overlay], trees: &[PathBuf]) {
    for overlay in overlays {
        let within = overlay.at.trim_start_matches('/').to_owned();
        let found = trees.iter().map(|tree| tree.join(&within)).filter(|path| is_directory(path));
        let written = |path| Lower { path, owned: true, written_as: Some(0) };
        let own: Vec<Lower> = found.map(written).collect();
        overlay.lowers.splice(0..0, own);
    }
}

/// A layer may hold a link where a directory is meant.
fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_dir())
}
