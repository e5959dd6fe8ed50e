//! What a sandbox with a spawn policy finds inside, to ask for children with.

/// The program, for shells.
pub const PROGRAM: &str = "/usr/local/bin/sandbox-ctl";

/// The socket, for everybody else.
pub const SOCKET: &str = "/run/sandbox-ctl.sock";

/// Where something is shown over what the image has, which may be nothing.
pub const PLACES: [&str; 2] = [PROGRAM, SOCKET];
