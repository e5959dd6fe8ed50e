//! The child's part of starting a jail on the `process` tier; `start` is the worker's part.
//!
//! The order is: cgroup, network, ids, layers, root, devices, mounts, limits, Landlock, seccomp,
//! capabilities. Each step removes what the next does not need. Then the child becomes the guest.

use crate::devices::{self, KernelMounts, ViewMountPoints};
use crate::host_submounts::{self, HostSubmounts};
use crate::init_pidns;
use crate::network::{self, NetDeviceHandoff};
use crate::rootfs::{self, LayerSource};
use crate::user_limits::UserLimits;
use crate::{capabilities, idmap, landlock, syscalls, volumes, workspace};
use msb_spec::{
    By, Error, Ids, ImageRef, Kind, Plan, PlannedMount, PlannedWorkspace, Profile, Result, Rootfs,
    Upper,
};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::process;
use msb_sys::root_dir::RootDir;
use msb_sys::socket;
use rustix::mount::{MountAttrFlags, MountPropagationFlags};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Size of /dev/shm. Browsers and databases need more than the usual 64 MiB; pages are allocated
/// when written and count as memory.
const SHM_SIZE: u64 = 512 << 20;

/// Descriptors and limits that the child needs from its worker. The child has every other
/// descriptor of the worker too, until [`ChildContext::close_others`].
#[derive(Clone, Copy)]
pub(crate) struct ChildContext<'a> {
    /// `tasks` files of its v1 cgroups.
    pub(crate) tasks: &'a [File],
    /// Socket to the worker, which sends prepared mounts.
    pub(crate) outside: &'a OwnedFd,
    /// The guest's link to the worker.
    pub(crate) link: BorrowedFd<'a>,
    /// Pipe for the error of a failed start; closed on success.
    pub(crate) report: BorrowedFd<'a>,
    /// Write end of the init's console.
    pub(crate) console: Option<BorrowedFd<'a>>,
    /// Limits of what the kernel counts per user.
    pub(crate) user_limits: &'a UserLimits,
    /// Mounts below the host's trees.
    pub(crate) submounts: &'a HostSubmounts,
}

