//! Messages between a worker and the gateway of its sandbox, and records of flows.
//!
//! The gateway speaks first: [`FromGateway::Ready`] or [`FromGateway::Failed`]. Then each
//! [`ToGateway`] is answered once, in order; events and wake-up requests come in between. All
//! messages are `Control` frames.

use msb_spec::{Decision, Direction, DomainName, Error, Policy, PublishedPort};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Longest frame in bytes from a gateway, which parses packets of a hostile guest.
pub const MAX_FROM_GATEWAY: usize = 4 << 20;

/// Requests of a worker to its gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGateway {
    /// Replaces the rules; open flows that they deny are closed.
    Policy(Policy),
    /// Opens a port of the host; answered by `Opened`.
    Publish(PublishedPort),
    /// Closes a published port of the host.
    Withdraw(PublishedPort),
    /// Requests the open flows and published ports.
    Table,
    /// Asks whether the sandbox may connect to its host over TCP.
    Host {
        /// TCP port of the host; `None` asks for all ports.
        port: Option<u16>,
    },
    /// Requests the packet counters.
    Traffic,
    /// Arms a wake-up before the sandbox is paused: the gateway sends one wake-up request when the
    /// counter of packets to the sandbox moves past `brought`.
    ArmWakeup {
        /// Packet counter from [`FromGateway::Traffic`].
        brought: u64,
    },
    /// Requests the byte counters.
    Usage,
}

/// Answers and events of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGateway {
    /// The gateway has started.
    Ready {
        /// Published ports; port 0 is replaced by the port that was chosen.
        ports: Vec<PublishedPort>,
        /// CA certificate in PEM that programs inside must trust, if TLS is intercepted.
        authority: Option<String>,
    },
    /// The gateway could not start; the sandbox has no network.
    Failed(Error),
    /// The request was carried out.
    Done,
    /// A port was published, with its final number.
    Opened(PublishedPort),
    /// The request failed and nothing was changed.
    Refused(Error),
    /// Packet counters since the start of the sandbox.
    Traffic {
        /// Packets in both directions.
        carried: u64,
        /// Packets to the sandbox.
        brought: u64,
    },
    /// Wake-up request: a packet waits for a paused sandbox. Sent once, without a request.
    WakeRequested,
    /// Open flows and published ports.
    Table(NetTable),
    /// Byte counters since the start of the sandbox.
    Usage(NetUsage),
    /// An event for the network log, sent without a request.
    EventKind(NetEvent),
    /// Whether the sandbox may connect to its host.
    Host {
        /// Allowed or denied by the rules.
        decision: Decision,
        /// Text of the rule that decided, or `default`.
        rule: String,
    },
}

/// Traffic of a sandbox since its start, as counted by its network device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetUsage {
    /// Bytes received by the sandbox.
    pub received: u64,
    /// Bytes sent by the sandbox.
    pub sent: u64,
    /// Number of open flows now.
    pub flows: u32,
}

/// State of a gateway at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetTable {
    /// Flows that are open.
    pub flows: Vec<NetFlow>,
    /// Published ports of the host.
    pub ports: Vec<PublishedPort>,
    /// Rules that are in force.
    pub policy: Option<Policy>,
}

/// An open flow with its counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetFlow {
    /// Decision that was made when it was opened.
    pub verdict: Verdict,
    /// Time since it was opened, in milliseconds.
    pub age: u64,
    /// Bytes sent by the sandbox.
    pub sent: u64,
    /// Bytes received by the sandbox.
    pub received: u64,
}

/// Protocol of a flow, as far as rules distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FlowKind {
    /// A TCP connection of the sandbox.
    Tcp,
    /// UDP datagrams between two addresses.
    Udp,
    /// ICMP echo requests and replies.
    Icmp,
    /// A DNS query of the sandbox.
    Dns,
    /// An HTTP request that was intercepted.
    Http,
}

/// Decision about one flow, DNS query or HTTP request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    /// Number of the flow since the sandbox started.
    pub flow: u64,
    /// Allowed or denied by the rules.
    pub decision: Decision,
    /// Whether the sandbox or its peer opened the flow.
    pub direction: Direction,
    /// Protocol of the flow, query or request.
    pub kind: FlowKind,
    /// Domain name of the destination, if known.
    pub name: Option<DomainName>,
    /// IP address of the peer, if known.
    pub address: Option<IpAddr>,
    /// Port of the peer; for incoming flows the port of the sandbox.
    pub port: Option<u16>,
    /// Text of the rule that decided; `default`; or why no rule was consulted.
    pub rule: String,
    /// Method and path of an intercepted request, without the query string.
    pub request: Option<String>,
    /// Names of the Secrets that were inserted or refused.
    pub secrets: Vec<String>,
}

/// An event on the network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NetEvent {
    /// A flow, DNS query or request was allowed or denied.
    Decided(Verdict),
    /// An allowed flow was closed.
    Ended {
        /// Number of the flow, as in its verdict.
        flow: u64,
        /// Bytes sent by the sandbox.
        sent: u64,
        /// Bytes received by the sandbox.
        received: u64,
    },
    /// Events were dropped because too many happened at once.
    Skipped {
        /// Number of events that were dropped.
        count: u64,
    },
}

/// One line of the network log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NetRecord {
    /// Time in milliseconds since 1970.
    pub time: u64,
    /// The event itself, flattened into the line.
    #[serde(flatten)]
    pub what: NetEvent,
}
