//! Volumes: as they are shown in a sandbox, and as their files are served without one.
//!
//! As root every volume has a range of host ids of its own, in which its files lie, and a mount
//! shows them with the sandbox's. Nothing in a volume is ever a setuid program or a device.

use crate::{capabilities, disk, idmap, inside, landlock, layers, syscalls};
use msb_spec::{
    Error, IdRange, Ids, Kind, PlannedMount, PlannedVolume, Profile, Result, Security, Stored,
};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::process::{self, Fork};
use msb_sys::socket;
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use rustix::mount::MountPropagationFlags;
use rustix::thread::CapabilitySet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A volume as a mount that shows it with the ids of a sandbox. For root.
pub(crate) fn shifted(
    mount: &PlannedMount,
    volume: &PlannedVolume,
    range: IdRange,
) -> Result<OwnedFd> {
    let Some(stored) = volume.range else {
        return Err(Error::invalid(format!("volume `{}` has no ids", volume.name)));
    };
    let tree = tree(&mount.host, volume.stored, mount.read_only, stored)?;
    let ids = (stored.start, range.start, stored.count.min(range.count));
    let namespace = idmap::carrier(ids, ids)?;
    let shown = Attributes { id_map: Some(namespace.as_fd()), ..closed(mount.read_only) };
    set_attributes(tree.as_fd(), &shown).map_err(|error| {
        about(volume, error).hint("the file system must support idmapped mounts (ext4, xfs, btrfs)")
    })?;
    Ok(tree)
}

/// A volume as it is, in the mount namespace that it is used in. For an ordinary user.
pub(crate) fn own(mount: &PlannedMount, volume: &PlannedVolume) -> Result<OwnedFd> {
    if volume.stored != Stored::Directory {
        return Err(needs_root(volume));
    }
    let tree = layers::detach_itself(&mount.host)?;
    set_attributes(tree.as_fd(), &closed(mount.read_only)).map_err(|error| about(volume, error))?;
    Ok(tree)
}

fn needs_root(volume: &PlannedVolume) -> Error {
    Error::unsupported(format!("volume `{}` can only be mounted by root", volume.name))
}

fn about(volume: &PlannedVolume, error: io::Error) -> Error {
    Error::host(format!("cannot mount volume `{}`", volume.name), error)
}

fn closed(read_only: bool) -> Attributes<'static> {
    Attributes { read_only, no_suid: true, no_dev: true, private: true, ..Attributes::default() }
}

/// What a volume holds, detached, with the ids that it is stored with.
fn tree(path: &Path, stored: Stored, read_only: bool, range: IdRange) -> Result<OwnedFd> {
    match stored {
        Stored::Directory => layers::detach_itself(path),
        Stored::Image => {
            let tree = disk::mount_shared(path, false)?;
            give(&tree, range).map_err(|error| {
                Error::host(format!("cannot give away the disk `{}`", path.display()), error)
            })?;
            Ok(tree)
        }
        Stored::Disk => disk::mount_shared(path, read_only),
    }
}

/// The root of a new disk belongs to the host's root, who owns nothing else in it. Everybody inside
/// may write there.
fn give(tree: &OwnedFd, range: IdRange) -> rustix::io::Result<()> {
    let found = rustix::fs::statat(tree, ".", AtFlags::empty())?;
    if found.st_uid != 0 || range.start == 0 {
        return Ok(());
    }
    // For a repair that would make it again; it is nobody's inside.
    let _ = rustix::fs::unlinkat(tree, "lost+found", AtFlags::REMOVEDIR);
    rustix::fs::chmodat(tree, ".", Mode::from_raw_mode(0o777), AtFlags::empty())?;
    let (uid, gid) = (Uid::from_raw(range.start), Gid::from_raw(range.start));
    rustix::fs::chownat(tree, ".", Some(uid), Some(gid), AtFlags::empty())
}

