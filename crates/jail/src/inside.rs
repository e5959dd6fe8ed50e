//! The boot order of the `process` tier.
//!
//! Outside: cgroup, fork into every namespace, id maps, mounts that need the host's rights.
//! Inside: layers, root, devices, mounts, limits, then Landlock, capabilities and seccomp, each
//! of which takes away what the next does not need, and at last the guest.

use crate::beside::{self, BecomeInit, Beside};
use crate::ceilings::{self, Ceilings};
use crate::cgroup::{Entrance, Group};
use crate::devices::{self, Kernel, Views};
use crate::layers::{self, Source};
use crate::network::{self, Outward};
use crate::{capabilities, disk, idmap, landlock, storage, syscalls, workspace};
use msb_spec::{
    By, Error, IdRange, Ids, ImageRef, Kind, Plan, PlannedMount, PlannedWorkspace, Profile, Result,
    Stage, Upper, UserRef,
};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::process::{self, Fork};
use msb_sys::root_dir::RootDir;
use msb_sys::socket;
use rustix::mount::MountPropagationFlags;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Programs such as browsers and databases want more than the usual 64 MiB; it is only used up
/// when it is written, and counts as memory.
const SHM_SIZE: u64 = 512 << 20;

/// The guest of a sandbox, running.
#[derive(Debug)]
pub struct Confined {
    /// Its pid on the host.
    pub pid: u32,
    /// Readable once it is dead.
    pub pidfd: OwnedFd,
    /// Its cgroup, if it has one.
    pub group: Option<Group>,
    /// Its file systems in memory, where what they hold must be watched.
    pub in_memory: Vec<OwnedFd>,
    /// Its writable layer, where that has a size.
    pub limited: Option<OwnedFd>,
    /// What its init says, where it has one.
    pub console: Option<OwnedFd>,
    started: PipeReader,
    inside: OwnedFd,
}

impl Confined {
    /// Waits until the guest runs, or tells why it does not.
    ///
    /// The pipe closes when the guest is executed or the child has died, so the wait ends.
    pub fn wait_started(&mut self) -> Result<()> {
        let mut line = Vec::new();
        let read = self.started.read_to_end(&mut line);
        read.map_err(|error| Error::host("cannot read how the jail went", error))?;
        if line.is_empty() {
            // What it has sent is all there: it can send no more.
            while let Ok((what, fd)) = receive(&self.inside) {
                match what {
                    LIMITED => self.limited = Some(fd),
                    _ => self.in_memory.push(fd),
                }
            }
            return Ok(());
        }
        let unreadable = |_| Error::new(Kind::Protocol, "the jail failed without a reason");
        Err(serde_json::from_slice(&line).unwrap_or_else(unreadable))
    }
}

/// What the child becomes: it is given the link to its worker, whether its commands are
/// restricted and what it has of the init to be, and returns the exit code of PID 1.
pub type Become = fn(OwnedFd, bool, Option<Beside>) -> i32;

/// Starts the guest in a jail made as the Plan says.
///
/// Returns as soon as nothing more is needed from outside; how it went inside is told by
/// [`Confined::wait_started`].
pub fn start(
    plan: &Plan,
    outward: Option<&Outward<'_>>,
    (guest, init): (Become, BecomeInit),
    link: BorrowedFd<'_>,
) -> Result<Confined> {
    let restricted = plan.security.profile == Profile::Restricted;
    let (console, said) = match &plan.init {
        Some(_) => console(plan.ids.root())?,
        None => (None, None),
    };
    let confined = fork(
        plan,
        link,
        |pid, child| prepare(plan, pid, child),
        |worker| {
            msb_sys::signal::heed();
            let worker = Inherited { console: said.as_ref().map(AsFd::as_fd), ..*worker };
            let room = enter(plan, outward, &worker)?;
            room.zip(said).map(|(room, said)| room.split(&said, init)).transpose()
        },
        |link, beside| guest(link, restricted, beside),
    )?;
    Ok(Confined { console, ..confined })
}

