//! A few fixed objects behind a recorder. Commands print `hello` and `oops`.

use crate::recorder::{FileUpload, RecordedCall, Recorder, SnapshotUpload, name};
use msb_api::http::streams::{FileRead, SnapshotSave};
use msb_api::http::*;
use msb_api::{
    Api, CopyCount, EntryKind, Event, EventKind, EventStream, Exec, ExecEntry, ExecEvent,
    ExecInput, LogLine, LogStream, Meta, Metrics, NetEvent, NetRecord, Snapshot, Source, Status,
    StopResult, Summary, VerifyReport, Volume,
};
use msb_spec::{
    Ending, Error, Exit, Isolation, Kind, Name, PruneReport, Result, TermSize, VolumeKind,
    VolumeName,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Has the sandboxes `on` and `off`, the volume `vol` and the snapshots `snap` and `base`. Tests
/// create the sandbox `new`.
#[derive(Default, Clone)]
pub(super) struct FakeMicrosandbox {
    recorder: Recorder,
    labels: BTreeMap<String, String>,
    /// The sandboxes that were started since the calls were read.
    started: Arc<Mutex<BTreeSet<Name>>>,
}

/// Sets the answers of Operations, each with the fake.
macro_rules! answers {
    ($fake:ident: $(|$of:ident, $request:ident: $type:ty| $answer:expr;)*) => {$(
        let of = $fake.without_answers();
        $fake.recorder.answer(move |$request: &$type| {
            let $of = &of;
            $answer
        });
    )*};
}

impl FakeMicrosandbox {
    /// A fake whose sandboxes have this label.
    pub(super) fn labelled(key: &str, value: &str) -> Self {
        let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        Self { labels, ..Self::default() }
    }

    /// All calls since the last time this was called.
    pub(super) fn calls(&self) -> Vec<RecordedCall> {
        self.started.lock().unwrap().clear();
        self.recorder.calls()
    }

    /// Like `calls`, without the Operations that only read.
    pub(super) fn changes(&self) -> Vec<RecordedCall> {
        self.started.lock().unwrap().clear();
        self.recorder.changes()
    }

    /// A handle to these objects and calls, for the functions that the recorder owns.
    fn without_answers(&self) -> Self {
        Self { recorder: self.recorder.without_answers(), ..self.clone() }
    }

    /// The `Api` of these objects. It answers only the Operations that the dialect uses.
    pub(super) fn api(&self) -> Arc<dyn Api> {
        self.answer_sandboxes();
        self.answer_files();
        self.answer_images_and_volumes();
        self.answer_snapshots();
        Arc::new(self.recorder.clone())
    }

    fn answer_sandboxes(&self) {
        answers! { self:
            |_fake, _it: SandboxPlan| Err(nothing());
            |fake, _it: SandboxCreate| fake.known(&name("on"));
            |fake, _it: SandboxList| ["off", "on"].iter().map(|it| fake.known(&name(it))).collect();
            |fake, it: SandboxInspect| fake.known(&it.name).and_then(|_| Err(nothing()));
            |fake, it: SandboxSummary| fake.known(&it.name);
            |fake, it: SandboxStart| {
                if it.name != name("new") {
                    fake.known(&it.name)?;
                }
                fake.started.lock().unwrap().insert(it.name.clone());
                Ok(it.name != name("on"))
            };
            |fake, it: SandboxStop| fake.known(&it.name).map(|it| it.status == Status::Running);
            |fake, it: SandboxRemove| match fake.known(&it.name)?.status {
                Status::Running if !it.force => Err(Error::new(Kind::State, "it is running")),
                _ => Ok(()),
            };
            |fake, it: SandboxDrain| fake.known(&it.name).map(|it| it.status == Status::Running);
            |fake, it: SandboxWait| {
                let running = fake.known(&it.name)?.status == Status::Running;
                Ok((!running).then_some(StopResult { ending: Ending::Stopped, exit: None }))
            };
            |fake, it: SandboxMetrics| fake.known(&it.name).map(|it| metrics(&it.name));
            |fake, it: SandboxLogs| {
                fake.known(&it.name)?;
                let log = FakeLog(Some((it.since, it.until)), Some(fake.recorder.clone()));
                Ok(Box::new(log) as Box<dyn LogStream>)
            };
            |fake, it: SandboxEvents| {
                fake.known(&it.name).map(|_| Box::new(FakeEvents) as Box<dyn EventStream>)
            };
            |fake, it: NetworkEvents| {
                fake.known(&it.name)?;
                let what = NetEvent::Ended { flow: 1, sent: 5, received: 6 };
                Ok(vec![NetRecord { time: 1, what }])
            };
            |fake, it: ExecStart| {
                let started = fake.started.lock().unwrap().contains(&it.name);
                if !started && fake.known(&it.name)?.status == Status::Stopped {
                    let text = format!("sandbox `{}` is not running", it.name);
                    return Err(Error::new(Kind::State, text));
                }
                Ok(fake.exec(&it.command.argv, it.command.argv.iter().any(|it| it == "late")))
            };
            |fake, it: ExecRun| {
                Ok((it.spec.name.clone().unwrap(), fake.exec(&it.spec.command, false)))
            };
            |fake, it: ExecList| {
                fake.known(&it.name)?;
                let entry =
                    |id, tty| ExecEntry { id, pid: 1, argv: vec![], tty, started: 0, exit: None };
                Ok(vec![entry(1, false), entry(2, true)])
            };
        }
    }

    fn answer_files(&self) {
        macro_rules! in_place {
            ($(|$request:ident: $type:ty| $answer:expr;)*) => {
                answers! { self: $(
                    |fake, $request: $type| {
                        fake.place($request.sandbox.as_ref(), $request.volume.as_ref())?;
                        $answer
                    };
                )* }
            };
        }
        in_place! {
            |it: FileRead| Ok("héllo héllo hé ll".as_bytes().to_vec());
            |it: FileStat| meta(&it.path.0);
            |it: FileReal| Ok([b"/real/", it.path.0.as_slice()].concat());
            |it: FileList| Ok(vec![meta(&it.path.0)?]);
            |it: FileMkdir| Ok(());
            |it: FileRemove| Ok(());
            |it: FileRename| Ok(());
            |it: FileCopy| Ok(());
            |it: FileSymlink| Ok(());
            |it: FilePush| Ok(CopyCount::default());
            |it: FilePull| Ok(CopyCount { bytes: 5, ..CopyCount::default() });
        }
        answers! { self:
            |fake, it: FileUpload| {
                fake.place(it.file.sandbox.as_ref(), it.file.volume.as_ref())?;
                Ok(it.content.len() as u64)
            };
        }
    }

    fn answer_images_and_volumes(&self) {
        let vol = || VolumeName::parse("vol").unwrap();
        answers! { self:
            |_fake, _it: ImageList| Ok(Vec::new());
            |_fake, it: ImageInspect| {
                Err(Error::new(Kind::NotFound, format!("image `{}` is not here", it.name)))
            };
            |_fake, it: ImagePull| {
                let registry = it.registry.as_ref().expect("the dialect gives one");
                Err(Error::new(Kind::Host, format!("cannot pull with {registry:?}")))
            };
            |_fake, it: ImageRemove| Ok(it.name.clone());
            |_fake, _it: ImagePrune| Ok(PruneReport::default());
            |fake, it: VolumeCreate| match it.name == vol() {
                true => Err(Error::new(Kind::Exists, "volume `vol` already exists")),
                false => fake.volume(&vol()),
            };
            |fake, _it: VolumeList| Ok(vec![fake.volume(&vol())?]);
            |fake, it: VolumeInspect| fake.volume(&it.name);
            |fake, it: VolumeRemove| fake.volume(&it.name).map(drop);
        }
    }

    fn answer_snapshots(&self) {
        answers! { self:
            |fake, it: SnapshotCreate| {
                fake.known(&it.of)?;
                match it.name.0.as_str() {
                    "snap" => Err(Error::new(Kind::Exists, "snapshot `snap` already exists")),
                    _ => snapshot(&name("snap")),
                }
            };
            |_fake, _it: SnapshotList| {
                ["base", "snap"].iter().map(|it| snapshot(&name(it))).collect()
            };
            |_fake, it: SnapshotInspect| snapshot(&it.name.0);
            |_fake, it: SnapshotVerify| Ok(VerifyReport {
                id: snapshot(&it.name.0)?.id,
                intact: true,
                layers: 1,
                recorded: 0,
                files: 1,
                bytes: 1,
                differences: Vec::new(),
            });
            |_fake, it: SnapshotTag| snapshot(&it.name.0).map(drop);
            |_fake, it: SnapshotRemove| snapshot(&it.name.0).map(drop);
            |_fake, it: SnapshotSave| snapshot(&it.name).map(|_| b"archive".to_vec());
            |_fake, _it: SnapshotUpload| snapshot(&name("snap"));
            |_fake, it: SnapshotRestore| snapshot(&it.name.0).map(drop);
        }
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
        let recorder = self.recorder.clone();
        Box::new(EchoExec(events, Arc::new(EchoInput(recorder, Mutex::new(!has("wait"))))))
    }

    /// Fails unless the sandbox or volume of a file Operation exists.
    fn place(&self, sandbox: Option<&Name>, volume: Option<&VolumeName>) -> Result<()> {
        sandbox.map_or(Ok(()), |name| self.known(name).map(drop))?;
        volume.map_or(Ok(()), |name| self.volume(name).map(drop))
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

/// An error in place of a Plan.
fn nothing() -> Error {
    Error::new(Kind::State, "a fake has nothing to tell")
}

fn metrics(name: &Name) -> Metrics {
    let counted = name.as_str() == "on";
    Metrics {
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

fn snapshot(name: &Name) -> Result<Snapshot> {
    let parent = match name.as_str() {
        "base" | "other" => None,
        "snap" | "made" => Some("base".to_owned()),
        // The dialect makes up such names.
        text if text.starts_with("archive-") || text.starts_with("new-") => Some("base".to_owned()),
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

/// The lines `out`, `err` and one of a terminal, a second apart, between two times.
struct FakeLog(Option<(Option<u64>, Option<u64>)>, Option<Recorder>);

impl LogStream for FakeLog {
    fn more(&mut self) -> Result<Vec<LogLine>> {
        let Some((since, until)) = self.0.take() else {
            // Only the first read is recorded: how often it is read depends on the clock.
            if let Some(recorder) = self.1.take() {
                recorder.note("looked_again", ());
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
            line.time >= since.unwrap_or(0) && line.time <= until.unwrap_or(u64::MAX)
        };
        Ok(lines.into_iter().filter(matches).collect())
    }
    fn rest(&mut self) -> Vec<LogLine> {
        Vec::new()
    }
}

struct FakeEvents;

impl EventStream for FakeEvents {
    fn more(&mut self) -> Result<Vec<Event>> {
        let event = |number, happened| Event::new(number, 500 * number, happened);
        Ok(vec![event(1, EventKind::Started { worker: 7 }), event(2, EventKind::Created)])
    }
}

/// Prints its arguments and exits: with 3 if it is `fail`, never if it is `wait`.
struct EchoExec(VecDeque<ExecEvent>, Arc<EchoInput>);

struct EchoInput(Recorder, Mutex<bool>);

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
        self.0.note("input_write", String::from_utf8_lossy(bytes));
        Ok(())
    }
    fn close(&self) -> Result<()> {
        self.0.note("input_close", ());
        Ok(())
    }
    fn signal(&self, signal: i32) -> Result<()> {
        self.0.note("input_signal", signal);
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