impl ChildContext<'_> {
    /// Closes every descriptor but these few and `needed`, before any path of the image is
    /// resolved. The standard streams, which are the worker's, become `null`.
    ///
    /// Values that own another descriptor must not be dropped any more.
    fn close_others(&self, null: &File, needed: &[BorrowedFd<'_>]) -> Result<()> {
        let failed = |error: io::Error| Error::host("cannot close the worker's files", error);
        let mut kept = vec![self.outside.as_fd(), self.link, self.report];
        kept.extend(self.console);
        kept.extend(needed);
        if kept.iter().any(|fd| fd.as_raw_fd() <= libc::STDERR_FILENO) {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        rustix::stdio::dup2_stdin(null).map_err(|error| failed(error.into()))?;
        rustix::stdio::dup2_stdout(null).map_err(|error| failed(error.into()))?;
        rustix::stdio::dup2_stderr(null).map_err(|error| failed(error.into()))?;
        process::close_others(&kept).map_err(failed)
    }
}

/// Layers with ids of the sandbox, in the order of the Plan, each with the host id of its root.
pub(crate) fn owned(plan: &Plan) -> Vec<(&Path, u32)> {
    let lowers = plan.rootfs.overlays.iter().flat_map(|overlay| &overlay.lowers);
    let owned = lowers.filter(|lower| lower.owned);
    owned.map(|lower| (lower.path.as_path(), lower.written_as.unwrap_or(0))).collect()
}

/// Receives the next descriptor from the worker, with its type.
pub(crate) fn receive(outside: &OwnedFd) -> Result<(u8, OwnedFd)> {
    let mut fds = Vec::new();
    let mut what = [0u8; 1];
    let received = socket::receive(outside.as_fd(), &mut what, &mut fds);
    match (received, fds.pop()) {
        (Ok(1), Some(fd)) => Ok((what[0], fd)),
        (Err(error), _) => Err(Error::host("cannot receive a mount", error)),
        _ => Err(Error::new(Kind::Protocol, "the worker has exited")),
    }
}

/// Confines the child, from a fork of the worker to the finished jail.
pub(crate) fn enter(
    plan: &Plan,
    gateway: Option<&NetDeviceHandoff<'_>>,
    worker: &ChildContext<'_>,
) -> Result<Option<init_pidns::InitHelper>> {
    process::wipe_cmdline_and_env()
        .map_err(|error| Error::host("cannot wipe the command line", error))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    enter_cgroup(worker.tasks)?;
    network::enter(gateway)?;
    assume_ids(&plan.ids, worker.outside)?;
    // Mounts from here on do not propagate to the host.
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|error| {
        Error::host("cannot make mounts private", error)
            .hint("`msb doctor` tells whether this host restricts user namespaces")
    })?;
    let resources = HostResources::open(plan, worker)?;
    send_to_worker(worker.outside, PROC, resources.kernel.proc())?;
    if gateway.is_some() {
        resources.kernel.allow_ping();
    }
    resources.kernel.set_user_limits(worker.user_limits)?;
    if let Some(limit) = plan.limits.memory.filter(|limit| limit.by == By::Watch) {
        resources.kernel.limit_shared_memory(limit.value.0)?;
    }
    if !plan.security.allow_userns {
        resources.kernel.forbid_user_namespaces()?;
    }
    rustix::system::sethostname(plan.hostname.as_str().as_bytes())
        .map_err(|error| Error::host("cannot set the host name", error))?;
    let pending = resources.build_root(plan, worker)?;
    pending.mount_all(plan, gateway, worker)?;
    set_limits(plan, worker.user_limits)?;
    new_session_keyring()?;
    let init_helper = plan.init.is_some().then(init_pidns::prepare).transpose()?;
    landlock::confine(plan.security.allow_userns)?;
    let filter = syscalls::program(&plan.security, &plan.ids);
    if plan.security.profile == Profile::Restricted {
        rustix::thread::set_no_new_privs(true)
            .map_err(|error| Error::host("cannot set no_new_privs", error))?;
    }
    // Before the capabilities are dropped: without no_new_privs a filter needs CAP_SYS_ADMIN.
    msb_sys::seccomp::install(&filter).map_err(|error| {
        Error::unsupported("this host does not offer seccomp filters").cause(error)
    })?;
    capabilities::drop_for_sandbox(&plan.security, gateway.is_some())?;
    Ok(init_helper)
}

/// Whether the worker enforces the memory limit by polling, for want of a cgroup.
fn is_watched(plan: &Plan) -> bool {
    plan.limits.memory.is_some_and(|limit| limit.by == By::Watch)
}

/// Descriptors opened while the host's root is still visible.
struct HostResources<'a> {
    sources: RootLayers,
    kernel: KernelMounts,
    mounts: Vec<OwnedFd>,
    workspace_layers: Option<(&'a PlannedWorkspace, workspace::WorkspaceLayers)>,
    null: File,
}

impl<'a> HostResources<'a> {
    fn open(plan: &'a Plan, worker: &ChildContext<'_>) -> Result<Self> {
        let outside = worker.outside;
        let sources = sources(plan, outside, worker.submounts)?;
        let kernel = KernelMounts::open()?;
        let mounts = mounts(plan, outside)?;
        let workspace_layers = plan.workspace.as_ref().map(|workspace| {
            workspace::open(workspace, &plan.ids, outside)
                .map(|workspace_layers| (workspace, workspace_layers))
        });
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.map_err(|error| Error::host("cannot open /dev/null", error))?;
        Ok(Self { sources, kernel, mounts, workspace_layers: workspace_layers.transpose()?, null })
    }