/// The pipe of what an init says, our end first. It is root's inside, so that it can be opened by
/// name there.
fn console((uid, gid): (u32, u32)) -> Result<(Option<OwnedFd>, Option<OwnedFd>)> {
    let (ours, theirs) =
        io::pipe().map_err(|error| Error::host("cannot make a pipe", error).at(Stage::Jail))?;
    let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
    // Where that is refused it still works.
    let _ = rustix::fs::fchown(&theirs, Some(uid), Some(gid));
    Ok((Some(ours.into()), Some(theirs.into())))
}

/// Forks into every namespace: `prepare` is done outside, `enter` inside, and then the child
/// becomes what it is for.
pub(crate) fn fork(
    plan: &Plan,
    link: BorrowedFd<'_>,
    prepare: impl FnOnce(u32, BorrowedFd<'_>) -> Result<Option<OwnedFd>>,
    enter: impl FnOnce(&Inherited<'_>) -> Result<Option<Beside>>,
    becomes: impl FnOnce(OwnedFd, Option<Beside>) -> i32,
) -> Result<Confined> {
    let group = Group::make(&plan.name, &plan.limits).map_err(|e| e.at(Stage::Jail))?;
    let entrance = group.as_ref().map(Group::entrance).transpose()?;
    let (cgroup, tasks) = match entrance {
        Some(Entrance::Clone(fd)) => (Some(fd), Vec::new()),
        Some(Entrance::Write(files)) => (None, files),
        None => (None, Vec::new()),
    };
    let failed = |error: io::Error| Error::host("cannot make a pipe", error).at(Stage::Jail);
    let (started, report) = io::pipe().map_err(failed)?;
    let (ours, theirs) = socket::pair().map_err(failed)?;
    let ceilings = Ceilings::of(plan);
    let fork = ceilings::fork(&plan.ids, &ceilings, cgroup).map_err(|e| e.at(Stage::Jail))?;
    match fork {
        Fork::Child => {
            drop(ours);
            // Closes the report too, which tells the worker that all went well. Nothing that
            // owns a descriptor is dropped from here on.
            let inherited = Inherited {
                tasks: &tasks,
                outside: &theirs,
                link,
                report: report.as_fd(),
                console: None,
                ceilings: &ceilings,
            };
            let entered = enter(&inherited).and_then(|beside| keep(link, beside));
            let error = match entered {
                Ok((link, beside)) => process::leave(becomes(link, beside)),
                Err(error) => error,
            };
            // The parent reads it; there is nobody else to tell.
            let line = serde_json::to_vec(&error.at(Stage::Jail)).unwrap_or_default();
            let _ = (&report).write_all(&line);
            process::leave(125)
        }
        Fork::Parent { pid, pidfd } => {
            drop((theirs, report, tasks));
            let mut confined = Confined {
                pid,
                pidfd,
                group,
                in_memory: Vec::new(),
                limited: None,
                console: None,
                started,
                inside: ours,
            };
            let prepared = prepare(pid, confined.inside.as_fd());
            if let Err(error) = prepared.map(|disk| confined.limited = disk) {
                let kill = rustix::process::Signal::KILL;
                let _ = rustix::process::pidfd_send_signal(&confined.pidfd, kill);
                // One that had ended by itself has told why, and that it is gone tells nobody.
                let told = confined.wait_started().err();
                return Err(told.unwrap_or(error).at(Stage::Jail));
            }
            Ok(confined)
        }
    }
}

/// What the child has of its worker that it still needs. All else that the worker had open, the child
/// has too until [`Inherited::close_others`].
#[derive(Clone, Copy)]
pub(crate) struct Inherited<'a> {
    /// Where it enters its cgroups.
    pub(crate) tasks: &'a [File],
    /// The socket to the worker, which prepares mounts outside.
    pub(crate) outside: &'a OwnedFd,
    /// The guest's link to the worker.
    pub(crate) link: BorrowedFd<'a>,
    /// Where it tells why it failed; closed when it did not.
    pub(crate) report: BorrowedFd<'a>,
    /// What an init says goes there.
    pub(crate) console: Option<BorrowedFd<'a>>,
    /// What it may have of everything that the kernel counts for users.
    pub(crate) ceilings: &'a Ceilings,
}

impl Inherited<'_> {
    /// Closes every descriptor but these few and `needed`, before anything is looked for whose path
    /// an image shapes. The standard streams are the worker's, and become `null`.
    ///
    /// Whatever owns another descriptor must not be dropped any more.
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

/// Closes everything but the link and what there is of an init.
fn keep(link: BorrowedFd<'_>, beside: Option<Beside>) -> Result<(OwnedFd, Option<Beside>)> {
    let failed = |error| Error::host("cannot put descriptors in order", error);
    let Some(beside) = beside else {
        return process::keep_only(link).map(|link| (link, None)).map_err(failed);
    };
    let Beside { pid, turn, proc } = beside;
    let kept = process::keep_these([link, turn.as_fd(), proc.as_fd()]);
    // Their numbers are others' now.
    std::mem::forget((turn, proc));
    let [link, turn, proc] = kept.map_err(failed)?;
    Ok((link, Some(Beside { pid, turn, proc })))
}

/// What only the outside can do: id maps, and mounts whose ids are shifted.
/// Returns the sandbox's disk, if it has one of its own.
fn prepare(plan: &Plan, pid: u32, child: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    idmap::write_for(pid, &plan.ids)?;
    let send = |fds: &[BorrowedFd<'_>]| {
        socket::send_all(child, b"!", fds).map_err(|e| Error::host("the jail went away", e))
    };
    match &plan.ids {
        Ids::Single { .. } => Ok(None),
        Ids::Subordinate { .. } => send(&[]).map(|()| None),
        Ids::Shifted { range } => {
            let namespace = idmap::namespace_of(pid)?;
            let mut layers = shifted_layers(plan, *range, namespace.as_fd())?;
            for mount in &layers {
                send(&[mount.as_fd()])?;
            }
            for mount in &plan.mounts {
                let tree = match &mount.volume {
                    Some(volume) => storage::shifted(mount, volume, *range)?,
                    None => shifted_mount(mount, host_user(plan, *range))?,
                };
                send(&[tree.as_fd()])?;
            }
            if let Some(workspace) = &plan.workspace {
                for part in workspace::shifted(workspace, host_user(plan, *range))? {
                    send(&[part.as_fd()])?;
                }
            }
            let has_disk = matches!(plan.rootfs.upper, Upper::Disk { .. });
            Ok(if has_disk { layers.pop() } else { None })
        }
    }
}

/// The layers that belong to the sandbox, as mounts that show them with the sandbox's ids; last,
/// its writable directory, whose ids are shifted on disk.
fn shifted_layers(plan: &Plan, range: IdRange, namespace: BorrowedFd<'_>) -> Result<Vec<OwnedFd>> {
    let mut mounts = Vec::new();
    let mut carriers: Vec<(u32, OwnedFd)> = Vec::new();
    for held in layers::held(&owned(plan)) {
        let Some(path) = held.base else { continue };
        let mount = layers::detach_found(&layer(plan, path)?, false)?;
        // What another sandbox wrote has the ids of that one; what this one wrote has its own.
        if held.shift != 0 && held.shift != range.start {
            let known = carriers.iter().any(|(shift, _)| *shift == held.shift);
            if !known {
                let map = (held.shift, range.start, range.count);
                carriers.push((held.shift, idmap::carrier(map, map)?));
            }
        }
        let carrier = carriers.iter().find(|(shift, _)| *shift == held.shift);
        let id_map = match carrier {
            Some((_, carrier)) => Some(carrier.as_fd()),
            None if held.shift == range.start => None,
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
            let mount = layers::detach(path, false)?;
            set_attributes(mount.as_fd(), &Attributes { private: true, ..Attributes::default() })
                .map_err(|error| Error::host("cannot take the writable layer apart", error))?;
            mounts.push(mount);
        }
        Upper::Disk { path } => mounts.push(disk::mount(path)?),
    }
    Ok(mounts)
}

/// The layers whose ids are the sandbox's, in the order of the Plan.
fn owned(plan: &Plan) -> Vec<(&Path, u32)> {
    let lowers = plan.rootfs.overlays.iter().flat_map(|overlay| &overlay.lowers);
    let owned = lowers.filter(|lower| lower.owned);
    owned.map(|lower| (lower.path.as_path(), lower.written_as.unwrap_or(0))).collect()
}

/// A host path whose owner is the sandbox's user and where nobody else exists.
pub(crate) fn shifted_mount(mount: &PlannedMount, user: (u32, u32)) -> Result<OwnedFd> {
    shifted_tree(mount, &layers::found(&mount.host)?, user)
}

/// The same of what is open.
pub(crate) fn shifted_tree(
    mount: &PlannedMount,
    found: &OwnedFd,
    user: (u32, u32),
) -> Result<OwnedFd> {
    let about = |error| Error::host(format!("cannot mount `{}`", mount.host.display()), error);
    let owner = rustix::fs::fstat(found).map_err(|error| about(error.into()))?;
    let namespace = idmap::carrier((owner.st_uid, user.0, 1), (owner.st_gid, user.1, 1))?;
    let tree = layers::detach_found(found, true)?;
    let shown = Attributes {
        read_only: mount.read_only,
        no_suid: true,
        no_dev: true,
        private: true,
        recursive: true,
        id_map: Some(namespace.as_fd()),
        ..Attributes::default()
    };
    set_attributes(tree.as_fd(), &shown).map_err(|error| {
        about(error).hint("the file system must support idmapped mounts (ext4, xfs, btrfs, tmpfs)")
    })?;
    Ok(tree)
}

/// The host ids of the user that runs Execs. A user given by name is only known inside, so a
/// mount belongs to root there.
fn host_user(plan: &Plan, range: IdRange) -> (u32, u32) {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u32>().ok());
    let user = plan.user.as_ref();
    let uid = number(user.map(UserRef::user)).unwrap_or(0);
    let gid = number(user.and_then(UserRef::group)).unwrap_or(0);
    let shifted = |id: u32| range.start + id.min(range.count - 1);
    (shifted(uid), shifted(gid))
}

