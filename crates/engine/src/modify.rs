//! What was decided about a sandbox, changed after it was made.
//!
//! The worker of one that runs makes the change, since it holds the lock and knows what its cgroup
//! can still be told; of one that does not, whoever takes the lock.

use crate::planning;
use crate::repair;
use crate::sandboxes::Engine;
use crate::store::Claim;
use msb_api::{Holds, Modified};
use msb_spec::{
    By, Cgroup, Error, Kind, Limit, Limits, Modification, Modify, Name, Plan, Restart, Result,
    Span, WithinCeiling, check_env, state,
};
use msb_wire::record::Happened;
use msb_wire::{HoldsNow, Reply, Request};
use std::fmt::Display;

impl Engine {
    /// Changes a sandbox, or only tells what that would change.
    pub fn modify(&self, name: &Name, ask: &Modify) -> Result<Vec<Modified>> {
        ask.validate()?;
        let plan = self.existing(name)?;
        let change = decide(&plan, &self.authority.modify(ask)?)?;
        let about = |error: Error| error.under(format!("cannot change sandbox `{name}`"));
        let now = self.modify_either(name, &change, ask.dry_run);
        Ok(listed(&plan, &change, now.map_err(about)?))
    }

    /// What holds at once, if it runs.
    fn modify_either(
        &self,
        name: &Name,
        change: &Modification,
        dry_run: bool,
    ) -> Result<Option<HoldsNow>> {
        /// One that starts and ends this often is no use to anybody.
        const TRIES: usize = 10;
        for _ in 1..TRIES {
            if let Some(claim) = self.claim_stopped(name)? {
                return self.modify_stopped(&claim, name, change, dry_run).map(|()| None);
            }
            match self.modify_running(name, change, dry_run) {
                // It has ended meanwhile.
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
            _ => Err(Error::new(Kind::Protocol, "the worker answered something else")),
        }
    }

    fn modify_stopped(
        &self,
        claim: &Claim,
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
        repair::note(&claim.directory, Happened::Modified { what: names(change) });
        Ok(())
    }
}

/// Brings another Plan into force: whoever reads it sees the one or the other.
fn rewrite(claim: &Claim, plan: &Plan) -> Result<()> {
    let beside = claim.directory.join(state::CHANGED_PLAN);
    crate::store::write_beside(&beside, plan)?;
    std::fs::rename(&beside, claim.directory.join(state::PLAN))
        .map_err(|error| Error::host("cannot change the plan", error))
}

/// What is asked for, as this host can give it; what it cannot is an error.
fn decide(plan: &Plan, ask: &WithinCeiling<&Modify>) -> Result<Modification> {
    let limits = ask.memory.is_some() || ask.cpus.is_some() || ask.pids.is_some();
    if plan.family.is_some() && (limits || ask.max_duration.is_some()) {
        return Err(Error::new(Kind::State, format!("sandbox `{}` is a child", plan.name))
            .hint("what a child has comes out of its parent's budget and stays as it was given"));
    }
    if ask.restart.is_some_and(Restart::is_some) && (plan.command.is_none() || plan.ephemeral) {
        let message = format!("sandbox `{}` has no command to begin again", plan.name);
        return Err(Error::invalid(message)
            .hint("`msb create --restart always IMAGE -- COMMAND` makes one that does"));
    }
    if ask.restart.is_some_and(Restart::is_some) && plan.init.is_some() {
        let message = format!("the init of sandbox `{}` looks after services itself", plan.name);
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
        let (planned, machine) = planning::limits_anew(plan, ask)?;
        change.memory = planned.memory.filter(|_| ask.memory.is_some());
        change.cpus = planned.cpus.filter(|_| ask.cpus.is_some());
        change.pids = planned.pids.filter(|_| ask.pids.is_some());
        change.machine = machine.filter(|_| ask.memory.is_some() || ask.cpus.is_some());
        change.cgroup = wanted_by(&plan.limits, &change, planned);
    }
    Ok(change)
}

/// Another cgroup from the next start on, if the present one cannot hold what is asked for.
fn wanted_by(present: &Limits, change: &Modification, planned: Limits) -> Option<Cgroup> {
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

/// Each change, from what to what, and since when it holds.
fn listed(plan: &Plan, change: &Modification, now: Option<HoldsNow>) -> Vec<Modified> {
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
            list.push(Modified { what: what.to_owned(), from, to, holds });
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

/// What is changed, as flags call it.
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
            wanted_by(&limits, change, planned())
        };
        assert_eq!(wanted(Cgroup::None, &by(By::Cgroup)), Some(v2.clone()));
        assert_eq!(wanted(Cgroup::None, &by(By::Watch)), None);
        assert_eq!(wanted(v2.clone(), &by(By::Cgroup)), None);
    }
}
