//! Starts sandboxes, new ones and stopped ones. There is no other way to start one.
//!
//! Each step of a start belongs to a guard. Until the caller takes the sandbox over, by
//! [`RunningSandbox::detach`] or by taking its connection, dropping the guard undoes the start: a
//! new sandbox is removed, one that existed is stopped.

use crate::audit;
use crate::connection::Connection;
use crate::failpoint::LaunchStep;
use crate::files::SymlinkPolicy;
use crate::launch::{Caller, launch};
use crate::layers;
use crate::network::Lines;
use crate::repair;
use crate::sandboxes::Engine;
use crate::secrets::SecretValue;
use crate::store::{Home, LockedSandbox};
use crate::volumes;
use crate::workspace;
use msb_spec::{Kind, Name, Plan, Restart, Result, Stage, Stdin, state};
use msb_sys::lock::LockGuard;
use msb_wire::{Head, NetRecord};
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How a new sandbox is launched.
#[derive(Default)]
pub struct Launch<'a> {
    /// Whether a sandbox of the same name is stopped and removed first.
    pub replace: bool,
    /// How far the start has come when the launch returns.
    pub until: LaunchUntil,
    /// What to do with symlinks in the host paths of patches.
    pub symlinks: SymlinkPolicy,
    /// Work that this process does while the guest boots.
    pub while_booting: Option<&'a dyn Fn()>,
}

impl std::fmt::Debug for Launch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { replace, until, symlinks, while_booting: _ } = self;
        f.debug_struct("Launch")
            .field("replace", replace)
            .field("until", until)
            .field("symlinks", symlinks)
            .finish_non_exhaustive()
    }
}

/// How far a start has come when the launch returns. Patches are applied in both cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LaunchUntil {
    /// The worker process exists. The caller reads from the connection whether the rest succeeds,
    /// so a short command takes no extra round trip.
    #[default]
    WorkerForked,
    /// The guest runs, and so does the first command if the Plan has one.
    CommandStarted,
}

/// What is started of a sandbox that existed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartMode {
    /// All of it, with the command that a restart policy keeps running.
    Service,
    /// The sandbox without its command, for file operations.
    FilesOnly,
    /// A microVM that replays the journal of its disk: no network, Secrets, mounts or command.
    JournalReplay,
}

/// How long an undo is tried. A worker can be told to end when its guest has booted.
const UNDO_LIMIT: Duration = Duration::from_secs(20);

/// A new sandbox with its directory, and the locks and values for its worker. Dropping it removes
/// the directory.
#[derive(Debug)]
pub(crate) struct NewSandbox<'a> {
    plan: Plan,
    directory: NewDirectory<'a>,
    secrets: Vec<SecretValue>,
    volume_locks: Vec<OwnedFd>,
    /// Keeps the layers below it from being removed until it runs.
    _layer_lock: Option<LockGuard>,
}

/// The directory of a new sandbox without a worker; removed on drop.
#[derive(Debug)]
struct NewDirectory<'a> {
    home: &'a Home,
    claim: Option<LockedSandbox>,
}

impl Drop for NewDirectory<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            // What cannot be removed now is removed by the next repair.
            msb_log::warn_on_failure!(self.home.discard(&claim), "cannot remove a partial sandbox");
        }
    }
}

/// A sandbox that this process has started and still owns: dropping it undoes the start.
#[derive(Debug)]
pub struct RunningSandbox<'a> {
    plan: Plan,
    /// The network log of an ephemeral sandbox, which is removed with it.
    net_log: Option<Lines<NetRecord>>,
    // Closed before the guard acts: the worker of a sandbox without a command ends with it.
    caller: Caller,
    guard: StartGuard<'a>,
}

/// Undoes a start on drop, after the connection to the worker was closed.
#[derive(Debug)]
struct StartGuard<'a> {
    engine: &'a Engine,
    name: Name,
    /// The directory when it was started: the name may belong to another sandbox by now. `None` if
    /// the worker has removed it already.
    directory: Option<OwnedFd>,
    undo: StartUndo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartUndo {
    /// A new sandbox is stopped and removed.
    Remove,
    /// A sandbox that existed before is stopped.
    Stop,
    /// The sandbox has another owner.
    Nothing,
}

