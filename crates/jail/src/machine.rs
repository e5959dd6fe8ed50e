//! The jail of a process that runs a microVM.
//!
//! A guest that takes over the VMM finds itself in a root that holds the few files of its own
//! sandbox, without a network, capabilities over anything else, programs, or most system calls.

use crate::idmap;
use crate::inside::{self, Confined, Inherited};
use crate::{capabilities, devices, layers, machine_calls, storage, workspace};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, Scope,
};
use msb_spec::{
    Error, IdRange, Ids as PlanIds, Plan, PlannedMount, PlannedVolume, PlannedWorkspace, Result,
};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::process;
use msb_sys::root_dir::RootDir;
use msb_sys::socket;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags};
use rustix::thread::CapabilitySet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Whose ids the files of something shown are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Its owner outside is root inside, and nobody else exists.
    Owner,
    /// They are ids of the sandbox.
    Sandbox,
    /// They stay the host's, so that only what everybody may read can be read.
    Host,
}

/// A file or directory of the host that the machine's process sees.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Where it is outside.
    pub from: PathBuf,
    /// Its name in the root of the process, without a slash; a file may be in a directory of its
    /// own.
    pub to: String,
    /// Whether the user named it, and planning has followed its links: there is none since.
    pub named: bool,
    /// Whether it is a single file.
    pub file: bool,
    /// Whether writing is refused.
    pub read_only: bool,
    /// Whose its ids are.
    pub ids: Ids,
    /// For a directory that is shown copy-on-write, all about it.
    pub workspace: Option<PlannedWorkspace>,
    /// The volume whose directory it is, if it is one.
    pub volume: Option<PlannedVolume>,
}

impl Shown {
    fn open(&self) -> Result<OwnedFd> {
        if self.named { layers::found(&self.from) } else { layers::state(&self.from) }
    }
}

/// Starts a process that sees what is `shown` and nothing else, and becomes a machine.
///
/// Returns as soon as nothing more is needed from outside; how it went inside is told by
/// [`Confined::wait_started`].
pub fn start(
    plan: &Plan,
    shown: &[Shown],
    link: BorrowedFd<'_>,
    becomes: impl FnOnce(OwnedFd) -> i32,
) -> Result<Confined> {
    inside::fork(
        plan,
        link,
        |pid, child| prepare(plan, shown, pid, child).map(|()| None),
        |worker| enter(plan, shown, worker).map(|()| None),
        |link, _| becomes(link),
    )
}

/// What only the outside can do: id maps, mounts whose ids are shifted, and as root the device.
fn prepare(plan: &Plan, shown: &[Shown], pid: u32, child: BorrowedFd<'_>) -> Result<()> {
    idmap::write_for(pid, &plan.ids)?;
    let send = |fds: &[BorrowedFd<'_>]| {
        socket::send_all(child, b"!", fds).map_err(|e| Error::host("the jail went away", e))
    };
    match &plan.ids {
        PlanIds::Single { .. } => Ok(()),
        PlanIds::Subordinate { .. } => send(&[]),
        PlanIds::Shifted { range } => {
            let namespace = idmap::namespace_of(pid)?;
            send(&[devices_for(*range)?.as_fd()])?;
            for shown in shown {
                if let Some(workspace) = &shown.workspace {
                    for part in workspace::shifted(workspace, (range.start, range.start))? {
                        send(&[part.as_fd()])?;
                    }
                    continue;
                }
                send(&[shifted(shown, *range, namespace.as_fd())?.as_fd()])?;
            }
            Ok(())
        }
    }
}

/// Something shown, with ids as they are inside.
fn shifted(shown: &Shown, range: IdRange, namespace: BorrowedFd<'_>) -> Result<OwnedFd> {
    let mount = || PlannedMount {
        host: shown.from.clone(),
        guest: String::new(),
        read_only: shown.read_only,
        file: shown.file,
        volume: shown.volume.clone(),
    };
    if let Some(volume) = &shown.volume {
        return storage::shifted(&mount(), volume, range);
    }
    if shown.ids == Ids::Owner {
        return inside::shifted_tree(&mount(), &shown.open()?, (range.start, range.start));
    }
    let tree = layers::detach(&shown.from, true)?;
    let id_map = (shown.ids == Ids::Sandbox).then_some(namespace);
    set_attributes(tree.as_fd(), &Attributes { id_map, private: true, ..closed(shown) })
        .map_err(|error| about(shown, error))?;
    Ok(tree)
}

