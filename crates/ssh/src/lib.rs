//! SSH server for one sandbox, over any Api.
//!
//! A session is an Exec; SFTP and forwarded connections are Links. Bytes of commands and of the
//! guest are relayed and never parsed here. The caller decides which clients may log in ([`Door`]).
//! The protocol and its cryptography are russh's.

mod channel_writer;
mod channels;
mod client_stream;
mod conn_limiter;
mod connection;
mod flow_control;
mod keys;
mod port_forwards;
mod relay;
mod server;
mod session;

pub use keys::{HostKey, Key, Keys};
pub use server::{Door, ServerNotice, SshServerConfig, Still, Tell, serve_pair, serve_port};
