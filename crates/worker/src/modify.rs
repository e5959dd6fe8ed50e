//! Changes the limits of a running sandbox: in the Plan on disk, and at once where possible.

use crate::worker::Worker;
use msb_jail::cgroup::SandboxCgroup;
use msb_spec::{By, Error, Kind, Limit, Limits, Modification, Plan, Result, state};
use msb_wire::record::{EventKind, WakeReason};
use msb_wire::{HoldsNow, Reply};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

impl Worker {
    /// Applies a change, or with `dry_run` only returns which parts would take effect at once.
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
        let group = self.guest.process.group();
        let limits = |what: &str| group.is_some_and(|group| group.can_limit(what));
        let vm = self.guest.vm().is_some();
        let watched =
            |limit: Limit<_>| limit.by == By::Watch && group.is_none_or(|g| !g.can_limit("memory"));
        let by_cgroup = |by: By, what: &str| by == By::Cgroup && limits(what);
        HoldsNow {
            memory: !vm
                && change.memory.is_some_and(|it| by_cgroup(it.by, "memory") || watched(it)),
            cpus: change.cpus.is_some_and(|it| by_cgroup(it.by, "cpu")),
            pids: !vm && change.pids.is_some_and(|it| by_cgroup(it.by, "pids")),
            // Without a supervisor, the guest has been told to exit with its main command.
            restart: self.supervisor.is_some(),
        }
    }

    /// Changes the cgroup first, which can fail, then the Plan on disk, then the worker's own
    /// state.
    fn try_modify(&mut self, change: &Modification, now: HoldsNow) -> Result<()> {
        let before = self.plan.limits.clone();
        let mut wanted = before.clone();
        let is_cgroup = |by: By| by == By::Cgroup;
        if now.memory {
            wanted.memory = change.memory;
        }
        if now.cpus {
            wanted.cpus = change.cpus;
        }
        if now.pids {
            wanted.pids = change.pids;
        }
        let group = self.guest.process.group();
        let touches = [
            now.memory && wanted.memory.is_some_and(|limit| is_cgroup(limit.by)),
            now.cpus,
            now.pids,
        ];
        if let Some(group) = group.filter(|_| touches.contains(&true)) {
            limit(group, &before, &wanted, now)?;
        }
        if let Err(error) =
            rewrite_plan(&self.directory.join(state::PLAN), |plan| plan.modify(change))
        {
            if let Some(group) = group.filter(|_| touches.contains(&true)) {
                msb_log::warn_on_failure!(
                    group.update_limits(&before),
                    "cannot restore the limits of the cgroup"
                );
            }
            return Err(Error::host("cannot change the plan", error));
        }
        self.plan.limits = wanted;
        // Our Plan may have overrides for this start only, so it is not replaced by the one on
        // disk.
        let restart = self.plan.restart;
        self.plan.modify_lightly(change);
        if !now.restart {
            self.plan.restart = restart;
        }
        self.lifetime.modify(&self.plan, change);
        if change.idle_pause.is_some() {
            self.wake(WakeReason::Clock);
            self.idle.set(&self.plan, self.clock.now());
        }
        if let (Some(policy), Some(supervisor)) = (change.restart, &mut self.supervisor) {
            supervisor.policy = policy;
            if let Some(exit) = supervisor.cancel_restart() {
                self.finish(exit.ending, Some(exit));
            }
        }
        let what = change.names().into_iter().map(str::to_owned).collect();
        self.record(EventKind::Modified { what });
        Ok(())
    }
}

/// Changes the limits of the cgroup, or restores the old ones on failure.
fn limit(group: &SandboxCgroup, before: &Limits, wanted: &Limits, now: HoldsNow) -> Result<()> {
    group.update_limits(wanted).map_err(|error| {
        msb_log::warn_on_failure!(
            group.update_limits(before),
            "cannot restore the limits of the cgroup"
        );
        let lower = now.memory
            && wanted
                .memory
                .is_some_and(|limit| group.memory().is_some_and(|used| used > limit.value.0));
        match lower {
            true => {
                Error::new(Kind::Limit, "the sandbox already uses more memory than the new limit")
                    .hint("stop processes in it first, or change the limit while it is stopped")
            }
            false => error,
        }
    })
}

/// Rewrites a Plan on disk atomically, by `rename(2)`.
fn rewrite_plan(path: &Path, change: impl FnOnce(&mut Plan)) -> io::Result<()> {
    let mut plan: Plan = serde_json::from_slice(&fs::read(path)?)?;
    change(&mut plan);
    let temporary = path.with_file_name(state::CHANGED_PLAN);
    let _ = fs::remove_file(&temporary);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(&serde_json::to_vec(&plan)?)?;
    msb_sys::files::write_before_rename(&file)?;
    fs::rename(&temporary, path)
}
