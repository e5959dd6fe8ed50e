//! Sandboxes, volumes and snapshots in memory, behind a [`Recorder`]. Commands run on this host.

use super::{FileUpload, RecordedCall, Recorder, plan, process};
use msb_api::http::*;
use msb_api::{
    Api, ChildListing, CopyCount, ImageSummary, Inspection, Metrics, NetTable, Snapshot, Status,
    Summary, Volume,
};
use msb_spec::{
    Digest, Error, ImageRef, Isolation, Kind, Name, Reference, Result, Spec, VolumeKind, VolumeName,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

pub(crate) fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

/// The objects that exist.
#[derive(Default)]
pub(crate) struct FakeState {
    pub(crate) sandboxes: Mutex<BTreeMap<Name, Summary>>,
    volumes: Mutex<Vec<VolumeName>>,
    /// Names of snapshots by their ids.
    snapshots: Mutex<Vec<(String, Vec<Name>)>>,
}

/// A recorder over objects in memory. Only what exists is found.
pub(crate) struct FakeSandboxes {
    pub(crate) recorder: Recorder,
    pub(crate) state: Arc<FakeState>,
}

/// Sets the answers of Operations, each with the state.
macro_rules! answers {
    ($fake:ident: $(|$state:ident, $request:ident: $type:ty| $answer:expr;)*) => {$(
        let state = Arc::clone(&$fake.state);
        $fake.recorder.answer(move |$request: &$type| {
            let $state: &FakeState = &state;
            $answer
        });
    )*};
}

impl FakeSandboxes {
    /// Running sandboxes of these names.
    pub(crate) fn new(names: &[&str]) -> Self {
        let fake = Self { recorder: Recorder::default(), state: Arc::default() };
        for text in names {
            fake.state.put(&name(text), "host", BTreeMap::new());
        }
        fake.answer_lifecycle();
        fake.answer_files_and_network();
        fake.answer_images_and_volumes();
        fake.answer_snapshots();
        fake
    }

    /// Runs commands as processes of this host.
    pub(crate) fn with_commands(self) -> Self {
        answers!(self: |state, it: ExecStart| {
            state.find(&it.name).and_then(|_| process::start(&it.command))
        };);
        self
    }

    /// Fails to pull images.
    pub(crate) fn without_registry(self) -> Self {
        answers!(self: |state, it: SandboxCreate| {
            if matches!(it.spec.image, ImageRef::Name(_)) {
                let error = Error::host("cannot reach registry-1.docker.io", "no route to host");
                return Err(error.at(msb_spec::Stage::Image));
            }
            Ok(state.create(&it.spec))
        };);
        self
    }

    pub(crate) fn with_volumes(self, names: &[&str]) -> Self {
        let names = names.iter().map(|text| VolumeName::parse(text).expect("a name"));
        self.state.volumes.lock().unwrap().extend(names);
        self
    }

    /// Adds snapshots with an id and a name each.
    pub(crate) fn with_snapshots(self, snapshots: &[(&str, &str)]) -> Self {
        let snapshots = snapshots.iter().map(|(id, of)| ((*id).to_owned(), vec![name(of)]));
        self.state.snapshots.lock().unwrap().extend(snapshots);
        self
    }

    pub(crate) fn api(&self) -> Arc<dyn Api> {
        Arc::new(self.recorder.clone())
    }

    /// All calls since the last time this was called.
    pub(crate) fn calls(&self) -> Vec<RecordedCall> {
        self.recorder.calls()
    }

    fn answer_lifecycle(&self) {
        answers! { self:
            |_state, it: SandboxPlan| Ok(plan::of(&it.spec));
            |state, it: SandboxCreate| Ok(state.create(&it.spec));
            |state, _it: SandboxList| Ok(state.sandboxes.lock().unwrap().values().cloned().collect());
            |state, it: SandboxInspect| {
                let Summary { name, status, labels, .. } = state.find(&it.name)?;
                let plan = plan::of(&Spec { name: Some(name.clone()), labels, ..Spec::default() });
                Ok(Inspection { name, status, worker: None, stopped: None, reason: None, plan })
            };
            |state, it: SandboxSummary| state.find(&it.name);
            |state, it: SandboxStart| state.set(&it.name, Status::Running);
            |state, it: SandboxStop| state.set(&it.name, Status::Stopped);
            |state, it: SandboxRemove| state.find(&it.name).map(drop);
            |state, it: SandboxResume| state.find(&it.name).map(drop);
            |state, it: SandboxMetrics| state.find(&it.name).map(|found| metrics(&found.name));
            |_state, _it: ExecStart| Err(Error::unsupported("nothing runs here"));
            |state, it: ExecSignal| state.find(&it.name).map(drop);
            |state, it: ExecWait| {
                state.find(&it.name).and_then(|_| Err(msb_api::no_exec(&it.name, it.id)))
            };
            |state, it: ExecList| state.find(&it.name).map(|_| Vec::new());
            |state, it: ChildList| state.find(&it.name).map(|_| {
                ChildListing { children: Vec::new(), spawned: 0, max_total: Some(10) }
            });
            |state, it: ChildRemove| state.find(&it.name).map(drop);
            |_state, _it: SyncList| Ok(Vec::new());
        }
    }

    fn answer_files_and_network(&self) {
        macro_rules! in_place {
            ($($request:ty => $value:expr;)*) => {
                answers! { self: $(
                    |state, it: $request| {
                        state.place(it.sandbox.as_ref(), it.volume.as_ref()).map(|()| $value)
                    };
                )* }
            };
        }
        in_place! {
            streams::FileRead => Vec::new();
            FileList => Vec::new();
            FileMkdir => ();
            FileRemove => ();
            FilePush => CopyCount::default();
            FilePull => CopyCount::default();
        }
        answers! { self:
            |state, it: FileUpload| {
                state.place(it.file.sandbox.as_ref(), it.file.volume.as_ref()).map(|()| 0)
            };
            |state, it: NetworkTable| state.find(&it.name).map(|_| NetTable::default());
            |state, it: NetworkEvents| state.find(&it.name).map(|_| Vec::new());
            |state, it: PortPublish| state.find(&it.name).map(|_| it.port.clone());
            |state, it: PortWithdraw| state.find(&it.name).map(drop);
        }
    }

    fn answer_images_and_volumes(&self) {
        answers! { self:
            |_state, _it: ImageList| Ok(vec![alpine()]);
            |_state, it: ImageInspect| {
                Err(Error::new(Kind::NotFound, format!("no image `{}`", it.name)))
            };
            |state, it: VolumeCreate| {
                state.volumes.lock().unwrap().push(it.name.clone());
                state.volume(&it.name)
            };
            |state, _it: VolumeList| {
                let all = state.volumes.lock().unwrap().clone();
                all.iter().map(|name| state.volume(name)).collect()
            };
            |state, it: VolumeInspect| state.volume(&it.name);
            |state, it: VolumeRemove| state.volume(&it.name).map(drop);
        }
    }

    fn answer_snapshots(&self) {
        answers! { self:
            |state, it: SnapshotCreate| {
                state.find(&it.of)?;
                let names = vec![it.name.0.clone()];
                let created = snapshot("new", &names);
                state.snapshots.lock().unwrap().push(("new".to_owned(), names));
                Ok(created)
            };
            |state, _it: SnapshotList| {
                let all = state.snapshots.lock().unwrap();
                Ok(all.iter().map(|(id, names)| snapshot(id, names)).collect())
            };
            |state, it: SnapshotInspect| state.snapshot(&it.name.0);
            |state, it: SnapshotRemove| state.snapshot(&it.name.0).map(drop);
            |state, it: SandboxRollback| {
                state.find(&it.name)?;
                state.snapshot(&it.snapshot.0).map(drop)
            };
            |state, it: SandboxReset| state.find(&it.name).map(drop);
        }
    }
}

impl FakeState {
    fn put(&self, name: &Name, image: &str, labels: BTreeMap<String, String>) -> Summary {
        let summary = Summary {
            restarts: None,
            health: None,
            name: name.clone(),
            status: Status::Running,
            isolation: "process".to_owned(),
            isolation_reason: None,
            image: image.to_owned(),
            created: 0,
            labels,
            ephemeral: false,
        };
        self.sandboxes.lock().unwrap().insert(name.clone(), summary.clone());
        summary
    }

    fn create(&self, spec: &Spec) -> Summary {
        let generated = name("sb-1234");
        let name = spec.name.as_ref().unwrap_or(&generated);
        self.put(name, &spec.image.to_string(), spec.labels.clone())
    }

    fn find(&self, name: &Name) -> Result<Summary> {
        let sandboxes = self.sandboxes.lock().unwrap();
        sandboxes.get(name).cloned().ok_or_else(|| {
            let error = Error::new(Kind::NotFound, format!("no sandbox `{name}`"));
            match sandboxes.keys().next() {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            }
        })
    }

    fn set(&self, name: &Name, status: Status) -> Result<bool> {
        let before = self.find(name)?.status;
        if let Some(summary) = self.sandboxes.lock().unwrap().get_mut(name) {
            summary.status = status;
        }
        Ok(before != status)
    }

    /// Fails unless the sandbox or volume of a file Operation exists.
    fn place(&self, sandbox: Option<&Name>, volume: Option<&VolumeName>) -> Result<()> {
        sandbox.map_or(Ok(()), |name| self.find(name).map(drop))?;
        volume.map_or(Ok(()), |name| self.volume(name).map(drop))
    }

    fn volume(&self, name: &VolumeName) -> Result<Volume> {
        if !self.volumes.lock().unwrap().contains(name) {
            return Err(Error::new(Kind::NotFound, format!("no volume `{name}`")));
        }
        Ok(Volume {
            name: name.clone(),
            kind: VolumeKind::Dir,
            size: None,
            used: 0,
            labels: BTreeMap::new(),
            created: 0,
            sandboxes: vec![self::name("a--web"), self::name("b--web"), self::name("web")],
            by_machine: false,
        })
    }

    fn snapshot(&self, name: &Name) -> Result<Snapshot> {
        let snapshots = self.snapshots.lock().unwrap();
        let found =
            snapshots.iter().find(|(id, names)| id == name.as_str() || names.contains(name));
        found.map(|(id, names)| snapshot(id, names)).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("no snapshot `{name}`")).hint("did you mean `b--x`?")
        })
    }
}

