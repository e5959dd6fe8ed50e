//! An `Api` for tests that records its calls and does nothing.

use msb_api::*;
use msb_spec::{
    Command, Ending, Error, Exit, Isolation, Kind, Name, Plan, Policy, PruneReport, PublishedPort,
    Reference, Result, Rule, Spec, TermSize, UserRef, VolumeKind, VolumeName, VolumeSpec,
};
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Has the sandboxes `on` and `off`, the volume `vol` and the snapshots `snap` and `base`.
#[derive(Default, Clone)]
pub(super) struct FakeMicrosandbox {
    params: Arc<Mutex<Vec<String>>>,
    labels: BTreeMap<String, String>,
}

impl FakeMicrosandbox {
    /// A fake whose sandboxes have this label.
    pub(super) fn labelled(key: &str, value: &str) -> Self {
        let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        Self { labels, ..Self::default() }
    }

    /// The calls so far.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.params.lock().unwrap())
    }

    fn note(&self, what: impl std::fmt::Debug) {
        self.params.lock().unwrap().push(format!("{what:?}"));
    }

    fn known(&self, name: &Name) -> Result<Summary> {
        let status = match name.as_str() {
            "on" => Status::Running,
            "off" => Status::Stopped,
            _ => return Err(Error::new(Kind::NotFound, format!("no sandbox `{name}`"))),
        };
        let mut labels = self.labels.clone();
        labels.insert("is".to_owned(), name.to_string());
        Ok(Summary {
            restarts: None,
            health: None,
            name: name.clone(),
            status,
            isolation: "process".to_owned(),
            isolation_reason: None,
            image: "host".to_owned(),
            created: 1,
            labels,
            ephemeral: false,
        })
    }
}

/// An error in place of a Plan.
fn nothing() -> Error {
    Error::new(Kind::State, "a fake has nothing to tell")
}

pub(super) fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

impl Sandboxes for FakeMicrosandbox {
    fn with_secrets(&self, secrets: Vec<(String, Vec<u8>)>) -> Arc<dyn Api> {
        self.note(("with_secrets", secrets));
        Arc::new(self.clone())
    }
    fn sandbox_plan(&self, spec: &Spec, _: &dyn Watch) -> Result<Plan> {
        self.note(("plan", spec));
        Err(nothing())
    }
    fn sandbox_create(&self, ask: &Create, _: &dyn Watch) -> Result<Summary> {
        self.note(("create", ask));
        self.known(&name("on"))
    }
    fn sandbox_list(&self) -> Result<Vec<Summary>> {
        ["off", "on"].iter().map(|it| self.known(&name(it))).collect()
    }
    fn sandbox_inspect(&self, name: &Name) -> Result<Inspection> {
        self.note(("inspect", name));
        self.known(name)?;
        Err(nothing())
    }
    fn sandbox_summary(&self, name: &Name) -> Result<Summary> {
        self.known(name)
    }
    fn sandbox_start(&self, name: &Name) -> Result<bool> {
        self.note(("start", name));
        if name.as_str() != "new" {
            self.known(name)?;
        }
        Ok(name.as_str() != "on")
    }
    fn sandbox_stop(&self, name: &Name, grace: Duration) -> Result<bool> {
        self.note(("stop", name, grace));
        self.known(name).map(|it| it.status == Status::Running)
    }
    fn sandbox_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.note(("remove", name, force));
        match self.known(name)?.status {
            Status::Running if !force => Err(Error::new(Kind::State, "it is running")),
            _ => Ok(()),
        }
    }
    fn sandbox_drain(&self, name: &Name) -> Result<bool> {
        self.note(("drain", name));
        self.known(name).map(|it| it.status == Status::Running)
    }
    fn sandbox_pause(&self, _: &Name) -> Result<()> {
        Ok(())
    }
    fn sandbox_resume(&self, _: &Name) -> Result<()> {
        Ok(())
    }
    fn sandbox_renew(&self, _: &Name, _: Option<Duration>) -> Result<Option<u64>> {
        Err(nothing())
    }
    fn sandbox_modify(
        &self,
        _: &Name,
        _: &msb_spec::Modify,
    ) -> Result<Vec<msb_api::SettingChange>> {
        Err(nothing())
    }
    fn sandbox_rename(&self, _: &Name, _: &Name) -> Result<()> {
        Err(nothing())
    }
    fn sandbox_wait(&self, name: &Name, _: Option<Duration>) -> Result<Option<StopResult>> {
        let running = self.known(name)?.status == Status::Running;
        Ok((!running).then_some(StopResult { ending: Ending::Stopped, exit: None }))
    }
    fn sandbox_metrics(&self, name: &Name) -> Result<Metrics> {
        self.note(("metrics", name));
        let counted = name.as_str() == "on";
        Ok(Metrics {
            name: name.to_string(),
            cpu_us: 500_000,
            memory: 10,
            memory_limit: Some(30),
            pids: 1,
            pids_limit: None,
            disk: Some(4096),
            disk_traffic: counted.then_some(msb_api::DiskTraffic { read: 8, written: 7 }),
            net: counted.then_some(msb_api::NetUsage { received: 6, sent: 5, flows: 1 }),
            uptime_ms: 1000,
            guest: None,
        })
    }
    fn sandbox_logs(&self, name: &Name, filter: &LogFilter) -> Result<Box<dyn LogStream>> {
        self.known(name)?;
        self.note(("logs", filter));
        Ok(Box::new(FakeLog(Some(filter.clone()), Some(self.clone()))))
    }
    fn sandbox_events(&self, _: &Name) -> Result<Box<dyn EventStream>> {
        Ok(Box::new(NoEvents))
    }
    fn sandbox_history(&self, _: &Name) -> Result<Vec<msb_api::Sample>> {
        Err(nothing())
    }
    fn sandbox_audit(&self, _: &Name) -> Result<msb_api::Audit> {
        Err(nothing())
    }
}

