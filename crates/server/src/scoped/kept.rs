//! Workspaces, syncs and children of one namespace.

use super::Scoped;
use msb_api::{
    Applied, Brood, Change, Child, ChildSpec, Children, Depth, RelPath, Selection, SyncSpec,
    SyncSummary, Syncs, Watch, Workspaces,
};
use msb_spec::{Error, Kind, Name, Result};

impl Workspaces for Scoped {
    fn workspace_diff(&self, name: &Name, below: &[RelPath], depth: Depth) -> Result<Vec<Change>> {
        self.told(self.api.workspace_diff(&self.inner(name)?, below, depth))
    }

    fn workspace_apply(
        &self,
        name: &Name,
        selection: &Selection,
        dry_run: bool,
    ) -> Result<Applied> {
        self.told(self.api.workspace_apply(&self.inner(name)?, selection, dry_run))
    }

    fn workspace_discard(&self, name: &Name, paths: &[RelPath]) -> Result<usize> {
        self.told(self.api.workspace_discard(&self.inner(name)?, paths))
    }
}

impl Scoped {
    fn sync(&self, mut sync: SyncSummary) -> Option<SyncSummary> {
        sync.sandbox = self.outer(&sync.sandbox)?;
        Some(sync)
    }

    fn own_sync(&self, id: &str) -> Result<SyncSummary> {
        // Another's error could tell that there is one.
        let found = self.api.sync_inspect(id).ok().and_then(|sync| self.sync(sync));
        found
            .ok_or_else(|| Error::new(Kind::NotFound, format!("no sync `{}`", msb_spec::shown(id))))
    }
}

impl Syncs for Scoped {
    fn sync_start(&self, spec: &SyncSpec, watch: &dyn Watch) -> Result<SyncSummary> {
        let SyncSpec { source, sandbox, target, excludes, default_excludes } = spec.clone();
        let (source, sandbox) = (self.host(&source)?, self.inner(&sandbox)?);
        let spec = SyncSpec { source, sandbox, target, excludes, default_excludes };
        let made = self.told(self.api.sync_start(&spec, watch))?;
        self.sync(made).ok_or_else(|| Error::new(Kind::Protocol, "another sync came back"))
    }

    fn sync_list(&self) -> Result<Vec<SyncSummary>> {
        let all = self.told(self.api.sync_list())?;
        Ok(all.into_iter().filter_map(|sync| self.sync(sync)).collect())
    }

    fn sync_inspect(&self, id: &str) -> Result<SyncSummary> {
        self.own_sync(id)
    }

    fn sync_stop(&self, id: &str) -> Result<()> {
        let sync = self.own_sync(id)?;
        self.told(self.api.sync_stop(&sync.id))
    }
}

impl Scoped {
    fn child(&self, mut child: Child) -> Option<Child> {
        child.name = self.outer(&child.name)?;
        child.parent = self.outer(&child.parent)?;
        child.image = self.outer_image(child.image)?;
        Some(child)
    }
}

impl Children for Scoped {
    fn child_spawn(&self, parent: &Name, ask: &ChildSpec, watch: &dyn Watch) -> Result<Child> {
        let ChildSpec { image, name, cpus, memory } = ask.clone();
        let ask = ChildSpec {
            image: image.map(|image| self.image(image)).transpose()?,
            name: name.map(|name| self.inner(&name)).transpose()?,
            cpus,
            memory,
        };
        let child = self.told(self.api.child_spawn(&self.inner(parent)?, &ask, watch))?;
        self.child(child).ok_or_else(|| Error::new(Kind::Protocol, "another child came back"))
    }

    fn child_list(&self, parent: &Name) -> Result<Brood> {
        let brood = self.told(self.api.child_list(&self.inner(parent)?))?;
        let children = brood.children.into_iter().filter_map(|child| self.child(child)).collect();
        Ok(Brood { children, ..brood })
    }

    fn child_remove(&self, parent: &Name, name: &Name) -> Result<()> {
        self.told(self.api.child_remove(&self.inner(parent)?, &self.inner(name)?))
    }
}
