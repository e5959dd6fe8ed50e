//! The gateway: the user-mode network stack of one sandbox, in a jailed process of its own.
//!
//! The guest's packets come in over the link. The policy makes a Verdict for each flow, and allowed
//! flows leave through sockets of the host: no routes, no NAT, no root. Once it serves, the process
//! executes nothing and opens no files.

mod budget;
mod control;
mod control_requests;
mod dns;
mod event_loop;
mod event_source;
mod events;
mod frames;
#[doc(hidden)]
pub mod fuzz;
mod host_addresses;
mod host_config;
mod host_socket;
mod intercept;
mod link;
mod named_network;
mod policy;
mod proxy;
mod published_ports;
mod rate_limit;
mod secrets;
mod slab;
mod start;
mod tcp;
mod timers;
mod tls;
mod udp;

pub use host_addresses::HostAddresses;
pub use host_config::HostConfig;
pub use proxy::HttpProxy;
pub use secrets::secret_value::SecretValue;
pub use start::{NetworkMember, Start};

/// Serves one sandbox until its worker closes the control socket; returns the exit status of the
/// process.
pub fn run(start: Start) -> i32 {
    event_loop::run(start)
}
