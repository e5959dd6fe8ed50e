//! Sandboxes: made, started, ended, looked at.

use crate::operation_types::*;
use crate::{Api, Registry};
use msb_spec::{CallOrigin, HealthStatus, Modify, Name, Plan, Result, Spec};
use msb_wire::record::{Event, Source};
use msb_wire::{DiskTraffic, Head, MachineUsage, NetUsage, Sample, StopResult, WorkerStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The Operations on sandboxes.
pub trait Sandboxes {
    operations!(sandboxes trait_method);

    /// These Operations with the values of Secrets that the caller gives itself, by their
    /// names. They are kept in memory alone.
    fn with_secrets(&self, secrets: Vec<(String, Vec<u8>)>) -> Arc<dyn Api>;

    /// These Operations on behalf of a caller. The event log records this origin for everything
    /// that they start, whatever a command says about its own.
    fn with_origin(&self, origin: CallOrigin) -> Arc<dyn Api>;

    /// What its commands have said.
    fn sandbox_logs(&self, name: &Name, filter: &LogFilter) -> Result<Box<dyn LogStream>>;

    /// What happened to it.
    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>>;
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
    /// Its worker runs and takes Execs.
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
    /// At once, in the running sandbox.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Modified"))]
pub struct SettingChange {
    /// What: a flag, for labels and variables with their name.
    pub what: String,
    /// What it was; none if it was not set.
    pub from: Option<String>,
    /// What it is; none if it is not set.
    pub to: Option<String>,
    /// When the change takes effect.
    pub holds: Holds,
}

/// One line of a list of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Summary {
    /// The name of the sandbox.
    pub name: Name,
    /// Where it is in its life.
    pub status: Status,
    /// The isolation tier: `process` or `vm`.
    pub isolation: String,
    /// Why that is not the microVM that `auto` prefers.
    pub isolation_reason: Option<String>,
    /// What it started from.
    pub image: String,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
    /// Labels that listings are filtered by.
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
    /// The name of the sandbox.
    pub name: Name,
    /// Where it is in its life.
    pub status: Status,
    /// Its worker, if it lives.
    pub worker: Option<WorkerStatus>,
    /// How it last ended.
    pub stopped: Option<StopResult>,
    /// Why it ended, as a sentence.
    pub reason: Option<String>,
    /// The Plan that it runs by.
    pub plan: Plan,
}

/// A sandbox's use of the host, and how much it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Metrics {
    /// The name of the sandbox.
    pub name: String,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// Memory in use, in bytes.
    pub memory: u64,
    /// The most it may use.
    pub memory_limit: Option<u64>,
    /// The number of processes and threads.
    pub pids: u32,
    /// The most it may have.
    pub pids_limit: Option<u32>,
    /// Bytes that its writable layer takes on the host's disk; none where it is in memory.
    pub disk: Option<u64>,
    /// Bytes read from disks and written to them since it started, where the kernel counts them.
    #[serde(default)]
    pub disk_traffic: Option<DiskTraffic>,
    /// What went through its network since it started, if it has one.
    #[serde(default)]
    pub net: Option<NetUsage>,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// Usage as the kernel of its microVM counts it.
    pub guest: Option<MachineUsage>,
}

/// What became of the event log of a sandbox, as its chain tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Audit {
    /// The name of the sandbox.
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
    /// Only lines up to this time, in milliseconds since 1970.
    pub until: Option<u64>,
    /// Only lines that hold this text.
    pub grep: Option<String>,
}

/// One line of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogLine {
    /// The stream that the line came from.
    pub source: Source,
    /// The number of the Exec.
    pub exec: u64,
    /// When its first byte was said, in milliseconds since 1970.
    pub time: u64,
    /// The bytes, with their line end if they have one. As text, a backslash is written twice and
    /// a byte that is no UTF-8 as `\\xNN`.
    #[serde(with = "crate::bytes")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub bytes: Vec<u8>,
}
