//! Children, asked for from inside.
//!
//! A sandbox with a spawn policy has a socket (`/run/sandbox-ctl.sock`) and a process of its own
//! outside that answers there, as long as it runs. One connection is one request, a line of JSON;
//! what may be asked is in docs/children.md. Everything that comes is hostile: it is bounded,
//! parsed once, and never repeated but as text inside JSON.
//!
//! The same process ends the children of a sandbox that is gone when it ends.

mod answers;
mod connection;
mod process;
mod requests;

use crate::sandboxes::Engine;
use crate::store::Claim;
use msb_spec::{Error, Name, Plan, Result, state};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

pub use process::serve as serve_ctl;

/// The argument with which `msb` becomes the process that answers.
pub const CTL_ARGUMENT: &str = "__ctl";

impl Engine {
    /// Makes the socket of a sandbox that may have children; it has to be there when the sandbox
    /// is put together. Who connects before somebody answers waits.
    pub(crate) fn listen_for_children(plan: &Plan, claim: &Claim) -> Result<Option<UnixListener>> {
        if plan.spawn.is_none() {
            return Ok(None);
        }
        let listen = || -> io::Result<UnixListener> {
            // Its path may be longer than an address can be.
            let directory = File::open(&claim.directory)?;
            let path = format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), state::CTL);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(&path)?;
            // Whoever runs inside may ask; outside nobody else gets into the directory.
            fs::set_permissions(&path, Permissions::from_mode(0o666))?;
            Ok(listener)
        };
        listen().map(Some).map_err(|error| Error::host("cannot listen for children", error))
    }

    /// Has a process answer that is left behind, until the sandbox ends.
    pub(crate) fn answer_for_children(&self, name: &Name, listener: UnixListener) -> Result<()> {
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
        // It forks at once and this one ends.
        child.wait().map(drop).map_err(|error| Error::host("cannot wait for a process", error))
    }
}
