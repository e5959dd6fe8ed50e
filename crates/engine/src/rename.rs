//! Renames a stopped sandbox.
//!
//! The Plan with the new name is written beside the present one; the `rename(2)` of the directory
//! is the commit point. Until the last step readers use the Plan that has the name of the
//! directory. The next holder of the lock completes that step.

use crate::repair;
use crate::sandboxes::Engine;
use crate::store::{self, LockedSandbox};
use crate::sync;
use msb_spec::{Error, Hostname, Kind, Name, Plan, Result, Upper, env, state};
use msb_wire::record::EventKind;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::fs;
use std::path::Path;

impl Engine {
    /// Renames a stopped sandbox.
    pub fn rename(&self, name: &Name, to: &Name) -> Result<()> {
        let about = |error: Error| error.under(format!("cannot rename sandbox `{name}`"));
        self.try_rename(name, to).map_err(|error| match error.kind() {
            Kind::NotFound | Kind::Exists => error,
            _ => about(error),
        })
    }

    fn try_rename(&self, name: &Name, to: &Name) -> Result<()> {
        let home = self.home();
        self.existing(name)?;
        if name == to {
            return Err(Error::invalid("it has that name already"));
        }
        let running = || {
            Error::new(Kind::State, "it is running")
                .hint(format!("`msb stop {name}` ends it; what it wrote stays"))
        };
        let claim = self.lock_stopped(name)?.ok_or_else(running)?;
        let plan = self.existing(name)?;
        self.check_not_referenced(&plan)?;
        let next = renamed(plan, &claim.directory, &home.directory(to), to);
        let pending = claim.directory.join(state::RENAMED_PLAN);
        store::write_pending_plan(&pending, &next)?;
        let directory = home.directory(to);
        match rustix::fs::renameat_with(
            CWD,
            &claim.directory,
            CWD,
            &directory,
            RenameFlags::NOREPLACE,
        ) {
            Ok(()) => {}
            Err(error) => {
                let _ = fs::remove_file(&pending);
                return Err(match error {
                    Errno::EXIST => {
                        Error::new(Kind::Exists, format!("sandbox `{to}` already exists"))
                            .hint("choose another name")
                    }
                    error => Error::host("its directory cannot be renamed", error),
                });
            }
        }
        let claim = LockedSandbox { directory, lock: claim.lock };
        finish_pending(&claim, to)
    }

    /// Refuses to rename a sandbox that a parent, children or a sync refer to by name.
    fn check_not_referenced(&self, plan: &Plan) -> Result<()> {
        let name = &plan.name;
        if let Some(family) = &plan.family {
            return Err(Error::new(Kind::State, format!("it is a child of `{}`", family.parent))
                .hint("its parent knows it by its name"));
        }
        if self.children().list(name).is_ok_and(|list| !list.children.is_empty()) {
            return Err(Error::new(Kind::State, "it has children")
                .hint(format!("`msb children ls {name}` lists them")));
        }
        if sync::registry::all(self.home()).iter().any(|sync| sync.sandbox == *name) {
            return Err(Error::new(Kind::State, "it is being synced")
                .hint("`msb sync ls` lists syncs, `msb sync stop` ends one"));
        }
        Ok(())
    }
}

/// The Plan with the new name. Paths into the directory and values derived from the name are
/// adapted.
fn renamed(mut plan: Plan, from: &Path, into: &Path, to: &Name) -> Plan {
    let moved = |path: &mut std::path::PathBuf| {
        if let Ok(below) = path.strip_prefix(from) {
            *path = into.join(below);
        }
    };
    match &mut plan.rootfs.upper {
        Upper::Directory { path } | Upper::Disk { path } => moved(path),
        Upper::Memory { .. } => {}
    }
    if let Some(workspace) = &mut plan.workspace {
        moved(&mut workspace.changes);
    }
    if let Some(hostname) = host_name(&plan.hostname, &plan.name, to) {
        plan.hostname = hostname;
    }
    if plan.env.get(env::SANDBOX).is_some_and(|known| known == plan.name.as_str()) {
        plan.env.insert(env::SANDBOX.to_owned(), to.to_string());
    }
    plan.name = to.clone();
    plan
}

/// The new hostname, if the old one was derived from the name.
fn host_name(present: &Hostname, from: &Name, to: &Name) -> Option<Hostname> {
    if *present == Hostname::of(from) {
        return Some(Hostname::of(to));
    }
    let known = bare_name(from).is_some_and(|bare_name| *present == Hostname::of(&bare_name));
    known.then(|| Hostname::of(&bare_name(to).unwrap_or_else(|| to.clone())))
}

/// The name without its namespace prefix.
fn bare_name(name: &Name) -> Option<Name> {
    let (_, bare_name) = name.as_str().split_once("--")?;
    Name::parse(bare_name).ok()
}

/// Completes an interrupted rename, or removes its pending Plan if the commit point was not
/// reached.
pub(crate) fn finish_pending(claim: &LockedSandbox, name: &Name) -> Result<()> {
    let pending = claim.directory.join(state::RENAMED_PLAN);
    if !pending.exists() {
        return Ok(());
    }
    let about = |error| Error::host(format!("cannot finish renaming `{name}`"), error);
    match store::read_plan_file(&pending, name) {
        Ok(Some(plan)) if plan.name == *name => {
            let place = claim.directory.join(state::PLAN);
            let before = store::read_plan_file(&place, name).ok().flatten();
            fs::rename(&pending, &place).map_err(about)?;
            if let Some(before) = before.filter(|before| before.name != *name) {
                repair::note(&claim.directory, EventKind::Renamed { from: before.name });
            }
            Ok(())
        }
        _ => fs::remove_file(&pending).map_err(about),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_hostname_follows_a_rename() {
        let name = |text: &str| Name::parse(text).unwrap();
        let becomes = |present: &str, from: &str, to: &str| {
            host_name(&Hostname::of(&name(present)), &name(from), &name(to))
                .map(|hostname| hostname.to_string())
        };
        assert_eq!(becomes("box", "box", "other").as_deref(), Some("other"));
        assert_eq!(becomes("given", "box", "other"), None);
        assert_eq!(becomes("one", "team--one", "team--two").as_deref(), Some("two"));
        assert_eq!(becomes("one", "team--one", "two").as_deref(), Some("two"));
        assert_eq!(becomes("given", "team--one", "team--two"), None);
    }
}
