//! A start that fails or is killed after any of its steps leaves nothing behind.

use crate::scratch::{Scratch, executable};
use msb_engine::{Engine, Home, Launch, LaunchFault, LaunchStep, LaunchUntil, Launcher};
use msb_spec::{
    CommandStreams, GuestPath, IsolationChoice, Mount, MountSource, Name, NetworkSpec, Patch, Plan,
    Restart, SpawnPolicy, Spec, VolumeKind, VolumeName, VolumeSpec, Workspace,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A worker that was told to end has ended long before, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Names the state directory, for the process that is killed.
const KILLED_HOME: &str = "MSB_TEST_KILLED_HOME";
/// Names the step after which the process is killed.
const KILLED_STEP: &str = "MSB_TEST_KILLED_STEP";

struct FaultTest {
    scratch: Scratch,
    engine: Engine,
    /// Paths below the state directory before the launch.
    before: Vec<PathBuf>,
}

fn engine_at(home: &Path) -> Engine {
    Engine::at(Home::at(home).expect("a state directory"), Launcher::Execute(executable()))
}

fn name() -> Name {
    Name::parse("box").expect("a valid name")
}

/// A Spec with something to do for each step of a launch.
fn spec(root: &Path, ephemeral: bool) -> Spec {
    let guest = |path: &str| GuestPath::parse(path).expect("a valid path");
    let text = |path: &str| Patch::Text { path: guest(path), content: "x".to_owned(), mode: None };
    let volume = MountSource::Volume(VolumeName::parse("data").expect("a valid name"));
    Spec {
        name: Some(name()),
        isolation: IsolationChoice::Process,
        command: vec!["sleep".to_owned(), "600".to_owned()],
        restart: if ephemeral { Restart::No } else { Restart::Always(None) },
        network: Some(NetworkSpec::default()),
        mounts: vec![Mount {
            source: volume,
            guest: guest("/data"),
            read_only: false,
            no_exec: false,
        }],
        workspace: Some(Workspace { host: root.join("work"), guest: guest("/work") }),
        patches: vec![text("/a"), text("/b")],
        spawn: Some(SpawnPolicy::default()),
        ephemeral,
        ..Spec::with_defaults()
    }
}

fn plan(engine: &Engine, root: &Path, ephemeral: bool) -> Plan {
    let streams = CommandStreams::in_background();
    engine.plan_with(&spec(root, ephemeral), &streams, &Default::default()).expect("a Plan")
}

fn launch_fully() -> Launch<'static> {
    Launch { until: LaunchUntil::CommandStarted, ..Launch::default() }
}

