//! Changes settings of an existing sandbox.
//!
//! The worker of a running sandbox makes the change, since it holds the lock and knows what its
//! cgroup accepts. For a stopped one, this process takes the lock.

use crate::planning;
use crate::repair;
use crate::sandboxes::Engine;
use crate::store::LockedSandbox;
use msb_api::{Holds, SettingChange};
use msb_spec::{
    By, Cgroup, Error, Kind, Limit, Limits, Modification, Modify, Name, Plan, Restart, Result,
    Span, WithinCeiling, check_env, state,
};
use msb_wire::record::EventKind;
use msb_wire::{HoldsNow, Reply, Request};
use std::fmt::Display;

impl Engine {
    /// Changes a sandbox, or lists the changes with `dry_run`.
    pub fn modify(&self, name: &Name, ask: &Modify) -> Result<Vec<SettingChange>> {
        ask.validate()?;
        let plan = self.existing(name)?;
        let change = decide(&plan, &self.authority.modify(ask)?)?;
        let about = |error: Error| error.under(format!("cannot change sandbox `{name}`"));
        let now = self.modify_any_state(name, &change, ask.dry_run);
        Ok(listed(&plan, &change, now.map_err(about)?))
    }

    /// Which changes are in force now; `None` if the sandbox is stopped.
    fn modify_any_state(
        &self,
        name: &Name,
        change: &Modification,
        dry_run: bool,
    ) -> Result<Option<HoldsNow>> {
        /// A sandbox that starts and stops this often in between is given up.
        const TRIES: usize = 10;
        for _ in 1..TRIES {
            if let Some(claim) = self.lock_stopped(name)? {
                return self.modify_stopped(&claim, name, change, dry_run).map(|()| None);
            }
            match self.modify_running(name, change, dry_run) {
                // The sandbox has stopped meanwhile.
                Err(_) if !self.home().is_running(name) => {}
                now => return now,
            }
        }
        self.modify_running(name, change, dry_run)
    }

    fn modify_running(
        &self,
        name: &Name,
        change: &Modification,
        dry_run: bool,
    ) -> Result<Option<HoldsNow>> {
        let request = Request::Modify { change: Box::new(change.clone()), dry_run };
        match self.connect(name, &request)?.reply()? {
            Reply::Modified(now) => Ok(Some(now)),
            _ => Err(Error::new(Kind::Protocol, "the worker sent an unexpected reply")),
        }
    }

    fn modify_stopped(
        &self,
        claim: &LockedSandbox,
        name: &Name,
        change: &Modification,
        dry_run: bool,
    ) -> Result<()> {
        if dry_run {
            return Ok(());
        }
        let mut plan = self.existing(name)?;
        plan.modify(change);
        rewrite(claim, &plan)?;
        repair::note(&claim.directory, EventKind::Modified { what: names(change) });
        Ok(())
    }
}

/// Replaces the Plan by `rename(2)`: readers see the old or the new one.
fn rewrite(claim: &LockedSandbox, plan: &Plan) -> Result<()> {
    let pending = claim.directory.join(state::CHANGED_PLAN);
    crate::store::write_pending_plan(&pending, plan)?;
    std::fs::rename(&pending, claim.directory.join(state::PLAN))
        .map_err(|error| Error::host("cannot change the plan", error))
}

/// Plans the change; fails where this host cannot provide it.
fn decide(plan: &Plan, ask: &WithinCeiling<&Modify>) -> Result<Modification> {
    let limits = ask.memory.is_some() || ask.cpus.is_some() || ask.pids.is_some();
    if plan.family.is_some() && (limits || ask.max_duration.is_some()) {
        return Err(Error::new(Kind::State, format!("sandbox `{}` is a child", plan.name))
            .hint("what a child has comes out of its parent's budget and stays as it was given"));
    }
    if ask.restart.is_some_and(Restart::is_some) && (plan.command.is_none() || plan.ephemeral) {
        let message = format!("sandbox `{}` has no command to restart", plan.name);
        return Err(Error::invalid(message)
            .hint("`msb create --restart always IMAGE -- COMMAND` makes one that does"));
    }
    if ask.restart.is_some_and(Restart::is_some) && plan.init.is_some() {
        let message = format!("the init of sandbox `{}` manages services itself", plan.name);
        return Err(Error::invalid(message).hint("let the image's init start the service"));
    }
    let secrets = plan.network.iter().flat_map(|network| &network.secrets);
    for planned in secrets {
        if ask.env.contains_key(&planned.secret.name) {
            let message = format!("`{}` is a secret of this sandbox", planned.secret.name);
            return Err(Error::invalid(message));
        }
    }
    let mut env = plan.env.clone();
    env.extend(ask.env.clone());
    check_env(&env)?;
    let mut change = Modification {
        labels: ask.labels.clone(),
        unlabel: ask.unlabel.clone(),
        env: ask.env.clone(),
        idle_timeout: ask.idle_timeout,
        max_duration: ask.max_duration,
        idle_pause: ask.idle_pause,
        restart: ask.restart,
        ..Modification::default()
    };
    if limits {
        let (planned, machine) = planning::replan_limits(plan, ask)?;
        change.memory = planned.memory.filter(|_| ask.memory.is_some());
        change.cpus = planned.cpus.filter(|_| ask.cpus.is_some());
        change.pids = planned.pids.filter(|_| ask.pids.is_some());
        change.machine = machine.filter(|_| ask.memory.is_some() || ask.cpus.is_some());
        change.cgroup = new_cgroup(&plan.limits, &change, planned);
    }
    Ok(change)
}

