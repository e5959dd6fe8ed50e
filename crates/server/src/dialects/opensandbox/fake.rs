//! Sandboxes with one file system in memory, behind a recorder. Commands print their own text.

use crate::recorder::{self, FileUpload, Recorder};
use msb_api::http::streams::FileRead;
use msb_api::http::*;
use msb_api::{
    Api, EntryKind, Event, EventKind, EventStream, Exec, ExecEntry, ExecEvent, ExecInput,
    Inspection, Meta, Metrics, NetTable, Param, Status, StopResult, Summary, Watch, WorkerStatus,
};
use msb_spec::{Command, Ending, Error, Exit, Kind, Name, Plan, PublishedPort, Result, TermSize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The expiry of every sandbox here.
pub(super) const ENDS: u64 = 1_700_000_000_000;

#[derive(Default)]
pub(super) struct FakeOpenSandbox {
    pub(super) recorder: Recorder,
    pub(super) sandboxes: Mutex<BTreeMap<Name, (Plan, Status)>>,
    /// Files; a directory has an empty value and ends with `/`.
    pub(super) files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// How many health checks fail before one succeeds.
    pub(super) ill: AtomicU32,
    /// The image has only `sh`.
    pub(super) without_bash: bool,
    /// Commands run until they get this signal.
    pub(super) stubborn: Mutex<Option<i32>>,
    pub(super) clock: AtomicU64,
}

/// Sets the answers of Operations, each with the state.
macro_rules! answers {
    ($fake:ident: $(|$state:ident, $request:ident: $type:ty| $answer:expr;)*) => {$(
        let state = Arc::downgrade($fake);
        $fake.recorder.answer(move |$request: &$type| {
            let $state = held(&state)?;
            $answer
        });
    )*};
}

impl FakeOpenSandbox {
    /// The `Api` of this state. It answers only the Operations that the dialect uses.
    pub(super) fn api(self: &Arc<Self>) -> Arc<dyn Api> {
        let state = Arc::downgrade(self);
        self.recorder.answer_with_progress(move |it: &SandboxCreate, watch| {
            Ok(held(&state)?.create(it, watch))
        });
        answers! { self:
            |state, _it: SandboxList| {
                let all = state.sandboxes.lock().unwrap();
                Ok(all.values().map(|(plan, status)| summary(plan, *status)).collect())
            };
            |state, it: SandboxInspect| state.inspect(&it.name);
            |state, it: SandboxSummary| {
                state.find(&it.name).map(|(plan, status)| summary(&plan, status))
            };
            |state, it: SandboxRemove| {
                state.find(&it.name)?;
                state.sandboxes.lock().unwrap().remove(&it.name);
                Ok(())
            };
            |state, it: SandboxRenew| {
                state.find(&it.name)?;
                Ok(it.left.map(|left| ENDS + left.0))
            };
            |state, it: SandboxMetrics| state.metrics(&it.name);
            |state, it: SandboxEvents| state.events(&it.name);
            |state, it: ExecStart| {
                state.find(&it.name)?;
                state.exec(&it.command)
            };
            |state, it: ExecSignal| {
                state.find(&it.name)?;
                let mut stubborn = state.stubborn.lock().unwrap();
                if *stubborn == Some(it.signal) {
                    *stubborn = None;
                }
                Ok(())
            };
            |state, it: ExecWait| match state.execs(&it.name)?.is_empty() {
                true => Err(msb_api::no_exec(&it.name, it.id)),
                false => {
                    std::thread::sleep(it.limit.arg());
                    Ok(None)
                }
            };
            |state, it: ExecList| state.execs(&it.name);
            |state, it: NetworkTable| {
                state.find(&it.name)?;
                let ports = vec![PublishedPort::parse("0.0.0.0:4000:80").unwrap()];
                Ok(NetTable { flows: Vec::new(), ports, policy: None })
            };
            |state, it: PortPublish| {
                state.find(&it.name)?;
                Ok(PublishedPort { host: 5000, ..it.port.clone() })
            };
        }
        self.answer_files();
        Arc::new(self.recorder.clone())
    }

    fn answer_files(self: &Arc<Self>) {
        answers! { self:
            |state, it: FileRead| {
                let files = state.files.lock().unwrap();
                let path = text(&it.path);
                let none = || Error::new(Kind::NotFound, format!("no `{path}`"));
                let bytes = files.get(&path).ok_or_else(none)?;
                let end = it.length.map_or(bytes.len() as u64, |length| it.offset + length);
                let end = end.min(bytes.len() as u64) as usize;
                Ok(bytes[it.offset as usize..end].to_vec())
            };
            |state, it: FileUpload| {
                state.find(it.file.sandbox.as_ref().expect("a sandbox"))?;
                state.files.lock().unwrap().insert(text(&it.file.path), it.content.clone());
                Ok(0)
            };
            |state, it: FileStat| {
                let ill = state.ill.load(Ordering::Relaxed);
                if it.path.0 == b"/" && ill > 0 {
                    state.ill.fetch_sub(1, Ordering::Relaxed);
                    return Err(Error::new(Kind::Protocol, "it does not answer"));
                }
                state.meta(&text(&it.path))
            };
            |_state, it: FileReal| Ok(it.path.0.clone());
            |state, it: FileList| {
                let directory = format!("{}/", text(&it.path).trim_end_matches('/'));
                let files: Vec<String> = state.files.lock().unwrap().keys().cloned().collect();
                let below = files.iter().filter_map(|file| file.strip_prefix(&directory));
                let names = below.filter_map(|rest| rest.split('/').next());
                let mut names: Vec<&str> = names.collect();
                names.retain(|name| !name.is_empty());
                names.dedup();
                names.iter().map(|name| state.meta(&format!("{directory}{name}"))).collect()
            };
            |state, it: FileMkdir| {
                state.files.lock().unwrap().insert(format!("{}/", text(&it.path)), Vec::new());
                Ok(())
            };
            |state, it: FileRemove| {
                let path = text(&it.path);
                let directory = format!("{path}/");
                let gone = |file: &str| file == path || file.starts_with(&directory);
                state.files.lock().unwrap().retain(|file, _| !gone(file));
                Ok(())
            };
            |state, it: FileRename| {
                let mut files = state.files.lock().unwrap();
                let bytes = files.remove(&text(&it.from)).unwrap_or_default();
                files.insert(text(&it.to), bytes);
                Ok(())
            };
            |_state, _it: FileSet| Ok(());
        }
    }

    fn find(&self, name: &Name) -> Result<(Plan, Status)> {
        let found = self.sandboxes.lock().unwrap().get(name).cloned();
        found.ok_or_else(|| Error::new(Kind::NotFound, format!("no sandbox `{name}`")))
    }

    pub(super) fn set(&self, name: &str, status: Status) {
        let name = Name::parse(name).unwrap();
        self.sandboxes.lock().unwrap().get_mut(&name).unwrap().1 = status;
    }

    fn create(&self, request: &SandboxCreate, watch: &dyn Watch) -> Summary {
        watch.step("pulling", Some(msb_api::Part { done: 1, of: 2 }));
        watch.step("starting the sandbox", None);
        let mut plan = recorder::plan_of(&request.spec);
        plan.created = self.clock.fetch_add(1000, Ordering::Relaxed);
        let created = summary(&plan, Status::Running);
        self.sandboxes.lock().unwrap().insert(plan.name.clone(), (plan, Status::Running));
        created
    }

    fn inspect(&self, name: &Name) -> Result<Inspection> {
        let (plan, status) = self.find(name)?;
        let runs = !matches!(status, Status::Stopped | Status::Crashed);
        let worker = runs.then_some(WorkerStatus {
            asleep: false,
            restarts: 0,
            health: None,
            pid: 1,
            started: 0,
            draining: false,
            paused: false,
            execs: 0,
            ends: Some(ENDS),
            ending: None,
            log_failure: None,
        });
        let stopped = StopResult { ending: Ending::MaxDuration, exit: None };
        let stopped = (status == Status::Stopped).then_some(stopped);
        let reason = stopped.and_then(|it| it.reason()).map(str::to_owned);
        Ok(Inspection { name: name.clone(), status, worker, stopped, reason, plan })
    }

    fn metrics(&self, name: &Name) -> Result<Metrics> {
        self.find(name)?;
        let count = self.clock.fetch_add(1, Ordering::Relaxed);
        Ok(Metrics {
            name: name.to_string(),
            cpu_us: count * 50_000,
            memory: 3 << 20,
            memory_limit: Some(6 << 20),
            pids: 1,
            pids_limit: None,
            disk: None,
            disk_traffic: None,
            net: None,
            uptime_ms: count * 100,
            guest: None,
        })
    }

    fn events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        let (_, status) = self.find(name)?;
        let event = |number, happened| Event::new(number, number * 1000, happened);
        let mut events = vec![event(1, EventKind::Created)];
        if status == Status::Stopped {
            let (ending, exit) = (Ending::MaxDuration, None);
            events.push(event(2, EventKind::Stopped { ending, exit }));
        }
        Ok(Box::new(FakeEvents(events)))
    }

    fn exec(&self, command: &Command) -> Result<Box<dyn Exec>> {
        if self.without_bash && command.argv[0] == "bash" {
            return Err(Error::new(Kind::CommandNotFound, "no `bash`"));
        }
        let text = command.argv.last().cloned().unwrap_or_default();
        let code = Some(if text == "exit 3" { 3 } else { 0 });
        let exit = Exit { code, signal: None, ending: Ending::Own, reached: None };
        let said = vec![
            ExecEvent::Exited(exit),
            ExecEvent::Stderr(b"warn\n".to_vec()),
            ExecEvent::Stdout(format!("{text}\n").into_bytes()),
        ];
        Ok(Box::new(FakeExec(said)))
    }

    fn execs(&self, name: &Name) -> Result<Vec<ExecEntry>> {
        self.find(name)?;
        let runs = self.stubborn.lock().unwrap().is_some();
        let (argv, exit) = (Vec::new(), None);
        let entry = ExecEntry { id: 7, pid: 1, argv, tty: false, started: 0, exit };
        Ok(if runs { vec![entry] } else { Vec::new() })
    }

    fn meta(&self, path: &str) -> Result<Meta> {
        let files = self.files.lock().unwrap();
        let directory = format!("{}/", path.trim_end_matches('/'));
        let inside = files.keys().any(|file| file.starts_with(&directory));
        let kind = match files.get(path) {
            Some(_) => EntryKind::File,
            None if inside || path == "/" => EntryKind::Directory,
            None => return Err(Error::new(Kind::NotFound, format!("no `{path}`"))),
        };
        let size = files.get(path).map_or(0, |bytes| bytes.len() as u64);
        let name = path.rsplit('/').next().unwrap_or_default().as_bytes().to_vec();
        let (modified, created) = (2000, Some(1000));
        Ok(Meta { name, kind, mode: 0o644, size, modified, created, uid: 0, gid: 1 })
    }
}