    /// Assembles the root and pivots to it. The layers are closed afterwards.
    fn build_root(self, plan: &Plan, worker: &ChildContext<'_>) -> Result<PendingMounts> {
        let outside = worker.outside;
        let Self {
            sources: RootLayers { lowers, writable, submounts },
            kernel,
            mounts,
            workspace_layers,
            null,
        } = self;
        let writable = writable.as_ref();
        let Rootfs { overlays, upper, .. } = &plan.rootfs;
        let stage = rootfs::build_root(overlays, &lowers, upper, writable, worker.submounts)?;
        host_submounts::attach_mounts(&stage, &submounts)?;
        if is_watched(plan) {
            send_to_worker(outside, TMPFS, stage.as_fd())?;
        }
        if plan.limits.disk.is_some_and(|limit| limit.by == By::Tmpfs) {
            send_to_worker(outside, SIZED_UPPER, stage.as_fd())?;
        }
        let workspace = workspace_layers.as_ref().map(|(workspace, workspace_layers)| {
            workspace::mount(&stage, workspace, workspace_layers)
        });
        let workspace = workspace.transpose()?;
        let empty_dir = rootfs::empty_dir(&stage)?;
        rootfs::enter_root(stage)?;
        Ok(PendingMounts { kernel, mounts, workspace, empty_dir, null })
    }
}

/// Mounts to attach after the pivot to the sandbox's own root.
struct PendingMounts {
    kernel: KernelMounts,
    mounts: Vec<OwnedFd>,
    workspace: Option<OwnedFd>,
    empty_dir: OwnedFd,
    null: File,
}

impl PendingMounts {
    /// Mounts everything besides the image: devices, files of /etc, tmpfs, host paths, volumes,
    /// /proc and /sys.
    ///
    /// The image controls every path here. So only descriptors to be mounted are still open, paths
    /// are resolved below the root and through no magic link, and /proc, which has magic links,
    /// comes last.
    fn mount_all(
        self,
        plan: &Plan,
        gateway: Option<&NetDeviceHandoff<'_>>,
        worker: &ChildContext<'_>,
    ) -> Result<()> {
        let Self { kernel, mounts, workspace, empty_dir, null } = self;
        let trees = mounts.iter().chain(&workspace).chain([&empty_dir]).map(AsFd::as_fd);
        let needed: Vec<BorrowedFd<'_>> =
            kernel.descriptors().chain(trees).chain([null.as_fd()]).collect();
        worker.close_others(&null, &needed)?;
        drop(needed);
        let root = RootDir::current()
            .map_err(|error| Error::host("cannot open the root of the sandbox", error))?;
        devices::make_default_directories(&root);
        let views = ViewMountPoints::find(&root)?;
        let dev = kernel.mount_dev(&root, SHM_SIZE)?;
        if plan.init.is_some() {
            devices::link_console(&dev)?;
        }
        if let Some(gateway) = gateway {
            gateway.mount_etc_files(&root, &dev, plan.hostname.as_str())?;
        }
        if is_watched(plan) {
            send_to_worker(worker.outside, TMPFS, dev.as_fd())?;
        }
        for tmpfs in &plan.tmpfs {
            let size = tmpfs.size.0.to_string();
            let options = [("mode", "1777"), ("size", &size)];
            let mut attributes = rootfs::NOSUID_NODEV;
            attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, tmpfs.read_only);
            attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, tmpfs.no_exec);
            let mount = rootfs::new_mount("tmpfs", &options, attributes)?;
            let mount_point = rootfs::make_mount_point(&root, tmpfs.guest.as_str(), false)?;
            rootfs::attach(mount.as_fd(), &mount_point, tmpfs.guest.as_str())?;
            if is_watched(plan) {
                send_to_worker(worker.outside, TMPFS, mount.as_fd())?;
            }
        }
        attach_mounts(&root, plan, &mounts, workspace.as_ref())?;
        kernel.mount_proc_and_sys(&views, &dev, &empty_dir)
    }
}

/// Attaches host paths, volumes and the workspace, parents before children.
fn attach_mounts(
    root: &RootDir,
    plan: &Plan,
    mounts: &[OwnedFd],
    workspace: Option<&OwnedFd>,
) -> Result<()> {
    let own = plan.workspace.as_ref().zip(workspace);
    let own = own.map(|(planned, tree)| (planned.guest.as_str(), false, tree));
    let mounts = plan.mounts.iter().zip(mounts);
    let mut targets: Vec<(&str, bool, &OwnedFd)> =
        mounts.map(|(mount, tree)| (mount.guest.as_str(), mount.file, tree)).chain(own).collect();
    targets.sort_by_key(|(guest, ..)| Path::new(*guest));
    for (guest, file, tree) in targets {
        let mount_point = rootfs::make_mount_point(root, guest, file)?;
        rootfs::attach(tree.as_fd(), &mount_point, guest)?;
    }
    Ok(())
}

