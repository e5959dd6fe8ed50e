//! Workspaces, syncs and children.

use super::Watched;
use crate::images::Fetching;
use crate::sandboxes::Engine;
use crate::sync::SyncEvent;
use msb_api::{
    Applied, Brood, Change, Child, ChildSpec, Children, Depth, RelPath, Selection, SyncSpec,
    SyncSummary, Syncs, Watch, Workspaces,
};
use msb_spec::{Name, Result};

impl Workspaces for Engine {
    fn workspace_diff(&self, name: &Name, below: &[RelPath], depth: Depth) -> Result<Vec<Change>> {
        self.diff(name, below, depth)
    }

    fn workspace_apply(
        &self,
        name: &Name,
        selection: &Selection,
        dry_run: bool,
    ) -> Result<Applied> {
        self.apply(name, selection, dry_run)
    }

    fn workspace_discard(&self, name: &Name, paths: &[RelPath]) -> Result<usize> {
        self.discard(name, paths)
    }
}

impl Syncs for Engine {
    fn sync_start(&self, spec: &SyncSpec, watch: &dyn Watch) -> Result<SyncSummary> {
        let id = self.start_judged_sync(spec, &mut |event| {
            if let SyncEvent::Sent { files, bytes } = event {
                watch.step(&format!("copied {files} files, {bytes} bytes"), None);
            }
        })?;
        self.sync(&id)
    }

    fn sync_list(&self) -> Result<Vec<SyncSummary>> {
        Ok(self.syncs())
    }

    fn sync_inspect(&self, id: &str) -> Result<SyncSummary> {
        self.sync(id)
    }

    fn sync_stop(&self, id: &str) -> Result<()> {
        self.stop_sync(id)
    }
}

impl Children for Engine {
    fn child_spawn(&self, parent: &Name, ask: &ChildSpec, watch: &dyn Watch) -> Result<Child> {
        let progress = Watched::new(watch);
        self.spawn(parent, ask, &Fetching { progress: &progress, ..Fetching::default() })
    }

    fn child_list(&self, parent: &Name) -> Result<Brood> {
        self.children(parent)
    }

    fn child_remove(&self, parent: &Name, name: &Name) -> Result<()> {
        self.remove_child(parent, name)
    }
}
