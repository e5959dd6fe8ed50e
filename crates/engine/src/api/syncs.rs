//! The sync Operations: start, list, inspect and stop.

use crate::sandboxes::Engine;
use crate::sync::SyncEvent;
use msb_api::{SyncSpec, SyncSummary, Syncs, Watch};
use msb_spec::Result;

impl Syncs for Engine {
    fn sync_start(&self, spec: &SyncSpec, watch: &dyn Watch) -> Result<SyncSummary> {
        let id = self.start_rechecked_sync(spec, &mut |event| {
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
