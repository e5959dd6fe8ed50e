//! Sandboxes: made, started, ended, looked at.

use crate::{Api, Registry, Watch};
use msb_spec::{HealthStatus, Modify, Name, Plan, Result, Spec};
use msb_wire::record::{Event, Source};
use msb_wire::{DiskTraffic, Head, MachineUsage, NetUsage, Sample, Stopped, WorkerStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The Operations on sandboxes.
pub trait Sandboxes {
    /// The same Operations with the values of Secrets whose source is the caller itself, by their
    /// names. They are kept in memory alone.
    fn giving(&self, secrets: Vec<(String, Vec<u8>)>) -> Arc<dyn Api>;

    /// Decides everything about a sandbox. Nothing is made but what of its image has to be fetched.
    fn sandbox_plan(&self, spec: &Spec, watch: &dyn Watch) -> Result<Plan>;

    /// Makes a sandbox and leaves it running.
    fn sandbox_create(&self, ask: &Create, watch: &dyn Watch) -> Result<Summary>;

    /// Every sandbox, sorted by name.
    fn sandbox_list(&self) -> Result<Vec<Summary>>;

    /// Everything about one.
    fn sandbox_inspect(&self, name: &Name) -> Result<Inspection>;

    /// One line about one.
    fn sandbox_summary(&self, name: &Name) -> Result<Summary>;

    /// Starts one that has stopped. False if it runs already.
    fn sandbox_start(&self, name: &Name) -> Result<bool>;

    /// Ends one: asks its commands to, waits this long, then kills. False if it did not run.
    fn sandbox_stop(&self, name: &Name, grace: Duration) -> Result<bool>;

    /// Removes one with its files and logs; one that runs only with `force`.
    fn sandbox_remove(&self, name: &Name, force: bool) -> Result<()>;

    /// Takes no new Execs and ends with the last one. False if it did not run.
    fn sandbox_drain(&self, name: &Name) -> Result<bool>;

    /// Stops everything inside where it is.
    fn sandbox_pause(&self, name: &Name) -> Result<()>;

    /// Lets it go on.
    fn sandbox_resume(&self, name: &Name) -> Result<()>;

    /// Has a running one end this long from now, whatever was said before; none is never. When that
    /// is, in milliseconds since 1970.
    fn sandbox_renew(&self, name: &Name, left: Option<Duration>) -> Result<Option<u64>>;

    /// Changes what was decided about one, or only tells what that would change. What this host cannot
    /// give is refused before anything is changed.
    fn sandbox_modify(&self, name: &Name, ask: &Modify) -> Result<Vec<Modified>>;

    /// Gives one that has stopped another name.
    fn sandbox_rename(&self, name: &Name, to: &Name) -> Result<()>;

    /// Waits until it has ended, but no longer than this; none if it still runs then.
    fn sandbox_wait(&self, name: &Name, limit: Option<Duration>) -> Result<Option<Stopped>>;

    /// How much a running one uses.
    fn sandbox_metrics(&self, name: &Name) -> Result<Metrics>;

    /// How much a running one has used, in the last hour, the oldest first.
    fn sandbox_history(&self, name: &Name) -> Result<Vec<Sample>>;

    /// What its commands have said.
    fn sandbox_logs(&self, name: &Name, filter: &LogFilter) -> Result<Box<dyn LogStream>>;

    /// What happened to it.
    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>>;

    /// Checks that nothing of what happened to it was changed or removed since it was written down.
    fn sandbox_audit(&self, name: &Name) -> Result<Audit>;
}

/// A sandbox to be made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Create {
    /// What is asked for.
    pub spec: Spec,
    /// Whether one of the same name is removed first, even if it runs.
    #[serde(default)]
    pub replace: bool,
    /// How the registry of its image is reached.
    #[serde(default)]
    pub registry: Registry,
}

/// The lines of a log, and what is added to them.
pub trait LogStream: Send {
    /// What there is so far, or has come since the last call; empty if nothing has.
    fn more(&mut self) -> Result<Vec<LogLine>>;

    /// The lines that have no end yet.
    fn rest(&mut self) -> Vec<LogLine>;
}