/// The lines `out`, `err` and one of a terminal, a second apart.
struct FakeLog(Option<LogFilter>, Option<FakeMicrosandbox>);

impl LogStream for FakeLog {
    fn more(&mut self) -> Result<Vec<LogLine>> {
        let Some(filter) = self.0.take() else {
            // Only the first read is recorded: how often it is read depends on the clock.
            if let Some(fake) = self.1.take() {
                fake.note("looked again");
            }
            return Ok(Vec::new());
        };
        let line = |exec, source, time, text: &str| LogLine {
            source,
            exec,
            time,
            bytes: text.as_bytes().to_vec(),
        };
        let lines = [
            line(1, Source::Stdout, 1000, "out\n"),
            line(1, Source::Stderr, 2000, "err\n"),
            line(2, Source::Stdout, 3000, "tty\n"),
        ];
        let matches = |line: &LogLine| {
            line.time >= filter.since.unwrap_or(0) && line.time <= filter.until.unwrap_or(u64::MAX)
        };
        Ok(lines.into_iter().filter(matches).collect())
    }
    fn rest(&mut self) -> Vec<LogLine> {
        Vec::new()
    }
}

struct NoEvents;

impl EventStream for NoEvents {
    fn more(&mut self) -> Result<Vec<Event>> {
        let event = |number, happened| Event::new(number, 500 * number, happened);
        Ok(vec![event(1, EventKind::Started { worker: 7 }), event(2, EventKind::Created)])
    }
}

/// Prints its arguments and exits: with 3 if it is `fail`, never if it is `wait`.
struct EchoExec(VecDeque<ExecEvent>, Arc<EchoInput>);

struct EchoInput(FakeMicrosandbox, Mutex<bool>);

impl Exec for EchoExec {
    fn id(&self) -> u64 {
        1
    }
    fn pid(&self) -> u32 {
        42
    }
    fn next(&mut self) -> Result<Option<ExecEvent>> {
        while self.0.len() == 1 && !*self.1.1.lock().unwrap() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self.0.pop_front())
    }
    fn input(&self) -> Arc<dyn ExecInput> {
        Arc::clone(&self.1) as Arc<dyn ExecInput>
    }
}

