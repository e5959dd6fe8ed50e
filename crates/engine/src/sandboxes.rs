//! The Operations on sandboxes. CLI, server and SDK call these and decide nothing themselves.

use crate::connection::{Connection, EventWait};
use crate::files::Files;
use crate::host::HostUser;
use crate::images::{Fetching, PullFor};
use crate::inspect::last_stop;
use crate::launch::Launcher;
use crate::logs::{Filter, Reader};
use crate::secrets::{self, GivenValues, SecretValue};
use crate::store::{Home, LockedSandbox};
use crate::{audit, planning, repair, workspace};
use msb_api::ExecEntry;
use msb_image::{EnsureOptions, Owners, PreparedImage, Store};
use msb_spec::{
    Authority, CallOrigin, Command, CommandStreams, Ending, Error, Ids, ImageRef, Isolation, Kind,
    MachineBase, Name, Plan, Result, SpawnPolicy, Spec, Surface, Upper, WithinCeiling, state,
};
use msb_wire::record::{EventKind, ExecRecord};
use msb_wire::{ExecStatus, Reply, Request, StopResult, WorkerEvent};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The sandboxes of one state directory on this machine.
#[derive(Debug, Clone)]
pub struct Engine {
    home: Home,
    pub(crate) launcher: Launcher,
    /// Values of Secrets that the calling program provides, by name.
    given_secrets: Vec<(String, SecretValue)>,
    /// Those that it provided in earlier calls.
    remembered_secrets: GivenValues,
    /// The origin recorded for commands where the caller does not name one.
    default_origin: CallOrigin,
    /// The origin recorded for all commands, whatever the caller names.
    origin: Option<CallOrigin>,
    /// Selects the registries and credentials for pulls: those of the operator or of a client.
    pub(crate) pull_for: PullFor,
    /// The authority of the caller, which limits what may be requested.
    pub(crate) authority: Authority,
    /// The step after which launches of a test fail.
    #[cfg(feature = "fixture")]
    pub(crate) fault: Option<(crate::LaunchStep, crate::LaunchFault)>,
}

/// How long a new worker may take to listen. Milliseconds are usual; an overloaded machine is
/// slower.
const START_LIMIT: Duration = Duration::from_secs(10);

/// How much longer than its grace period a stopping worker may take before it is killed.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// How long pause and resume may take. Milliseconds are usual.
const PAUSE_LIMIT: Duration = Duration::from_secs(30);

impl Engine {
    /// Opens the state directory of this user (`MSB_HOME` or `~/.msb`).
    pub fn open(launcher: Launcher) -> Result<Self> {
        Ok(Self::at(Home::open()?, launcher))
    }

    /// An engine for this state directory.
    pub fn at(home: Home, launcher: Launcher) -> Self {
        let surface = match &launcher {
            Launcher::Fork(_) => Surface::Cli,
            Launcher::Execute(_) => Surface::Sdk,
        };
        Self {
            home,
            launcher,
            given_secrets: Vec::new(),
            default_origin: CallOrigin::new(surface),
            origin: None,
            remembered_secrets: GivenValues::default(),
            pull_for: PullFor::Operator,
            authority: Authority::Operator,
            #[cfg(feature = "fixture")]
            fault: None,
        }
    }

    /// Sets the origin that is recorded for commands without one.
    #[must_use]
    pub fn with_default_origin(self, default_origin: CallOrigin) -> Self {
        Self { default_origin, ..self }
    }

    /// Sets the origin that is recorded for all commands.
    pub(crate) fn for_origin(&self, origin: CallOrigin) -> Self {
        Self { origin: Some(origin), ..self.clone() }
    }

    /// The origin of a command: that of this engine, then `given`, then the default.
    pub(crate) fn origin_of(&self, given: Option<CallOrigin>) -> Option<CallOrigin> {
        self.origin.clone().or(given).or_else(|| Some(self.default_origin.clone()))
    }

    /// An engine that takes the values of Secrets from `given_secrets`, by name.
    #[must_use]
    pub fn with_secrets(&self, given_secrets: Vec<(String, SecretValue)>) -> Self {
        Self { given_secrets, ..self.clone() }
    }

    /// The values of a Plan's Secrets, for a start of its sandbox.
    pub(crate) fn read_secrets(&self, plan: &Plan) -> Result<Vec<SecretValue>> {
        secrets::read(plan, &self.given_secrets, &self.remembered_secrets)
    }

    /// The state directory of one dialect of the server.
    pub fn dialect_state(&self, dialect: &str) -> PathBuf {
        self.home().dialect(dialect)
    }