/// The next mount that the outside has prepared.
pub(crate) fn receive(outside: &OwnedFd) -> Result<(u8, OwnedFd)> {
    let mut fds = Vec::new();
    let mut what = [0u8; 1];
    let received = socket::receive(outside.as_fd(), &mut what, &mut fds);
    match (received, fds.pop()) {
        (Ok(1), Some(fd)) => Ok((what[0], fd)),
        (Err(error), _) => Err(Error::host("cannot receive a mount", error)),
        _ => Err(Error::new(Kind::Protocol, "the worker went away")),
    }
}

/// The child's way from a fork of the worker into the jail.
fn enter(
    plan: &Plan,
    outward: Option<&Outward<'_>>,
    worker: &Inherited<'_>,
) -> Result<Option<beside::Prepared>> {
    process::forget_origin()
        .map_err(|error| Error::host("cannot forget the command line", error))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    enter_cgroup(worker.tasks)?;
    network::enter(outward)?;
    take_ids(&plan.ids, worker.outside)?;
    // Nothing mounted from here on is seen outside.
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|error| {
        Error::host("cannot make mounts private", error)
            .hint("`msb doctor` tells whether this host restricts user namespaces")
    })?;
    let held = Held::take(plan, worker.outside)?;
    if outward.is_some() {
        held.kernel.allow_echoes();
    }
    held.kernel.set_ceilings(worker.ceilings)?;
    if let Some(limit) = plan.limits.memory.filter(|limit| limit.by == By::Watch) {
        held.kernel.limit_shared_memory(limit.value.0)?;
    }
    if !plan.security.allow_userns {
        held.kernel.forbid_user_namespaces()?;
    }
    rustix::system::sethostname(plan.hostname.as_str().as_bytes())
        .map_err(|error| Error::host("cannot set the host name", error))?;
    let ready = held.build_root(plan, worker.outside)?;
    ready.furnish(plan, outward, worker)?;
    limit(plan, worker.ceilings)?;
    leave_keyrings()?;
    let room = plan.init.is_some().then(beside::prepare).transpose()?;
    landlock::confine(plan.security.allow_userns)?;
    let filter = syscalls::program(&plan.security, &plan.ids);
    if plan.security.profile == Profile::Restricted {
        rustix::thread::set_no_new_privs(true)
            .map_err(|error| Error::host("cannot give up new privileges", error))?;
    }
    // Before the capabilities go: without no_new_privs a filter needs CAP_SYS_ADMIN.
    msb_sys::seccomp::install(&filter).map_err(|error| {
        Error::unsupported("this host does not offer seccomp filters").cause(error)
    })?;
    capabilities::drop(&plan.security, outward.is_some())?;
    Ok(room)
}

