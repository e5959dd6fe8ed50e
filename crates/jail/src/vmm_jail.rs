//! The jail of a VMM process, which runs a microVM.
//!
//! A guest that takes over the VMM finds a root with the few files of its own sandbox, no network,
//! no programs, one capability and few system calls.

use crate::container_init::{self, ChildContext};
use crate::idmap;
use crate::start::{self, JailedProcess, ProcessDir};
use crate::{capabilities, devices, rootfs, vmm_syscalls, volumes, workspace};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};
use msb_spec::{Error, IdRange, Ids, Plan, PlannedMount, PlannedVolume, PlannedWorkspace, Result};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::process;
use msb_sys::root_dir::RootDir;
use msb_sys::socket;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags};
use rustix::thread::CapabilitySet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Ids of the files in a mount of the VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VmmMountIds {
    /// The owner outside appears as root; other ids are unmapped.
    Owner,
    /// Ids of the sandbox, mapped as such.
    Sandbox,
    /// Ids of the host, unmapped: only world-readable files can be read.
    Host,
}

/// A host file or directory that is mounted for the VMM process.
#[derive(Debug, Clone)]
pub struct VmmMount {
    /// Path of the source on the host.
    pub host: PathBuf,
    /// Path in the root of the process, without a leading slash. A file may be in a directory of
    /// its own.
    pub name: String,
    /// Whether the user named the path. Planning has resolved its symlinks, so new ones are
    /// refused.
    pub user_path: bool,
    /// Whether it is a single file.
    pub file: bool,
    /// Whether it is mounted read-only.
    pub read_only: bool,
    /// How ids of its files are mapped.
    pub ids: VmmMountIds,
    /// Set for a workspace, which is mounted copy-on-write.
    pub workspace: Option<PlannedWorkspace>,
    /// Set for a volume that is a directory.
    pub volume: Option<PlannedVolume>,
}

impl VmmMount {
    fn open(&self) -> Result<OwnedFd> {
        if self.user_path {
            rootfs::open_no_symlinks(&self.host)
        } else {
            rootfs::open_state_path(&self.host)
        }
    }
}

/// Starts a process that sees only `mounts` and then becomes the VMM.
///
/// Returns as soon as the child needs nothing more from outside; [`JailedProcess::wait_started`]
/// returns the result.
pub fn start_vmm(
    plan: &Plan,
    mounts: &[VmmMount],
    link: BorrowedFd<'_>,
    entry_point: impl FnOnce(OwnedFd) -> i32,
) -> Result<JailedProcess> {
    let mut jailed = start::fork(
        plan,
        link,
        |pid, child| prepare(plan, mounts, pid, child).map(|()| None),
        |worker| enter(plan, mounts, worker).map(|()| None),
        |link, _| entry_point(link),
    )?;
    let path = format!("/proc/{}", jailed.pid);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The child is not reaped before this, so the pid cannot have been reused.
    jailed.processes = rustix::fs::open(&path, flags, Mode::empty())
        .map(ProcessDir::Single)
        .map_err(|error| Error::host(format!("cannot open `{path}`"), error))?;
    Ok(jailed)
}

/// Does what needs the host's privileges: id maps, mounts with shifted ids, and device nodes.
fn prepare(plan: &Plan, mounts: &[VmmMount], pid: u32, child: BorrowedFd<'_>) -> Result<()> {
    idmap::write_child_maps(pid, &plan.ids)?;
    let send = |fds: &[BorrowedFd<'_>]| {
        socket::send_all(child, b"!", fds).map_err(|e| Error::host("the jail has exited", e))
    };
    match &plan.ids {
        Ids::Single { .. } => Ok(()),
        Ids::Subordinate { .. } => send(&[]),
        Ids::Shifted { range } => {
            let namespace = idmap::namespace_of(pid)?;
            send(&[make_devices(*range)?.as_fd()])?;
            for mount in mounts {
                if let Some(workspace) = &mount.workspace {
                    for part in workspace::mount_shifted(workspace, (range.start, range.start))? {
                        send(&[part.as_fd()])?;
                    }
                    continue;
                }
                send(&[open_shifted(mount, *range, namespace.as_fd())?.as_fd()])?;
            }
            Ok(())
        }
    }
}

/// Opens a mount with shifted ids.
fn open_shifted(mount: &VmmMount, range: IdRange, namespace: BorrowedFd<'_>) -> Result<OwnedFd> {
    let planned = || PlannedMount {
        host: mount.host.clone(),
        guest: String::new(),
        read_only: mount.read_only,
        no_exec: false,
        file: mount.file,
        volume: mount.volume.clone(),
    };
    if let Some(volume) = &mount.volume {
        return volumes::mount_shifted(&planned(), volume, range);
    }
    if mount.ids == VmmMountIds::Owner {
        return start::shifted_tree(&planned(), &mount.open()?, (range.start, range.start));
    }
    let tree = rootfs::detach(&mount.host, true)?;
    let id_map = (mount.ids == VmmMountIds::Sandbox).then_some(namespace);
    set_attributes(tree.as_fd(), &Attributes { id_map, private: true, ..attributes(mount) })
        .map_err(|error| mount_error(mount, error))?;
    Ok(tree)
}