/// The events of a sandbox, and what is added to them.
pub trait EventStream: Send {
    /// What there is so far, or has come since the last call; empty if nothing has.
    fn more(&mut self) -> Result<Vec<Event>>;
}

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Its worker lives.
    Running,
    /// Everything inside has been stopped where it was.
    Paused,
    /// It takes no new Execs.
    Draining,
    /// It was never started, or has ended.
    Stopped,
    /// Its worker was killed.
    Crashed,
}

impl Status {
    /// As people read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Crashed => "crashed",
        }
    }
}

/// Since when a change holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// At once.
    Now,
    /// When the sandbox is started the next time.
    NextStart,
}

impl Holds {
    /// As people read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::NextStart => "from the next start",
        }
    }
}

/// One thing that was changed about a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Modified {
    /// What: a flag, for labels and variables with their name.
    pub what: String,
    /// What it was; none if it was not set.
    pub from: Option<String>,
    /// What it is; none if it is not set.
    pub to: Option<String>,
    /// Since when.
    pub holds: Holds,
}

/// One line of a list of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// Its name.
    pub name: Name,
    /// Where it is in its life.
    pub status: Status,
    /// Its tier.
    pub isolation: String,
    /// Why that is not the microVM that `auto` prefers.
    pub isolation_reason: Option<String>,
    /// What it started from.
    pub image: String,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
    /// For finding it.
    pub labels: BTreeMap<String, String>,
    /// Whether it is removed when it ends.
    pub ephemeral: bool,
    /// How often its first command was begun again, if it runs and has a policy or a health check.
    #[serde(default)]
    pub restarts: Option<u32>,
    /// How it is, if it runs and has a health check.
    #[serde(default)]
    pub health: Option<HealthStatus>,
}

/// Everything there is to know about one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Inspection {
    /// Its name.
    pub name: Name,
    /// Where it is in its life.
    pub status: Status,
    /// Its worker, if it lives.
    pub worker: Option<WorkerStatus>,
    /// How it last ended.
    pub stopped: Option<Stopped>,
    /// The same in words.
    pub reason: Option<String>,
    /// What was decided.
    pub plan: Plan,
}

/// A sandbox's use of the host, and how much it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Metrics {
    /// Its name.
    pub name: String,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// The most it may use.
    pub memory_limit: Option<u64>,
    /// Processes and threads.
    pub pids: u32,
    /// The most it may have.
    pub pids_limit: Option<u32>,
    /// Bytes that its writable layer takes on the host's disk; none where it is in memory.
    pub disk: Option<u64>,
    /// Bytes read from disks and written to them since it started, where somebody counts them.
    #[serde(default)]
    pub disk_traffic: Option<DiskTraffic>,
    /// What went through its network since it started, if it has one.
    #[serde(default)]
    pub net: Option<NetUsage>,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// The same as the kernel of its microVM counts it.
    pub guest: Option<MachineUsage>,
}

/// What became of the event log of a sandbox, as its chain tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Audit {
    /// Its name.
    pub name: String,
    /// How many events there are.
    pub events: u64,
    /// The number of the first; those before it had to make room.
    pub from: Option<u64>,
    /// The number of the last.
    pub to: u64,
    /// How many of them were written without a hash, by a version that had none.
    pub unchained: u64,
    /// The end of the chain: what to keep elsewhere.
    pub head: Option<Head>,
    /// What is not as it was written.
    pub damage: Vec<Damage>,
}

/// Something of an event log that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Damage {
    /// The number of the event, or of the first of several.
    pub number: u64,
    /// What is wrong with it.
    pub what: String,
}

/// Which lines are wanted.
#[derive(Debug, Clone, Default)]
pub struct LogFilter {
    /// Only from this Exec.
    pub exec: Option<u64>,
    /// Only from this stream.
    pub source: Option<Source>,
    /// Not before this, in milliseconds since 1970.
    pub since: Option<u64>,
    /// Not after this.
    pub until: Option<u64>,
    /// Only lines that hold this text.
    pub grep: Option<String>,
}

/// One line of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogLine {
    /// Which stream.
    pub source: Source,
    /// Which Exec.
    pub exec: u64,
    /// When its first byte was said, in milliseconds since 1970.
    pub time: u64,
    /// The bytes, with their line end if they have one. As text, a backslash is written twice and
    /// a byte that is no UTF-8 as `\\xNN`.
    #[serde(with = "crate::bytes")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub bytes: Vec<u8>,
}
