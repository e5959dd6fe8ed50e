//! The worker: the process behind one running sandbox.
//!
//! It owns every Exec: starts it, holds its pipes or terminal, writes the bounded log, sends output
//! to attached clients and records the exit. One thread runs one poll loop.

mod boot_disk;
mod client;
mod clients;
mod clock;
mod compromised;
mod ctl;
mod event_log;
mod exec;
mod exec_events;
mod execs;
mod gateway_link;
mod guest;
mod guest_process;
mod health;
mod host_usage;
mod idle;
mod init;
mod lifetime;
mod log;
mod logs;
mod microvm;
mod microvm_events;
mod modify;
mod open_streams;
mod pause;
mod processes;
mod requests;
mod shutdown;
mod supervisor;
mod usage_meter;
mod vm_layout;
mod volume;
mod vsock_conn;
mod vsock_relay;
mod worker;

#[cfg(test)]
mod tests;

pub use gateway_link::GatewayFds;
pub use volume::serve_volume;
pub use worker::{WorkerArgs, run};