impl ExecInput for EchoInput {
    fn write(&self, bytes: &[u8]) -> Result<()> {
        self.0.note(("write", String::from_utf8_lossy(bytes)));
        Ok(())
    }
    fn close(&self) -> Result<()> {
        self.0.note("close");
        Ok(())
    }
    fn signal(&self, signal: i32) -> Result<()> {
        self.0.note(("signal", signal));
        *self.1.lock().unwrap() = true;
        Ok(())
    }
    fn resize(&self, _: TermSize) -> Result<()> {
        Ok(())
    }
    fn detach(&self) -> Result<()> {
        Ok(())
    }
}

impl FakeMicrosandbox {
    fn exec(&self, argv: &[String], timeout: bool) -> Box<dyn Exec> {
        let has = |word: &str| argv.iter().any(|it| it == word);
        let (code, signal, ending) = match timeout {
            true => (None, Some(9), Ending::Timeout),
            false => (Some(if has("fail") { 3 } else { 0 }), None, Ending::Own),
        };
        let exit = Exit { code, signal, ending, reached: None };
        let events = VecDeque::from([
            ExecEvent::Stdout(b"hello".to_vec()),
            ExecEvent::Stderr(b"oops".to_vec()),
            ExecEvent::Exited(exit),
        ]);
        Box::new(EchoExec(events, Arc::new(EchoInput(self.clone(), Mutex::new(!has("wait"))))))
    }
}

impl Execs for FakeMicrosandbox {
    fn exec_start(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        if name.as_str() != "new" {
            let stopped = self.known(name)?.status == Status::Stopped;
            if stopped && !self.params.lock().unwrap().contains(&format!("{:?}", ("start", name))) {
                return Err(Error::new(Kind::State, format!("sandbox `{name}` is not running")));
            }
        }
        self.note(("exec", name, command));
        let late = command.argv.iter().any(|it| it == "late");
        Ok(self.exec(&command.argv, late))
    }
    fn exec_attach(&self, _: &Name, _: u64) -> Result<Box<dyn Exec>> {
        Err(nothing())
    }
    fn exec_run(&self, spec: &Spec, _: &dyn Watch) -> Result<(Name, Box<dyn Exec>)> {
        self.note(("run", spec));
        Ok((spec.name.clone().unwrap(), self.exec(&spec.command, false)))
    }
    fn exec_signal(&self, _: &Name, _: u64, _: i32) -> Result<()> {
        Ok(())
    }
    fn exec_wait(&self, name: &Name, id: u64, limit: Duration) -> Result<Option<Exit>> {
        crate::fake::poll_exit(self, name, id, limit)
    }
    fn exec_list(&self, _: &Name) -> Result<Vec<ExecEntry>> {
        let entry = |id, tty| ExecEntry { id, pid: 1, argv: vec![], tty, started: 0, exit: None };
        Ok(vec![entry(1, false), entry(2, true)])
    }
}

fn meta(path: &[u8]) -> Result<Meta> {
    if path.ends_with(b"none") {
        return Err(Error::new(Kind::NotFound, "in the sandbox, cannot look").cause("no such file"));
    }
    let directory = path.ends_with(b"dir");
    Ok(Meta {
        name: b"entry".to_vec(),
        kind: if directory { EntryKind::Directory } else { EntryKind::File },
        mode: 0o644,
        size: 20,
        modified: 1000,
        created: Some(500),
        uid: 0,
        gid: 0,
    })
}