/// Nothing shown is executed or is a device, whatever its bits say.
fn closed(shown: &Shown) -> Attributes<'static> {
    Attributes {
        read_only: shown.read_only,
        no_suid: true,
        no_dev: true,
        no_exec: true,
        recursive: true,
        ..Attributes::default()
    }
}

fn about(shown: &Shown, error: impl Into<std::io::Error>) -> Error {
    Error::host(format!("cannot show `{}` to the machine", shown.from.display()), error.into())
        .hint("the file system must support idmapped mounts (ext4, xfs, btrfs, tmpfs)")
}

const KVM: &str = "/dev/kvm";

/// Devices that the VMM opens; the last two for the random numbers of its connections.
const DEVICES: [&str; 4] = ["kvm", "null", "random", "urandom"];

/// The devices, as files that belong to root inside: the host's belong to the host's root.
fn devices_for(range: IdRange) -> Result<OwnedFd> {
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
        Error::host(format!("cannot hand {KVM} to the machine"), error)
            .hint("root must be able to make device nodes; in a container it usually is not")
    })
}

/// Something shown, taken hold of while the host can still be seen.
enum Taken {
    /// Ready to be attached.
    Tree(OwnedFd),
    /// To be put together where the root is.
    Workspace(workspace::Parts),
    /// A directory of the host, seen with an id that owns nothing there.
    Strange(OwnedFd),
}

/// The child's way from a fork of the worker into the jail.
fn enter(plan: &Plan, shown: &[Shown], worker: &Inherited<'_>) -> Result<()> {
    let outside = worker.outside;
    process::forget_origin()
        .map_err(|error| Error::host("cannot forget the command line", error))?;
    rustix::process::umask(Mode::empty());
    inside::enter_cgroup(worker.tasks)?;
    process::unshare(process::NETWORK_NAMESPACE)
        .map_err(|error| Error::host("cannot make a network namespace", error))?;
    inside::take_ids(&plan.ids, outside)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|error| Error::host("cannot make mounts private", error))?;
    let prepared = matches!(plan.ids, PlanIds::Shifted { .. });
    let nodes = match prepared {
        true => vec![inside::receive(outside)?.1],
        false => DEVICES
            .iter()
            .map(|name| layers::detach(&Path::new("/dev").join(name), false))
            .collect::<Result<_>>()?,
    };
    let take = |shown: &Shown| -> Result<Taken> {
        if let Some(workspace) = &shown.workspace {
            return workspace::take(workspace, &plan.ids, outside).map(Taken::Workspace);
        }
        if prepared {
            return inside::receive(outside).map(|(_, tree)| Taken::Tree(tree));
        }
        if shown.ids == Ids::Host && matches!(plan.ids, PlanIds::Subordinate { .. }) {
            return shown.open().map(Taken::Strange);
        }
        let tree = match shown.volume {
            Some(_) => layers::detach_itself(&shown.from)?,
            None => layers::detach_found(&shown.open()?, true)?,
        };
        set_attributes(tree.as_fd(), &closed(shown)).map_err(|error| about(shown, error))?;
        Ok(Taken::Tree(tree))
    };
    let trees = shown.iter().map(take).collect::<Result<Vec<_>>>()?;
    let proc = devices::kernel_view("proc", devices::QUIET)?;
    let stage = build_root(shown, &trees, &nodes, &proc)?;
    drop((trees, nodes, proc));
    layers::enter_root(stage)?;
    limit()?;
    inside::leave_keyrings()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(|error| Error::host("cannot hide the machine's memory", error))?;
    capabilities::keep_only(KEPT)?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|error| Error::host("cannot give up new privileges", error))?;
    let missing = |error: &dyn std::fmt::Display| {
        Error::unsupported("the machine cannot be confined on this host")
            .cause(error)
            .hint("`msb doctor` tells what is missing")
    };
    confine(shown).map_err(|error| missing(&error))?;
    msb_sys::seccomp::install(&machine_calls::program()).map_err(|error| missing(&error))
}