impl FaultTest {
    fn new() -> Self {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path().join("work")).expect("a directory");
        let engine = engine_at(&scratch.home());
        let volume = VolumeSpec {
            name: VolumeName::parse("data").expect("a valid name"),
            kind: VolumeKind::default(),
            size: None,
            labels: BTreeMap::new(),
        };
        engine.volumes().create(&volume).expect("a volume");
        // The first sandbox of a state directory makes files that all share.
        engine.launch(plan(&engine, scratch.path(), false), &launch_fully()).expect("a sandbox");
        let before = tree(&scratch.home());
        Self { scratch, engine, before }
    }

    fn root(&self) -> &Path {
        self.scratch.path()
    }

    /// Waits until no file, process, mount or cgroup of the sandbox is left.
    fn assert_nothing_left(&self, plan: &Plan, after: LaunchStep) {
        let since = Instant::now();
        loop {
            let left = self.leftovers(plan);
            if left.is_empty() {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "left after {after:?}: {left:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn leftovers(&self, plan: &Plan) -> Vec<String> {
        let mut left = uses_of(self.root());
        let new = tree(&self.scratch.home()).into_iter().filter(|path| !self.before.contains(path));
        left.extend(new.map(|path| format!("file {}", path.display())));
        let groups = plan.limits.cgroup_directories(&plan.name).into_values();
        left.extend(groups.filter(|path| path.exists()).map(|path| format!("cgroup {path:?}")));
        left
    }
}

/// The paths of a tree, without following symlinks.
fn tree(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let below = entries.flat_map(|entry| {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let inside = if is_dir { tree(&entry.path()) } else { Vec::new() };
        [entry.path()].into_iter().chain(inside)
    });
    below.collect()
}

/// The processes that name a directory: by an open file, in their arguments, or in a mount that they
/// see.
fn uses_of(root: &Path) -> Vec<String> {
    let root = root.to_str().expect("a path in UTF-8");
    let processes =
        fs::read_dir("/proc").expect("a list of processes").flatten().map(|entry| entry.path());
    let numbered = processes.filter(|path| path.join("fd").exists());
    let uses = numbered.flat_map(|process| {
        let shown = |what: &str| format!("{what} of {}", process.display());
        let names_it = |file: &str| {
            let content = fs::read(process.join(file)).unwrap_or_default();
            String::from_utf8_lossy(&content).contains(root)
        };
        let fds = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let targets = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        let open = targets.filter(|target| target.to_string_lossy().contains(root)).count();
        let mut uses = Vec::new();
        uses.extend((open > 0).then(|| shown("open files")));
        uses.extend(names_it("cmdline").then(|| shown("arguments")));
        uses.extend(names_it("mountinfo").then(|| shown("mounts")));
        uses
    });
    uses.collect()
}

#[test]
fn a_launch_that_fails_after_any_step_leaves_nothing() {
    let test = FaultTest::new();
    for ephemeral in [false, true] {
        for step in LaunchStep::ALL {
            let failing = test.engine.clone().with_fault(step, LaunchFault::Fail);
            let plan = plan(&test.engine, test.root(), ephemeral);
            let failed = failing.launch(plan.clone(), &launch_fully()).map(drop);
            let error = format!("{:?}", failed.expect_err("the fault is reached"));
            assert!(error.contains(&format!("fault after {step:?}")), "{error}");
            assert!(!test.engine.has(&name()), "{step:?}");
            test.assert_nothing_left(&plan, step);
        }
    }
    assert!(test.engine.repair().is_empty());
}

#[test]
fn a_start_that_fails_leaves_the_sandbox_stopped_and_startable() {
    use LaunchStep::{CommandStarted, CtlProcess, CtlSocket, GuestReady, WorkerForked};
    let mut test = FaultTest::new();
    let plan = plan(&test.engine, test.root(), false);
    test.engine.launch(plan.clone(), &launch_fully()).unwrap().detach().unwrap();
    test.engine.stop(&name(), Duration::ZERO).unwrap();
    for step in [CtlSocket, WorkerForked, CtlProcess, GuestReady, CommandStarted] {
        // The failed starts before have written to the logs.
        test.before = tree(&test.scratch.home());
        let failing = test.engine.clone().with_fault(step, LaunchFault::Fail);
        let error = format!("{:?}", failing.start(&name()).expect_err("the fault is reached"));
        assert!(error.contains(&format!("fault after {step:?}")), "{error}");
        assert!(!test.engine.is_running(&name()), "{step:?}");
        test.assert_nothing_left(&plan, step);
    }
    assert!(test.engine.start(&name()).unwrap());
    test.engine.remove(&name(), true).unwrap();
}

#[test]
fn a_launch_that_is_killed_after_any_step_is_cleaned_up() {
    if let (Some(home), Some(step)) =
        (std::env::var_os(KILLED_HOME), std::env::var(KILLED_STEP).ok())
    {
        let home = PathBuf::from(home);
        let engine = engine_at(&home);
        let plan = plan(&engine, home.parent().unwrap(), false);
        let is_asked = |known: &LaunchStep| format!("{known:?}") == step;
        let step = LaunchStep::ALL.into_iter().find(is_asked).unwrap();
        engine.with_fault(step, LaunchFault::Kill).launch(plan, &launch_fully()).unwrap();
        return;
    }
    let test = FaultTest::new();
    for step in LaunchStep::ALL {
        let plan = plan(&test.engine, test.root(), false);
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args([
            "--exact",
            "launch_faults::a_launch_that_is_killed_after_any_step_is_cleaned_up",
        ]);
        again.env(KILLED_HOME, test.scratch.home()).env(KILLED_STEP, format!("{step:?}"));
        let ended = again.stdout(Stdio::null()).status().unwrap();
        assert!(ended.code().is_none(), "not killed after {step:?}: {ended}");
        // From the last patch on the sandbox is complete, and its command goes on without an owner.
        if matches!(step, LaunchStep::PatchesDone | LaunchStep::CommandStarted) {
            test.engine.remove(&name(), true).unwrap();
        }
        let since = Instant::now();
        while test.engine.is_running(&name()) {
            assert!(since.elapsed() < PATIENCE, "the worker lives on after {step:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        test.engine.repair();
        assert!(!test.engine.has(&name()), "{step:?}");
        test.assert_nothing_left(&plan, step);
    }
}
