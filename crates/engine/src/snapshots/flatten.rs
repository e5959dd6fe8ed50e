//! Squashes layer stacks that are too deep for overlayfs into fewer layers with the same content.
//!
//! Layers that other sandboxes and snapshots use stay. Only the Plan that would be too deep gets
//! copies.

use super::running::layer_owners;
use super::{SnapshotStore, ensure_directory, new_id, written_as};
use crate::sandboxes::Engine;
use crate::store::temp_name;
use msb_image::IdShift;
use msb_spec::{Error, Ids, Lower, Plan, Result};
use std::fs;
use std::path::PathBuf;

/// The deepest stack. The kernel takes 500 layers, and an image has up to 127.
const MAX_DEPTH: usize = 400;
/// The depth after squashing, so that it is not repeated soon.
const TARGET_DEPTH: usize = MAX_DEPTH / 2;
/// Layers squashed in one call. Their paths have to fit on a command line.
const SQUASH_BATCH: usize = 100;

impl SnapshotStore<'_> {
    /// A Plan with the same content that has room for one more layer.
    pub(super) fn flatten(&self, plan: Plan) -> Result<Plan> {
        if depth(&plan) < MAX_DEPTH {
            return Ok(plan);
        }
        let mut squashed_layers = SquashedLayers { engine: self.engine, created: Vec::new() };
        let own = plan.rootfs.own;
        // First the own layers of the sandbox: those below are shared with its origin.
        let mut plan = squashed_layers.squash_range(plan, 0, own)?;
        if depth(&plan) > TARGET_DEPTH {
            let own = plan.rootfs.own;
            let overlays = plan.rootfs.overlays.iter();
            let written = overlays.map(|overlay| {
                overlay.lowers.iter().take_while(|lower| lower.written_as.is_some()).count()
            });
            let deepest = written.max().unwrap_or(own);
            plan = squashed_layers.squash_range(plan, own, deepest)?;
        }
        squashed_layers.created.clear();
        Ok(plan)
    }
}

fn depth(plan: &Plan) -> usize {
    plan.rootfs.overlays.iter().map(|overlay| overlay.lowers.len()).max().unwrap_or(0)
}

/// Layers being created; removed on drop unless all succeed.
struct SquashedLayers<'a> {
    engine: &'a Engine,
    created: Vec<PathBuf>,
}

impl SquashedLayers<'_> {
    /// Replaces the layers `first..end` of each overlay by fewer ones.
    fn squash_range(&mut self, mut plan: Plan, first: usize, end: usize) -> Result<Plan> {
        if end.saturating_sub(first) <= 1 {
            return Ok(plan);
        }
        let drained: Vec<Vec<Lower>> = plan
            .rootfs
            .overlays
            .iter_mut()
            .map(|overlay| {
                let written = overlay.lowers.iter().take_while(|lower| lower.written_as.is_some());
                let end = end.min(written.count());
                overlay.lowers.drain(first.min(end)..end).collect()
            })
            .collect();
        let most = drained.iter().map(Vec::len).max().unwrap_or(0);
        let parts = most.div_ceil(SQUASH_BATCH);
        for part in (0..parts).rev() {
            let layers = drained
                .iter()
                .map(|lowers| lowers.chunks(SQUASH_BATCH).nth(part).unwrap_or_default());
            let lowers = self.one(&plan, &layers.collect::<Vec<_>>())?;
            for (overlay, lower) in plan.rootfs.overlays.iter_mut().zip(lowers) {
                overlay.lowers.insert(first.min(overlay.lowers.len()), lower);
            }
        }
        if first == 0 {
            plan.rootfs.own = parts;
        }
        Ok(plan)
    }

    /// Creates one layer for each overlay with the content of these.
    fn one(&mut self, plan: &Plan, layers: &[&[Lower]]) -> Result<Vec<Lower>> {
        let frozen = self.engine.home().frozen();
        let id = new_id();
        let temp = frozen.join(temp_name("making", &id));
        ensure_directory(&temp)?;
        self.created.push(temp.clone());
        let failed = |error| Error::host("cannot squash layers", error);
        for (at, lowers) in layers.iter().enumerate() {
            let into = temp.join(format!("upper{at}"));
            fs::create_dir(&into).map_err(failed)?;
            let from = lowers.iter().map(|lower| (lower.path.clone(), shift(lower, &plan.ids)));
            let owners = layer_owners(&plan.ids);
            msb_image::squash(self.engine.program(), owners, from.collect(), &into)?;
        }
        let target = frozen.join(id);
        fs::rename(&temp, &target).map_err(failed)?;
        self.created.pop();
        self.created.push(target.clone());
        let lower = |at| Lower {
            path: target.join(format!("upper{at}")),
            owned: true,
            written_as: written_as(&plan.ids),
        };
        Ok((0..layers.len()).map(lower).collect())
    }
}

impl Drop for SquashedLayers<'_> {
    fn drop(&mut self) {
        for target in &self.created {
            self.engine.remove_tree_as_owner(target);
        }
    }
}

/// The id shift from a layer to the sandbox.
fn shift(lower: &Lower, ids: &Ids) -> Option<IdShift> {
    match (*ids, lower.written_as) {
        (Ids::Shifted { range }, Some(start)) => {
            let from = msb_spec::IdRange { start, count: range.count };
            Some(IdShift { from, into: range.start })
        }
        _ => None,
    }
}