impl StartGuard<'_> {
    fn disarm(mut self) {
        self.undo = StartUndo::Nothing;
    }

    /// Whether the name still belongs to the sandbox that was started.
    fn is_same(&self) -> bool {
        let path = self.engine.home().directory(&self.name);
        let started = self.directory.as_ref().and_then(|fd| rustix::fs::fstat(fd).ok());
        let present = rustix::fs::stat(&path).ok();
        started.zip(present).is_some_and(|(started, present)| {
            (started.st_dev, started.st_ino) == (present.st_dev, present.st_ino)
        })
    }
}

impl Drop for StartGuard<'_> {
    fn drop(&mut self) {
        if self.undo == StartUndo::Nothing {
            return;
        }
        let since = Instant::now();
        while self.is_same() {
            let undone = match self.undo {
                StartUndo::Remove => self.engine.remove(&self.name, true),
                _ => self.engine.stop(&self.name, Duration::ZERO).map(drop),
            };
            // The error that led here is the one to report. The next repair tries again.
            if undone.is_ok() || since.elapsed() > UNDO_LIMIT {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        repair::remove_stale_networks(self.engine.home());
    }
}

impl RunningSandbox<'_> {
    /// The Plan of the sandbox.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The network log of an ephemeral sandbox, to be read when the sandbox has gone. `None` if it
    /// has no network, and for sandboxes that stay.
    pub fn take_net_log(&mut self) -> Option<Lines<NetRecord>> {
        self.net_log.take()
    }

    /// Leaves the sandbox to itself: it outlives this process.
    pub fn detach(mut self) -> Result<Plan> {
        // A short command, or a service without restarts left, may have ended with its sandbox.
        match self.caller.detach() {
            Err(error) if self.plan.command.is_none() => Err(error),
            _ => Ok(self.into_stream().0),
        }
    }

    /// Hands the connection over, which carries the frames of the first command. The sandbox ends
    /// when it is closed.
    pub fn into_stream(self) -> (Plan, UnixStream) {
        let Self { plan, net_log: _, caller, guard } = self;
        guard.disarm();
        (plan, caller.into_stream())
    }

    /// A connection that carries no frames of a command. The sandbox ends when it is closed. `None`
    /// if the command, and the sandbox with it, has ended already.
    pub fn into_owner(mut self) -> (Plan, Option<UnixStream>) {
        if self.plan.command.is_none() {
            let (plan, stream) = self.into_stream();
            return (plan, Some(stream));
        }
        // The first connection is the command's.
        let owner = self.guard.engine.own(&self.plan.name).ok();
        let _ = self.caller.detach();
        (self.into_stream().0, owner.map(Connection::into_stream))
    }

    /// The connection, with the frames of the first command.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.caller.connection()
    }

    /// Waits for the guest, applies the patches of the Plan and lets the first command start.
    pub(crate) fn complete(&mut self, launch: &Launch<'_>) -> Result<()> {
        if let Some(work) = launch.while_booting {
            work();
        }
        let Self { plan, caller, guard: StartGuard { engine, .. }, .. } = self;
        let name = &plan.name;
        let wait = launch.until == LaunchUntil::CommandStarted;
        if plan.patches.is_empty() && !wait {
            return Ok(());
        }
        let await_ready = |caller: &mut Caller| {
            let ready = caller.ready();
            ready.map_err(|error| error.under(format!("cannot start sandbox `{name}`")))
        };
        await_ready(caller)?;
        engine.reached(LaunchStep::GuestReady)?;
        for patch in &plan.patches {
            let patched = engine.files(name).and_then(|files| files.patch(patch, launch.symlinks));
            patched.map_err(|error| {
                error.under(format!("cannot prepare sandbox `{name}`")).at(Stage::Boot)
            })?;
            engine.reached(LaunchStep::Patch)?;
        }
        if !plan.patches.is_empty() {
            caller.go()?;
            engine.reached(LaunchStep::PatchesDone)?;
            // An init program starts after the patches, and may be missing from the image.
            if plan.init.is_some() {
                await_ready(caller)?;
            }
        }
        if wait && plan.command.is_some() {
            caller.started()?;
            engine.reached(LaunchStep::CommandStarted)?;
        }
        Ok(())
    }
}

