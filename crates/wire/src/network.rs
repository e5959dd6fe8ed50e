//! What a worker and the gateway of its sandbox say to each other, and what is recorded of flows.
//!
//! The gateway speaks first: [`FromGateway::Ready`] or [`FromGateway::Failed`]. Then each
//! [`ToGateway`] is answered once, in order; [`FromGateway::Happened`] and
//! [`FromGateway::Knock`] come in between. All of it
//! in `Control` frames.

use msb_spec::{Decision, Direction, DomainName, Error, Policy, Published};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Longest frame of a gateway, which reads what a hostile guest sends.
pub const MAX_FROM_GATEWAY: usize = 4 << 20;

/// What a worker asks of its gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGateway {
    /// Decide by these rules from now on; flows that they refuse are ended.
    Policy(Policy),
    /// Open a port of the host.
    Publish(Published),
    /// Close a port of the host.
    Withdraw(Published),
    /// Tell which flows and ports there are.
    Table,
    /// Tell whether the sandbox may reach the machine that it runs on, over TCP.
    Host {
        /// At this port; none is at every one.
        port: Option<u16>,
    },
    /// Tell how many packets there were.
    Traffic,
    /// The sandbox is about to be paused: knock when something is brought to it, also if something was
    /// since so many packets.
    Doze {
        /// What [`FromGateway::Traffic`] said.
        brought: u64,
    },
    /// Tell how much went through.
    Usage,
}

/// What a gateway tells its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGateway {
    /// It works.
    Ready {
        /// Its ports; where any free one was asked for, with the one it took.
        ports: Vec<Published>,
        /// The certificate that those inside have to trust, in PEM, if it looks into anything.
        authority: Option<String>,
    },
    /// There is no network, and why.
    Failed(Error),
    /// What was asked for is done.
    Done,
    /// A port was opened; this is how it is reached.
    Opened(Published),
    /// What was asked for could not be done.
    Refused(Error),
    /// How many packets there were.
    Traffic {
        /// Both ways.
        carried: u64,
        /// To the sandbox.
        brought: u64,
    },
    /// Something is brought to a sandbox that dozes. Comes once, like what happened.
    Knock,
    /// The flows and ports there are.
    Table(NetTable),
    /// How much went through.
    Usage(NetUsage),
    /// Something to be recorded.
    Happened(NetEvent),
    /// Whether the sandbox may reach the machine that it runs on.
    Host {
        /// What was decided.
        decision: Decision,
        /// The rule that decided, as it is written, or `default`.
        rule: String,
    },
}

/// How much went through a gateway since the sandbox started, as its device counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetUsage {
    /// Bytes that came to the sandbox.
    pub received: u64,
    /// Bytes that left it.
    pub sent: u64,
    /// Flows that are open now.
    pub flows: u32,
}

/// What a gateway knows at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetTable {
    /// Open flows.
    pub flows: Vec<NetFlow>,
    /// Published ports.
    pub ports: Vec<Published>,
    /// The rules in force.
    pub policy: Option<Policy>,
}

/// A flow that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetFlow {
    /// How it was decided.
    pub verdict: Verdict,
    /// For how long it has been open, in milliseconds.
    pub age: u64,
    /// Bytes that left the sandbox.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
}

/// What is spoken on a flow, as far as it is decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FlowKind {
    /// A stream.
    Tcp,
    /// Datagrams.
    Udp,
    /// Echoes.
    Icmp,
    /// A question for a name.
    Dns,
    /// A request that was looked into.
    Http,
}

/// What was decided for one flow, question or request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    /// The number of the flow in this run of the sandbox.
    pub flow: u64,
    /// What was decided.
    pub decision: Decision,
    /// Who began.
    pub direction: Direction,
    /// What it is.
    pub kind: FlowKind,
    /// The name it is for, where one is known.
    pub name: Option<DomainName>,
    /// The address outside.
    pub address: Option<IpAddr>,
    /// The port: outside, or of the sandbox for what comes in.
    pub port: Option<u16>,
    /// The rule that decided, as it is written; `default`; or why no rule was asked.
    pub rule: String,
    /// The request, for what was looked into: method and path, without what stands behind `?`.
    pub request: Option<String>,
    /// The Secrets that were put in, or that were refused, by name.
    pub secrets: Vec<String>,
}

/// Something on the network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetEvent {
    /// Something was decided.
    Decided(Verdict),
    /// An allowed flow has ended.
    Ended {
        /// Its number.
        flow: u64,
        /// Bytes that left the sandbox.
        sent: u64,
        /// Bytes that came in.
        received: u64,
    },
    /// So much happened at once that this many events are not listed.
    Skipped {
        /// How many.
        count: u64,
    },
}

/// A line of the list of network events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetRecord {
    /// When, in milliseconds since 1970.
    pub time: u64,
    /// What.
    #[serde(flatten)]
    pub what: NetEvent,
}