/// Whether a limit of memory is held by looking how much is used.
fn is_watched(plan: &Plan) -> bool {
    plan.limits.memory.is_some_and(|limit| limit.by == By::Watch)
}

/// What was taken from the host while it can be seen.
struct Held<'a> {
    sources: Sources,
    kernel: Kernel,
    mounts: Vec<OwnedFd>,
    parts: Option<(&'a PlannedWorkspace, workspace::Parts)>,
    null: File,
}

impl<'a> Held<'a> {
    fn take(plan: &'a Plan, outside: &OwnedFd) -> Result<Self> {
        let sources = sources(plan, outside)?;
        let kernel = Kernel::take()?;
        let mounts = mounts(plan, outside)?;
        let parts = plan.workspace.as_ref().map(|workspace| {
            workspace::take(workspace, &plan.ids, outside).map(|parts| (workspace, parts))
        });
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.map_err(|error| Error::host("cannot open /dev/null", error))?;
        Ok(Self { sources, kernel, mounts, parts: parts.transpose()?, null })
    }

    /// Puts the root together and changes to it. The layers are closed afterwards.
    fn build_root(self, plan: &Plan, outside: &OwnedFd) -> Result<Ready> {
        let Self { sources: Sources { lowers, writable }, kernel, mounts, parts, null } = self;
        let writable = writable.as_ref();
        let stage =
            layers::build_root(&plan.rootfs.overlays, &lowers, &plan.rootfs.upper, writable)?;
        if is_watched(plan) {
            show_outside(outside, IN_MEMORY, stage.as_fd())?;
        }
        if plan.limits.disk.is_some_and(|limit| limit.by == By::Tmpfs) {
            show_outside(outside, LIMITED, stage.as_fd())?;
        }
        let workspace =
            parts.as_ref().map(|(workspace, parts)| workspace::mount(&stage, workspace, parts));
        let workspace = workspace.transpose()?;
        let nothing = layers::nothing(&stage)?;
        layers::enter_root(stage)?;
        Ok(Ready { kernel, mounts, workspace, nothing, null })
    }
}

