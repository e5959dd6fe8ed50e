//! Mounts volumes into a sandbox, and serves their files without one.
//!
//! As root every volume has its own range of host ids, and an idmapped mount translates them to the
//! sandbox's. Volumes are mounted nosuid and nodev.

use crate::{capabilities, container_init, idmap, landlock, loop_mount, rootfs, syscalls};
use msb_spec::{
    Error, IdRange, Ids, Kind, PlannedMount, PlannedVolume, Profile, Result, Security,
    VolumeStorage,
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

/// Mounts a volume with the ids of a sandbox. For root.
pub(crate) fn mount_shifted(
    mount: &PlannedMount,
    volume: &PlannedVolume,
    range: IdRange,
) -> Result<OwnedFd> {
    let Some(stored) = volume.range else {
        return Err(Error::invalid(format!("volume `{}` has no ids", volume.name)));
    };
    let tree = open_tree(&mount.host, volume.stored, mount.read_only, stored)?;
    let ids = (stored.start, range.start, stored.count.min(range.count));
    let namespace = idmap::mapping_namespace(ids, ids)?;
    let attributes = Attributes { id_map: Some(namespace.as_fd()), ..closed(mount) };
    set_attributes(tree.as_fd(), &attributes).map_err(|error| {
        mount_error(volume, error)
            .hint("the file system must support idmapped mounts (ext4, xfs, btrfs)")
    })?;
    Ok(tree)
}

/// Mounts a volume without translating ids, in the mount namespace that uses it. For an ordinary
/// user.
pub(crate) fn mount_unshifted(mount: &PlannedMount, volume: &PlannedVolume) -> Result<OwnedFd> {
    if volume.stored != VolumeStorage::Directory {
        return Err(needs_root(volume));
    }
    let tree = rootfs::detach_nofollow(&mount.host)?;
    set_attributes(tree.as_fd(), &closed(mount)).map_err(|error| mount_error(volume, error))?;
    Ok(tree)
}

fn needs_root(volume: &PlannedVolume) -> Error {
    Error::unsupported(format!("volume `{}` can only be mounted by root", volume.name))
}

fn mount_error(volume: &PlannedVolume, error: io::Error) -> Error {
    Error::host(format!("cannot mount volume `{}`", volume.name), error)
}

fn closed(mount: &PlannedMount) -> Attributes<'static> {
    Attributes {
        read_only: mount.read_only,
        no_exec: mount.no_exec,
        no_suid: true,
        no_dev: true,
        private: true,
        ..Attributes::default()
    }
}

/// Opens a volume as a detached mount with its stored ids.
fn open_tree(
    path: &Path,
    stored: VolumeStorage,
    read_only: bool,
    range: IdRange,
) -> Result<OwnedFd> {
    match stored {
        VolumeStorage::Directory => rootfs::detach_nofollow(path),
        VolumeStorage::Image => {
            let tree = loop_mount::mount_shared(path, false)?;
            chown_root(&tree, range).map_err(|error| {
                Error::host(
                    format!("cannot change the owner of the disk `{}`", path.display()),
                    error,
                )
            })?;
            Ok(tree)
        }
        VolumeStorage::Disk => loop_mount::mount_shared(path, read_only),
    }
}

/// Gives the root of a new disk to root of the volume's id range, writable for every user inside.
fn chown_root(tree: &OwnedFd, range: IdRange) -> rustix::io::Result<()> {
    let found = rustix::fs::statat(tree, ".", AtFlags::empty())?;
    if found.st_uid != 0 || range.start == 0 {
        return Ok(());
    }
    // A directory of e2fsck, which recreates it; no id inside owns it.
    let _ = rustix::fs::unlinkat(tree, "lost+found", AtFlags::REMOVEDIR);
    rustix::fs::chmodat(tree, ".", Mode::from_raw_mode(0o777), AtFlags::empty())?;
    let (uid, gid) = (Uid::from_raw(range.start), Gid::from_raw(range.start));
    rustix::fs::chownat(tree, ".", Some(uid), Some(gid), AtFlags::empty())
}

/// Serves files of a volume in a process that has its ids and sees nothing else, and waits for its
/// exit. The calling process must have one thread; `ready` is called once the child is confined.
pub fn serve(
    ids: &Ids,
    path: &Path,
    stored: VolumeStorage,
    client: OwnedFd,
    ready: impl FnOnce(),
    entry_point: impl FnOnce(OwnedFd) -> i32,
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
                // Success closes the report pipe too, which tells the parent. Values that own a
                // descriptor must not be dropped from here on.
                process::close_others(&[client.as_fd()])
                    .map_err(|error| Error::host("cannot close other descriptors", error))
            });
            let error = match entered {
                Ok(()) => process::leave(entry_point(client)),
                Err(error) => error,
            };
            // The parent reads the error.
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

/// Does what needs the host's privileges: id maps, and the mount if we are root.
fn prepare(ids: &Ids, path: &Path, stored: VolumeStorage, pid: u32, child: &OwnedFd) -> Result<()> {
    idmap::write_maps(pid, ids)?;
    let send = |fds: &[BorrowedFd<'_>]| {
        socket::send_all(child.as_fd(), b"!", fds)
            .map_err(|error| Error::host("the jail has exited", error))
    };
    match ids {
        Ids::Single { .. } => Ok(()),
        Ids::Subordinate { .. } => send(&[]),
        Ids::Shifted { range } => send(&[open_tree(path, stored, false, *range)?.as_fd()]),
    }
}

/// Confines the child to a root that is the volume.
fn enter(ids: &Ids, path: &Path, outside: &OwnedFd) -> Result<()> {
    let host = |what: &'static str| move |error| Error::host(what, error);
    let kill = Some(rustix::process::Signal::KILL);
    let _ = rustix::process::set_parent_process_death_signal(kill);
    let failed = |error: io::Error| Error::host("cannot detach from the caller", error);
    let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| failed(error.into()))?;
    rustix::stdio::dup2_stdout(&null).map_err(|error| failed(error.into()))?;
    rustix::stdio::dup2_stderr(&null).map_err(|error| failed(error.into()))?;
    process::wipe_cmdline_and_env().map_err(failed)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    container_init::assume_ids(ids, outside)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(host("cannot make mounts private"))?;
    let tree = match ids {
        Ids::Shifted { .. } => container_init::receive(outside)?.1,
        _ => rootfs::detach_nofollow(path)?,
    };
    let attributes = Attributes {
        no_exec: true,
        no_suid: true,
        no_dev: true,
        private: true,
        ..Attributes::default()
    };
    set_attributes(tree.as_fd(), &attributes)
        .map_err(|error| Error::host("cannot set the mount attributes of the volume", error))?;
    let stage = rootfs::make_stage("1m")?;
    rootfs::attach_in_stage(&stage, rootfs::ROOT, tree.as_fd())?;
    drop(tree);
    rootfs::enter_root(stage)?;
    process::set_rlimit(libc::RLIMIT_CORE, 0, 0)
        .map_err(|error| Error::host("cannot limit core files", error))?;
    container_init::new_session_keyring()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(host("cannot make the memory undumpable"))?;
    landlock::confine(false)?;
    rustix::thread::set_no_new_privs(true).map_err(host("cannot set no_new_privs"))?;
    let closed = Security { profile: Profile::Restricted, allow_userns: false, allow_setid: false };
    msb_sys::seccomp::install(&syscalls::program(&closed, ids)).map_err(|error| {
        Error::unsupported("this host does not offer seccomp filters").cause(error)
    })?;
    capabilities::keep_only(KEPT)
}

/// What is needed to read and write files of every id of the volume.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);