/// Serves the files of a volume by a process that has its ids and sees nothing else, and waits for
/// its end. The caller has one thread; `ready` is called once the process is there.
pub fn serve(
    ids: &Ids,
    path: &Path,
    stored: Stored,
    client: OwnedFd,
    ready: impl FnOnce(),
    becomes: impl FnOnce(OwnedFd) -> i32,
) -> Result<i32> {
    let failed = |error: io::Error| Error::host("cannot serve the files of a volume", error);
    let (mut started, report) = io::pipe().map_err(failed)?;
    let (ours, theirs) = socket::pair().map_err(failed)?;
    let namespaces = process::BIRTH_NAMESPACES | process::NETWORK_NAMESPACE;
    let fork = process::fork_into(namespaces, None).map_err(|error| {
        Error::unsupported("this host does not allow user namespaces")
            .cause(error)
            .hint("`msb doctor` lists what is missing and how to get it")
    })?;
    match fork {
        Fork::Child => {
            drop(ours);
            let entered = enter(ids, path, &theirs).and_then(|()| {
                // Closes the report too, which tells that all went well. Nothing that owns a
                // descriptor is dropped from here on.
                process::close_others(&[client.as_fd()])
                    .map_err(|error| Error::host("cannot put descriptors in order", error))
            });
            let error = match entered {
                Ok(()) => process::leave(becomes(client)),
                Err(error) => error,
            };
            // The parent reads it; there is nobody else to tell.
            let line = serde_json::to_vec(&error).unwrap_or_default();
            let _ = (&report).write_all(&line);
            process::leave(125)
        }
        Fork::Parent { pid, pidfd } => {
            drop((theirs, report, client));
            if let Err(error) = prepare(ids, path, stored, pid, &ours) {
                let kill = rustix::process::Signal::KILL;
                let _ = rustix::process::pidfd_send_signal(&pidfd, kill);
                return Err(error);
            }
            let mut line = Vec::new();
            started.read_to_end(&mut line).map_err(failed)?;
            if !line.is_empty() {
                let unreadable = |_| Error::new(Kind::Protocol, "the jail failed without a reason");
                return Err(serde_json::from_slice(&line).unwrap_or_else(unreadable));
            }
            ready();
            let status = rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            )
            .map_err(|error| failed(error.into()))?;
            Ok(status.and_then(|status| status.exit_status()).unwrap_or(125))
        }
    }
}

/// What only the outside can do: id maps, and the mount if we are root.
fn prepare(ids: &Ids, path: &Path, stored: Stored, pid: u32, child: &OwnedFd) -> Result<()> {
    idmap::write_all_for(pid, ids)?;
    let send = |fds: &[BorrowedFd<'_>]| {
        socket::send_all(child.as_fd(), b"!", fds)
            .map_err(|error| Error::host("the jail went away", error))
    };
    match ids {
        Ids::Single { .. } => Ok(()),
        Ids::Subordinate { .. } => send(&[]),
        Ids::Shifted { range } => send(&[tree(path, stored, false, *range)?.as_fd()]),
    }
}

/// The child's way into a root that is the volume.
fn enter(ids: &Ids, path: &Path, outside: &OwnedFd) -> Result<()> {
    let host = |what: &'static str| move |error| Error::host(what, error);
    let kill = Some(rustix::process::Signal::KILL);
    let _ = rustix::process::set_parent_process_death_signal(kill);
    let failed = |error: io::Error| Error::host("cannot leave the caller", error);
    let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| failed(error.into()))?;
    rustix::stdio::dup2_stdout(&null).map_err(|error| failed(error.into()))?;
    rustix::stdio::dup2_stderr(&null).map_err(|error| failed(error.into()))?;
    process::forget_origin().map_err(failed)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    inside::take_ids(ids, outside)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(host("cannot make mounts private"))?;
    let tree = match ids {
        Ids::Shifted { .. } => inside::receive(outside)?.1,
        _ => layers::detach_itself(path)?,
    };
    let shown = Attributes { no_exec: true, ..closed(false) };
    set_attributes(tree.as_fd(), &shown)
        .map_err(|error| Error::host("cannot close the volume", error))?;
    let stage = layers::make_stage("1m")?;
    layers::show_in_stage(&stage, layers::ROOT, tree.as_fd())?;
    drop(tree);
    layers::enter_root(stage)?;
    process::set_rlimit(libc::RLIMIT_CORE, 0, 0)
        .map_err(|error| Error::host("cannot limit core files", error))?;
    inside::leave_keyrings()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(host("cannot hide the memory"))?;
    landlock::confine(false)?;
    rustix::thread::set_no_new_privs(true).map_err(host("cannot give up new privileges"))?;
    let closed = Security { profile: Profile::Restricted, allow_userns: false, allow_setid: false };
    msb_sys::seccomp::install(&syscalls::program(&closed, ids)).map_err(|error| {
        Error::unsupported("this host does not offer seccomp filters").cause(error)
    })?;
    capabilities::keep_only(KEPT)
}

/// What it takes to read and write files of every id of the volume.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);
