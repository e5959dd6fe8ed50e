//! Writes the id maps of user namespaces.

use msb_spec::{Error, IdRange, Ids, Result};
use msb_sys::process::{self, Fork};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

/// Maps root only, from inside, without privileges.
pub(crate) fn write_single(uid: u32, gid: u32) -> Result<()> {
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/gid_map", &format!("0 {gid} 1"))?;
    write("/proc/self/uid_map", &format!("0 {uid} 1"))
}

/// Maps the ids of a sandbox's first process, which waits for it, from outside.
pub(crate) fn write_child_maps(pid: u32, ids: &Ids) -> Result<()> {
    match ids {
        // Mapped by the intermediate process that created it.
        Ids::Subordinate { .. } => Ok(()),
        _ => write_maps(pid, ids),
    }
}

/// Maps a nested namespace to exactly the ids of its parent. It needs two lines like the parent,
/// because the kernel rejects a range that spans two lines of the parent's map.
pub(crate) fn write_identity_maps(pid: u32, ids: &Ids) -> Result<()> {
    let Ids::Subordinate { uids, gids, .. } = ids else { return Ok(()) };
    let all = |range: &IdRange| format!("0 0 1\n1 1 {}", process::granted_count(range.count) - 1);
    write(&format!("/proc/{pid}/gid_map"), &all(gids))?;
    write(&format!("/proc/{pid}/uid_map"), &all(uids))
}

/// Maps the ids of a waiting child, from outside.
pub(crate) fn write_maps(pid: u32, ids: &Ids) -> Result<()> {
    match ids {
        Ids::Single { .. } => Ok(()),
        Ids::Shifted { range } => {
            let map = format!("0 {} {}", range.start, range.count);
            write(&format!("/proc/{pid}/gid_map"), &map)?;
            write(&format!("/proc/{pid}/uid_map"), &map)
        }
        Ids::Subordinate { uid, gid, uids, gids } => {
            run_newidmap("newgidmap", pid, *gid, *gids)?;
            run_newidmap("newuidmap", pid, *uid, *uids)
        }
    }
}

/// Creates a user namespace that only carries an id map, for an idmapped mount. Each map is `(id on
/// disk, id shown, count)`; other ids are unmapped. Used for a host directory with one owner, and
/// for layers that another sandbox wrote.
pub(crate) fn mapping_namespace(uid: (u32, u32, u32), gid: (u32, u32, u32)) -> Result<OwnedFd> {
    let line = |map: (u32, u32, u32)| format!("{} {} {}", map.0, map.1, map.2);
    let failed = |error| Error::host("cannot make a user namespace for a mount", error);
    match process::fork_into(process::USER_NAMESPACE, None).map_err(failed)? {
        Fork::Child => {
            // Killed below, or when the parent dies first.
            let kill = Some(rustix::process::Signal::KILL);
            let _ = rustix::process::set_parent_process_death_signal(kill);
            loop {
                std::thread::park();
            }
        }
        Fork::Parent { pid, pidfd } => {
            let namespace = write(&format!("/proc/{pid}/gid_map"), &line(gid))
                .and_then(|()| write(&format!("/proc/{pid}/uid_map"), &line(uid)))
                .and_then(|()| namespace_of(pid));
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            let _ = rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            );
            namespace
        }
    }
}

/// Opens the user namespace of a process.
pub(crate) fn namespace_of(pid: u32) -> Result<OwnedFd> {
    let path = format!("/proc/{pid}/ns/user");
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Error::host(format!("cannot open `{path}`"), error))
}

fn run_newidmap(tool: &str, pid: u32, own: u32, range: IdRange) -> Result<()> {
    process::map_granted(tool, pid, own, range.start, range.count).map_err(|error| {
        Error::host(format!("`{tool}` did not map ids"), error)
            .hint("/etc/subuid and /etc/subgid must grant this user at least 1000 ids")
    })
}

fn write(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| {
        Error::host(format!("cannot write `{path}`"), error)
            .hint("`msb doctor` tells whether this host allows user namespaces")
    })
}