/// A root in memory with what is shown, a few devices and /proc. The devices are one file system
/// or one mount each. All names in it are ours, and nothing that is shown holds a mount point.
fn build_root(
    shown: &[Shown],
    trees: &[Taken],
    nodes: &[OwnedFd],
    proc: &OwnedFd,
) -> Result<RootDir> {
    let stage = layers::make_stage("1m")?;
    let options = [("mode", "755"), ("size", "1m")];
    let mount = layers::file_system("tmpfs", &options, layers::PLAIN)?;
    layers::show_in_stage(&stage, layers::ROOT, mount.as_fd())?;
    let root = RootDir::of(mount);
    layers::show_in_stage(&root, "proc", proc.as_fd())?;
    match nodes {
        [all] => layers::show_in_stage(&root, "dev", all.as_fd())?,
        each => {
            for (node, name) in each.iter().zip(DEVICES) {
                let target = format!("/dev/{name}");
                let place = layers::make_mount_point(&root, &target, true)?;
                layers::attach(node.as_fd(), &place, &target)?;
            }
        }
    }
    for (index, (shown, tree)) in shown.iter().zip(trees).enumerate() {
        let target = layers::make_mount_point(&root, &shown.to, shown.file)?;
        match (tree, &shown.workspace) {
            (Taken::Workspace(parts), Some(workspace)) => {
                let tree = workspace::mount(&stage, workspace, parts)?;
                set_attributes(tree.as_fd(), &closed(shown))
                    .map_err(|error| about(shown, error))?;
                layers::attach(tree.as_fd(), &target, &shown.to)?;
            }
            (Taken::Tree(tree), _) => layers::attach(tree.as_fd(), &target, &shown.to)?,
            (Taken::Strange(tree), _) => {
                let seen = layers::seen_by_stranger(&stage, tree, &format!("strange{index}"))?;
                let tree = layers::detach_found(&seen, false)?;
                set_attributes(tree.as_fd(), &closed(shown))
                    .map_err(|error| about(shown, error))?;
                layers::attach(tree.as_fd(), &target, &shown.to)?;
            }
            (Taken::Workspace(_), None) => {}
        }
    }
    Ok(stage)
}

/// What the machine's own process may use.
fn limit() -> Result<()> {
    let failed = |error| Error::host("cannot limit the machine", error);
    process::set_rlimit(libc::RLIMIT_CORE, 0, 0).map_err(failed)?;
    // A guest touches a page here and there, and each would take two megabytes of the host.
    rustix::thread::disable_transparent_huge_pages(true).map_err(|error| failed(error.into()))?;
    // A share holds a descriptor for every file that the guest has in its cache.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if let Some(files) = files {
        process::set_rlimit(libc::RLIMIT_NOFILE, files, files).map_err(failed)?;
    }
    Ok(())
}

/// What reads the files of a directory image, whatever ids they have inside. It reaches nothing
/// whose ids are not mapped.
const KEPT: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// Everything that is shown can be read; what is shown for writing can be written.
fn confine(shown: &[Shown]) -> Result<(), Box<dyn std::error::Error>> {
    let all = AccessFs::from_all(ABI::V2);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let device = AccessFs::ReadFile | AccessFs::WriteFile;
    let forbidden = AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock;
    let mut rules: Vec<(OwnedFd, BitFlags<AccessFs>)> =
        vec![(open("/")?, read), (open("/dev/kvm")?, device), (open("/dev/null")?, device)];
    for shown in shown.iter().filter(|shown| !shown.read_only) {
        let access = if shown.file { device } else { all & !forbidden };
        rules.push((open(&format!("/{}", shown.to))?, access));
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
