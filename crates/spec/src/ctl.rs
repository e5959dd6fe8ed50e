//! Paths of `sandbox-ctl` inside a sandbox with a spawn policy.

/// Path of the `sandbox-ctl` program.
pub const PROGRAM: &str = "/usr/local/bin/sandbox-ctl";

/// Path of the socket, for programs that speak the protocol themselves.
pub const SOCKET: &str = "/run/sandbox-ctl.sock";

/// Mount points of both; the image need not have files there.
pub const PLACES: [&str; 2] = [PROGRAM, SOCKET];
