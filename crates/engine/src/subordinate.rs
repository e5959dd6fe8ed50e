//! Removing what a sandbox wrote under ids that are not ours.
//!
//! Files of users 1 and up belong to ids that /etc/subuid grants us, and only a process in a
//! user namespace that maps them may remove them.

use msb_spec::{Error, Ids, Result};
use msb_sys::process::{self, Fork};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

/// Empties a writable layer.
pub(crate) fn remove(ids: &Ids, layer: &Path) -> Result<()> {
    let Ids::Subordinate { uid, gid, uids, gids } = ids else {
        return Ok(());
    };
    let about = |error: std::io::Error| Error::host("cannot remove the writable layer", error);
    let (ours, theirs) = msb_sys::socket::pair().map_err(about)?;
    match process::fork_into(process::USER_NAMESPACE, None).map_err(about)? {
        Fork::Child => {
            drop(ours);
            let told = msb_sys::socket::receive(theirs.as_fd(), &mut [0], &mut Vec::new());
            let removed = matches!(told, Ok(1))
                && process::become_root().is_ok()
                && crate::store::remove_tree(layer).is_ok();
            process::leave(i32::from(!removed))
        }
        Fork::Parent { pid, pidfd } => {
            drop(theirs);
            let mapped = map("newgidmap", pid, *gid, gids.start, gids.count)
                .and_then(|()| map("newuidmap", pid, *uid, uids.start, uids.count));
            if mapped.is_ok() {
                msb_sys::socket::send_all(ours.as_fd(), b"!", &[]).map_err(about)?;
            }
            drop(ours);
            let status = rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            );
            mapped.map_err(about)?;
            match status
                .map_err(|error| about(error.into()))?
                .and_then(|status| status.exit_status())
            {
                Some(0) => Ok(()),
                _ => Err(Error::new(msb_spec::Kind::Host, "cannot remove the writable layer")),
            }
        }
    }
}

fn map(tool: &str, pid: u32, own: u32, start: u32, count: u32) -> std::io::Result<()> {
    let words = [pid, 0, own, 1, 1, start, count.min(65535)].map(|word| word.to_string());
    let status =
        Command::new(tool).args(words).stdin(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(std::io::ErrorKind::PermissionDenied.into()) }
}
