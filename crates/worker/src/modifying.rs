//! What was decided about a sandbox, changed while it runs: in its Plan on disk, and at once as far
//! as that can be done.

use crate::worker::Worker;
use msb_jail::cgroup::Group;
use msb_spec::{By, Error, Kind, Limit, Limits, Modification, Plan, Result, state};
use msb_wire::record::{Happened, Woken};
use msb_wire::{HoldsNow, Reply};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

impl Worker {
    /// Makes a change, or only tells what of it would hold at once.
    pub(crate) fn modify(&mut self, change: &Modification, dry_run: bool) -> Reply {
        let now = self.holds_now(change);
        if dry_run {
            return Reply::Modified(now);
        }
        match self.try_modify(change, now) {
            Ok(()) => Reply::Modified(now),
            Err(error) => Reply::Failed(error),
        }
    }

    fn holds_now(&self, change: &Modification) -> HoldsNow {
        let group = self.guest.confined.group.as_ref();
        let limits = |what: &str| group.is_some_and(|group| group.can_limit(what));
        let machine = self.guest.machine().is_some();
        let watched =
            |limit: Limit<_>| limit.by == By::Watch && group.is_none_or(|g| !g.can_limit("memory"));
        let by_cgroup = |by: By, what: &str| by == By::Cgroup && limits(what);
        HoldsNow {
            memory: !machine
                && change.memory.is_some_and(|it| by_cgroup(it.by, "memory") || watched(it)),
            cpus: change.cpus.is_some_and(|it| by_cgroup(it.by, "cpu")),
            pids: !machine && change.pids.is_some_and(|it| by_cgroup(it.by, "pids")),
            // A guest that was told to leave with its command does.
            restart: self.service.is_some(),
        }
    }

    /// First what can be refused, then the Plan on disk, then what cannot fail.
    fn try_modify(&mut self, change: &Modification, now: HoldsNow) -> Result<()> {
        let before = self.plan.limits.clone();
        let mut wanted = before.clone();
        let held = |by: By| by == By::Cgroup;
        if now.memory {
            wanted.memory = change.memory;
        }
        if now.cpus {
            wanted.cpus = change.cpus;
        }
        if now.pids {
            wanted.pids = change.pids;
        }
        let group = self.guest.confined.group.as_ref();
        let touches =
            [now.memory && wanted.memory.is_some_and(|limit| held(limit.by)), now.cpus, now.pids];
        if let Some(group) = group.filter(|_| touches.contains(&true)) {
            limit(group, &before, &wanted, now)?;
        }
        if let Err(error) = rewrite(&self.directory.join(state::PLAN), |plan| plan.modify(change)) {
            if let Some(group) = group.filter(|_| touches.contains(&true)) {
                let _ = group.limit_anew(&before);
            }
            return Err(Error::host("cannot change the plan", error));
        }
        self.plan.limits = wanted;
        // What was for one start only is not in the Plan that we were given.
        let restart = self.plan.restart;
        self.plan.modify_lightly(change);
        if !now.restart {
            self.plan.restart = restart;
        }
        self.life.modify(&self.plan, change);
        if change.idle_pause.is_some() {
            self.wake(Woken::Clock);
            self.idle.set(&self.plan);
        }
        if let (Some(policy), Some(service)) = (change.restart, &mut self.service) {
            service.policy = policy;
            if let Some(exit) = service.give_up() {
                self.finish(exit.ending, Some(exit));
            }
        }
        let what = change.names().into_iter().map(str::to_owned).collect();
        self.record(Happened::Modified { what });
        Ok(())
    }
}

/// Changes what the cgroup holds, all or nothing.
fn limit(group: &Group, before: &Limits, wanted: &Limits, now: HoldsNow) -> Result<()> {
    group.limit_anew(wanted).map_err(|error| {
        let _ = group.limit_anew(before);
        let lower = now.memory
            && wanted
                .memory
                .is_some_and(|limit| group.memory().is_some_and(|used| used > limit.value.0));
        match lower {
            true => Error::new(Kind::Limit, "the sandbox uses more memory than that")
                .hint("stop something in it first, or change it while it is stopped"),
            false => error,
        }
    })
}

/// Changes a Plan on disk: whoever reads it sees the one or the other.
fn rewrite(path: &Path, change: impl FnOnce(&mut Plan)) -> io::Result<()> {
    let mut plan: Plan = serde_json::from_slice(&fs::read(path)?)?;
    change(&mut plan);
    let beside = path.with_file_name(state::CHANGED_PLAN);
    let _ = fs::remove_file(&beside);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(&serde_json::to_vec(&plan)?)?;
    msb_sys::files::write_before_rename(&file)?;
    fs::rename(&beside, path)
}