impl FakeMicrosandbox {
    fn at(&self, at: &Place) -> Result<()> {
        match at {
            Place::Sandbox { name, .. } => self.known(name).map(drop),
            Place::Volume(name) => self.volume(name).map(drop),
        }
    }
    fn volume(&self, name: &VolumeName) -> Result<Volume> {
        if name.as_str() != "vol" {
            return Err(Error::new(Kind::NotFound, format!("no volume `{name}`")));
        }
        Ok(Volume {
            name: name.clone(),
            kind: VolumeKind::Dir,
            size: Some(64 << 20),
            used: 1,
            labels: BTreeMap::new(),
            created: 1,
            sandboxes: Vec::new(),
            by_machine: false,
        })
    }
}

impl Files for FakeMicrosandbox {
    fn file_read(
        &self,
        at: &Place,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.at(at)?;
        self.note(("read", at, String::from_utf8_lossy(path), offset, length));
        take("héllo héllo hé ll".as_bytes())
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
        self.note(("write", at, String::from_utf8_lossy(path), mode, append, &bytes));
        Ok(bytes.len() as u64)
    }
    fn file_stat(&self, at: &Place, path: &[u8], follow: bool) -> Result<Meta> {
        self.at(at)?;
        self.note(("stat", at, String::from_utf8_lossy(path), follow));
        meta(path)
    }
    fn file_real(&self, at: &Place, path: &[u8]) -> Result<Vec<u8>> {
        self.at(at)?;
        self.note(("real", at, String::from_utf8_lossy(path)));
        Ok([b"/real/", path].concat())
    }
    fn file_list(&self, at: &Place, path: &[u8]) -> Result<Vec<Meta>> {
        self.note(("list", at, String::from_utf8_lossy(path)));
        Ok(vec![meta(path)?])
    }
    fn file_mkdir(&self, at: &Place, path: &[u8], parents: bool) -> Result<()> {
        self.note(("mkdir", at, String::from_utf8_lossy(path), parents));
        Ok(())
    }
    fn file_remove(&self, at: &Place, path: &[u8], recursive: bool) -> Result<()> {
        self.note(("remove", at, String::from_utf8_lossy(path), recursive));
        Ok(())
    }
    fn file_rename(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.note(("rename", at, String::from_utf8_lossy(from), String::from_utf8_lossy(to)));
        Ok(())
    }
    fn file_copy(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.note(("copy", at, String::from_utf8_lossy(from), String::from_utf8_lossy(to)));
        Ok(())
    }
    fn file_set(&self, _: &Place, _: &[u8], _: &Attributes) -> Result<()> {
        Ok(())
    }
    fn file_symlink(&self, at: &Place, path: &[u8], target: &[u8]) -> Result<()> {
        self.note(("symlink", at, String::from_utf8_lossy(path), String::from_utf8_lossy(target)));
        Ok(())
    }
    fn file_push(&self, at: &Place, from: &Path, to: &[u8]) -> Result<CopyCount> {
        // The path contains a directory with a random name.
        let from = from.file_name().unwrap_or_default();
        self.note(("push", at, from, String::from_utf8_lossy(to)));
        Ok(CopyCount::default())
    }
    fn file_pull(&self, at: &Place, from: &[u8], to: &Path) -> Result<CopyCount> {
        let to = to.file_name().unwrap_or_default();
        self.note(("pull", at, String::from_utf8_lossy(from), to));
        Ok(CopyCount { bytes: 5, ..CopyCount::default() })
    }
}

impl Images for FakeMicrosandbox {
    fn for_client(
        self: std::sync::Arc<Self>,
        _: msb_api::ClientScope,
    ) -> std::sync::Arc<dyn msb_api::Api> {
        self
    }