/// The state, which the test holds as long as it runs.
fn held(state: &Weak<FakeOpenSandbox>) -> Result<Arc<FakeOpenSandbox>> {
    state.upgrade().ok_or_else(|| Error::new(Kind::State, "the test is over"))
}

fn text(path: &InsidePath) -> String {
    String::from_utf8_lossy(&path.0).into_owned()
}

fn summary(plan: &Plan, status: Status) -> Summary {
    Summary {
        restarts: None,
        health: None,
        name: plan.name.clone(),
        status,
        isolation: "process".to_owned(),
        isolation_reason: None,
        image: plan.image.to_string(),
        created: plan.created,
        labels: plan.labels.clone(),
        ephemeral: false,
    }
}

struct FakeEvents(Vec<Event>);

impl EventStream for FakeEvents {
    fn more(&mut self) -> Result<Vec<Event>> {
        Ok(std::mem::take(&mut self.0))
    }
}

/// Prints its own text, and exits with 3 if that is `exit 3`.
struct FakeExec(Vec<ExecEvent>);

impl Exec for FakeExec {
    fn id(&self) -> u64 {
        7
    }

    fn pid(&self) -> u32 {
        1
    }

    fn next(&mut self) -> Result<Option<ExecEvent>> {
        Ok(self.0.pop())
    }

    fn input(&self) -> Arc<dyn ExecInput> {
        Arc::new(NoInput)
    }
}

struct NoInput;

impl ExecInput for NoInput {
    fn write(&self, _: &[u8]) -> Result<()> {
        Err(Error::unsupported("no input"))
    }

    fn close(&self) -> Result<()> {
        Err(Error::unsupported("no input"))
    }

    fn signal(&self, _: i32) -> Result<()> {
        Err(Error::unsupported("no input"))
    }

    fn resize(&self, _: TermSize) -> Result<()> {
        Err(Error::unsupported("no input"))
    }

    fn detach(&self) -> Result<()> {
        Err(Error::unsupported("no input"))
    }
}