fn metrics(name: &Name) -> Metrics {
    Metrics {
        name: name.to_string(),
        cpu_us: 1000,
        memory: 3 << 20,
        memory_limit: None,
        pids: 1,
        pids_limit: None,
        disk: Some(4096),
        disk_traffic: None,
        net: None,
        uptime_ms: 10,
        guest: None,
    }
}

fn snapshot(id: &str, names: &[Name]) -> Snapshot {
    Snapshot {
        id: id.to_owned(),
        names: names.to_vec(),
        created: 0,
        sandbox: names.first().cloned().unwrap_or_else(|| name("gone")),
        image: ImageRef::Host,
        image_digest: None,
        isolation: Isolation::Process,
        note: None,
        parent: Some("parent".to_owned()),
        children: vec!["child".to_owned()],
        paused_us: None,
        digest: None,
        files: None,
        bytes: None,
    }
}

fn alpine() -> ImageSummary {
    ImageSummary {
        reference: Reference::parse("alpine").expect("a name"),
        digest: Digest::parse(&format!("sha256:{}", "0".repeat(64))).expect("a digest"),
        platform: "linux/amd64".to_owned(),
        size: 0,
        own: 0,
        shared: 0,
        layers: 1,
        created: None,
        pulled: 0,
        used: None,
        sandboxes: vec![name("a--web"), name("b--web"), name("web")],
    }
}
