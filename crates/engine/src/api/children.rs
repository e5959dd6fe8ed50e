//! The Operations on child sandboxes: spawn, list and remove.

use super::PullProgress;
use crate::images::Fetching;
use crate::sandboxes::Engine;
use msb_api::{Child, ChildListing, ChildSpec, Children, Watch};
use msb_spec::{Name, Result};

impl Children for Engine {
    fn child_spawn(&self, parent: &Name, ask: &ChildSpec, watch: &dyn Watch) -> Result<Child> {
        let progress = PullProgress::new(watch);
        let fetching = Fetching { progress: &progress, ..Fetching::default() };
        self.children().spawn(parent, ask, &fetching)
    }

    fn child_list(&self, parent: &Name) -> Result<ChildListing> {
        self.children().list(parent)
    }

    fn child_remove(&self, parent: &Name, name: &Name) -> Result<()> {
        self.children().remove(parent, name)
    }
}
