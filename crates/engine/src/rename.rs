//! Another name for a sandbox that has stopped.
//!
//! Its Plan for the new name is written beside the one in force; that the directory gets the new name
//! is the moment when it happens. Whoever reads it before the last step sees the Plan of the name
//! that the directory has, and whoever takes its lock next does that step.

use crate::repair;
use crate::sandboxes::Engine;
use crate::store::{self, Claim};
use crate::sync;
use msb_spec::{Error, Hostname, Kind, Name, Plan, Result, Upper, env, state};
use msb_wire::record::Happened;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::fs;
use std::path::Path;

impl Engine {
    /// Gives a sandbox that has stopped another name.
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
            return Err(Error::invalid("it is called so already"));
        }
        let running = || {
            Error::new(Kind::State, "it is running")
                .hint(format!("`msb stop {name}` ends it; what it wrote stays"))
        };
        let claim = self.claim_stopped(name)?.ok_or_else(running)?;
        let plan = self.existing(name)?;
        self.refuse_followed(&plan)?;
        let next = renamed(plan, &claim.directory, &home.directory(to), to);
        let beside = claim.directory.join(state::RENAMED_PLAN);
        store::write_beside(&beside, &next)?;
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
                let _ = fs::remove_file(&beside);
                return Err(match error {
                    Errno::EXIST => {
                        Error::new(Kind::Exists, format!("sandbox `{to}` already exists"))
                            .hint(format!("`msb rm {to}` removes it"))
                    }
                    error => Error::host("its directory stays where it is", error),
                });
            }
        }
        let claim = Claim { directory, lock: claim.lock };
        settle(&claim, to)
    }

    /// Whoever knows it by its name and could not be told.
    fn refuse_followed(&self, plan: &Plan) -> Result<()> {
        let name = &plan.name;
        if let Some(family) = &plan.family {
            return Err(Error::new(Kind::State, format!("it is a child of `{}`", family.parent))
                .hint("its parent knows it by its name"));
        }
        if self.children(name).is_ok_and(|brood| !brood.children.is_empty()) {
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

/// The Plan under another name: every path into its directory follows, and so does what was derived
/// from the name.
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

/// What the host name becomes, if it was made of the old name.
fn host_name(present: &Hostname, from: &Name, to: &Name) -> Option<Hostname> {
    if *present == Hostname::of(from) {
        return Some(Hostname::of(to));
    }
    let known = bare(from).is_some_and(|bare| *present == Hostname::of(&bare));
    known.then(|| Hostname::of(&bare(to).unwrap_or_else(|| to.clone())))
}

/// The name that a sandbox in a namespace goes by there.
fn bare(name: &Name) -> Option<Name> {
    let (_, bare) = name.as_str().split_once("--")?;
    Name::parse(bare).ok()
}

/// Does the last step of one who died before it, or forgets what has not happened.
pub(crate) fn settle(claim: &Claim, name: &Name) -> Result<()> {
    let beside = claim.directory.join(state::RENAMED_PLAN);
    if !beside.exists() {
        return Ok(());
    }
    let about = |error| Error::host(format!("cannot finish to rename `{name}`"), error);
    match store::read_any_plan(&beside, name) {
        Ok(Some(plan)) if plan.name == *name => {
            let place = claim.directory.join(state::PLAN);
            let before = store::read_any_plan(&place, name).ok().flatten();
            fs::rename(&beside, &place).map_err(about)?;
            if let Some(before) = before.filter(|before| before.name != *name) {
                repair::note(&claim.directory, Happened::Renamed { from: before.name });
            }
            Ok(())
        }
        _ => fs::remove_file(&beside).map_err(about),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_follows_if_it_was_made_of_the_name_here_or_in_a_namespace() {
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