impl Engine {
    /// Creates a sandbox and starts it. If that fails, nothing of it is left.
    pub fn launch(&self, plan: Plan, launch: &Launch<'_>) -> Result<RunningSandbox<'_>> {
        let name = plan.name.clone();
        self.free_name(&name, launch.replace)?;
        let started = self.make_sandbox(plan).and_then(|new| self.start_new(new));
        let mut running = started.map_err(|error| match error.kind() {
            Kind::Exists => error,
            _ => error.under(format!("cannot create sandbox `{name}`")),
        })?;
        running.complete(launch)?;
        Ok(running)
    }

    /// Repairs what has the name of a new sandbox, and removes it if it is to be replaced.
    fn free_name(&self, name: &Name, replace: bool) -> Result<()> {
        if !self.has(name) {
            return Ok(());
        }
        // The repair is in the event log; this call does not report it.
        let _note = repair::one(self.home(), name)?;
        match replace && self.has(name) {
            true => self.remove(name, true),
            false => Ok(()),
        }
    }

    /// Creates the directory of a sandbox without starting its worker.
    pub(crate) fn make_sandbox(&self, mut plan: Plan) -> Result<NewSandbox<'_>> {
        let secrets = self.read_secrets(&plan)?;
        self.reached(LaunchStep::Secrets)?;
        let volume_locks = volumes::lock_for_worker(self.home(), &mut plan)?;
        self.reached(LaunchStep::VolumeLocks)?;
        let layer_lock = self.snapshots().pin_layers(&plan)?;
        self.reached(LaunchStep::LayerLock)?;
        let claim = self.home().claim(&plan, |directory| {
            fill_directory(&plan, directory)?;
            self.reached(LaunchStep::DirectoryFilled)
        })?;
        let directory = NewDirectory { home: self.home(), claim: Some(claim) };
        self.reached(LaunchStep::DirectoryNamed)?;
        self.check_count(&plan.name)?;
        Ok(NewSandbox { plan, directory, secrets, volume_locks, _layer_lock: layer_lock })
    }

    /// Starts the worker of a new sandbox.
    pub(crate) fn start_new<'a>(&'a self, new: NewSandbox<'a>) -> Result<RunningSandbox<'a>> {
        let NewSandbox { plan, mut directory, secrets, volume_locks, _layer_lock } = new;
        let values = WorkerValues { last: (Head::first(), 0), secrets, volume_locks };
        self.start_worker(plan, &mut directory.claim, values, StartUndo::Remove)
    }