/// What is put in place once the sandbox's own root is the only one.
struct Ready {
    kernel: Kernel,
    mounts: Vec<OwnedFd>,
    workspace: Option<OwnedFd>,
    nothing: OwnedFd,
    null: File,
}

impl Ready {
    /// Shows in the root what the sandbox was promised besides its image.
    ///
    /// The image shapes every path here, so nothing of the host is open any more but what is to be
    /// mounted, each path is resolved in the root and through no magic link, and /proc, where those
    /// are, comes last.
    fn furnish(
        self,
        plan: &Plan,
        outward: Option<&Outward<'_>>,
        worker: &Inherited<'_>,
    ) -> Result<()> {
        let Self { kernel, mounts, workspace, nothing, null } = self;
        let trees = mounts.iter().chain(&workspace).chain([&nothing]).map(AsFd::as_fd);
        let needed: Vec<BorrowedFd<'_>> =
            kernel.descriptors().chain(trees).chain([null.as_fd()]).collect();
        worker.close_others(&null, &needed)?;
        drop(needed);
        let root = RootDir::current()
            .map_err(|error| Error::host("cannot open the root of the sandbox", error))?;
        devices::make_usual_directories(&root);
        let views = Views::find(&root)?;
        let dev = kernel.place_devices(&root, SHM_SIZE)?;
        if plan.init.is_some() {
            devices::link_console(&dev)?;
        }
        if let Some(outward) = outward {
            outward.place_files(&root, &dev, plan.hostname.as_str())?;
        }
        if is_watched(plan) {
            show_outside(worker.outside, IN_MEMORY, dev.as_fd())?;
        }
        for tmpfs in &plan.tmpfs {
            let size = tmpfs.size.0.to_string();
            let options = [("mode", "1777"), ("size", &size)];
            let mount = layers::file_system("tmpfs", &options, layers::PLAIN)?;
            let place = layers::make_mount_point(&root, tmpfs.guest.as_str(), false)?;
            layers::attach(mount.as_fd(), &place, tmpfs.guest.as_str())?;
            if is_watched(plan) {
                show_outside(worker.outside, IN_MEMORY, mount.as_fd())?;
            }
        }
        attach_mounts(&root, plan, &mounts, workspace.as_ref())?;
        kernel.place_views(&views, &dev, &nothing)
    }
}