/// Message type: a tmpfs that no cgroup accounts.
const TMPFS: u8 = b'm';
/// Message type: the writable layer, if its size is limited.
pub(crate) const SIZED_UPPER: u8 = b'd';
/// Message type: the sandbox's /proc.
pub(crate) const PROC: u8 = b'p';

/// Sends the worker a descriptor of a file system or of /proc, for measuring.
fn send_to_worker(outside: &OwnedFd, what: u8, fd: BorrowedFd<'_>) -> Result<()> {
    socket::send_all(outside.as_fd(), &[what], &[fd])
        .map_err(|error| Error::host("the worker has exited", error))
}

pub(crate) fn enter_cgroup(tasks: &[File]) -> Result<()> {
    let failed = |error| Error::host("cannot enter the cgroup", error);
    for mut file in tasks {
        file.write_all(b"0").map_err(failed)?;
    }
    // Only now, so that the sandbox's own cgroup is the root of what it sees.
    process::unshare(process::CGROUP_NAMESPACE).map_err(failed)
}

pub(crate) fn assume_ids(ids: &Ids, outside: &OwnedFd) -> Result<()> {
    let failed = |error| Error::host("cannot switch to the ids of the sandbox", error);
    match ids {
        Ids::Single { uid, gid } => return idmap::write_single(*uid, *gid),
        // The worker writes the id maps and then sends a byte.
        Ids::Subordinate { .. } => {
            let mut fds = Vec::new();
            let received = socket::receive(outside.as_fd(), &mut [0u8; 1], &mut fds);
            if received.map_err(|error| Error::host("cannot read from the worker", error))? == 0 {
                return Err(Error::new(Kind::Protocol, "the worker has exited"));
            }
        }
        // The id maps are written before the first mount is sent; `sources` receives that.
        Ids::Shifted { .. } => {
            rustix::event::poll(
                &mut [rustix::event::PollFd::new(outside, rustix::event::PollFlags::IN)],
                None,
            )
            .map_err(|error| failed(error.into()))?;
        }
    }
    process::become_root().map_err(failed)
}

/// Opens a layer. A directory image was named by the user and may be writable by others, so
/// symlinks in its path are refused.
pub(crate) fn open_layer(plan: &Plan, path: &Path) -> Result<OwnedFd> {
    match &plan.image {
        ImageRef::Path(image) if image == path => rootfs::open_no_symlinks(path),
        _ => rootfs::open_state_path(path),
    }
}

/// Opened layers of the root.
struct RootLayers {
    lowers: Vec<Vec<LayerSource>>,
    writable: Option<LayerSource>,
    /// Mounts below the host's trees, as root.
    submounts: Vec<(PathBuf, OwnedFd)>,
}

