//! Changes to an existing sandbox: as requested, and as decided.

use crate::spec::{check_env, check_idle_pause, check_labels, check_memory};
use crate::{Bytes, Cgroup, Cpus, Error, Limit, Plan, Restart, Result, Span};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Requested changes. Fields that are left out stay as they are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Modify {
    /// New limit of the memory.
    pub memory: Option<Bytes>,
    /// New limit of the CPUs.
    pub cpus: Option<Cpus>,
    /// New limit of processes and threads.
    pub pids: Option<u32>,
    /// Labels to set, by key.
    pub labels: BTreeMap<String, String>,
    /// Keys of labels to remove.
    pub unlabel: Vec<String>,
    /// Variables to set for all later Execs.
    pub env: BTreeMap<String, String>,
    /// Time without a running command after which it stops; zero means never.
    pub idle_timeout: Option<Span>,
    /// Time after its start at which it stops; zero means never.
    pub max_duration: Option<Span>,
    /// Time without activity after which it is paused; zero means never.
    pub idle_pause: Option<Span>,
    /// New restart policy of its first command.
    pub restart: Option<Restart>,
    /// Whether the change is only evaluated.
    pub dry_run: bool,
}

impl Modify {
    /// Checks the fields against each other. Fails if nothing changes.
    pub fn validate(&self) -> Result<()> {
        check_env(&self.env)?;
        check_labels(&self.labels)?;
        check_idle_pause(self.idle_pause.filter(|span| !span.0.is_zero()))?;
        check_memory(self.memory)?;
        if self.pids == Some(0) {
            return Err(Error::invalid("a sandbox needs at least one process"));
        }
        if let Some(both) = self.unlabel.iter().find(|key| self.labels.contains_key(*key)) {
            return Err(Error::invalid(format!("a label is both set and removed: `{both}`")));
        }
        if *self == (Self { dry_run: self.dry_run, ..Self::default() }) {
            return Err(Error::invalid("there is nothing to change")
                .hint("name a setting, such as `--memory`, `--cpus` or `--label`"));
        }
        Ok(())
    }
}

/// Changes to a Plan, as decided.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Modification {
    /// New memory limit, and what enforces it from the next start on.
    pub memory: Option<Limit<Bytes>>,
    /// New CPU limit, and what enforces it from the next start on.
    pub cpus: Option<Limit<Cpus>>,
    /// New limit of processes and threads, and what enforces it from the next start on.
    pub pids: Option<Limit<u32>>,
    /// Parent of its cgroup from the next start on, if it had none.
    pub cgroup: Option<Cgroup>,
    /// CPUs and memory in MiB of its microVM.
    pub machine: Option<(u8, u32)>,
    /// Labels to set, by key.
    pub labels: BTreeMap<String, String>,
    /// Keys of labels to remove.
    pub unlabel: Vec<String>,
    /// Variables to set for all later Execs.
    pub env: BTreeMap<String, String>,
    /// Time without a running command after which it stops; zero means never.
    pub idle_timeout: Option<Span>,
    /// Time after its start at which it stops; zero means never.
    pub max_duration: Option<Span>,
    /// Time without activity after which it is paused; zero means never.
    pub idle_pause: Option<Span>,
    /// New restart policy of its first command.
    pub restart: Option<Restart>,
}

impl Modification {
    /// Names of the changed settings, as the flags of `msb modify`.
    pub fn names(&self) -> Vec<&'static str> {
        let Self { memory, cpus, pids, labels, unlabel, env, .. } = self;
        let named = [
            ("memory", memory.is_some()),
            ("cpus", cpus.is_some()),
            ("pids", pids.is_some()),
            ("label", !labels.is_empty() || !unlabel.is_empty()),
            ("env", !env.is_empty()),
            ("idle-timeout", self.idle_timeout.is_some()),
            ("max-duration", self.max_duration.is_some()),
            ("idle-pause", self.idle_pause.is_some()),
            ("restart", self.restart.is_some()),
        ];
        named.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect()
    }
}

/// `None` for zero, which means never.
fn unless_zero(span: Span) -> Option<Span> {
    Some(span).filter(|span| !span.0.is_zero())
}

impl Plan {
    /// Applies all changes to the Plan.
    pub fn modify(&mut self, change: &Modification) {
        let limits = &mut self.limits;
        limits.memory = change.memory.or(limits.memory);
        limits.cpus = change.cpus.or(limits.cpus);
        limits.pids = change.pids.or(limits.pids);
        if let Some(cgroup) = &change.cgroup {
            limits.cgroup.clone_from(cgroup);
        }
        if let (Some((cpus, memory_mib)), Some(machine)) = (change.machine, &mut self.machine) {
            (machine.cpus, machine.memory_mib) = (cpus, memory_mib);
        }
        self.modify_lightly(change);
    }

    /// Applies the changes that take effect at once on each tier: labels, environment, timeouts,
    /// restart.
    pub fn modify_lightly(&mut self, change: &Modification) {
        for key in &change.unlabel {
            self.labels.remove(key);
        }
        self.labels.extend(change.labels.clone());
        self.env.extend(change.env.clone());
        if let Some(span) = change.idle_timeout {
            self.idle_timeout = unless_zero(span);
        }
        if let Some(span) = change.max_duration {
            self.max_duration = unless_zero(span);
        }
        if let Some(span) = change.idle_pause {
            self.idle_pause = unless_zero(span);
        }
        self.restart = change.restart.unwrap_or(self.restart);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_contradictory_changes_are_refused() {
        assert!(Modify::default().validate().is_err());
        assert!(Modify { dry_run: true, ..Modify::default() }.validate().is_err());
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let both =
            Modify { labels: labels.clone(), unlabel: vec!["a".to_owned()], ..Modify::default() };
        assert!(both.validate().is_err());
        assert!(Modify { labels, ..Modify::default() }.validate().is_ok());
    }
}