/// Attaches what is shown of the host, each after what it lies below.
fn attach_mounts(
    root: &RootDir,
    plan: &Plan,
    mounts: &[OwnedFd],
    workspace: Option<&OwnedFd>,
) -> Result<()> {
    let own = plan.workspace.as_ref().zip(workspace);
    let own = own.map(|(planned, tree)| (planned.guest.as_str(), false, tree));
    let mounts = plan.mounts.iter().zip(mounts);
    let mut places: Vec<(&str, bool, &OwnedFd)> =
        mounts.map(|(mount, tree)| (mount.guest.as_str(), mount.file, tree)).chain(own).collect();
    places.sort_by_key(|(guest, ..)| Path::new(*guest));
    for (guest, file, tree) in places {
        let place = layers::make_mount_point(root, guest, file)?;
        layers::attach(tree.as_fd(), &place, guest)?;
    }
    Ok(())
}

/// A file system in memory that no cgroup counts.
const IN_MEMORY: u8 = b'm';
/// The writable layer, which has a size.
const LIMITED: u8 = b'd';

/// Lets the worker see how full a file system is.
fn show_outside(outside: &OwnedFd, what: u8, shown: BorrowedFd<'_>) -> Result<()> {
    socket::send_all(outside.as_fd(), &[what], &[shown])
        .map_err(|error| Error::host("the worker went away", error))
}

pub(crate) fn enter_cgroup(tasks: &[File]) -> Result<()> {
    let failed = |error| Error::host("cannot enter the cgroup", error);
    for mut file in tasks {
        file.write_all(b"0").map_err(failed)?;
    }
    // Only now, so that the sandbox's own cgroup is the root of what it sees.
    process::unshare(process::CGROUP_NAMESPACE).map_err(failed)
}

