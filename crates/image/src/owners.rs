//! Who the files of unpacked layers can belong to, which depends on who runs msb.

use msb_spec::{Error, IdRange, Result};
use msb_sys::process::{self, Fork};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::AsFd;

/// Whose files a layer can hold. Layers of one kind are of no use to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owners {
    /// msb runs as root: ids are stored as the image has them, and shifted when mounted.
    All,
    /// Root is this user, the others are ids that /etc/subuid and /etc/subgid grant.
    Granted {
        /// The host user.
        uid: u32,
        /// The host group.
        gid: u32,
        /// Host ids of users 1 and up.
        uids: IdRange,
        /// Host ids of groups 1 and up.
        gids: IdRange,
    },
    /// Everything belongs to this user.
    Single {
        /// The host user.
        uid: u32,
        /// The host group.
        gid: u32,
    },
}

impl Owners {
    /// Whether files can belong to anybody but root.
    pub fn many(&self) -> bool {
        !matches!(self, Self::Single { .. })
    }

    /// The name of the directory that holds such layers.
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

    /// Runs `work` where these ids exist and we are root over them, and ends the process with
    /// what it returns. The caller has one thread.
    pub fn within(&self, work: impl FnOnce() -> i32) -> Result<i32> {
        match self {
            Self::All => Ok(work()),
            Self::Single { uid, gid } => {
                let failed = |error| Error::host("cannot make a user namespace", error);
                process::unshare(process::USER_NAMESPACE).map_err(failed)?;
                fs::write("/proc/self/setgroups", "deny").map_err(failed)?;
                fs::write("/proc/self/gid_map", format!("0 {gid} 1")).map_err(failed)?;
                fs::write("/proc/self/uid_map", format!("0 {uid} 1")).map_err(failed)?;
                Ok(work())
            }
            Self::Granted { uid, gid, uids, gids } => {
                let failed = |error| Error::host("cannot make a user namespace", error);
                let (ours, theirs) = msb_sys::socket::pair().map_err(failed)?;
                match process::fork_into(process::USER_NAMESPACE, None).map_err(failed)? {
                    Fork::Child => {
                        drop(ours);
                        let kill = Some(rustix::process::Signal::KILL);
                        let _ = rustix::process::set_parent_process_death_signal(kill);
                        let told =
                            msb_sys::socket::receive(theirs.as_fd(), &mut [0], &mut Vec::new());
                        let ready = matches!(told, Ok(1)) && process::become_root().is_ok();
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

/// How a child tells that it has no ids.
const UNMAPPED: i32 = 112;

fn map(tool: &str, pid: u32, own: u32, range: IdRange) -> Result<()> {
    process::map_granted(tool, pid, own, range.start, range.count).map_err(|error| {
        Error::host(format!("`{tool}` did not map ids"), error)
            .hint("/etc/subuid and /etc/subgid must grant this user at least 1000 ids")
    })
}