/// Nothing mounted for the VMM can be executed or used as a device.
fn attributes(mount: &VmmMount) -> Attributes<'static> {
    Attributes {
        read_only: mount.read_only,
        no_suid: true,
        no_dev: true,
        no_exec: true,
        recursive: true,
        ..Attributes::default()
    }
}

fn mount_error(mount: &VmmMount, error: impl Into<std::io::Error>) -> Error {
    Error::host(format!("cannot mount `{}` for the VMM", mount.host.display()), error.into())
        .hint("the file system must support idmapped mounts (ext4, xfs, btrfs, tmpfs)")
}

const KVM: &str = "/dev/kvm";

/// Devices that the VMM opens; random and urandom for its vsock connections.
const DEVICES: [&str; 4] = ["kvm", "null", "random", "urandom"];

/// Creates device nodes owned by root inside; those of the host belong to the host's root.
fn make_devices(range: IdRange) -> Result<OwnedFd> {
    let make = || -> rustix::io::Result<OwnedFd> {
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        let mount = rustix::mount::fsmount(context.as_fd(), flags, attributes)?;
        let mode = Mode::RUSR | Mode::WUSR;
        let (uid, gid) = (range.start, range.start);
        let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        for name in DEVICES {
            let number = rustix::fs::stat(Path::new("/dev").join(name))?.st_rdev;
            rustix::fs::mknodat(&mount, name, FileType::CharacterDevice, mode, number)?;
            rustix::fs::chownat(&mount, name, Some(uid), Some(gid), flags)?;
        }
        Ok(mount)
    };
    make().map_err(|error| {
        Error::host(format!("cannot make {KVM} for the VMM"), error)
            .hint("root must be able to make device nodes; in a container it usually is not")
    })
}

/// A mount, opened while the host's root is visible.
enum OpenedMount {
    /// A tree that is ready to be attached.
    Tree(OwnedFd),
    /// A workspace, to be mounted as overlay in the stage.
    Workspace(workspace::WorkspaceLayers),
    /// A host directory, to be shown as an id sees it that owns nothing there.
    Unowned(OwnedFd),
}

/// Confines the child, from a fork of the worker to the finished jail.
fn enter(plan: &Plan, mounts: &[VmmMount], worker: &ChildContext<'_>) -> Result<()> {
    let outside = worker.outside;
    process::wipe_cmdline_and_env()
        .map_err(|error| Error::host("cannot wipe the command line", error))?;
    rustix::process::umask(Mode::empty());
    container_init::enter_cgroup(worker.tasks)?;
    process::unshare(process::NETWORK_NAMESPACE)
        .map_err(|error| Error::host("cannot make a network namespace", error))?;
    container_init::assume_ids(&plan.ids, outside)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|error| Error::host("cannot make mounts private", error))?;
    let prepared = matches!(plan.ids, Ids::Shifted { .. });
    let nodes = match prepared {
        true => vec![container_init::receive(outside)?.1],
        false => DEVICES
            .iter()
            .map(|name| rootfs::detach(&Path::new("/dev").join(name), false))
            .collect::<Result<_>>()?,
    };
    let take = |mount: &VmmMount| -> Result<OpenedMount> {
        if let Some(workspace) = &mount.workspace {
            return workspace::open(workspace, &plan.ids, outside).map(OpenedMount::Workspace);
        }
        if prepared {
            return container_init::receive(outside).map(|(_, tree)| OpenedMount::Tree(tree));
        }
        if mount.ids == VmmMountIds::Host && matches!(plan.ids, Ids::Subordinate { .. }) {
            return mount.open().map(OpenedMount::Unowned);
        }
        let tree = match mount.volume {
            Some(_) => rootfs::detach_nofollow(&mount.host)?,
            None => rootfs::detach_fd(&mount.open()?, true)?,
        };
        set_attributes(tree.as_fd(), &attributes(mount))
            .map_err(|error| mount_error(mount, error))?;
        Ok(OpenedMount::Tree(tree))
    };
    let trees = mounts.iter().map(take).collect::<Result<Vec<_>>>()?;
    let proc = devices::new_kernel_mount("proc", devices::NOSUID_NODEV_NOEXEC)?;
    let stage = build_root(mounts, &trees, &nodes, &proc)?;
    drop((trees, nodes, proc));
    rootfs::enter_root(stage)?;
    set_limits()?;
    container_init::new_session_keyring()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(|error| Error::host("cannot make the VMM's memory undumpable", error))?;
    capabilities::keep_only(KEPT)?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|error| Error::host("cannot set no_new_privs", error))?;
    let missing = |error: &dyn std::fmt::Display| {
        Error::unsupported("the VMM cannot be confined on this host")
            .cause(error)
            .hint("`msb doctor` tells what is missing")
    };
    restrict_files(mounts).map_err(|error| missing(&error))?;
    msb_sys::seccomp::install(&vmm_syscalls::program()).map_err(|error| missing(&error))
}

