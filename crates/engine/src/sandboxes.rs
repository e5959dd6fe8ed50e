//! The Operations on sandboxes: every surface calls these and decides nothing itself.

use crate::connection::{Connection, Waited};
use crate::files::{Files, Links};
use crate::host::User;
use crate::images::{Fetching, PullFor};
use crate::launch::{Caller, Launcher, launch};
use crate::logs::{Filter, Reader};
use crate::looking::stopped;
use crate::secrets::{self, Value};
use crate::store::{Claim, Home};
use crate::{audit, layers, planning, repair, volumes, workspace};
use msb_api::ExecEntry;
use msb_image::{Owners, Prepared, Store, Wish};
use msb_spec::{
    Asker, Authority, Command, Ending, Error, Ids, ImageRef, Isolation, Kind, MachineBase, Name,
    Plan, Restart, Result, SpawnPolicy, Spec, Stage, Stdin, Surface, Upper, WithinCeiling, state,
};
use msb_sys::lock::Held;
use msb_wire::record::{ExecRecord, Happened};
use msb_wire::{ExecStatus, Head, Reply, Request, Stopped};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Sandboxes on this machine.
#[derive(Debug, Clone)]
pub struct Engine {
    home: Home,
    pub(crate) launcher: Launcher,
    /// Values of Secrets that this program brings itself, by name.
    given: Vec<(String, Value)>,
    /// Who asks where nobody else is known to.
    asker: Asker,
    /// For whom images are pulled.
    pub(crate) pull_for: PullFor,
    /// Who asks, and with that how much may be asked for.
    pub(crate) authority: Authority,
}

/// A sandbox whose directory is there, and what its worker is to be handed.
#[derive(Debug)]
pub(crate) struct Made {
    plan: Plan,
    claim: Claim,
    secrets: Vec<Value>,
    held: Vec<OwnedFd>,
    /// The layers it lies on stay until it runs.
    _kept: Option<Held>,
}

/// A worker listens a few milliseconds after it has begun; on a machine that is swamped it may
/// take longer.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A worker that is asked to stop kills after its grace; this much longer and it is stuck.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// Processors stop within milliseconds.
const ORDER_LIMIT: Duration = Duration::from_secs(30);

impl Engine {
    /// Opens the state directory of this user.
    pub fn open(launcher: Launcher) -> Result<Self> {
        Ok(Self::at(Home::open()?, launcher))
    }

    /// Uses this state directory.
    pub fn at(home: Home, launcher: Launcher) -> Self {
        let surface = match &launcher {
            Launcher::Fork(_) => Surface::Cli,
            Launcher::Execute(_) => Surface::Sdk,
        };
        Self {
            home,
            launcher,
            given: Vec::new(),
            asker: Asker::new(surface),
            pull_for: PullFor::Operator,
            authority: Authority::Operator,
        }
    }

    /// The same engine, which this one asks unless somebody else is known to.
    #[must_use]
    pub fn asked_by(self, asker: Asker) -> Self {
        Self { asker, ..self }
    }

    /// Who asks for a command that says this itself.
    fn asker(&self, said: Option<Asker>) -> Option<Asker> {
        msb_api::asker().or(said).or_else(|| Some(self.asker.clone()))
    }

    /// The same engine, for sandboxes whose Secrets this program gives values to, by name.
    #[must_use]
    pub fn giving(&self, given: Vec<(String, Value)>) -> Self {
        Self { given, ..self.clone() }
    }

    /// Where a dialect of the server keeps what outlives the server.
    pub fn dialect_state(&self, dialect: &str) -> PathBuf {
        self.home().dialect(dialect)
    }

    /// What the settings say of sandboxes that are made by name alone.
    pub fn profiles(&self) -> Result<BTreeMap<Name, msb_image::SandboxProfile>> {
        Ok(msb_image::Settings::read(self.home().path())?.profile)
    }

    /// Which children config.toml lets a sandbox have, by its name or a label.
    pub fn settled_children(
        &self,
        name: &Name,
        labels: &BTreeMap<String, String>,
    ) -> Result<Option<SpawnPolicy>> {
        let settings = msb_image::Settings::read(self.home().path())?;
        Ok(settings.spawn(name, labels).cloned())
    }