    /// The sandbox profiles of config.toml, by name.
    pub fn profiles(&self) -> Result<BTreeMap<Name, msb_image::SandboxProfile>> {
        Ok(msb_image::Settings::read(self.home().path())?.profile)
    }

    /// The spawn policy that config.toml has for a sandbox, by its name or a label.
    pub fn settled_children(
        &self,
        name: &Name,
        labels: &BTreeMap<String, String>,
    ) -> Result<Option<SpawnPolicy>> {
        let settings = msb_image::Settings::read(self.home().path())?;
        Ok(settings.spawn(name, labels).cloned())
    }

    /// The state directory of this engine.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Whether workers are forked from this process.
    pub(crate) fn forks(&self) -> bool {
        matches!(self.launcher, Launcher::Fork(_))
    }

    /// Cleans up after workers that were killed. Returns one line for each repair.
    pub fn repair(&self) -> Vec<String> {
        if msb_image::build::has_scratches(self.home.path())
            && let Ok(store) = self.images()
        {
            store.remove_scratches();
        }
        self.snapshots().repair_layers();
        self.volumes().repair();
        for path in self.home.stale_dirs() {
            self.remove_tree_as_owner(&path);
        }
        let mut said = repair::all(&self.home);
        said.extend(self.children().end_orphans());
        repair::remove_stale_networks(&self.home);
        said
    }

    /// Removes a tree with files of subordinate ids. Errors are ignored; the next repair tries
    /// again.
    pub(crate) fn remove_tree_as_owner(&self, path: &Path) {
        if let Owners::Granted { .. } = HostUser::current().owners() {
            msb_log::warn_on_failure!(
                msb_image::clear(self.program(), HostUser::current().owners(), path),
                "cannot remove files of other users"
            );
        }
        msb_log::warn_on_failure!(
            crate::store::remove_tree(path),
            "cannot remove the files of a sandbox"
        );
    }

    /// Plans a sandbox without creating it. Fetches its image if it is missing.
    pub fn plan(&self, spec: &Spec) -> Result<Plan> {
        self.plan_with(spec, &CommandStreams::default(), &Fetching::default())
    }

    /// Plans a sandbox, with the streams of its first command and options for fetching its image.
    pub fn plan_with(
        &self,
        spec: &Spec,
        streams: &CommandStreams,
        fetching: &Fetching<'_>,
    ) -> Result<Plan> {
        self.plan_within(&self.authority.spec(spec)?, streams, fetching)
    }

    /// Plans a Spec that was checked against the ceiling of the caller.
    pub(crate) fn plan_within(
        &self,
        spec: &WithinCeiling<Spec>,
        streams: &CommandStreams,
        fetching: &Fetching<'_>,
    ) -> Result<Plan> {
        let prepare = |isolation| self.prepare(spec, fetching, isolation);
        let mut plan = planning::plan(&self.home, spec, prepare)?;
        if let (Some(machine), Some(snapshot)) = (&mut plan.machine, &plan.snapshot) {
            machine.written = self.snapshots().written_disks(snapshot)?;
        }
        if let Some(command) = &mut plan.command {
            streams.connect(command);
            command.origin = self.origin_of(None);
        }
        Ok(plan)
    }

    fn prepare(
        &self,
        spec: &Spec,
        fetching: &Fetching<'_>,
        isolation: Isolation,
    ) -> Result<(PreparedImage, MachineBase)> {
        let shares = |prepared| (prepared, MachineBase::Shares);
        let name = match &spec.image {
            ImageRef::Host => {
                return msb_image::host_image(&self.home.layers(), fetching.progress).map(shares);
            }
            ImageRef::Path(path) if isolation == Isolation::Vm => {
                return msb_image::path_image(path);
            }
            ImageRef::Path(path) => return msb_image::directory_image(path).map(shares),
            ImageRef::Snapshot(name) => {
                return self.snapshots().prepare(name, isolation);
            }
            ImageRef::Name(name) => name,
        };
        let wish = EnsureOptions {
            when: spec.pull,
            platform: spec.platform.clone(),
            reach: self.reach(&fetching.reach),
        };
        let images = self.images()?;
        let prepared = images.prepare(name, &wish, fetching.progress)?;
        match isolation {
            Isolation::Process => Ok(shares(prepared)),
            Isolation::Vm => {
                let path = images.disk(&prepared.layers, fetching.progress)?;
                Ok((prepared, MachineBase::Image { path, fstype: "erofs".to_owned() }))
            }
        }
    }

