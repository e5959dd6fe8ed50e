//! The worker's part of starting a jail on the `process` tier: cgroup, fork into every namespace,
//! id maps, and mounts that need the host's privileges. `container_init` is the child's part.

use crate::cgroup::{CgroupEntry, SandboxCgroup};
use crate::container_init::{self, ChildContext, PROC, SIZED_UPPER, open_layer, owned, receive};
use crate::host_submounts::HostSubmounts;
use crate::init_pidns::{InitEntry, InitHandoff};
use crate::network::NetDeviceHandoff;
use crate::rootfs;
use crate::user_limits::{self, UserLimits};
use crate::{idmap, loop_mount, volumes, workspace};
use msb_spec::{
    Error, IdRange, Ids, Kind, Plan, PlannedMount, Profile, Result, Stage, Upper, UserRef,
};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::process::{self, Fork};
use msb_sys::socket;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The running first process of a jail: the guest, or the VMM.
#[derive(Debug)]
pub struct JailedProcess {
    /// Its pid on the host.
    pub pid: u32,
    /// Its pidfd, readable once it has exited.
    pub pidfd: OwnedFd,
    /// Its cgroup, if the Plan has one.
    pub group: Option<SandboxCgroup>,
    /// Its tmpfs mounts, if the worker enforces the memory limit.
    pub tmpfs_mounts: Vec<OwnedFd>,
    /// Its writable layer, if the size of that is limited.
    pub sized_upper: Option<OwnedFd>,
    /// Read end of the init's console.
    pub console: Option<OwnedFd>,
    /// Where its processes are listed.
    pub processes: ProcessDir,
    started: PipeReader,
    inside: OwnedFd,
}

/// A directory of /proc that shows the processes of one sandbox only. Signals are sent by
/// directories below it, so its holder can signal those processes and no others.
#[derive(Debug)]
pub enum ProcessDir {
    /// /proc of the sandbox's pid namespace; the guest is pid 1.
    Namespace(OwnedFd),
    /// /proc/PID of the only process, as seen from the host.
    Single(OwnedFd),
    /// The child exited before it had one.
    Missing,
}

impl ProcessDir {
    /// The open directory, if there is one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Namespace(fd) | Self::Single(fd) => Some(fd.as_fd()),
            Self::Missing => None,
        }
    }
}

impl JailedProcess {
    /// Receives the sandbox's /proc, which the child sends first.
    fn take_proc(&mut self) {
        if let Ok((PROC, fd)) = receive(&self.inside) {
            self.processes = ProcessDir::Namespace(fd);
        }
    }

    /// Waits until the guest runs, or returns why it does not.
    ///
    /// The pipe closes when the child has become the guest or has exited.
    pub fn wait_started(&mut self) -> Result<()> {
        let mut line = Vec::new();
        let read = self.started.read_to_end(&mut line);
        read.map_err(|error| Error::host("cannot read the result of the jail", error))?;
        if line.is_empty() {
            // The child can send no more, so everything has arrived.
            while let Ok((what, fd)) = receive(&self.inside) {
                match what {
                    SIZED_UPPER => self.sized_upper = Some(fd),
                    _ => self.tmpfs_mounts.push(fd),
                }
            }
            return Ok(());
        }
        let unreadable = |_| Error::new(Kind::Protocol, "the jail failed without a reason");
        Err(serde_json::from_slice(&line).unwrap_or_else(unreadable))
    }
}

/// Entry point of the guest: gets its link to the worker, whether commands are restricted, and the
/// init process if there is one. Returns the exit code of PID 1.
pub type GuestEntry = fn(OwnedFd, bool, Option<InitHandoff>) -> i32;

/// Starts the guest in the jail that the Plan describes.
///
/// Returns as soon as the child needs nothing more from outside; [`JailedProcess::wait_started`]
/// returns the result.
pub fn start(
    plan: &Plan,
    gateway: Option<&NetDeviceHandoff<'_>>,
    (guest, init): (GuestEntry, InitEntry),
    link: BorrowedFd<'_>,
) -> Result<JailedProcess> {
    let restricted = plan.security.profile == Profile::Restricted;
    let (console, console_writer) = match &plan.init {
        Some(_) => console(plan.ids.root())?,
        None => (None, None),
    };
    let submounts = HostSubmounts::find(plan);
    let mut jailed = fork(
        plan,
        link,
        |pid, child| prepare(plan, pid, child, &submounts),
        |worker| {
            msb_sys::signal::reset_ignored_signals();
            let worker = ChildContext {
                console: console_writer.as_ref().map(AsFd::as_fd),
                submounts: &submounts,
                ..*worker
            };
            let init_helper = container_init::enter(plan, gateway, &worker)?;
            init_helper
                .zip(console_writer)
                .map(|(init_helper, console_writer)| init_helper.fork_init(&console_writer, init))
                .transpose()
        },
        |link, init| guest(link, restricted, init),
    )?;
    jailed.take_proc();
    Ok(JailedProcess { console, ..jailed })
}

