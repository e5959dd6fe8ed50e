//! Serves requests for children from inside a sandbox.
//!
//! A sandbox with a spawn policy has a socket (`/run/sandbox-ctl.sock`), and a process outside that
//! serves it while the sandbox runs. A connection carries one request, a line of JSON;
//! docs/children.md lists the methods. Requests are untrusted: they are bounded, parsed once, and
//! echoed only as text inside JSON.
//!
//! The same process removes the children of an ephemeral sandbox that has ended.

mod connection;
mod process;
mod replies;
mod requests;

use crate::sandboxes::Engine;
use crate::store::LockedSandbox;
use msb_spec::{Error, Name, Plan, Result, state};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

pub use process::serve as serve_ctl;

/// The argument that makes `msb` the ctl process.
pub const CTL_ARGUMENT: &str = "__ctl";

impl Engine {
    /// Binds the ctl socket of a sandbox with a spawn policy, before its root is assembled.
    /// Connections wait in the backlog until the ctl process serves them.
    pub(crate) fn bind_ctl_socket(
        plan: &Plan,
        claim: &LockedSandbox,
    ) -> Result<Option<UnixListener>> {
        if plan.spawn.is_none() {
            return Ok(None);
        }
        let listen = || -> io::Result<UnixListener> {
            // The path may exceed the length of a socket address, so it is given by descriptor.
            let directory = File::open(&claim.directory)?;
            let path = format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), state::CTL);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(&path)?;
            // Every user inside may connect. On the host the directory has mode 0700.
            fs::set_permissions(&path, Permissions::from_mode(0o666))?;
            Ok(listener)
        };
        listen().map(Some).map_err(|error| Error::host("cannot listen for children", error))
    }

    /// Starts the ctl process, which runs until the sandbox ends.
    pub(crate) fn spawn_ctl_process(&self, name: &Name, listener: UnixListener) -> Result<()> {
        let program = self.program();
        let mut child = Command::new(&program)
            .arg0("msb")
            .arg(CTL_ARGUMENT)
            .arg(self.home().path())
            .arg(name.as_str())
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                Error::host(format!("cannot execute `{}`", program.display()), error)
            })?;
        // It forks at once; the process that we started exits.
        child.wait().map(drop).map_err(|error| Error::host("cannot wait for a process", error))
    }
}
