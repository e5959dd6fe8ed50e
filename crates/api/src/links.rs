//! Streams of bytes that lead into a sandbox.
//!
//! They are sockets of this machine, so that bulk data is not copied twice; there is no
//! way to ask a server for one.

use msb_spec::{Name, Result, UserRef};
use msb_wire::Target;
use std::os::unix::net::UnixStream;

/// Streams of bytes that lead into a sandbox.
pub trait Links {
    /// A stream on which the guest speaks SFTP, version 3, as this user; none is the sandbox's own.
    fn link_sftp(&self, name: &Name, user: Option<&UserRef>) -> Result<UnixStream>;

    /// A stream to something that listens, opened from inside by this user: on the sandbox's own
    /// loopback, on its network as far as its rules allow, or a socket of its file system. Ok only
    /// once it is connected.
    fn link_dial(&self, name: &Name, user: Option<&UserRef>, to: &Target) -> Result<UnixStream>;

    /// Listens inside. Only where the rules of the sandbox's network let it reach the host: what
    /// connects there is led out.
    fn link_listen(
        &self,
        name: &Name,
        user: Option<&UserRef>,
        at: &Target,
    ) -> Result<Box<dyn LinkListener>>;
}

/// A listening socket inside a sandbox; closed when dropped.
pub trait LinkListener: Send {
    /// Where it listens: with the port that was chosen if none was asked for.
    fn at(&self) -> &Target;

    /// Waits for the next connection and its peer address. `None` once it was stopped or the
    /// sandbox has ended.
    fn accept(&mut self) -> Result<Option<AcceptedConn>>;

    /// Ends the listening from another thread.
    fn stopper(&self) -> Box<dyn Fn() + Send + Sync>;
}

/// A connection that was accepted inside.
#[derive(Debug)]
pub struct AcceptedConn {
    /// The stream to it.
    pub stream: UnixStream,
    /// Its address; empty for a socket of the file system.
    pub host: String,
    /// The port of the peer.
    pub port: u16,
}
