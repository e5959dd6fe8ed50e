//! An `Api` for tests with one file system in memory. It records its calls; commands print their
//! own text.

use crate::fake;
use msb_api::{
    ApplyReport, Attributes, Change, Child, ChildListing, ChildSpec, Children, CopyCount, Create,
    Depth, DiskUsage, EntryKind, Event, EventKind, EventStream, Exec, ExecEntry, ExecEvent,
    ExecInput, Execs, Files, ImageInspection, ImageSummary, Images, Inspection, LinkListener,
    Links, LogFilter, LogStream, Meta, Metrics, NetRecord, NetTable, Networks, Place,
    PrunedVolumes, RelPath, Sandboxes, Selection, Snapshot, Snapshots, Status, StopResult, Summary,
    SyncSpec, SyncSummary, Syncs, Target, VerifyReport, Volume, Volumes, Watch, WorkerStatus,
    Workspaces,
};
use msb_spec::{
    Command, Ending, Error, Exit, Kind, Name, Plan, Policy, PruneReport, PublishedPort, Reference,
    Result, Rule, Spec, TermSize, UserRef, VolumeName, VolumeSpec,
};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The expiry of every sandbox here.
pub(super) const ENDS: u64 = 1_700_000_000_000;

#[derive(Default)]
pub(super) struct FakeOpenSandbox {
    pub(super) calls: Mutex<Vec<String>>,
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

impl FakeOpenSandbox {
    /// The calls since the last time this was read.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    fn note(&self, what: &str, with: &dyn std::fmt::Debug) {
        self.calls.lock().unwrap().push(format!("{what} {with:?}"));
    }

    fn there(&self, name: &Name) -> Result<(Plan, Status)> {
        let found = self.sandboxes.lock().unwrap().get(name).cloned();
        found.ok_or_else(|| Error::new(Kind::NotFound, format!("no sandbox `{name}`")))
    }

    pub(super) fn set(&self, name: &str, status: Status) {
        let name = Name::parse(name).unwrap();
        self.sandboxes.lock().unwrap().get_mut(&name).unwrap().1 = status;
    }
}

/// Operations that the dialect does not use.
macro_rules! not_here {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, $(_: $argument),*) -> Result<$result> {
            Err(Error::unsupported(stringify!($name)))
        }
    )*};
}

struct FakeEvents(Vec<Event>);

impl EventStream for FakeEvents {
    fn more(&mut self) -> Result<Vec<Event>> {
        Ok(std::mem::take(&mut self.0))
    }
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

impl Sandboxes for FakeOpenSandbox {
    fn with_secrets(&self, _: Vec<(String, Vec<u8>)>) -> std::sync::Arc<dyn msb_api::Api> {
        std::sync::Arc::new(Self::default())
    }

    fn sandbox_create(&self, ask: &Create, watch: &dyn Watch) -> Result<Summary> {
        let id = ask.spec.name.clone().expect("the dialect names them");
        // With the password, which its `Debug` hides.
        let password = ask.registry.login.as_ref().map(|login| &login.password);
        let text = format!("{ask:?} {password:?}").replace(id.as_str(), "ID");
        self.calls.lock().unwrap().push(format!("sandbox_create {text}"));
        watch.step("pulling", Some(msb_api::Part { done: 1, of: 2 }));
        watch.step("starting the sandbox", None);
        let mut plan = fake::plan_of(&ask.spec);
        plan.created = self.clock.fetch_add(1000, Ordering::Relaxed);
        let made = summary(&plan, Status::Running);
        self.sandboxes.lock().unwrap().insert(id, (plan, Status::Running));
        Ok(made)
    }

    fn sandbox_list(&self) -> Result<Vec<Summary>> {
        let all = self.sandboxes.lock().unwrap();
        Ok(all.values().map(|(plan, status)| summary(plan, *status)).collect())
    }

    fn sandbox_inspect(&self, name: &Name) -> Result<Inspection> {
        let (plan, status) = self.there(name)?;
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

    fn sandbox_summary(&self, name: &Name) -> Result<Summary> {
        self.there(name).map(|(plan, status)| summary(&plan, status))
    }

    fn sandbox_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.there(name)?;
        self.note("sandbox_remove", &force);
        self.sandboxes.lock().unwrap().remove(name);
        Ok(())
    }

    fn sandbox_renew(&self, name: &Name, left: Option<Duration>) -> Result<Option<u64>> {
        self.there(name)?;
        self.note("sandbox_renew", &left);
        Ok(left.map(|left| ENDS + left.as_millis() as u64))
    }

    fn sandbox_metrics(&self, name: &Name) -> Result<Metrics> {
        self.there(name)?;
        self.note("sandbox_metrics", &());
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

    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        let (_, status) = self.there(name)?;
        let event = |number, happened| Event::new(number, number * 1000, happened);
        let mut events = vec![event(1, EventKind::Created)];
        if status == Status::Stopped {
            let (ending, exit) = (Ending::MaxDuration, None);
            events.push(event(2, EventKind::Stopped { ending, exit }));
        }
        Ok(Box::new(FakeEvents(events)))
    }

