//! Id mapping of unpacked layers. It depends on the user that runs msb.

use msb_spec::{Error, IdRange, Result};
use msb_sys::process::{self, Fork};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::AsFd;

/// Which owners the files of a layer can have on the host. Each mapping has its own layer
/// directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owners {
    /// msb runs as root: ids are stored as in the image, and mapped when mounted.
    All,
    /// Root maps to this user. Other ids map to the ranges in /etc/subuid and /etc/subgid.
    Granted {
        /// Host uid that root maps to.
        uid: u32,
        /// Host gid that root maps to.
        gid: u32,
        /// Host uids for ids from 1 up.
        uids: IdRange,
        /// Host gids for ids from 1 up.
        gids: IdRange,
    },
    /// All files belong to this user.
    Single {
        /// Host uid of all files.
        uid: u32,
        /// Host gid of all files.
        gid: u32,
    },
}

impl Owners {
    /// Whether files can have owners other than root.
    pub fn many(&self) -> bool {
        !matches!(self, Self::Single { .. })
    }

    /// Name of the directory with layers of this mapping.
    pub(crate) fn directory(&self) -> String {
        match self {
            Self::All => "root".to_owned(),
            Self::Granted { uids, gids, .. } if uids == gids => {
                format!("ids-{}-{}", uids.start, uids.count)
            }
            Self::Granted { uids, gids, .. } => {
                format!("ids-{}-{}-{}-{}", uids.start, uids.count, gids.start, gids.count)
            }
            Self::Single { .. } => "single".to_owned(),
        }
    }

    /// Runs `work` as root of a user namespace with this mapping. Returns its exit code. The
    /// process must have one thread.
    pub fn within(&self, work: impl FnOnce() -> i32) -> Result<i32> {
        match self {
            Self::All => Ok(work()),
            Self::Single { uid, gid } => {
                let failed = |error| Error::host("cannot create a user namespace", error);
                process::unshare(process::USER_NAMESPACE).map_err(failed)?;
                fs::write("/proc/self/setgroups", "deny").map_err(failed)?;
                fs::write("/proc/self/gid_map", format!("0 {gid} 1")).map_err(failed)?;
                fs::write("/proc/self/uid_map", format!("0 {uid} 1")).map_err(failed)?;
                Ok(work())
            }
            Self::Granted { uid, gid, uids, gids } => {
                let failed = |error| Error::host("cannot create a user namespace", error);
                let (ours, theirs) = msb_sys::socket::pair().map_err(failed)?;
                match process::fork_into(process::USER_NAMESPACE, None).map_err(failed)? {
                    Fork::Child => {
                        drop(ours);
                        let kill = Some(rustix::process::Signal::KILL);
                        let _ = rustix::process::set_parent_process_death_signal(kill);
                        let message =
                            msb_sys::socket::receive(theirs.as_fd(), &mut [0], &mut Vec::new());
                        let ready = matches!(message, Ok(1)) && process::become_root().is_ok();
                        process::leave(if ready { work() } else { UNMAPPED })
                    }
                    Fork::Parent { pid, pidfd } => {
                        drop(theirs);
                        map("newgidmap", pid, *gid, *gids)?;
                        map("newuidmap", pid, *uid, *uids)?;
                        msb_sys::socket::send_all(ours.as_fd(), b"!", &[]).map_err(failed)?;
                        let status = rustix::process::waitid(
                            rustix::process::WaitId::PidFd(pidfd.as_fd()),
                            rustix::process::WaitIdOptions::EXITED,
                        )
                        .map_err(|error| failed(error.into()))?;
                        match status.and_then(|status| status.exit_status()) {
                            Some(UNMAPPED) | None => Err(failed(io::ErrorKind::Other.into())),
                            Some(code) => Ok(code),
                        }
                    }
                }
            }
        }
    }
}

/// Exit code of a child whose ids were not mapped.
const UNMAPPED: i32 = 112;

fn map(tool: &str, pid: u32, own: u32, range: IdRange) -> Result<()> {
    process::map_granted(tool, pid, own, range.start, range.count).map_err(|error| {
        Error::host(format!("`{tool}` failed to map ids"), error)
            .hint("/etc/subuid and /etc/subgid must grant this user at least 1000 ids")
    })
}
