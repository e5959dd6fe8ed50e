//! What of a sandbox is to be changed after it was made: as asked, and as decided.

use crate::spec::{check_env, check_idle_pause, check_labels};
use crate::{Bytes, Cgroup, Cpus, Error, Limit, Plan, Restart, Result, Span};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is to be changed. What is left out stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Modify {
    /// Memory.
    pub memory: Option<Bytes>,
    /// Processors.
    pub cpus: Option<Cpus>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Labels to set.
    pub labels: BTreeMap<String, String>,
    /// Labels to take away, by key.
    pub unlabel: Vec<String>,
    /// Environment of every Exec from now on.
    pub env: BTreeMap<String, String>,
    /// It ends when nothing ran for this long; zero is never.
    pub idle_timeout: Option<Span>,
    /// It ends this long after its start; zero is never.
    pub max_duration: Option<Span>,
    /// It is paused when nothing happened for this long; zero is never.
    pub idle_pause: Option<Span>,
    /// When its first command is begun again.
    pub restart: Option<Restart>,
    /// Whether only to tell what would change.
    pub dry_run: bool,
}

impl Modify {
    /// Checks what no single field can check.
    pub fn validate(&self) -> Result<()> {
        check_env(&self.env)?;
        check_labels(&self.labels)?;
        check_idle_pause(self.idle_pause.filter(|span| !span.0.is_zero()))?;
        if self.pids == Some(0) {
            return Err(Error::invalid("a sandbox needs at least one process"));
        }
        if let Some(both) = self.unlabel.iter().find(|key| self.labels.contains_key(*key)) {
            return Err(Error::invalid(format!("a label both set and taken away: `{both}`")));
        }
        if *self == (Self { dry_run: self.dry_run, ..Self::default() }) {
            return Err(Error::invalid("there is nothing to change")
                .hint("`--memory`, `--cpus`, `--label` and others say what"));
        }
        Ok(())
    }
}

/// What was decided to be changed of a Plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Modification {
    /// Memory, and what holds it from the next start on.
    pub memory: Option<Limit<Bytes>>,
    /// Processors, the same.
    pub cpus: Option<Limit<Cpus>>,
    /// Processes and threads, the same.
    pub pids: Option<Limit<u32>>,
    /// Where its cgroup is made from the next start on, if it had none.
    pub cgroup: Option<Cgroup>,
    /// Processors and MiB of its microVM.
    pub machine: Option<(u8, u32)>,
    /// Labels to set.
    pub labels: BTreeMap<String, String>,
    /// Labels to take away.
    pub unlabel: Vec<String>,
    /// Environment to set.
    pub env: BTreeMap<String, String>,
    /// It ends when nothing ran for this long; zero is never.
    pub idle_timeout: Option<Span>,
    /// It ends this long after its start; zero is never.
    pub max_duration: Option<Span>,
    /// It is paused when nothing happened for this long; zero is never.
    pub idle_pause: Option<Span>,
    /// When its first command is begun again.
    pub restart: Option<Restart>,
}

impl Modification {
    /// What is changed, as the flags of `msb modify` call it.
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

/// Zero is how never is written.
fn unless_zero(span: Span) -> Option<Span> {
    Some(span).filter(|span| !span.0.is_zero())
}

impl Plan {
    /// Makes the change.
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

    /// The same for what holds at once, whatever the sandbox is made of.
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
    fn a_change_of_nothing_is_refused_and_so_is_one_against_itself() {
        assert!(Modify::default().validate().is_err());
        assert!(Modify { dry_run: true, ..Modify::default() }.validate().is_err());
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let both =
            Modify { labels: labels.clone(), unlabel: vec!["a".to_owned()], ..Modify::default() };
        assert!(both.validate().is_err());
        assert!(Modify { labels, ..Modify::default() }.validate().is_ok());
    }
}