    /// The image store of this state directory.
    pub fn images(&self) -> Result<Store> {
        Store::open(self.home.path(), HostUser::current().owners(), self.program())
    }

    /// The path of the `msb` executable.
    pub(crate) fn program(&self) -> PathBuf {
        match &self.launcher {
            Launcher::Fork(_) => PathBuf::from("/proc/self/exe"),
            Launcher::Execute(path) => path.clone(),
        }
    }

    /// Takes the lock of a sandbox that does not run; `None` if it runs. Waits for processes that
    /// hold the lock for a short change.
    pub(crate) fn lock_stopped(&self, name: &Name) -> Result<Option<LockedSandbox>> {
        let since = Instant::now();
        loop {
            repair::one(&self.home, name)?;
            if let Some(claim) = self.home.lock(name)? {
                return Ok(Some(claim));
            }
            if self.is_listening(name) {
                return Ok(None);
            }
            if since.elapsed() > START_LIMIT {
                return Err(Error::new(Kind::State, format!("sandbox `{name}` is being used"))
                    .hint("another process changes, copies or starts it; try again"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a worker accepts connections on the socket of the sandbox.
    fn is_listening(&self, name: &Name) -> bool {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let connected = msb_sys::socket::connect(&self.home.directory(name), state::SOCKET);
        !connected.is_err_and(|error| matches!(error.kind(), NotFound | ConnectionRefused))
    }

    /// Stops a sandbox: requests it, waits for `grace`, kills. False if it was not running.
    pub fn stop(&self, name: &Name, grace: Duration) -> Result<bool> {
        // A running sandbox can be stopped even if its Plan is damaged.
        if !self.home.is_running(name) {
            self.existing(name)?;
            repair::one(&self.home, name)?;
            return Ok(false);
        }
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let asked = self
            .connect(name, &Request::Stop { grace: grace_ms })
            .and_then(|mut connection| connection.reply_within(grace + STOP_MARGIN));
        match asked {
            Ok(_) => self.await_end(name, STOP_MARGIN).map(|()| true),
            Err(_) if !self.home.is_running(name) => Ok(true),
            // The worker is of another version, or stuck: it is killed by its pid.
            Err(error) => self.kill_worker(name, error).map(|()| true),
        }
    }

    /// Kills a worker that does not answer. Its children end with it.
    fn kill_worker(&self, name: &Name, error: Error) -> Result<()> {
        let directory = self.home.directory(name);
        let Some(worker) = audit::worker(&directory).or_else(|| last_started_worker(&directory))
        else {
            return Err(error);
        };
        let pid = i32::try_from(worker).map_err(|_| error.clone())?;
        msb_sys::signal::send(pid, msb_sys::signal::SIGKILL).map_err(|cause| error.cause(cause))?;
        self.await_end(name, STOP_MARGIN)?;
        repair::one(&self.home, name).map(drop)
    }

    pub(crate) fn await_end(&self, name: &Name, limit: Duration) -> Result<()> {
        let since = Instant::now();
        while self.home.is_running(name) {
            if since.elapsed() > limit {
                return Err(Error::new(Kind::Timeout, format!("sandbox `{name}` does not stop")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Removes a sandbox with its files. A running one is removed only with `force`.
    pub fn remove(&self, name: &Name, force: bool) -> Result<()> {
        if !self.home.directory(name).exists() {
            return Err(self.home.unknown(name));
        }
        if self.home.is_running(name) {
            if !force {
                return Err(Error::new(Kind::State, format!("sandbox `{name}` is running"))
                    .hint(format!("`msb stop {name}` ends it; `msb rm -f {name}` does both")));
            }
            self.stop(name, Duration::ZERO)?;
        }
        let plan = self.home.plan(name);
        let claim = match self.home.lock_without_finishing(name) {
            Ok(Some(claim)) => claim,
            // An ephemeral sandbox has just removed itself and left its children.
            _ if !self.home.directory(name).exists() => {
                self.children().end_orphans();
                return Ok(());
            }
            Ok(None) => {
                return Err(Error::new(Kind::State, format!("sandbox `{name}` is being used")));
            }
            Err(error) => return Err(error),
        };
        if let Ok(plan) = &plan {
            self.remembered_secrets.forget(plan);
            repair::remove_cgroup(plan);
            // Files of other users than root belong to ids that exist only in a user namespace.
            if let Ids::Subordinate { uid, gid, uids, gids } = plan.ids {
                let layer = match &plan.rootfs.upper {
                    Upper::Directory { path } => Some(path),
                    Upper::Memory { .. } | Upper::Disk { .. } => None,
                };
                let changes = plan.workspace.as_ref().map(|workspace| &workspace.changes);
                for path in layer.into_iter().chain(changes).filter(|path| path.is_dir()) {
                    let owners = Owners::Granted { uid, gid, uids, gids };
                    msb_image::clear(self.program(), owners, path)?;
                }
            }
        }
        let archive_old_layers = !crate::layers::leftovers(&claim).is_empty();
        self.snapshots().archive_old_layers(&claim)?;
        self.children().remove_with_children(name, || self.home.discard(&claim))?;
        if archive_old_layers || plan.is_ok_and(|plan| plan.written().next().is_some()) {
            self.snapshots().gc_layers();
        }
        Ok(())
    }

    /// Refuses new Execs; the sandbox ends with its last one. False if it was not running.
    pub fn drain(&self, name: &Name) -> Result<bool> {
        self.existing(name)?;
        if !self.home.is_running(name) {
            return Ok(false);
        }
        match self.connect(name, &Request::Drain)?.reply() {
            Ok(_) => Ok(true),
            // No Exec ran, so the worker ended before it could reply.
            Err(error) if error.kind() == Kind::Protocol && !self.home.is_running(name) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Freezes all processes of a running sandbox.
    pub fn pause(&self, name: &Name) -> Result<()> {
        self.send_order(name, &Request::Pause)
    }

    /// Thaws a paused sandbox.
    pub fn resume(&self, name: &Name) -> Result<()> {
        self.send_order(name, &Request::Resume)
    }

    /// Sets the expiry of a running sandbox to now + `left`; `None` removes it. Returns the expiry
    /// in milliseconds since 1970. The next start uses the Plan again.
    pub fn renew(&self, name: &Name, left: Option<Duration>) -> Result<Option<u64>> {
        self.existing(name)?;
        let left = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        let mut worker = self.connect(name, &Request::Renew { left })?;
        match worker.reply() {
            Ok(Reply::Status(status)) => Ok(status.ends),
            // The time was so short that the worker ended before it could reply.
            Err(error) if error.kind() == Kind::Protocol && left.is_some_and(|ms| ms < 1000) => {
                Ok(Some(crate::planning::now_ms()))
            }
            Err(error) => Err(error),
            _ => Err(Error::new(Kind::Protocol, "the worker sent an unexpected reply")),
        }
    }

    fn send_order(&self, name: &Name, send_order: &Request) -> Result<()> {
        self.existing(name)?;
        self.connect(name, send_order)?.reply_within(PAUSE_LIMIT).map(drop)
    }

    /// Waits until a sandbox has ended, and returns how it ended.
    pub fn wait(&self, name: &Name) -> Result<StopResult> {
        self.existing(name)?;
        if self.home.is_running(name) {
            let reply = self.connect(name, &Request::Wait).and_then(|mut worker| worker.reply());
            if let Ok(Reply::Stopped(stopped)) = reply {
                return Ok(stopped);
            }
            // The worker ended before it could reply.
            self.await_end(name, STOP_MARGIN)?;
        }
        repair::one(&self.home, name)?;
        Ok(last_stop(&self.home.directory(name))
            .unwrap_or(StopResult { ending: Ending::Crashed, exit: None }))
    }

    /// Waits at most `limit` for the end of a sandbox; `None` if it still runs.
    pub(crate) fn wait_within(&self, name: &Name, limit: Duration) -> Result<Option<StopResult>> {
        self.existing(name)?;
        if self.home.is_running(name) {
            let until = Instant::now() + limit;
            let worker = self.connect(name, &Request::Wait);
            match worker.and_then(|mut worker| worker.event_before(until)) {
                Ok(EventWait::TimedOut) => return Ok(None),
                Ok(EventWait::Event(WorkerEvent::Reply(Reply::Stopped(stopped)))) => {
                    return Ok(Some(stopped));
                }
                // The worker is ending.
                Ok(_) | Err(_) => {}
            }
        }
        self.wait(name).map(Some)
    }

    /// Starts a command. Its frames are read from the returned connection.
    pub fn exec(&self, name: &Name, mut command: Command) -> Result<Connection> {
        command.check()?;
        command.origin = self.origin_of(command.origin);
        self.connect(name, &Request::Exec(command))
    }

    /// Attaches to a running Exec.
    pub fn attach(&self, name: &Name, exec: u64) -> Result<Connection> {
        self.connect(name, &Request::Attach { id: exec })
    }

    /// Sends a signal, by its Linux number, to an Exec.
    pub fn kill(&self, name: &Name, exec: u64, signal: i32) -> Result<()> {
        self.connect(name, &Request::Kill { id: exec, signal })?.reply().map(drop)
    }

    /// Ties the life of a sandbox to the returned connection: it stops when that closes.
    pub fn own(&self, name: &Name) -> Result<Connection> {
        let mut connection = self.connect(name, &Request::Own)?;
        connection.reply()?;
        Ok(connection)
    }

    /// The Execs that run at present.
    pub fn running_execs(&self, name: &Name) -> Result<Vec<ExecStatus>> {
        match self.connect(name, &Request::List)?.reply()? {
            Reply::Execs(execs) => Ok(execs),
            _ => Err(Error::new(Kind::Protocol, "the worker sent an unexpected reply")),
        }
    }

    /// Every recorded Exec, the oldest first.
    pub fn execs(&self, name: &Name) -> Result<Vec<ExecEntry>> {
        self.existing(name)?;
        let mut entries = recorded_execs(&self.home.directory(name));
        if self.home.is_running(name) {
            for exec in self.running_execs(name)? {
                let ExecStatus { id, pid, argv, tty, started, .. } = exec;
                entries.insert(id, ExecEntry { id, pid, argv, tty, started, exit: None });
            }
        }
        Ok(entries.into_values().collect())
    }

    /// Opens a connection for one file operation in a running sandbox.
    pub fn files(&self, name: &Name) -> Result<Files> {
        Ok(Files::over(self.connect(name, &Request::Files { user: None })?))
    }

    /// The output log of a sandbox.
    pub fn logs(&self, name: &Name, filter: Filter) -> Result<Reader> {
        self.existing(name)?;
        Ok(Reader::new(&self.home.directory(name), filter))
    }

    /// Whether a sandbox of this name exists.
    pub fn has(&self, name: &Name) -> bool {
        self.home.has(name)
    }

    /// Whether the sandbox has a live worker.
    pub fn is_running(&self, name: &Name) -> bool {
        self.home.is_running(name)
    }

    /// The Plan of an existing sandbox, running or not.
    pub fn existing(&self, name: &Name) -> Result<Plan> {
        self.home.plan(name)
    }

    /// Like [`Engine::connect`], but fails at once if the worker does not listen yet.
    pub fn connect_now(&self, name: &Name, request: &Request) -> Result<Connection> {
        Connection::open(&self.home.directory(name), name, request)
    }

    /// Opens a connection to the worker of a running sandbox and sends `request`. The caller reads
    /// the replies. Waits up to 10 s for a worker that is starting.
    pub fn connect(&self, name: &Name, request: &Request) -> Result<Connection> {
        let directory = self.home.directory(name);
        let since = Instant::now();
        loop {
            let error = match Connection::open(&directory, name, request) {
                Err(error) if error.kind() == Kind::State => error,
                opened => return opened,
            };
            if !self.home.has(name) {
                return Err(self.home.unknown(name));
            }
            // The worker lives but does not listen yet: it is starting.
            if !self.home.is_running(name) {
                return Err(match self.existing(name) {
                    Ok(plan) if plan.ephemeral => workspace::not_startable(&plan),
                    _ => error,
                });
            }
            if since.elapsed() > START_LIMIT {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The pid of the last worker, from the event log.
fn last_started_worker(directory: &Path) -> Option<u32> {
    let file = File::open(directory.join(state::EVENTS)).ok()?;
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    let events =
        lines.filter_map(|line| serde_json::from_str::<msb_wire::record::Event>(&line).ok());
    let starts = events.filter_map(|event| match event.happened {
        EventKind::Started { worker } => Some(worker),
        _ => None,
    });
    starts.last()
}

/// The Execs in the records of a sandbox, by id.
fn recorded_execs(directory: &Path) -> BTreeMap<u64, ExecEntry> {
    let mut entries: BTreeMap<u64, ExecEntry> = BTreeMap::new();
    for name in [format!("{}{}", state::EXECS, state::ROTATED), state::EXECS.to_owned()] {
        let Ok(file) = File::open(directory.join(name)) else {
            continue;
        };
        for line in BufReader::new(file).lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(ExecRecord::Started { exec: id, time, pid, argv, tty, .. }) => {
                    entries.insert(id, ExecEntry { id, pid, argv, tty, started: time, exit: None });
                }
                Ok(ExecRecord::Ended { exec, exit, .. }) => {
                    if let Some(entry) = entries.get_mut(&exec) {
                        entry.exit = Some(exit);
                    }
                }
                Err(_) => {}
            }
        }
    }
    entries
}