    fn image_list(&self) -> Result<Vec<ImageSummary>> {
        Ok(Vec::new())
    }
    fn image_inspect(&self, name: &Reference) -> Result<ImageInspection> {
        self.note(("image", name));
        Err(Error::new(Kind::NotFound, format!("image `{name}` is not here")))
    }
    fn image_pull(
        &self,
        name: &Reference,
        registry: Option<&Registry>,
        _: &dyn Watch,
    ) -> Result<ImageInspection> {
        let registry = registry.expect("the dialect gives one");
        let password = registry.login.as_ref().map(|login| &login.password);
        self.note(("pull", name, registry, password));
        Err(Error::new(Kind::Host, format!("cannot pull with {registry:?}")))
    }
    fn image_build(&self, _: &Reference, _: &str, _: &dyn Watch) -> Result<ImageInspection> {
        Err(nothing())
    }
    fn image_remove(&self, name: &Reference, force: bool) -> Result<Reference> {
        self.note(("remove image", name, force));
        Ok(name.clone())
    }
    fn image_prune(
        &self,
        all: bool,
        older_than: Option<Duration>,
        dry_run: bool,
    ) -> Result<PruneReport> {
        self.note(("prune", msb_spec::Prune { all, older_than, dry_run }));
        Ok(PruneReport::default())
    }
    fn disk_usage(&self) -> Result<DiskUsage> {
        Err(nothing())
    }
}

impl Volumes for FakeMicrosandbox {
    fn volume_create(&self, spec: &VolumeSpec) -> Result<Volume> {
        self.note(("volume", spec));
        let name = VolumeName::parse("vol").unwrap();
        match spec.name == name {
            true => Err(Error::new(Kind::Exists, "volume `vol` already exists")),
            false => self.volume(&name),
        }
    }
    fn volume_list(&self) -> Result<Vec<Volume>> {
        Ok(vec![self.volume(&VolumeName::parse("vol").unwrap())?])
    }
    fn volume_inspect(&self, name: &VolumeName) -> Result<Volume> {
        self.volume(name)
    }
    fn volume_remove(&self, name: &VolumeName, force: bool) -> Result<()> {
        self.note(("remove volume", name, force));
        self.volume(name).map(drop)
    }
    fn volume_prune(&self, _: bool) -> Result<PrunedVolumes> {
        Err(nothing())
    }
}

impl Snapshots for FakeMicrosandbox {
    fn snapshot_create(&self, name: &Name, of: &Name, note: Option<&str>) -> Result<Snapshot> {
        self.note(("snapshot", plain(name), of, note));
        match name.as_str() {
            "snap" => Err(Error::new(Kind::Exists, "snapshot `snap` already exists")),
            _ => self.snapshot_inspect(&self::name("snap")),
        }
    }
    fn snapshot_list(&self) -> Result<Vec<Snapshot>> {
        ["base", "snap"].iter().map(|it| self.snapshot_inspect(&name(it))).collect()
    }
    fn snapshot_inspect(&self, name: &Name) -> Result<Snapshot> {
        let parent = match name.as_str() {
            "base" | "other" => None,
            text if text == "snap" || text == "made" || text.starts_with("archive-") => {
                Some("base".to_owned())
            }
            _ => return Err(Error::new(Kind::NotFound, format!("no snapshot `{name}`"))),
        };
        Ok(Snapshot {
            id: name.to_string(),
            names: vec![name.clone()],
            created: 1,
            sandbox: self::name("on"),
            image: msb_spec::ImageRef::Host,
            image_digest: None,
            isolation: Isolation::Process,
            note: None,
            parent,
            children: Vec::new(),
            paused_us: None,
            digest: None,
            files: None,
            bytes: Some(9),
        })
    }
    fn snapshot_verify(&self, name: &Name) -> Result<VerifyReport> {
        self.note(("verify", plain(name)));
        Ok(VerifyReport {
            id: name.to_string(),
            intact: true,
            layers: 1,
            recorded: 0,
            files: 1,
            bytes: 1,
            differences: Vec::new(),
        })
    }
    fn snapshot_tag(&self, snapshot: &Name, name: &Name) -> Result<()> {
        self.note(("tag", plain(snapshot), name));
        Ok(())
    }
    fn snapshot_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.note(("remove snapshot", plain(name), force));
        Ok(())
    }
    fn snapshot_save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()> {
        self.note(("save", plain(name), whole));
        out.write_all(b"archive").unwrap();
        Ok(())
    }
    fn snapshot_load(&self, name: Option<&Name>, archive: &mut dyn Read) -> Result<Snapshot> {
        let mut bytes = Vec::new();
        archive.read_to_end(&mut bytes).unwrap();
        self.note(("load", name.map(plain), String::from_utf8_lossy(&bytes)));
        self.snapshot_inspect(&self::name("snap"))
    }
    fn snapshot_restore(
        &self,
        snapshot: &Name,
        name: &Name,
        changes: Option<&Changes>,
    ) -> Result<()> {
        let changes = changes.expect("the dialect gives some");
        self.note(("restore", plain(snapshot), name, changes));
        Ok(())
    }
    fn sandbox_clone(&self, _: &Name, _: &Name) -> Result<()> {
        Err(nothing())
    }
    fn sandbox_rollback(&self, _: &Name, _: &Name) -> Result<()> {
        Err(nothing())
    }
    fn sandbox_reset(&self, _: &Name, _: bool) -> Result<()> {
        Err(nothing())
    }
}