/// Assembles a root in memory: the mounts, a few devices and /proc. The devices are one tmpfs or
/// one mount each. All names in it are ours, and no mount contains the mount point of another.
fn build_root(
    mounts: &[VmmMount],
    trees: &[OpenedMount],
    nodes: &[OwnedFd],
    proc: &OwnedFd,
) -> Result<RootDir> {
    let stage = rootfs::make_stage("1m")?;
    let options = [("mode", "755"), ("size", "1m")];
    let mount = rootfs::new_mount("tmpfs", &options, rootfs::NOSUID_NODEV)?;
    rootfs::attach_in_stage(&stage, rootfs::ROOT, mount.as_fd())?;
    let root = RootDir::of(mount);
    rootfs::attach_in_stage(&root, "proc", proc.as_fd())?;
    match nodes {
        [all] => rootfs::attach_in_stage(&root, "dev", all.as_fd())?,
        each => {
            for (node, name) in each.iter().zip(DEVICES) {
                let target = format!("/dev/{name}");
                let mount_point = rootfs::make_mount_point(&root, &target, true)?;
                rootfs::attach(node.as_fd(), &mount_point, &target)?;
            }
        }
    }
    for (index, (mount, tree)) in mounts.iter().zip(trees).enumerate() {
        let target = rootfs::make_mount_point(&root, &mount.name, mount.file)?;
        match (tree, &mount.workspace) {
            (OpenedMount::Workspace(parts), Some(workspace)) => {
                let tree = workspace::mount(&stage, workspace, parts)?;
                set_attributes(tree.as_fd(), &attributes(mount))
                    .map_err(|error| mount_error(mount, error))?;
                rootfs::attach(tree.as_fd(), &target, &mount.name)?;
            }
            (OpenedMount::Tree(tree), _) => rootfs::attach(tree.as_fd(), &target, &mount.name)?,
            (OpenedMount::Unowned(tree), _) => {
                let seen = rootfs::mount_as_unowned(&stage, tree, &format!("unowned{index}"))?;
                let tree = rootfs::detach_fd(&seen, false)?;
                set_attributes(tree.as_fd(), &attributes(mount))
                    .map_err(|error| mount_error(mount, error))?;
                rootfs::attach(tree.as_fd(), &target, &mount.name)?;
            }
            (OpenedMount::Workspace(_), None) => {}
        }
    }
    Ok(stage)
}

/// Sets rlimits of the VMM process, and disables huge pages.
fn set_limits() -> Result<()> {
    let failed = |error| Error::host("cannot set limits of the VMM", error);
    process::set_rlimit(libc::RLIMIT_CORE, 0, 0).map_err(failed)?;
    // A guest touches scattered pages, and each would take 2 MiB of the host.
    rustix::thread::disable_transparent_huge_pages(true).map_err(|error| failed(error.into()))?;
    // virtio-fs holds a descriptor for every file in the guest's cache.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if let Some(files) = files {
        process::set_rlimit(libc::RLIMIT_NOFILE, files, files).map_err(failed)?;
    }
    Ok(())
}

/// Lets the VMM read files of a directory image with any mapped id.
const KEPT: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// Landlock rules: everything in the root is readable, writable mounts are writable.
fn restrict_files(mounts: &[VmmMount]) -> Result<(), Box<dyn std::error::Error>> {
    let all = AccessFs::from_all(ABI::V2);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let device = AccessFs::ReadFile | AccessFs::WriteFile;
    let forbidden = AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock;
    let mut rules: Vec<(OwnedFd, BitFlags<AccessFs>)> =
        vec![(open("/")?, read), (open("/dev/kvm")?, device), (open("/dev/null")?, device)];
    for mount in mounts.iter().filter(|mount| !mount.read_only) {
        let access = if mount.file { device } else { all & !forbidden };
        rules.push((open(&format!("/{}", mount.name))?, access));
    }
    let restrict = || -> Result<_, RulesetError> {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(all)?
            .set_compatibility(CompatLevel::BestEffort)
            .scope(Scope::AbstractUnixSocket | Scope::Signal)?
            .create()?
            .add_rules(
                rules
                    .iter()
                    .map(|(path, access)| Ok::<_, RulesetError>(PathBeneath::new(path, *access))),
            )?
            .restrict_self()
    };
    restrict()?;
    Ok(())
}

fn open(path: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}
