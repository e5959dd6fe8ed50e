//! The workspace Operations: diff, apply and discard.

use crate::sandboxes::Engine;
use msb_api::{ApplyReport, Change, Depth, RelPath, Selection, Workspaces};
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
    ) -> Result<ApplyReport> {
        self.apply(name, selection, dry_run)
    }

    fn workspace_discard(&self, name: &Name, paths: &[RelPath]) -> Result<usize> {
        self.discard(name, paths)
    }
}
