//! Speaks SSH for one sandbox, over any Api; decides nothing.
//!
//! A session is an Exec, SFTP and forwarded connections are Links: what a command or the guest says is carried
//! and never read here. Who may come in is for the caller to say ([`Door`]). The protocol itself, with
//! its cryptography, is russh's.

mod board;
mod connection;
mod forwards;
mod gate;
mod keys;
mod line;
mod lobby;
mod out;
mod relay;
mod server;
mod session;

pub use keys::{HostKey, Key, Keys};
pub use server::{Door, Served, Still, Tell, Told, serve_pair, serve_port};