pub(crate) fn take_ids(ids: &Ids, outside: &OwnedFd) -> Result<()> {
    let failed = |error| Error::host("cannot take the ids of the sandbox", error);
    match ids {
        Ids::Single { uid, gid } => return idmap::write_single(*uid, *gid),
        // The outside maps the ids and says when it has.
        Ids::Subordinate { .. } => {
            let mut fds = Vec::new();
            let said = socket::receive(outside.as_fd(), &mut [0u8; 1], &mut fds);
            if said.map_err(|error| Error::host("cannot hear the worker", error))? == 0 {
                return Err(Error::new(Kind::Protocol, "the worker went away"));
            }
        }
        // The maps are written before the first mount is sent; `sources` receives that.
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

/// A layer. An image that is a directory was named by the user, and others may write there.
fn layer(plan: &Plan, path: &Path) -> Result<OwnedFd> {
    match &plan.image {
        ImageRef::Path(image) if image == path => layers::found(path),
        _ => layers::state(path),
    }
}

/// Layers of the root, opened.
struct Sources {
    lowers: Vec<Vec<Source>>,
    writable: Option<Source>,
}

/// Opens every layer: those that the outside prepared are received in the order of the Plan.
fn sources(plan: &Plan, outside: &OwnedFd) -> Result<Sources> {
    let shifted = matches!(plan.ids, Ids::Shifted { .. });
    // As root the host's files belong to no id inside, and a user with one id has no other.
    let estranged = matches!(plan.ids, Ids::Subordinate { .. });
    let owned = owned(plan);
    let mut held = layers::held(&owned).into_iter();
    let mut lowers = Vec::new();
    for overlay in &plan.rootfs.overlays {
        let open = |lower: &msb_spec::Lower| {
            let Some(held) = (shifted && lower.owned).then(|| held.next()).flatten() else {
                let strange = estranged && !lower.owned;
                let source = if strange { Source::Strange } else { Source::Open };
                return layer(plan, &lower.path).map(source);
            };
            let rest = held.rest.to_owned();
            match held.base {
                None => Ok(Source::InSame(rest)),
                Some(_) => receive(outside).map(|(_, mount)| Source::Holding(mount, rest)),
            }
        };
        lowers.push(overlay.lowers.iter().map(open).collect::<Result<_>>()?);
    }
    let writable = match &plan.rootfs.upper {
        Upper::Memory { .. } => None,
        _ if shifted => Some(Source::Detached(receive(outside)?.1)),
        Upper::Directory { path } => Some(Source::open(path)?),
        Upper::Disk { .. } => {
            return Err(Error::unsupported("a disk of a fixed size needs root")
                .hint("leave `--disk` out, or run msb as root"));
        }
    };
    Ok(Sources { lowers, writable })
}

/// The host paths of the Plan as detached trees.
fn mounts(plan: &Plan, outside: &OwnedFd) -> Result<Vec<OwnedFd>> {
    let shifted = matches!(plan.ids, Ids::Shifted { .. });
    let take = |mount: &PlannedMount| {
        if shifted {
            return receive(outside).map(|(_, mount)| mount);
        }
        if let Some(volume) = &mount.volume {
            return storage::own(mount, volume);
        }
        let tree = layers::detach_found(&layers::found(&mount.host)?, true)?;
        let shown = Attributes {
            read_only: mount.read_only,
            no_suid: true,
            no_dev: true,
            recursive: true,
            ..Attributes::default()
        };
        set_attributes(tree.as_fd(), &shown).map_err(|error| {
            Error::host(format!("cannot mount `{}`", mount.host.display()), error)
        })?;
        Ok(tree)
    };
    plan.mounts.iter().map(take).collect()
}

/// The limits that are held by the processes themselves.
fn limit(plan: &Plan, ceilings: &Ceilings) -> Result<()> {
    let failed = |what: &str, error| Error::host(format!("cannot limit {what}"), error);
    ceilings.set_rlimits()?;
    if let Some(pids) = plan.limits.pids.filter(|limit| limit.by == By::Rlimit) {
        // It can only be lowered; where the host allows fewer, that holds.
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
    // No core files of hostile programs through the host's core_pattern.
    process::set_rlimit(libc::RLIMIT_CORE, 0, 0).map_err(|e| failed("core files", e))
}

/// A kernel without keyrings has none to leave.
pub(crate) fn leave_keyrings() -> Result<()> {
    match process::new_session_keyring() {
        Err(error) if error.raw_os_error() != Some(libc::ENOSYS) => {
            Err(Error::host("cannot leave the caller's keyring", error))
        }
        _ => Ok(()),
    }
}