/// A name without its random part.
fn plain(name: &Name) -> &str {
    let made_up = ["archive-", "new-"].into_iter().find(|start| name.as_str().starts_with(start));
    made_up.unwrap_or(name.as_str())
}

impl Networks for FakeMicrosandbox {
    fn network_table(&self, _: &Name) -> Result<NetTable> {
        Ok(NetTable::default())
    }
    fn network_allow(&self, _: &Name, _: &[Rule]) -> Result<Policy> {
        Err(nothing())
    }
    fn port_publish(&self, _: &Name, _: &PublishedPort) -> Result<PublishedPort> {
        Err(nothing())
    }
    fn port_withdraw(&self, _: &Name, _: &PublishedPort) -> Result<()> {
        Err(nothing())
    }
    fn network_events(&self, _: &Name) -> Result<Vec<NetRecord>> {
        let what = NetEvent::Ended { flow: 1, sent: 5, received: 6 };
        Ok(vec![NetRecord { time: 1, what }])
    }
}

impl Workspaces for FakeMicrosandbox {
    fn workspace_diff(&self, _: &Name, _: &[RelPath], _: Depth) -> Result<Vec<Change>> {
        Err(nothing())
    }
    fn workspace_apply(&self, _: &Name, _: &Selection, _: bool) -> Result<ApplyReport> {
        Err(nothing())
    }
    fn workspace_discard(&self, _: &Name, _: &[RelPath]) -> Result<usize> {
        Err(nothing())
    }
}

impl Syncs for FakeMicrosandbox {
    fn sync_start(&self, _: &SyncSpec, _: &dyn Watch) -> Result<SyncSummary> {
        Err(nothing())
    }
    fn sync_list(&self) -> Result<Vec<SyncSummary>> {
        Err(nothing())
    }
    fn sync_inspect(&self, _: &str) -> Result<SyncSummary> {
        Err(nothing())
    }
    fn sync_stop(&self, _: &str) -> Result<()> {
        Err(nothing())
    }
}

impl Children for FakeMicrosandbox {
    fn child_spawn(&self, _: &Name, _: &ChildSpec, _: &dyn Watch) -> Result<Child> {
        Err(nothing())
    }
    fn child_list(&self, _: &Name) -> Result<ChildListing> {
        Err(nothing())
    }
    fn child_remove(&self, _: &Name, _: &Name) -> Result<()> {
        Err(nothing())
    }
}

impl Links for FakeMicrosandbox {
    fn link_sftp(&self, _: &Name, _: Option<&UserRef>) -> Result<UnixStream> {
        Err(nothing())
    }
    fn link_dial(&self, _: &Name, _: Option<&UserRef>, _: &Target) -> Result<UnixStream> {
        Err(nothing())
    }
    fn link_listen(
        &self,
        _: &Name,
        _: Option<&UserRef>,
        _: &Target,
    ) -> Result<Box<dyn LinkListener>> {
        Err(nothing())
    }
}
