//! Layers that lie too deep on each other become fewer that show the same.
//!
//! What other sandboxes and snapshots lie on stays as it is; only the Plan that would be too deep
//! gets layers of its own, which hold copies.

use super::live::owners_of;
use super::{make_directory, new_id, written_as};
use crate::sandboxes::Engine;
use crate::store::passing;
use msb_image::Shift;
use msb_spec::{Error, Ids, Lower, Plan, Result};
use std::fs;
use std::path::PathBuf;

/// How deep layers may lie on each other. The kernel takes 500, and an image has up to 127.
const DEEPEST: usize = 400;
/// How deep they may lie afterwards, so that it is not done again soon.
const DEEP: usize = DEEPEST / 2;
/// Layers that become one. Their paths have to fit on a command line.
const AT_ONCE: usize = 100;

impl Engine {
    /// A Plan that shows the same and can have one more layer.
    pub(super) fn shallow(&self, plan: Plan) -> Result<Plan> {
        if depth(&plan) < DEEPEST {
            return Ok(plan);
        }
        let mut making = Making { engine: self, made: Vec::new() };
        let own = plan.rootfs.own;
        // First what the sandbox wrote itself: without that it is still what it was made from.
        let mut plan = making.squashed(plan, 0, own)?;
        if depth(&plan) > DEEP {
            let own = plan.rootfs.own;
            let overlays = plan.rootfs.overlays.iter();
            let written = overlays.map(|overlay| {
                overlay.lowers.iter().take_while(|lower| lower.written_as.is_some()).count()
            });
            let deepest = written.max().unwrap_or(own);
            plan = making.squashed(plan, own, deepest)?;
        }
        making.made.clear();
        Ok(plan)
    }
}

fn depth(plan: &Plan) -> usize {
    plan.rootfs.overlays.iter().map(|overlay| overlay.lowers.len()).max().unwrap_or(0)
}

/// Layers that are being made; removed again unless all are.
struct Making<'a> {
    engine: &'a Engine,
    made: Vec<PathBuf>,
}

impl Making<'_> {
    /// A Plan with fewer layers instead of those from `first` to before `end`, of each overlay.
    fn squashed(&mut self, mut plan: Plan, first: usize, end: usize) -> Result<Plan> {
        if end.saturating_sub(first) <= 1 {
            return Ok(plan);
        }
        let taken: Vec<Vec<Lower>> = plan
            .rootfs
            .overlays
            .iter_mut()
            .map(|overlay| {
                let written = overlay.lowers.iter().take_while(|lower| lower.written_as.is_some());
                let end = end.min(written.count());
                overlay.lowers.drain(first.min(end)..end).collect()
            })
            .collect();
        let most = taken.iter().map(Vec::len).max().unwrap_or(0);
        let parts = most.div_ceil(AT_ONCE);
        for part in (0..parts).rev() {
            let layers =
                taken.iter().map(|lowers| lowers.chunks(AT_ONCE).nth(part).unwrap_or_default());
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

    /// One layer for each overlay that shows the same as these.
    fn one(&mut self, plan: &Plan, layers: &[&[Lower]]) -> Result<Vec<Lower>> {
        let frozen = self.engine.home().frozen();
        let id = new_id();
        let aside = frozen.join(passing("making", &id));
        make_directory(&aside)?;
        self.made.push(aside.clone());
        let failed = |error| Error::host("cannot make one layer of many", error);
        for (at, lowers) in layers.iter().enumerate() {
            let into = aside.join(format!("upper{at}"));
            fs::create_dir(&into).map_err(failed)?;
            let from = lowers.iter().map(|lower| (lower.path.clone(), shift(lower, &plan.ids)));
            let owners = owners_of(&plan.ids);
            msb_image::squash(self.engine.program(), owners, from.collect(), &into)?;
        }
        let place = frozen.join(id);
        fs::rename(&aside, &place).map_err(failed)?;
        self.made.pop();
        self.made.push(place.clone());
        let lower = |at| Lower {
            path: place.join(format!("upper{at}")),
            owned: true,
            written_as: written_as(&plan.ids),
        };
        Ok((0..layers.len()).map(lower).collect())
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        for place in &self.made {
            self.engine.remove_whole(place);
        }
    }
}

/// How the ids of a layer become those of the sandbox.
fn shift(lower: &Lower, ids: &Ids) -> Option<Shift> {
    match (*ids, lower.written_as) {
        (Ids::Shifted { range }, Some(start)) => {
            let from = msb_spec::IdRange { start, count: range.count };
            Some(Shift { from, into: range.start })
        }
        _ => None,
    }
}
