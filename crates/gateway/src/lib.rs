//! The gateway: a sandbox's only way out, in a jailed process of its own.
//!
//! Packets of the guest come in, a Verdict is made for each flow, and what is allowed leaves
//! through sockets of the host. No routes, no NAT, no root. It executes nothing and opens no
//! files once it serves.

mod budget;
mod control;
mod datagrams;
mod dns;
mod events;
mod frames;
#[doc(hidden)]
pub mod fuzz;
mod gateway;
mod host_addresses;
mod intercept;
mod interest;
mod joined;
mod limits;
mod link;
mod names;
mod opening;
mod orders;
mod outside;
mod place;
mod policy;
mod proxy;
mod published;
mod questions;
mod secret_value;
mod slots;
mod sniff;
mod source;
mod start;
mod streams;
mod surroundings;
mod timers;
mod tunnel;
mod watching;

pub use host_addresses::HostAddresses;
pub use proxy::Proxy;
pub use secret_value::SecretValue;
pub use start::{Joined, Start};
pub use surroundings::Surroundings;

/// Serves one sandbox until its worker is gone; returns the exit status of the process.
pub fn run(start: Start) -> i32 {
    gateway::run(start)
}
