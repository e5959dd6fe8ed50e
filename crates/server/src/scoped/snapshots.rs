//! Snapshots of one namespace. Those have ids as well, which all namespaces share: whose a snapshot
//! is, its names tell.

use super::Scoped;
use msb_api::{Changes, Snapshot, Snapshots, Verified};
use msb_spec::{Error, Kind, Name, Result};
use std::io::{Read, Write};

/// Digits of an id.
const ID: usize = 16;

impl Scoped {
    /// How a snapshot of this namespace is found, by a name or its id.
    pub(super) fn snapshot(&self, name: &Name) -> Result<Name> {
        if self.namespace.is_none() {
            return Ok(name.clone());
        }
        if let Ok(inner) = self.inner(name)
            && self.api.snapshot_inspect(&inner).is_ok_and(|found| self.is_own(&found))
        {
            return Ok(inner);
        }
        match self.api.snapshot_inspect(name) {
            Ok(found) if found.id == name.as_str() && self.is_own(&found) => Ok(name.clone()),
            _ => Err(Error::new(Kind::NotFound, format!("no snapshot `{name}`"))),
        }
    }

    /// A name for a snapshot. One that looks like an id could stand before somebody's.
    fn new_name(&self, name: &Name) -> Result<Name> {
        if self.namespace.is_none() {
            return Ok(name.clone());
        }
        let text = name.as_str();
        match text.len() == ID && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            true => Err(Error::invalid(format!("that looks like the id of a snapshot: `{name}`"))),
            false => self.inner(name),
        }
    }

    fn is_own(&self, snapshot: &Snapshot) -> bool {
        self.namespace.is_none() || snapshot.names.iter().any(|name| self.outer(name).is_some())
    }

    /// A snapshot with names turned back; `known` are the ids of those that may be mentioned.
    fn told_of(&self, snapshot: Snapshot, known: &[String]) -> Snapshot {
        let names = self.own(&snapshot.names);
        // Taken of somebody else's: only whoever runs the server can have given it to us.
        let sandbox = self.outer(&snapshot.sandbox).or_else(|| names.first().cloned());
        let sandbox = sandbox.unwrap_or(snapshot.sandbox);
        let parent = snapshot.parent.filter(|id| known.contains(id));
        let children = snapshot.children.into_iter().filter(|id| known.contains(id)).collect();
        Snapshot { names, sandbox, parent, children, ..snapshot }
    }

    fn own_snapshots(&self) -> Result<Vec<Snapshot>> {
        let all = self.told(self.api.snapshot_list())?;
        Ok(all.into_iter().filter(|snapshot| self.is_own(snapshot)).collect())
    }

    fn one(&self, snapshot: Snapshot) -> Result<Snapshot> {
        let known: Vec<String> = self.own_snapshots()?.into_iter().map(|it| it.id).collect();
        Ok(self.told_of(snapshot, &known))
    }
}

impl Snapshots for Scoped {
    fn snapshot_create(&self, name: &Name, of: &Name, note: Option<&str>) -> Result<Snapshot> {
        let made = self.api.snapshot_create(&self.new_name(name)?, &self.inner(of)?, note);
        self.told(made).and_then(|made| self.one(made))
    }

    fn snapshot_list(&self) -> Result<Vec<Snapshot>> {
        let own = self.own_snapshots()?;
        let known: Vec<String> = own.iter().map(|it| it.id.clone()).collect();
        Ok(own.into_iter().map(|snapshot| self.told_of(snapshot, &known)).collect())
    }

    fn snapshot_inspect(&self, name: &Name) -> Result<Snapshot> {
        let found = self.told(self.api.snapshot_inspect(&self.snapshot(name)?))?;
        self.one(found)
    }

    fn snapshot_verify(&self, name: &Name) -> Result<Verified> {
        self.told(self.api.snapshot_verify(&self.snapshot(name)?))
    }

    fn snapshot_tag(&self, snapshot: &Name, name: &Name) -> Result<()> {
        self.told(self.api.snapshot_tag(&self.snapshot(snapshot)?, &self.new_name(name)?))
    }

    fn snapshot_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.told(self.api.snapshot_remove(&self.snapshot(name)?, force))
    }

    fn snapshot_save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()> {
        self.told(self.api.snapshot_save(&self.snapshot(name)?, whole, out))
    }

    fn snapshot_load(&self, name: Option<&Name>, archive: &mut dyn Read) -> Result<Snapshot> {
        self.common("loads no archives: they bring images that others would use")?;
        self.api.snapshot_load(name, archive)
    }

    fn snapshot_restore(&self, snapshot: &Name, name: &Name) -> Result<()> {
        self.told(self.api.snapshot_restore(&self.snapshot(snapshot)?, &self.inner(name)?))
    }

    fn snapshot_restore_with(&self, snapshot: &Name, name: &Name, changes: &Changes) -> Result<()> {
        let mounts = changes.mounts.iter().map(|it| self.mount(it.clone()));
        let mut changes = Changes { mounts: mounts.collect::<Result<_>>()?, ..changes.clone() };
        self.mark(&mut changes.labels);
        let (snapshot, name) = (self.snapshot(snapshot)?, self.inner(name)?);
        self.told(self.api.snapshot_restore_with(&snapshot, &name, &changes))
    }

    fn sandbox_clone(&self, of: &Name, name: &Name) -> Result<()> {
        self.told(self.api.sandbox_clone(&self.inner(of)?, &self.inner(name)?))
    }

    fn sandbox_rollback(&self, name: &Name, snapshot: &Name) -> Result<()> {
        self.told(self.api.sandbox_rollback(&self.inner(name)?, &self.snapshot(snapshot)?))
    }

    fn sandbox_reset(&self, name: &Name, keep_workspace: bool) -> Result<()> {
        self.told(self.api.sandbox_reset(&self.inner(name)?, keep_workspace))
    }
}