    /// Starts a worker, and the ctl process if the sandbox may have children. Takes the claim when
    /// the worker exists, which owns the directory from then on.
    fn start_worker(
        &self,
        plan: Plan,
        claim: &mut Option<LockedSandbox>,
        values: WorkerValues,
        undo: StartUndo,
    ) -> Result<RunningSandbox<'_>> {
        let locked = claim.as_ref().expect("a claim is taken once, below");
        let listener = Self::bind_ctl_socket(&plan, locked)?;
        self.reached(LaunchStep::CtlSocket)?;
        // Before the worker exists, which may have removed the directory by the time it is opened.
        let net_log = match plan.ephemeral && plan.network.is_some() {
            true => Lines::create(&locked.directory, state::NETWORK),
            false => None,
        };
        let WorkerValues { last, secrets, volume_locks } = values;
        let (caller, plan, listener) =
            launch(&self.launcher, plan, locked, last, secrets, volume_locks, listener)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&locked.directory, flags, Mode::empty()).ok();
        let name = plan.name.clone();
        let guard = StartGuard { engine: self, name, directory, undo };
        let running = RunningSandbox { plan, net_log, caller, guard };
        drop(claim.take());
        self.reached(LaunchStep::WorkerForked)?;
        if let Some(listener) = listener {
            self.spawn_ctl_process(&running.plan.name, listener)?;
            self.reached(LaunchStep::CtlProcess)?;
        }
        Ok(running)
    }

    /// Starts a stopped sandbox. False if it runs already.
    pub fn start(&self, name: &Name) -> Result<bool> {
        match self.start_stopped(name)? {
            Some(running) => running.detach().map(|_| true),
            None => Ok(false),
        }
    }

    /// Starts a stopped sandbox, with the command of its restart policy. `None` if it runs already.
    pub fn start_stopped(&self, name: &Name) -> Result<Option<RunningSandbox<'_>>> {
        self.start_in_mode(name, StartMode::Service)
    }

    /// Starts a microVM only to replay the journal of its disk.
    pub(crate) fn start_for_repair(&self, name: &Name) -> Result<Option<RunningSandbox<'_>>> {
        self.start_in_mode(name, StartMode::JournalReplay)
    }

    /// Starts a stopped sandbox until the returned value is dropped, so that its files can be read.
    /// A running sandbox is left alone: `None`.
    pub fn wake(&self, name: &Name) -> Result<Option<RunningSandbox<'_>>> {
        self.start_in_mode(name, StartMode::FilesOnly)
    }

    fn start_in_mode(&self, name: &Name, mode: StartMode) -> Result<Option<RunningSandbox<'_>>> {
        let plan = self.existing(name)?;
        if plan.ephemeral {
            return match self.is_running(name) {
                true => Ok(None),
                false => Err(workspace::not_startable(&plan)),
            };
        }
        let Some(claim) = self.lock_stopped(name)? else {
            return Ok(None);
        };
        // Its layers may have been changed before the lock was taken.
        let mut plan = self.existing(name)?;
        // Patches were applied when it was created. Its first command ran then, unless it is a
        // service.
        plan.patches.clear();
        plan.command = plan.command.take().filter(|_| plan.restart.is_some());
        if let Some(command) = &mut plan.command {
            (command.detached, command.tty, command.stdin) = (true, None, Stdin::Closed);
            // The origin is that of this start, not of the creation.
            command.origin = self.origin_of(None);
        }
        mode.reduce(&mut plan);
        let last = (audit::head(&claim.directory), repair::last_exec(&claim.directory));
        let secrets = self.read_secrets(&plan)?;
        let volume_locks = volumes::lock_for_worker(self.home(), &mut plan)
            .map_err(|error| error.under(format!("cannot start sandbox `{name}`")))?;
        let values = WorkerValues { last, secrets, volume_locks };
        let mut running = self.start_worker(plan, &mut Some(claim), values, StartUndo::Stop)?;
        let until = LaunchUntil::CommandStarted;
        running.complete(&Launch { until, ..Launch::default() })?;
        Ok(Some(running))
    }
}

/// What a worker is given besides the Plan and the directory.
struct WorkerValues {
    /// The last event and the id of the last Exec.
    last: (Head, u64),
    secrets: Vec<SecretValue>,
    volume_locks: Vec<OwnedFd>,
}

impl StartMode {
    /// Removes from a Plan what this start does not have.
    fn reduce(self, plan: &mut Plan) {
        if self == Self::Service {
            return;
        }
        (plan.command, plan.restart, plan.health) = (None, Restart::No, None);
        plan.idle_pause = None;
        if self == Self::JournalReplay {
            plan.network = None;
            plan.mounts = Vec::new();
            plan.workspace = None;
            plan.spawn = None;
            plan.init = None;
        }
    }
}

/// Fills the directory of a new sandbox: workspace and writable layer.
pub(crate) fn fill_directory(plan: &Plan, directory: &Path) -> Result<()> {
    if let Some(workspace) = &plan.workspace {
        workspace::fill(plan, workspace, directory)?;
    }
    layers::make(plan, directory)
}