    /// The state directory.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Whether workers are our children.
    pub(crate) fn forks(&self) -> bool {
        matches!(self.launcher, Launcher::Fork(_))
    }

    /// Cleans up behind workers that were killed; says what it did.
    pub fn repair(&self) -> Vec<String> {
        if msb_image::build::has_scratches(self.home.path())
            && let Ok(store) = self.images()
        {
            store.remove_scratches();
        }
        self.repair_frozen();
        self.volume_repair();
        for path in self.home.debris() {
            self.remove_whole(&path);
        }
        let mut said = repair::all(&self.home);
        said.extend(self.end_orphans());
        repair::leave_networks(&self.home);
        said
    }

    /// Removes what sandboxes of this user may have written, as far as it can be removed now.
    pub(crate) fn remove_whole(&self, path: &Path) {
        if let Owners::Granted { .. } = User::current().owners() {
            let _ = msb_image::clear(self.program(), User::current().owners(), path);
        }
        let _ = crate::store::remove_tree(path);
    }

    /// Decides everything about a sandbox and does nothing.
    pub fn plan(&self, spec: &Spec) -> Result<Plan> {
        self.plan_with(spec, &Fetching::default())
    }

    /// The same, with a say in how images are fetched.
    pub fn plan_with(&self, spec: &Spec, fetching: &Fetching<'_>) -> Result<Plan> {
        self.plan_within(&self.authority.spec(spec)?, fetching)
    }

    /// The same for what was asked for and may be.
    pub(crate) fn plan_within(
        &self,
        spec: &WithinCeiling<Spec>,
        fetching: &Fetching<'_>,
    ) -> Result<Plan> {
        let prepare = |isolation| self.prepare(spec, fetching, isolation);
        let mut plan = planning::plan(&self.home, spec, prepare)?;
        if let (Some(machine), Some(snapshot)) = (&mut plan.machine, &plan.snapshot) {
            machine.written = self.written_disks(snapshot)?;
        }
        if let Some(command) = &mut plan.command {
            command.asker = self.asker(None);
        }
        Ok(plan)
    }