/// Creates the console pipe of an init, our end first. Root inside owns it, so that it can be
/// opened as /dev/console.
fn console((uid, gid): (u32, u32)) -> Result<(Option<OwnedFd>, Option<OwnedFd>)> {
    let (ours, theirs) =
        io::pipe().map_err(|error| Error::host("cannot make a pipe", error).at(Stage::Jail))?;
    let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    // The console also works without.
    let _ = rustix::fs::fchown(&theirs, Some(uid), Some(gid));
    Ok((Some(ours.into()), Some(theirs.into())))
}

/// Forks into every namespace. `prepare` runs in the worker, `enter` in the child, which then runs
/// `entry_point`.
pub(crate) fn fork(
    plan: &Plan,
    link: BorrowedFd<'_>,
    prepare: impl FnOnce(u32, BorrowedFd<'_>) -> Result<Option<OwnedFd>>,
    enter: impl FnOnce(&ChildContext<'_>) -> Result<Option<InitHandoff>>,
    entry_point: impl FnOnce(OwnedFd, Option<InitHandoff>) -> i32,
) -> Result<JailedProcess> {
    let group = SandboxCgroup::create(&plan.name, &plan.limits).map_err(|e| e.at(Stage::Jail))?;
    let entry = group.as_ref().map(SandboxCgroup::entry).transpose()?;
    let (cgroup, tasks) = match entry {
        Some(CgroupEntry::Clone(fd)) => (Some(fd), Vec::new()),
        Some(CgroupEntry::Write(files)) => (None, files),
        None => (None, Vec::new()),
    };
    let failed = |error: io::Error| Error::host("cannot make a pipe", error).at(Stage::Jail);
    let (started, report) = io::pipe().map_err(failed)?;
    let (ours, theirs) = socket::pair().map_err(failed)?;
    let user_limits = UserLimits::of(plan);
    let fork = user_limits::fork(&plan.ids, &user_limits, cgroup).map_err(|e| e.at(Stage::Jail))?;
    match fork {
        Fork::Child => {
            drop(ours);
            // Success closes the report pipe too, which tells the worker. Values that own a
            // descriptor must not be dropped from here on.
            let inherited = ChildContext {
                tasks: &tasks,
                outside: &theirs,
                link,
                report: report.as_fd(),
                console: None,
                user_limits: &user_limits,
                submounts: &HostSubmounts::default(),
            };
            let entered = enter(&inherited).and_then(|init| close_all_but(link, init));
            let error = match entered {
                Ok((link, init)) => process::leave(entry_point(link, init)),
                Err(error) => error,
            };
            // The worker reads the error.
            let line = serde_json::to_vec(&error.at(Stage::Jail)).unwrap_or_default();
            let _ = (&report).write_all(&line);
            process::leave(125)
        }
        Fork::Parent { pid, pidfd } => {
            drop((theirs, report, tasks));
            let mut jailed = JailedProcess {
                pid,
                pidfd,
                group,
                tmpfs_mounts: Vec::new(),
                sized_upper: None,
                console: None,
                processes: ProcessDir::Missing,
                started,
                inside: ours,
            };
            let prepared = prepare(pid, jailed.inside.as_fd());
            if let Err(error) = prepared.map(|disk| jailed.sized_upper = disk) {
                let kill = rustix::process::Signal::KILL;
                let _ = rustix::process::pidfd_send_signal(&jailed.pidfd, kill);
                // If the child has failed by itself, its own error is the reason.
                let own_error = jailed.wait_started().err();
                return Err(own_error.unwrap_or(error).at(Stage::Jail));
            }
            Ok(jailed)
        }
    }
}

/// Closes all descriptors but the link and those of an init.
fn close_all_but(
    link: BorrowedFd<'_>,
    init: Option<InitHandoff>,
) -> Result<(OwnedFd, Option<InitHandoff>)> {
    let failed = |error| Error::host("cannot close other descriptors", error);
    let Some(init) = init else {
        return process::keep_only(link).map(|link| (link, None)).map_err(failed);
    };
    let InitHandoff { pid, start_pipe, proc } = init;
    let kept = process::keep_these([link, start_pipe.as_fd(), proc.as_fd()]);
    // These descriptor numbers are in use for others now.
    std::mem::forget((start_pipe, proc));
    let [link, start_pipe, proc] = kept.map_err(failed)?;
    Ok((link, Some(InitHandoff { pid, start_pipe, proc })))
}

/// Does what needs the host's privileges: id maps, and mounts with shifted ids. Returns the
/// sandbox's own disk, if it has one.
fn prepare(
    plan: &Plan,
    pid: u32,
    child: BorrowedFd<'_>,
    submounts: &HostSubmounts,
) -> Result<Option<OwnedFd>> {
    idmap::write_child_maps(pid, &plan.ids)?;
    let send = |fds: &[BorrowedFd<'_>]| {
        socket::send_all(child, b"!", fds).map_err(|e| Error::host("the jail has exited", e))
    };
    match &plan.ids {
        Ids::Single { .. } => Ok(None),
        Ids::Subordinate { .. } => send(&[]).map(|()| None),
        Ids::Shifted { range } => {
            for mount in submounts.clone_trees()?.iter().chain(&submounts.clone_mounts()?) {
                send(&[mount.as_fd()])?;
            }
            let namespace = idmap::namespace_of(pid)?;
            let mut layers = shifted_layers(plan, *range, namespace.as_fd())?;
            for mount in &layers {
                send(&[mount.as_fd()])?;
            }
            for mount in &plan.mounts {
                let tree = match &mount.volume {
                    Some(volume) => volumes::mount_shifted(mount, volume, *range)?,
                    None => shifted_mount(mount, host_user(plan, *range))?,
                };
                send(&[tree.as_fd()])?;
            }
            if let Some(workspace) = &plan.workspace {
                for part in workspace::mount_shifted(workspace, host_user(plan, *range))? {
                    send(&[part.as_fd()])?;
                }
            }
            let has_disk = matches!(plan.rootfs.upper, Upper::Disk { .. });
            Ok(if has_disk { layers.pop() } else { None })
        }
    }
}

/// Layers as mounts with shifted ids. The last one is the writable directory, with ids that are
/// shifted on disk.
fn shifted_layers(plan: &Plan, range: IdRange, namespace: BorrowedFd<'_>) -> Result<Vec<OwnedFd>> {
    let mut mounts = Vec::new();
    let mut carriers: Vec<(u32, OwnedFd)> = Vec::new();
    for layer in rootfs::plan_layer_mounts(&owned(plan)) {
        let Some(path) = layer.base else { continue };
        let mount = rootfs::detach_fd(&open_layer(plan, path)?, false)?;
        // A layer of another sandbox has the host ids of that one; a layer of this sandbox has its
        // own.
        if layer.shift != 0 && layer.shift != range.start {
            let known = carriers.iter().any(|(shift, _)| *shift == layer.shift);
            if !known {
                let map = (layer.shift, range.start, range.count);
                carriers.push((layer.shift, idmap::mapping_namespace(map, map)?));
            }
        }
        let carrier = carriers.iter().find(|(shift, _)| *shift == layer.shift);
        let id_map = match carrier {
            Some((_, carrier)) => Some(carrier.as_fd()),
            None if layer.shift == range.start => None,
            None => Some(namespace),
        };
        let shifted = Attributes { id_map, no_dev: true, private: true, ..Attributes::default() };
        set_attributes(mount.as_fd(), &shifted).map_err(|error| {
            Error::unsupported(format!("cannot shift the ids of `{}`", path.display()))
                .cause(error)
                .hint("the file system must support idmapped mounts (ext4, xfs, btrfs, tmpfs); Linux 5.19")
        })?;
        mounts.push(mount);
    }
    match &plan.rootfs.upper {
        Upper::Memory { .. } => {}
        Upper::Directory { path } => {
            let mount = rootfs::detach(path, false)?;
            set_attributes(mount.as_fd(), &Attributes { private: true, ..Attributes::default() })
                .map_err(|error| Error::host("cannot make the writable layer private", error))?;
            mounts.push(mount);
        }
        Upper::Disk { path } => mounts.push(loop_mount::mount(path)?),
    }
    Ok(mounts)
}

/// Mounts a host path so that its owner appears as the sandbox's user; other ids are unmapped.
pub(crate) fn shifted_mount(mount: &PlannedMount, user: (u32, u32)) -> Result<OwnedFd> {
    shifted_tree(mount, &rootfs::open_no_symlinks(&mount.host)?, user)
}

/// Mounts an open host path so that its owner appears as `user`; other ids are unmapped.
pub(crate) fn shifted_tree(
    mount: &PlannedMount,
    source: &OwnedFd,
    user: (u32, u32),
) -> Result<OwnedFd> {
    let about = |error| Error::host(format!("cannot mount `{}`", mount.host.display()), error);
    let owner = rustix::fs::fstat(source).map_err(|error| about(error.into()))?;
    let namespace = idmap::mapping_namespace((owner.st_uid, user.0, 1), (owner.st_gid, user.1, 1))?;
    let tree = rootfs::detach_fd(source, true)?;
    let attributes = Attributes {
        read_only: mount.read_only,
        no_exec: mount.no_exec,
        no_suid: true,
        no_dev: true,
        private: true,
        recursive: true,
        id_map: Some(namespace.as_fd()),
    };
    set_attributes(tree.as_fd(), &attributes).map_err(|error| {
        about(error).hint("the file system must support idmapped mounts (ext4, xfs, btrfs, tmpfs)")
    })?;
    Ok(tree)
}

/// Host uid and gid of the default user. A user name can only be resolved inside, so such a mount
/// belongs to root.
fn host_user(plan: &Plan, range: IdRange) -> (u32, u32) {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
    let user = plan.user.as_ref();
    let uid = number(user.map(UserRef::user)).unwrap_or(0);
    let gid = number(user.and_then(UserRef::group)).unwrap_or(0);
    let shifted = |id: u32| range.start + id.min(range.count - 1);
    (shifted(uid), shifted(gid))
}