/// Opens every layer. Those prepared by the worker are received in the order of the Plan.
fn sources(plan: &Plan, outside: &OwnedFd, submounts: &HostSubmounts) -> Result<RootLayers> {
    let shifted = matches!(plan.ids, Ids::Shifted { .. });
    let take = || receive(outside).map(|(_, fd)| fd);
    let (trees, submounts) = match shifted {
        true => (submounts.receive_trees(take)?, submounts.receive_mounts(take)?),
        false => (Vec::new(), Vec::new()),
    };
    // Only with subordinate ids: as root, no id inside owns host files, and with a single id there
    // is no other id to use.
    let hides_host_files = matches!(plan.ids, Ids::Subordinate { .. });
    let owned = owned(plan);
    let mut layer_mounts = rootfs::plan_layer_mounts(&owned).into_iter();
    let mut lowers = Vec::new();
    for overlay in &plan.rootfs.overlays {
        let open = |lower: &msb_spec::Lower| {
            let Some(mount) = (shifted && lower.owned).then(|| layer_mounts.next()).flatten()
            else {
                let tree = trees.iter().find(|(path, _)| !lower.owned && *path == lower.path);
                if let Some((_, tree)) = tree {
                    let failed = |error| Error::host("cannot open a layer", error);
                    return tree.try_clone().map(LayerSource::HostTree).map_err(failed);
                }
                let unowned = hides_host_files && !lower.owned;
                let source = if unowned { LayerSource::Unowned } else { LayerSource::Open };
                return open_layer(plan, &lower.path).map(source);
            };
            let below = mount.below.to_owned();
            match mount.base {
                None => Ok(LayerSource::InPreviousMount(below)),
                Some(_) => receive(outside).map(|(_, fd)| LayerSource::InMount(fd, below)),
            }
        };
        lowers.push(overlay.lowers.iter().map(open).collect::<Result<_>>()?);
    }
    let writable = match &plan.rootfs.upper {
        Upper::Memory { .. } => None,
        _ if shifted => Some(LayerSource::Detached(receive(outside)?.1)),
        Upper::Directory { path } => Some(LayerSource::open(path)?),
        Upper::Disk { .. } => {
            return Err(Error::unsupported("a disk of a fixed size needs root")
                .hint("leave `--disk` out, or run msb as root"));
        }
    };
    Ok(RootLayers { lowers, writable, submounts })
}

/// Opens the host paths of the Plan as detached mounts.
fn mounts(plan: &Plan, outside: &OwnedFd) -> Result<Vec<OwnedFd>> {
    let shifted = matches!(plan.ids, Ids::Shifted { .. });
    let take = |mount: &PlannedMount| {
        if shifted {
            return receive(outside).map(|(_, mount)| mount);
        }
        if let Some(volume) = &mount.volume {
            return volumes::mount_unshifted(mount, volume);
        }
        let tree = rootfs::detach_fd(&rootfs::open_no_symlinks(&mount.host)?, true)?;
        let attributes = Attributes {
            read_only: mount.read_only,
            no_exec: mount.no_exec,
            no_suid: true,
            no_dev: true,
            recursive: true,
            ..Attributes::default()
        };
        set_attributes(tree.as_fd(), &attributes).map_err(|error| {
            Error::host(format!("cannot mount `{}`", mount.host.display()), error)
        })?;
        Ok(tree)
    };
    plan.mounts.iter().map(take).collect()
}

/// Sets the limits that apply per process: rlimits and CPU affinity.
fn set_limits(plan: &Plan, user_limits: &UserLimits) -> Result<()> {
    let failed = |what: &str, error| Error::host(format!("cannot limit {what}"), error);
    user_limits.set_rlimits()?;
    if let Some(pids) = plan.limits.pids.filter(|limit| limit.by == By::Rlimit) {
        // The limit can only be lowered, so a lower one of the host stays.
        let host = rustix::process::getrlimit(rustix::process::Resource::Nproc).maximum;
        let count = u64::from(pids.value).min(host.unwrap_or(u64::MAX));
        process::set_rlimit(libc::RLIMIT_NPROC, count, count)
            .map_err(|e| failed("processes", e))?;
    }
    if let Some(cpus) = plan.limits.cpus.filter(|limit| limit.by == By::Affinity) {
        let allowed = process::affinity().map_err(|e| failed("processors", e))?;
        let count = cpus.value.millis.div_ceil(1000) as usize;
        let chosen: Vec<usize> = allowed.into_iter().take(count).collect();
        process::set_affinity(&chosen).map_err(|e| failed("processors", e))?;
    }
    // Core files of hostile programs must not reach the host's core_pattern.
    process::set_rlimit(libc::RLIMIT_CORE, 0, 0).map_err(|e| failed("core files", e))
}

/// Joins a new session keyring, if the kernel has keyrings.
pub(crate) fn new_session_keyring() -> Result<()> {
    match process::new_session_keyring() {
        Err(error) if error.raw_os_error() != Some(libc::ENOSYS) => {
            Err(Error::host("cannot join a new session keyring", error))
        }
        _ => Ok(()),
    }
}