    not_here! {
        sandbox_audit(&Name) -> msb_api::Audit;
        sandbox_history(&Name) -> Vec<msb_api::Sample>;
        sandbox_plan(&Spec, &dyn Watch) -> Plan;
        sandbox_start(&Name) -> bool;
        sandbox_stop(&Name, Duration) -> bool;
        sandbox_drain(&Name) -> bool;
        sandbox_pause(&Name) -> ();
        sandbox_resume(&Name) -> ();
        sandbox_modify(&Name, &msb_spec::Modify) -> Vec<msb_api::SettingChange>;
        sandbox_rename(&Name, &Name) -> ();
        sandbox_wait(&Name, Option<Duration>) -> Option<StopResult>;
        sandbox_logs(&Name, &LogFilter) -> Box<dyn LogStream>;
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
        Arc::new(IgnoredInput)
    }
}

struct IgnoredInput;

impl ExecInput for IgnoredInput {
    not_here! {
        write(&[u8]) -> ();
        close() -> ();
        signal(i32) -> ();
        resize(TermSize) -> ();
        detach() -> ();
    }
}

impl Execs for FakeOpenSandbox {
    fn exec_start(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        self.there(name)?;
        self.note("exec_start", &(&command.argv, &command.workdir, command.detached));
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

    fn exec_signal(&self, name: &Name, id: u64, signal: i32) -> Result<()> {
        self.there(name)?;
        self.note("exec_signal", &(id, signal));
        let mut stubborn = self.stubborn.lock().unwrap();
        if *stubborn == Some(signal) {
            *stubborn = None;
        }
        Ok(())
    }

    fn exec_wait(&self, name: &Name, id: u64, limit: Duration) -> Result<Option<Exit>> {
        fake::poll_exit(self, name, id, limit)
    }

    fn exec_list(&self, name: &Name) -> Result<Vec<ExecEntry>> {
        self.there(name)?;
        let runs = self.stubborn.lock().unwrap().is_some();
        let (argv, exit) = (Vec::new(), None);
        let entry = ExecEntry { id: 7, pid: 1, argv, tty: false, started: 0, exit };
        Ok(if runs { vec![entry] } else { Vec::new() })
    }

    not_here! {
        exec_attach(&Name, u64) -> Box<dyn Exec>;
        exec_run(&Spec, &dyn Watch) -> (Name, Box<dyn Exec>);
    }
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl FakeOpenSandbox {
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

impl Files for FakeOpenSandbox {
    fn file_read(
        &self,
        _: &Place,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.note("file_read", &(text(path), offset, length));
        let files = self.files.lock().unwrap();
        let none = || Error::new(Kind::NotFound, format!("no `{}`", text(path)));
        let bytes = files.get(&text(path)).ok_or_else(none)?;
        let end = length.map_or(bytes.len() as u64, |length| offset + length);
        let end = end.min(bytes.len() as u64) as usize;
        take(&bytes[offset as usize..end])
    }

    fn file_write(
        &self,
        at: &Place,
        path: &[u8],
        mode: u32,
        append: bool,
        content: &mut dyn Read,
    ) -> Result<u64> {
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).unwrap();
        let Place::Sandbox { user, .. } = at else { panic!("not in a sandbox") };
        self.note("file_write", &(user, text(path), mode, append, &bytes));
        self.files.lock().unwrap().insert(text(path), bytes);
        Ok(0)
    }

    fn file_stat(&self, _: &Place, path: &[u8], _: bool) -> Result<Meta> {
        if path == b"/" {
            self.note("looked", &());
            if self.ill.load(Ordering::Relaxed) > 0 {
                self.ill.fetch_sub(1, Ordering::Relaxed);
                return Err(Error::new(Kind::Protocol, "it does not answer"));
            }
        }
        self.meta(&text(path))
    }

    fn file_real(&self, _: &Place, path: &[u8]) -> Result<Vec<u8>> {
        Ok(path.to_vec())
    }

    fn file_list(&self, _: &Place, path: &[u8]) -> Result<Vec<Meta>> {
        self.note("file_list", &text(path));
        let directory = format!("{}/", text(path).trim_end_matches('/'));
        let files: Vec<String> = self.files.lock().unwrap().keys().cloned().collect();
        let below = files.iter().filter_map(|file| file.strip_prefix(&directory));
        let mut names: Vec<&str> = below.filter_map(|rest| rest.split('/').next()).collect();
        names.retain(|name| !name.is_empty());
        names.dedup();
        names.iter().map(|name| self.meta(&format!("{directory}{name}"))).collect()
    }

    fn file_mkdir(&self, _: &Place, path: &[u8], parents: bool) -> Result<()> {
        self.note("file_mkdir", &(text(path), parents));
        self.files.lock().unwrap().insert(format!("{}/", text(path)), Vec::new());
        Ok(())
    }

    fn file_remove(&self, _: &Place, path: &[u8], recursive: bool) -> Result<()> {
        self.note("file_remove", &(text(path), recursive));
        let directory = format!("{}/", text(path));
        let gone = |file: &str| file == text(path) || file.starts_with(&directory);
        self.files.lock().unwrap().retain(|file, _| !gone(file));
        Ok(())
    }

    fn file_rename(&self, _: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.note("file_rename", &(text(from), text(to)));
        let mut files = self.files.lock().unwrap();
        let bytes = files.remove(&text(from)).unwrap_or_default();
        files.insert(text(to), bytes);
        Ok(())
    }

    fn file_set(&self, _: &Place, path: &[u8], attributes: &Attributes) -> Result<()> {
        self.note("file_set", &(text(path), attributes));
        Ok(())
    }

    not_here! {
        file_copy(&Place, &[u8], &[u8]) -> ();
        file_symlink(&Place, &[u8], &[u8]) -> ();
        file_push(&Place, &Path, &[u8]) -> CopyCount;
        file_pull(&Place, &[u8], &Path) -> CopyCount;
    }
}

impl Networks for FakeOpenSandbox {
    fn network_table(&self, name: &Name) -> Result<NetTable> {
        self.there(name)?;
        let ports = vec![PublishedPort::parse("0.0.0.0:4000:80").unwrap()];
        Ok(NetTable { flows: Vec::new(), ports, policy: None })
    }

    fn port_publish(&self, _: &Name, port: &PublishedPort) -> Result<PublishedPort> {
        self.note("port_publish", port);
        Ok(PublishedPort { host: 5000, ..port.clone() })
    }

    not_here! {
        network_allow(&Name, &[Rule]) -> Policy;
        port_withdraw(&Name, &PublishedPort) -> ();
        network_events(&Name) -> Vec<NetRecord>;
    }
}

impl Images for FakeOpenSandbox {
    fn for_client(
        self: std::sync::Arc<Self>,
        _: msb_api::ClientScope,
    ) -> std::sync::Arc<dyn msb_api::Api> {
        self
    }

    not_here! {
        image_list() -> Vec<ImageSummary>;
        image_inspect(&Reference) -> ImageInspection;
        image_pull(&Reference, Option<&msb_api::Registry>, &dyn Watch) -> ImageInspection;
        image_build(&Reference, &str, &dyn Watch) -> ImageInspection;
        image_remove(&Reference, bool) -> Reference;
        image_prune(bool, Option<Duration>, bool) -> PruneReport;
        disk_usage() -> DiskUsage;
    }
}

impl Volumes for FakeOpenSandbox {
    not_here! {
        volume_create(&VolumeSpec) -> Volume;
        volume_list() -> Vec<Volume>;
        volume_inspect(&VolumeName) -> Volume;
        volume_remove(&VolumeName, bool) -> ();
        volume_prune(bool) -> PrunedVolumes;
    }
}

impl Snapshots for FakeOpenSandbox {
    not_here! {
        snapshot_create(&Name, &Name, Option<&str>) -> Snapshot;
        snapshot_list() -> Vec<Snapshot>;
        snapshot_inspect(&Name) -> Snapshot;
        snapshot_verify(&Name) -> VerifyReport;
        snapshot_tag(&Name, &Name) -> ();
        snapshot_remove(&Name, bool) -> ();
        snapshot_save(&Name, bool, &mut dyn Write) -> ();
        snapshot_load(Option<&Name>, &mut dyn Read) -> Snapshot;
        snapshot_restore(&Name, &Name, Option<&msb_api::Changes>) -> ();
        sandbox_clone(&Name, &Name) -> ();
        sandbox_rollback(&Name, &Name) -> ();
        sandbox_reset(&Name, bool) -> ();
    }
}

impl Workspaces for FakeOpenSandbox {
    not_here! {
        workspace_diff(&Name, &[RelPath], Depth) -> Vec<Change>;
        workspace_apply(&Name, &Selection, bool) -> ApplyReport;
        workspace_discard(&Name, &[RelPath]) -> usize;
    }
}

impl Syncs for FakeOpenSandbox {
    not_here! {
        sync_start(&SyncSpec, &dyn Watch) -> SyncSummary;
        sync_list() -> Vec<SyncSummary>;
        sync_inspect(&str) -> SyncSummary;
        sync_stop(&str) -> ();
    }
}

impl Children for FakeOpenSandbox {
    not_here! {
        child_spawn(&Name, &ChildSpec, &dyn Watch) -> Child;
        child_list(&Name) -> ChildListing;
        child_remove(&Name, &Name) -> ();
    }
}

impl Links for FakeOpenSandbox {
    not_here! {
        link_sftp(&Name, Option<&UserRef>) -> UnixStream;
        link_dial(&Name, Option<&UserRef>, &Target) -> UnixStream;
        link_listen(&Name, Option<&UserRef>, &Target) -> Box<dyn LinkListener>;
    }
}