/// Another cgroup from the next start on, if the present one lacks a controller for the change.
fn new_cgroup(present: &Limits, change: &Modification, planned: Limits) -> Option<Cgroup> {
    let has = |controller: &str| match &present.cgroup {
        Cgroup::None => false,
        Cgroup::V1 { controllers } => controllers.contains_key(controller),
        Cgroup::V2 { .. } => true,
    };
    let lacks = [
        ("memory", change.memory.map(|limit| limit.by)),
        ("cpu", change.cpus.map(|limit| limit.by)),
        ("pids", change.pids.map(|limit| limit.by)),
    ];
    let lacks = lacks.iter().any(|(name, by)| *by == Some(By::Cgroup) && !has(name));
    lacks.then_some(planned.cgroup)
}

/// Lists each change with old value, new value and when it takes effect.
fn listed(plan: &Plan, change: &Modification, now: Option<HoldsNow>) -> Vec<SettingChange> {
    fn limit<T: Display>(limit: Option<Limit<T>>) -> Option<String> {
        limit.map(|limit| format!("{} ({})", limit.value, limit.by))
    }
    fn span(span: Option<Span>) -> Option<String> {
        span.filter(|span| !span.0.is_zero()).map(|span| span.to_string())
    }
    let mut after = plan.clone();
    after.modify(change);
    let runs = now.is_some();
    let now = now.unwrap_or_default();
    let mut list = Vec::new();
    let mut line = |what: &str, from: Option<String>, to: Option<String>, holds: bool| {
        if from != to {
            let holds = if holds { Holds::Now } else { Holds::NextStart };
            list.push(SettingChange { what: what.to_owned(), from, to, holds });
        }
    };
    line("memory", limit(plan.limits.memory), limit(after.limits.memory), now.memory);
    line("cpus", limit(plan.limits.cpus), limit(after.limits.cpus), now.cpus);
    line("pids", limit(plan.limits.pids), limit(after.limits.pids), now.pids);
    line("idle-timeout", span(plan.idle_timeout), span(after.idle_timeout), runs);
    line("max-duration", span(plan.max_duration), span(after.max_duration), runs);
    line("idle-pause", span(plan.idle_pause), span(after.idle_pause), runs);
    let restart = |policy: Restart| Some(policy.to_string());
    line("restart", restart(plan.restart), restart(after.restart), now.restart);
    let keys = change.labels.keys().chain(&change.unlabel);
    for key in keys {
        let (from, to) = (plan.labels.get(key).cloned(), after.labels.get(key).cloned());
        line(&format!("label {key}"), from, to, true);
    }
    for key in change.env.keys() {
        let (from, to) = (plan.env.get(key).cloned(), after.env.get(key).cloned());
        line(&format!("env {key}"), from, to, runs);
    }
    list
}

/// The names of the changed settings, as the CLI flags spell them.
fn names(change: &Modification) -> Vec<String> {
    change.names().into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Bytes;

    #[test]
    fn a_cgroup_is_planned_only_where_the_present_one_cannot_hold_it() {
        let by = |by| Modification {
            memory: Some(Limit { value: Bytes::mib(64), by }),
            ..Modification::default()
        };
        let v2 = Cgroup::V2 { parent: "/sys/fs/cgroup".into(), freezes: true };
        let planned = || Limits { cgroup: v2.clone(), ..Limits::default() };
        let wanted = |have: Cgroup, change: &Modification| {
            let limits = Limits { cgroup: have, ..Limits::default() };
            new_cgroup(&limits, change, planned())
        };
        assert_eq!(wanted(Cgroup::None, &by(By::Cgroup)), Some(v2.clone()));
        assert_eq!(wanted(Cgroup::None, &by(By::Watch)), None);
        assert_eq!(wanted(v2.clone(), &by(By::Cgroup)), None);
    }
}
