//! Starts snapshots on the tier that they were not taken on.
//!
//! The written layers are converted at the first request. A disk of a microVM becomes a layer of
//! the image store, exported by a helper VM; directories become a packed disk. The resulting Plan
//! is stored in the snapshot record.

use super::records::SnapshotRecord;
use super::running::layer_owners;
use super::{SnapshotStore, ensure_directory, new_id, plan_to_record, wait_for_lock};
use crate::host::random;
use crate::store::{TempDir, temp_name};
use msb_image::build::UpperLayer;
use msb_image::{OverlayXattrs, Store};
use msb_spec::{
    Error, ImageRef, Isolation, IsolationChoice, Lower, MachineBase, Overlay, Plan, PullWhen,
    Result, Spec, state,
};
use msb_sys::lock::LockGuard;
use std::fs;
use std::path::{Path, PathBuf};

impl SnapshotStore<'_> {
    /// The Plan of a snapshot for a tier, converted if necessary.
    pub(super) fn plan_for_tier(
        &self,
        record: &SnapshotRecord,
        isolation: Isolation,
    ) -> Result<Plan> {
        if record.plan.isolation == isolation {
            return Ok(record.plan.clone());
        }
        if let Some(other) = record.other.as_ref().filter(|other| is_complete(other)) {
            return Ok(other.as_ref().clone());
        }
        let store = self.engine.images()?;
        // Keeps garbage collection away until the record refers to the result.
        let _adding = store.adding()?;
        let layer_lock = LockGuard(self.open_layer_lock()?);
        wait_for_lock(|| msb_sys::lock::try_share(&layer_lock.0))?;
        let mut plan = self.base_plan(&record.plan, isolation, &store)?;
        match &mut plan.machine {
            Some(machine) => {
                let marks = match machine.base {
                    MachineBase::Image { .. } => OverlayXattrs::Trusted,
                    MachineBase::Shares => OverlayXattrs::User,
                };
                machine.written =
                    self.pack_disk(&record.plan, marks, &store)?.into_iter().collect();
            }
            None => {
                let layer = self.export_layer(&record.plan, &store)?;
                let trees = layer.map(|layer| store.trees(&[layer])).transpose()?;
                stack_layers(&mut plan.rootfs.overlays, &trees.unwrap_or_default());
            }
        }
        self.records().set_other_tier(record, &plan)?;
        Ok(plan)
    }

    /// A Plan for the base image of a snapshot on a tier, with the settings of its sandbox.
    fn base_plan(&self, of: &Plan, isolation: Isolation, store: &Store) -> Result<Plan> {
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
        let plan = plan_to_record(self.engine.plan(&spec)?);
        Ok(Plan {
            env: of.env.clone(),
            workdir: of.workdir.clone(),
            user: of.user.clone(),
            image: of.image.clone(),
            image_digest: of.image_digest.clone(),
            ..plan
        })
    }

    /// Packs written directories into a disk for microVMs; `None` if nothing was written.
    fn pack_disk(
        &self,
        plan: &Plan,
        marks: OverlayXattrs,
        store: &Store,
    ) -> Result<Option<PathBuf>> {
        let about = |error: std::io::Error| Error::host("cannot pack a snapshot", error);
        let frozen = self.engine.home().frozen();
        let id = new_id();
        let temp = TempDir(frozen.join(temp_name("making", &id)));
        ensure_directory(&temp.0)?;
        let mut written = Vec::new();
        for (index, overlay) in plan.rootfs.overlays.iter().enumerate() {
            let (own, image): (Vec<&Lower>, Vec<&Lower>) =
                overlay.lowers.iter().partition(|lower| lower.written_as.is_some());
            let below: Vec<PathBuf> = image.into_iter().map(|lower| lower.path.clone()).collect();
            written.extend(own.into_iter().rev().map(|lower| UpperLayer {
                upper: &lower.path,
                at: format!("upper{index}"),
                below: below.clone(),
                shift: lower.written_as.unwrap_or(0),
                missing: Vec::new(),
                covered: Vec::new(),
                latest: None,
            }));
        }
        let disk = store.pack_disk(written, marks, random(), layer_owners(&plan.ids), &temp.0)?;
        let Some(disk) = disk else {
            return Ok(None);
        };
        fs::rename(disk, temp.0.join(state::PACKED_DISK)).map_err(about)?;
        let target = frozen.join(id);
        fs::rename(&temp.0, &target).map_err(about)?;
        std::mem::forget(temp);
        Ok(Some(target.join(state::PACKED_DISK)))
    }
}

/// Whether all layers and disks of a Plan exist.
fn is_complete(plan: &Plan) -> bool {
    let lowers = plan.rootfs.overlays.iter().flat_map(|overlay| &overlay.lowers);
    let base = plan.machine.iter().filter_map(|machine| match &machine.base {
        MachineBase::Image { path, .. } => Some(path),
        MachineBase::Shares => None,
    });
    let lowers = lowers.filter(|_| base.clone().next().is_none()).map(|lower| &lower.path);
    lowers.chain(base.clone()).map(PathBuf::as_path).chain(plan.written()).all(Path::exists)
}

/// Adds layers, topmost first, on top of each overlay. An overlay at `/usr` takes their `usr`
/// directory.
pub(super) fn stack_layers(overlays: &mut [Overlay], trees: &[PathBuf]) {
    for overlay in overlays {
        let within = overlay.at.trim_start_matches('/').to_owned();
        let found = trees.iter().map(|tree| tree.join(&within)).filter(|path| is_directory(path));
        let written = |path| Lower { path, owned: true, written_as: Some(0) };
        let own: Vec<Lower> = found.map(written).collect();
        overlay.lowers.splice(0..0, own);
    }
}

/// A layer may have a symlink where a directory is expected.
fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_dir())
}