    fn prepare(
        &self,
        spec: &Spec,
        fetching: &Fetching<'_>,
        isolation: Isolation,
    ) -> Result<(Prepared, MachineBase)> {
        let shares = |prepared| (prepared, MachineBase::Shares);
        let name = match &spec.image {
            ImageRef::Host => return msb_image::host_image(&self.home.layers()).map(shares),
            ImageRef::Path(path) if isolation == Isolation::Vm => {
                return msb_image::path_image(path);
            }
            ImageRef::Path(path) => return msb_image::directory_image(path).map(shares),
            ImageRef::Snapshot(name) => {
                return self.prepare_snapshot(name, isolation);
            }
            ImageRef::Name(name) => name,
        };
        let wish = Wish {
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

    /// The images of this machine.
    pub fn images(&self) -> Result<Store> {
        Store::open(self.home.path(), User::current().owners(), self.program())
    }

    /// The `msb` executable.
    pub(crate) fn program(&self) -> PathBuf {
        match &self.launcher {
            Launcher::Fork(_) => PathBuf::from("/proc/self/exe"),
            Launcher::Execute(path) => path.clone(),
        }
    }

    /// Makes a sandbox and starts its worker. Its first command waits for [`Engine::begin`]
    /// only where the Plan has patches.
    pub fn create(&self, plan: &Plan, replace: bool) -> Result<Caller> {
        let about = |error: Error| error.under(format!("cannot create sandbox `{}`", plan.name));
        let name = &plan.name;
        if self.home.has(name) {
            if let Some(note) = repair::one(&self.home, name)? {
                // Whoever made the sandbox anew learns of it in the next listing's events.
                drop(note);
            }
            if replace && self.home.has(name) {
                self.remove(name, true)?;
            }
        }
        self.make_sandbox(plan)
            .and_then(|made| self.launch_made(made))
            .map_err(|error| if error.kind() == Kind::Exists { error } else { about(error) })
    }

    /// Makes the directory of a sandbox, which nobody runs yet.
    pub(crate) fn make_sandbox(&self, plan: &Plan) -> Result<Made> {
        let secrets = secrets::read(plan, &self.given)?;
        let mut plan = plan.clone();
        let held = volumes::take(&self.home, &mut plan)?;
        let kept = self.keep_frozen(&plan)?;
        let claim = self.home.claim(&plan, |directory| fill(&plan, directory))?;
        if let Err(error) = self.check_count(&plan.name) {
            let _ = self.home.discard(&claim);
            return Err(error);
        }
        Ok(Made { plan, claim, secrets, held, _kept: kept })
    }

    /// Starts the worker of a sandbox that was made.
    pub(crate) fn launch_made(&self, made: Made) -> Result<Caller> {
        let Made { plan, claim, secrets, held, _kept } = made;
        self.launch_answered(plan, &claim, (Head::first(), 0), secrets, held).inspect_err(|_| {
            // Nobody has begun, so nobody cleans up.
            let _ = self.home.discard(&claim);
        })
    }

    /// Starts a worker, and what answers the sandbox if that may have children.
    fn launch_answered(
        &self,
        plan: Plan,
        claim: &Claim,
        last: (Head, u64),
        secrets: Vec<Value>,
        held: Vec<OwnedFd>,
    ) -> Result<Caller> {
        let name = plan.name.clone();
        let listener = Self::listen_for_children(&plan, claim)?;
        let (caller, listener) =
            launch(&self.launcher, plan, claim, last, secrets, held, listener)?;
        listener.map_or(Ok(()), |listener| self.answer_for_children(&name, listener))?;
        Ok(caller)
    }

    /// Waits until the guest runs, makes the changes that the Plan asks for, and lets the first
    /// command start.
    pub fn begin(&self, plan: &Plan, caller: &mut Caller) -> Result<()> {
        self.begin_through(plan, caller, Links::Followed)
    }

    /// The same; what becomes of links in paths of the host.
    pub(crate) fn begin_through(
        &self,
        plan: &Plan,
        caller: &mut Caller,
        links: Links,
    ) -> Result<()> {
        caller
            .ready()
            .map_err(|error| error.under(format!("cannot start sandbox `{}`", plan.name)))?;
        for patch in &plan.patches {
            let patched = self.files(&plan.name).and_then(|files| files.patch(patch, links));
            patched.map_err(|error| {
                error.under(format!("cannot prepare sandbox `{}`", plan.name)).at(Stage::Boot)
            })?;
        }
        if plan.patches.is_empty() {
            return Ok(());
        }
        caller.go()?;
        // An init starts once everything is in its place, and may not be there.
        if plan.init.is_some() {
            caller
                .ready()
                .map_err(|error| error.under(format!("cannot start sandbox `{}`", plan.name)))?;
        }
        Ok(())
    }

    /// Starts a sandbox that has stopped. False if it runs already.
    pub fn start(&self, name: &Name) -> Result<bool> {
        let service = self.existing(name)?.restart.is_some();
        match self.start_as(name, |_| {})? {
            // It may have failed often enough by now to have ended with its sandbox.
            Some(mut caller) => {
                caller.detach().or_else(|error| if service { Ok(()) } else { Err(error) })
            }
            None => return Ok(false),
        }
        .map(|()| true)
    }

    /// The same, but it ends when the connection that is returned does. None if it runs already.
    pub fn start_owned(&self, name: &Name) -> Result<Option<Caller>> {
        self.start_as(name, without_service)
    }

    /// The same for a machine whose disk is to be put in order and nothing else: without its
    /// network and Secrets, and without anything of the user's.
    pub(crate) fn start_alone(&self, name: &Name) -> Result<Option<Caller>> {
        self.start_as(name, |plan| {
            plan.network = None;
            plan.mounts = Vec::new();
            plan.workspace = None;
            plan.spawn = None;
            without_service(plan);
            plan.init = None;
        })
    }

    fn start_as(&self, name: &Name, change: impl FnOnce(&mut Plan)) -> Result<Option<Caller>> {
        let mut plan = self.existing(name)?;
        if plan.ephemeral {
            return match self.home.is_running(name) {
                true => Ok(None),
                false => Err(workspace::not_startable(&plan)),
            };
        }
        let Some(claim) = self.claim_stopped(name)? else {
            return Ok(None);
        };
        // Somebody may have changed its layers before we had the lock.
        plan = self.existing(name)?;
        // The changes were made when it was created, and its first command was for then, unless it
        // is a service.
        plan.patches.clear();
        plan.command = plan.command.take().filter(|_| plan.restart.is_some());
        if let Some(command) = &mut plan.command {
            (command.detached, command.tty, command.stdin) = (true, None, Stdin::Closed);
            // Whoever has it started now, not whoever made the sandbox.
            command.asker = self.asker(None);
        }
        change(&mut plan);
        let head = audit::head(&claim.directory);
        let last = (head, repair::last_exec(&claim.directory));
        let secrets = secrets::read(&plan, &self.given)?;
        let held = volumes::take(&self.home, &mut plan)
            .map_err(|error| error.under(format!("cannot start sandbox `{name}`")))?;
        let mut caller = self.launch_answered(plan.clone(), &claim, last, secrets, held)?;
        self.begin(&plan, &mut caller)?;
        if plan.command.is_some() {
            caller.started()?;
        }
        Ok(Some(caller))
    }

    /// Takes the lock of a sandbox that does not run; none if it does. Who only passes by with the lock, to
    /// change or rename it, is waited for.
    pub(crate) fn claim_stopped(&self, name: &Name) -> Result<Option<Claim>> {
        let since = Instant::now();
        loop {
            repair::one(&self.home, name)?;
            if let Some(claim) = self.home.lock(name)? {
                return Ok(Some(claim));
            }
            if self.listens(name) {
                return Ok(None);
            }
            if since.elapsed() > START_LIMIT {
                return Err(Error::new(Kind::State, format!("sandbox `{name}` is being used"))
                    .hint("somebody changes, copies or starts it; try again"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether its worker takes requests.
    fn listens(&self, name: &Name) -> bool {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let connected = msb_sys::socket::connect(&self.home.directory(name), state::SOCKET);
        !connected.is_err_and(|error| matches!(error.kind(), NotFound | ConnectionRefused))
    }

    /// Starts a sandbox that has stopped for as long as what is returned is kept, so that its
    /// files can be reached. Nothing is started if it runs already.
    pub fn wake(&self, name: &Name) -> Result<Awake<'_>> {
        let woken = match self.start_owned(name)? {
            Some(mut caller) => caller.detach().map(|()| true)?,
            None => false,
        };
        Ok(Awake { engine: self, name: woken.then(|| name.clone()) })
    }

    /// Ends a sandbox: asks, waits for `grace`, kills. False if it was not running.
    pub fn stop(&self, name: &Name, grace: Duration) -> Result<bool> {
        // One that runs can be stopped even if its Plan was damaged meanwhile.
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
            // It speaks another version, or is stuck: its lock tells who it is.
            Err(error) => self.kill_worker(name, error).map(|()| true),
        }
    }

    /// Kills a worker that does not answer; the kernel ends what depends on it.
    fn kill_worker(&self, name: &Name, error: Error) -> Result<()> {
        let directory = self.home.directory(name);
        let Some(worker) = audit::worker(&directory).or_else(|| started(&directory)) else {
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
                return Err(Error::new(Kind::Timeout, format!("sandbox `{name}` does not end")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Removes a sandbox with all it holds; a running one only with `force`.
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
        let claim = match self.home.lock_as_it_is(name) {
            Ok(Some(claim)) => claim,
            // One that is gone when it ends has just done so, and has left its children to us.
            _ if !self.home.directory(name).exists() => {
                self.end_orphans();
                return Ok(());
            }
            Ok(None) => {
                return Err(Error::new(Kind::State, format!("sandbox `{name}` is being used")));
            }
            Err(error) => return Err(error),
        };
        if let Ok(plan) = &plan {
            repair::remove_cgroup(plan);
            // Files of users 1 and up belong to ids that only exist in a user namespace.
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
        let put_away = !crate::layers::old(&claim).is_empty();
        self.put_away(&claim)?;
        self.leave_family(name, || self.home.discard(&claim))?;
        if put_away || plan.is_ok_and(|plan| plan.written().next().is_some()) {
            self.thaw();
        }
        Ok(())
    }

    /// Takes no new Execs and ends with the last one. False if it was not running.
    pub fn drain(&self, name: &Name) -> Result<bool> {
        self.existing(name)?;
        if !self.home.is_running(name) {
            return Ok(false);
        }
        match self.connect(name, &Request::Drain)?.reply() {
            Ok(_) => Ok(true),
            // Nothing ran, and it has ended before it could say so.
            Err(error) if error.kind() == Kind::Protocol && !self.home.is_running(name) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Stops everything inside a running sandbox where it is.
    pub fn pause(&self, name: &Name) -> Result<()> {
        self.order(name, &Request::Pause)
    }

    /// Lets a sandbox that was paused go on.
    pub fn resume(&self, name: &Name) -> Result<()> {
        self.order(name, &Request::Resume)
    }

    /// Has a running sandbox end this long from now, whatever its Plan says; none is never. When
    /// that is, in milliseconds since 1970. Started again, it lives as long as its Plan says.
    pub fn renew(&self, name: &Name, left: Option<Duration>) -> Result<Option<u64>> {
        self.existing(name)?;
        let left = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        let mut worker = self.connect(name, &Request::Renew { left })?;
        match worker.reply() {
            Ok(Reply::Status(status)) => Ok(status.ends),
            // So little was left that it has ended before it could say so.
            Err(error) if error.kind() == Kind::Protocol && left.is_some_and(|ms| ms < 1000) => {
                Ok(Some(crate::planning::now_ms()))
            }
            Err(error) => Err(error),
            _ => Err(Error::new(Kind::Protocol, "the worker answered something else")),
        }
    }

    fn order(&self, name: &Name, order: &Request) -> Result<()> {
        self.existing(name)?;
        self.connect(name, order)?.reply_within(ORDER_LIMIT).map(drop)
    }

    /// Waits until a sandbox has ended, and tells how.
    pub fn wait(&self, name: &Name) -> Result<Stopped> {
        self.existing(name)?;
        if self.home.is_running(name) {
            let told = self.connect(name, &Request::Wait).and_then(|mut worker| worker.reply());
            if let Ok(Reply::Stopped(stopped)) = told {
                return Ok(stopped);
            }
            // It died before it could tell, or while we asked.
            self.await_end(name, STOP_MARGIN)?;
        }
        repair::one(&self.home, name)?;
        Ok(stopped(&self.home.directory(name))
            .unwrap_or(Stopped { ending: Ending::Crashed, exit: None }))
    }

    /// The same, but no longer than this; none if it runs on.
    pub(crate) fn wait_within(&self, name: &Name, limit: Duration) -> Result<Option<Stopped>> {
        self.existing(name)?;
        if self.home.is_running(name) {
            let until = Instant::now() + limit;
            let worker = self.connect(name, &Request::Wait);
            match worker.and_then(|mut worker| worker.frame_before(until)) {
                Ok(Waited::TooLong) => return Ok(None),
                Ok(Waited::Frame(frame)) => {
                    if let Ok(Reply::Stopped(stopped)) = frame.value() {
                        return Ok(Some(stopped));
                    }
                }
                // It is ending while we ask.
                Ok(Waited::Closed) | Err(_) => {}
            }
        }
        self.wait(name).map(Some)
    }

    /// Starts a command; what follows is read from the connection.
    pub fn exec(&self, name: &Name, mut command: Command) -> Result<Connection> {
        command.check()?;
        command.asker = self.asker(command.asker);
        self.connect(name, &Request::Exec(command))
    }

    /// Takes part in an Exec that runs.
    pub fn attach(&self, name: &Name, exec: u64) -> Result<Connection> {
        self.connect(name, &Request::Attach { id: exec })
    }

    /// Sends a signal to an Exec.
    pub fn kill(&self, name: &Name, exec: u64, signal: i32) -> Result<()> {
        self.connect(name, &Request::Kill { id: exec, signal })?.reply().map(drop)
    }

    /// Keeps a sandbox only as long as the connection that is returned.
    pub fn own(&self, name: &Name) -> Result<Connection> {
        let mut connection = self.connect(name, &Request::Own)?;
        connection.reply()?;
        Ok(connection)
    }

    /// The Execs that run.
    pub fn running_execs(&self, name: &Name) -> Result<Vec<ExecStatus>> {
        match self.connect(name, &Request::List)?.reply()? {
            Reply::Execs(execs) => Ok(execs),
            _ => Err(Error::new(Kind::Protocol, "the worker answered something else")),
        }
    }

    /// Every Exec that is recorded, the oldest first.
    pub fn execs(&self, name: &Name) -> Result<Vec<ExecEntry>> {
        self.existing(name)?;
        let mut entries = recorded(&self.home.directory(name));
        if self.home.is_running(name) {
            for exec in self.running_execs(name)? {
                let ExecStatus { id, pid, argv, tty, started, .. } = exec;
                entries.insert(id, ExecEntry { id, pid, argv, tty, started, exit: None });
            }
        }
        Ok(entries.into_values().collect())
    }

    /// One file operation in a running sandbox.
    pub fn files(&self, name: &Name) -> Result<Files> {
        Ok(Files::on(self.connect(name, &Request::Files { user: None })?))
    }

    /// What commands have said.
    pub fn logs(&self, name: &Name, filter: Filter) -> Result<Reader> {
        self.existing(name)?;
        Ok(Reader::new(&self.home.directory(name), filter))
    }

    /// Whether there is such a sandbox.
    pub fn has(&self, name: &Name) -> bool {
        self.home.has(name)
    }

    /// Whether a worker lives.
    pub fn is_running(&self, name: &Name) -> bool {
        self.home.is_running(name)
    }

    /// What was decided for a sandbox that exists, running or not.
    pub fn existing(&self, name: &Name) -> Result<Plan> {
        self.home.plan(name)
    }

    /// The same as [`Engine::connect`], but never waits for a worker that is just starting.
    pub fn connect_now(&self, name: &Name, request: &Request) -> Result<Connection> {
        Connection::open(&self.home.directory(name), name, request)
    }

    /// A connection to a running sandbox's worker, for whoever reads the answers itself.
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
            // Its worker lives but does not listen yet: it is just starting.
            if !self.home.is_running(name) || since.elapsed() > START_LIMIT {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// For somebody who needs the sandbox and not what runs in it.
fn without_service(plan: &mut Plan) {
    (plan.command, plan.restart, plan.health) = (None, Restart::No, None);
    plan.idle_pause = None;
}

/// A sandbox that is kept running for a moment.
#[derive(Debug)]
pub struct Awake<'a> {
    engine: &'a Engine,
    name: Option<Name>,
}

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = self.engine.stop(name, Duration::ZERO);
        }
    }
}

/// What a new sandbox's directory holds besides its Plan.
pub(crate) fn fill(plan: &Plan, directory: &Path) -> Result<()> {
    if let Some(workspace) = &plan.workspace {
        workspace::fill(plan, workspace, directory)?;
    }
    layers::make(plan, directory)
}

/// The worker that was last started, as the log of events tells it.
fn started(directory: &Path) -> Option<u32> {
    let file = File::open(directory.join(state::EVENTS)).ok()?;
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    let events =
        lines.filter_map(|line| serde_json::from_str::<msb_wire::record::Event>(&line).ok());
    let starts = events.filter_map(|event| match event.happened {
        Happened::Started { worker } => Some(worker),
        _ => None,
    });
    starts.last()
}

/// The Execs that a sandbox's files tell of.
fn recorded(directory: &Path) -> BTreeMap<u64, ExecEntry> {
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
