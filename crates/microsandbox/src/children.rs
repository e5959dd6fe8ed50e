//! Sandboxes that were made for sandboxes.

use crate::sandbox::Sandbox;
use msb_engine::images::Fetching;
use msb_engine::{Child, ChildListing, ChildSpec};
use msb_spec::{Name, Result};

impl Sandbox {
    /// Makes a child of it, within what it was built with ([`crate::SandboxBuilder::spawn`]). The
    /// child is removed with it, and when its time is over.
    pub async fn spawn_child(&self, ask: ChildSpec) -> Result<Child> {
        self.worker
            .blocking(move |engine, name| engine.children().spawn(name, &ask, &Fetching::default()))
            .await
    }

    /// Its children, and what its policy leaves.
    pub async fn children(&self) -> Result<ChildListing> {
        self.worker.blocking(|engine, name| engine.children().list(name)).await
    }

    /// Ends a child, and those of its own.
    pub async fn remove_child(&self, child: impl AsRef<str>) -> Result<()> {
        let child = Name::parse(child.as_ref())?;
        self.worker.blocking(move |engine, name| engine.children().remove(name, &child)).await
    }
}
