//! An `Api` for tests: it records its calls, returns what a test sets, and runs commands as
//! processes of the test host.

mod plan;
mod process;

#[cfg(test)]
pub(crate) use plan::of as plan_of;

use msb_api::{
    Api, ApplyReport, Attributes, Audit, Change, Changes, Child, ChildListing, ChildSpec, Children,
    CopyCount, Create, Depth, DiskUsage, EventStream, Exec, ExecEntry, Execs, Files,
    ImageInspection, ImageSummary, Images, Inspection, LinkListener, Links, LogFilter, LogStream,
    Meta, Metrics, NetRecord, NetTable, Networks, Place, PrunedVolumes, Registry, RelPath, Sample,
    Sandboxes, Selection, Snapshot, Snapshots, Status, StopResult, Summary, SyncSpec, SyncSummary,
    Syncs, Target, VerifyReport, Volume, Volumes, Watch, Workspaces,
};
use msb_spec::{
    Command, Digest, Error, Exit, ImageRef, Isolation, Kind, Name, Plan, Policy, PruneReport,
    PublishedPort, Reference, Result, Rule, Spec, UserRef, VolumeKind, VolumeName, VolumeSpec,
};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where a command of the fake runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum CommandMode {
    #[default]
    Nowhere,
    Here,
}

#[derive(Debug, Default)]
pub(crate) struct FakeApi {
    pub(crate) runs: CommandMode,
    /// Images whose pull fails.
    pub(crate) unreachable: bool,
    pub(crate) sandboxes: Mutex<BTreeMap<Name, Summary>>,
    pub(crate) volumes: Mutex<Vec<VolumeName>>,
    /// Names of snapshots by their ids.
    pub(crate) snapshots: Mutex<Vec<(String, Vec<Name>)>>,
    pub(crate) calls: Mutex<Vec<String>>,
}

pub(crate) fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

impl FakeApi {
    pub(crate) fn with_sandboxes(names: &[&str]) -> Self {
        let fake = Self::default();
        for text in names {
            fake.put(&name(text), "host", BTreeMap::new());
        }
        fake
    }

    /// The calls since the last time this was read.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, what: &str, with: &dyn std::fmt::Debug) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(format!("{what} {with:?}"));
    }

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
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        sandboxes.insert(name.clone(), summary.clone());
        summary
    }

    fn there(&self, name: &Name) -> Result<Summary> {
        let sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        sandboxes.get(name).cloned().ok_or_else(|| {
            let error = Error::new(Kind::NotFound, format!("no sandbox `{name}`"));
            match sandboxes.keys().next() {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            }
        })
    }

    fn set(&self, name: &Name, status: Status) -> Result<bool> {
        let before = self.there(name)?.status;
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(summary) = sandboxes.get_mut(name) {
            summary.status = status;
        }
        Ok(before != status)
    }

    fn snapshot(&self, name: &Name) -> Result<Snapshot> {
        let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let found =
            snapshots.iter().find(|(id, names)| id == name.as_str() || names.contains(name));
        found.map(|(id, names)| snapshot(id, names)).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("no snapshot `{name}`")).hint("did you mean `b--x`?")
        })
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

fn volume(name: &VolumeName) -> Volume {
    Volume {
        name: name.clone(),
        kind: VolumeKind::Dir,
        size: None,
        used: 0,
        labels: BTreeMap::new(),
        created: 0,
        sandboxes: vec![self::name("a--web"), self::name("b--web"), self::name("web")],
        by_machine: false,
    }
}

impl Sandboxes for FakeApi {
    fn with_secrets(&self, _: Vec<(String, Vec<u8>)>) -> Arc<dyn Api> {
        self.note("with_secrets", &());
        Arc::new(Self::default())
    }

    fn sandbox_plan(&self, spec: &Spec, _: &dyn Watch) -> Result<Plan> {
        self.note("sandbox_plan", spec);
        Ok(plan::of(spec))
    }

    fn sandbox_create(&self, ask: &Create, _: &dyn Watch) -> Result<Summary> {
        self.note("sandbox_create", ask);
        if self.unreachable && matches!(ask.spec.image, ImageRef::Name(_)) {
            let error = Error::host("cannot reach registry-1.docker.io", "no route to host");
            return Err(error.at(msb_spec::Stage::Image));
        }
        let made_up = name("sb-1234");
        let name = ask.spec.name.as_ref().unwrap_or(&made_up);
        Ok(self.put(name, &ask.spec.image.to_string(), ask.spec.labels.clone()))
    }

    fn sandbox_list(&self) -> Result<Vec<Summary>> {
        self.note("sandbox_list", &());
        let sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(sandboxes.values().cloned().collect())
    }

    fn sandbox_inspect(&self, name: &Name) -> Result<Inspection> {
        self.note("sandbox_inspect", name);
        let Summary { status, labels, .. } = self.there(name)?;
        let spec = Spec { name: Some(name.clone()), labels, ..Spec::default() };
        let plan = plan::of(&spec);
        let name = name.clone();
        Ok(Inspection { name, status, worker: None, stopped: None, reason: None, plan })
    }

    fn sandbox_summary(&self, name: &Name) -> Result<Summary> {
        self.note("sandbox_summary", name);
        self.there(name)
    }

    fn sandbox_start(&self, name: &Name) -> Result<bool> {
        self.note("sandbox_start", name);
        self.set(name, Status::Running)
    }

    fn sandbox_stop(&self, name: &Name, grace: Duration) -> Result<bool> {
        self.note("sandbox_stop", &(name, grace));
        self.set(name, Status::Stopped)
    }

    fn sandbox_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.note("sandbox_remove", &(name, force));
        self.there(name).map(drop)
    }

    fn sandbox_drain(&self, name: &Name) -> Result<bool> {
        self.note("sandbox_drain", name);
        self.there(name).map(|_| true)
    }

    fn sandbox_pause(&self, name: &Name) -> Result<()> {
        self.note("sandbox_pause", name);
        self.there(name).map(drop)
    }

    fn sandbox_resume(&self, name: &Name) -> Result<()> {
        self.note("sandbox_resume", name);
        self.there(name).map(drop)
    }

    fn sandbox_renew(&self, name: &Name, left: Option<Duration>) -> Result<Option<u64>> {
        self.note("sandbox_renew", &(name, left));
        self.there(name).map(|_| left.map(|left| left.as_millis() as u64))
    }

    fn sandbox_modify(
        &self,
        name: &Name,
        ask: &msb_spec::Modify,
    ) -> Result<Vec<msb_api::SettingChange>> {
        self.note("sandbox_modify", &(name, ask));
        self.there(name).map(|_| Vec::new())
    }

    fn sandbox_rename(&self, name: &Name, to: &Name) -> Result<()> {
        self.note("sandbox_rename", &(name, to));
        self.there(name).map(drop)
    }

    fn sandbox_wait(&self, name: &Name, limit: Option<Duration>) -> Result<Option<StopResult>> {
        self.note("sandbox_wait", &(name, limit));
        self.there(name).map(|_| None)
    }

    fn sandbox_metrics(&self, name: &Name) -> Result<Metrics> {
        self.note("sandbox_metrics", name);
        self.there(name)?;
        Ok(Metrics {
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
        })
    }

    fn sandbox_logs(&self, name: &Name, _: &LogFilter) -> Result<Box<dyn LogStream>> {
        self.note("sandbox_logs", name);
        Err(Error::unsupported("no logs here"))
    }

    fn sandbox_history(&self, name: &Name) -> Result<Vec<Sample>> {
        self.note("sandbox_history", name);
        Ok(Vec::new())
    }

    fn sandbox_audit(&self, name: &Name) -> Result<Audit> {
        self.note("sandbox_audit", name);
        Err(Error::unsupported("no events here"))
    }

    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        self.note("sandbox_events", name);
        Err(Error::unsupported("no events here"))
    }
}

/// Waits for an Exec by listing all of them.
pub(crate) fn poll_exit(
    api: &dyn Api,
    name: &Name,
    id: u64,
    limit: Duration,
) -> Result<Option<Exit>> {
    let until = Instant::now() + limit;
    loop {
        let all = api.exec_list(name)?;
        let found = all.iter().find(|entry| entry.id == id);
        let exit = found.ok_or_else(|| msb_api::no_exec(name, id))?.exit;
        let left = until.saturating_duration_since(Instant::now());
        if exit.is_some() || left.is_zero() {
            return Ok(exit);
        }
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}

impl Execs for FakeApi {
    fn exec_start(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        self.note("exec_start", &(name, &command.argv, command.timeout));
        if let Some(origin) = msb_api::current_origin() {
            self.note("asked_by", &origin.to_string());
        }
        match self.runs {
            CommandMode::Here => process::start(command),
            CommandMode::Nowhere => Err(Error::unsupported("nothing runs here")),
        }
    }

    fn exec_attach(&self, name: &Name, id: u64) -> Result<Box<dyn Exec>> {
        self.note("exec_attach", &(name, id));
        Err(Error::unsupported("nothing runs here"))
    }

    fn exec_run(&self, spec: &Spec, _: &dyn Watch) -> Result<(Name, Box<dyn Exec>)> {
        self.note("exec_run", spec);
        Err(Error::unsupported("nothing runs here"))
    }

    fn exec_signal(&self, name: &Name, id: u64, signal: i32) -> Result<()> {
        self.note("exec_signal", &(name, id, signal));
        Ok(())
    }

    fn exec_wait(&self, name: &Name, id: u64, limit: Duration) -> Result<Option<Exit>> {
        poll_exit(self, name, id, limit)
    }

    fn exec_list(&self, name: &Name) -> Result<Vec<ExecEntry>> {
        self.note("exec_list", name);
        Ok(Vec::new())
    }
}

impl Files for FakeApi {
    fn file_read(
        &self,
        at: &Place,
        path: &[u8],
        _: u64,
        _: Option<u64>,
        _: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.note("file_read", &(at, path));
        Ok(())
    }

    fn file_write(
        &self,
        at: &Place,
        path: &[u8],
        _: u32,
        _: bool,
        _: &mut dyn Read,
    ) -> Result<u64> {
        self.note("file_write", &(at, path));
        Ok(0)
    }

    fn file_stat(&self, at: &Place, path: &[u8], _: bool) -> Result<Meta> {
        self.note("file_stat", &(at, path));
        Err(Error::unsupported("no files here"))
    }

    fn file_real(&self, at: &Place, path: &[u8]) -> Result<Vec<u8>> {
        self.note("file_real", &(at, path));
        Err(Error::unsupported("no files here"))
    }

    fn file_list(&self, at: &Place, path: &[u8]) -> Result<Vec<Meta>> {
        self.note("file_list", &(at, path));
        Ok(Vec::new())
    }

    fn file_mkdir(&self, at: &Place, path: &[u8], _: bool) -> Result<()> {
        self.note("file_mkdir", &(at, path));
        Ok(())
    }

    fn file_remove(&self, at: &Place, path: &[u8], _: bool) -> Result<()> {
        self.note("file_remove", &(at, path));
        Ok(())
    }

    fn file_rename(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.note("file_rename", &(at, from, to));
        Ok(())
    }

    fn file_copy(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.note("file_copy", &(at, from, to));
        Ok(())
    }

    fn file_symlink(&self, at: &Place, path: &[u8], target: &[u8]) -> Result<()> {
        self.note("file_symlink", &(at, path, target));
        Ok(())
    }

    fn file_set(&self, at: &Place, path: &[u8], attributes: &Attributes) -> Result<()> {
        self.note("file_set", &(at, path, attributes));
        Ok(())
    }

    fn file_push(&self, at: &Place, from: &Path, to: &[u8]) -> Result<CopyCount> {
        self.note("file_push", &(at, from, to));
        Ok(CopyCount::default())
    }

    fn file_pull(&self, at: &Place, from: &[u8], to: &Path) -> Result<CopyCount> {
        self.note("file_pull", &(at, from, to));
        Ok(CopyCount::default())
    }
}

impl Images for FakeApi {
    fn for_client(self: Arc<Self>, _: msb_api::ClientScope) -> Arc<dyn Api> {
        self
    }

    fn image_list(&self) -> Result<Vec<ImageSummary>> {
        self.note("image_list", &());
        Ok(vec![ImageSummary {
            reference: Reference::parse("alpine").expect("a name"),
            digest: digest(),
            platform: "linux/amd64".to_owned(),
            size: 0,
            own: 0,
            shared: 0,
            layers: 1,
            created: None,
            pulled: 0,
            used: None,
            sandboxes: vec![name("a--web"), name("b--web"), name("web")],
        }])
    }

    fn image_inspect(&self, reference: &Reference) -> Result<ImageInspection> {
        self.note("image_inspect", reference);
        Err(Error::new(Kind::NotFound, format!("no image `{reference}`")))
    }

    fn image_pull(
        &self,
        reference: &Reference,
        _: Option<&Registry>,
        _: &dyn Watch,
    ) -> Result<ImageInspection> {
        self.note("image_pull", reference);
        Err(Error::new(Kind::NotFound, format!("no image `{reference}`")))
    }

    fn image_remove(&self, reference: &Reference, _: bool) -> Result<Reference> {
        self.note("image_remove", reference);
        Ok(reference.clone())
    }

    fn image_build(
        &self,
        name: &Reference,
        containerfile: &str,
        _: &dyn Watch,
    ) -> Result<ImageInspection> {
        self.note("image_build", &(name, containerfile));
        Err(Error::unsupported("nothing is built here"))
    }

    fn image_prune(&self, _: bool, _: Option<Duration>, _: bool) -> Result<PruneReport> {
        self.note("image_prune", &());
        Err(Error::unsupported("nothing is pruned here"))
    }

    fn disk_usage(&self) -> Result<DiskUsage> {
        self.note("disk_usage", &());
        Err(Error::unsupported("nothing is counted here"))
    }
}

fn digest() -> Digest {
    Digest::parse(&format!("sha256:{}", "0".repeat(64))).expect("a digest")
}

impl Volumes for FakeApi {
    fn volume_create(&self, spec: &VolumeSpec) -> Result<Volume> {
        self.note("volume_create", spec);
        Ok(volume(&spec.name))
    }

    fn volume_list(&self) -> Result<Vec<Volume>> {
        self.note("volume_list", &());
        let volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(volumes.iter().map(volume).collect())
    }

    fn volume_inspect(&self, name: &VolumeName) -> Result<Volume> {
        self.note("volume_inspect", name);
        Ok(volume(name))
    }

    fn volume_remove(&self, name: &VolumeName, _: bool) -> Result<()> {
        self.note("volume_remove", name);
        Ok(())
    }

    fn volume_prune(&self, dry_run: bool) -> Result<PrunedVolumes> {
        self.note("volume_prune", &dry_run);
        Ok(PrunedVolumes::default())
    }
}

impl Snapshots for FakeApi {
    fn snapshot_create(&self, name: &Name, of: &Name, _: Option<&str>) -> Result<Snapshot> {
        self.note("snapshot_create", &(name, of));
        Ok(snapshot("new", std::slice::from_ref(name)))
    }

    fn snapshot_list(&self) -> Result<Vec<Snapshot>> {
        self.note("snapshot_list", &());
        let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(snapshots.iter().map(|(id, names)| snapshot(id, names)).collect())
    }

    fn snapshot_inspect(&self, name: &Name) -> Result<Snapshot> {
        self.note("snapshot_inspect", name);
        self.snapshot(name)
    }

    fn snapshot_verify(&self, name: &Name) -> Result<VerifyReport> {
        self.note("snapshot_verify", name);
        Err(Error::unsupported("nothing is verified here"))
    }

    fn snapshot_tag(&self, snapshot: &Name, name: &Name) -> Result<()> {
        self.note("snapshot_tag", &(snapshot, name));
        Ok(())
    }

    fn snapshot_remove(&self, name: &Name, _: bool) -> Result<()> {
        self.note("snapshot_remove", name);
        Ok(())
    }

    fn snapshot_save(&self, name: &Name, _: bool, _: &mut dyn Write) -> Result<()> {
        self.note("snapshot_save", name);
        Ok(())
    }

    fn snapshot_load(&self, name: Option<&Name>, _: &mut dyn Read) -> Result<Snapshot> {
        self.note("snapshot_load", &name);
        let names: Vec<Name> = name.into_iter().cloned().collect();
        Ok(snapshot("new", &names))
    }

    fn snapshot_restore(
        &self,
        snapshot: &Name,
        name: &Name,
        changes: Option<&Changes>,
    ) -> Result<()> {
        self.note("snapshot_restore", &(snapshot, name, changes));
        Ok(())
    }

    fn sandbox_clone(&self, of: &Name, name: &Name) -> Result<()> {
        self.note("sandbox_clone", &(of, name));
        Ok(())
    }

    fn sandbox_rollback(&self, name: &Name, snapshot: &Name) -> Result<()> {
        self.note("sandbox_rollback", &(name, snapshot));
        Ok(())
    }

    fn sandbox_reset(&self, name: &Name, _: bool) -> Result<()> {
        self.note("sandbox_reset", name);
        Ok(())
    }
}

impl Networks for FakeApi {
    fn network_table(&self, name: &Name) -> Result<NetTable> {
        self.note("network_table", name);
        Ok(NetTable { flows: Vec::new(), ports: Vec::new(), policy: None })
    }

    fn network_allow(&self, name: &Name, _: &[Rule]) -> Result<Policy> {
        self.note("network_allow", name);
        Err(Error::unsupported("no rules here"))
    }

    fn port_publish(&self, name: &Name, port: &PublishedPort) -> Result<PublishedPort> {
        self.note("port_publish", &(name, port));
        Ok(port.clone())
    }

    fn port_withdraw(&self, name: &Name, port: &PublishedPort) -> Result<()> {
        self.note("port_withdraw", &(name, port));
        Ok(())
    }

    fn network_events(&self, name: &Name) -> Result<Vec<NetRecord>> {
        self.note("network_events", name);
        Ok(Vec::new())
    }
}

impl Workspaces for FakeApi {
    fn workspace_diff(&self, name: &Name, _: &[RelPath], _: Depth) -> Result<Vec<Change>> {
        self.note("workspace_diff", name);
        Ok(Vec::new())
    }

    fn workspace_apply(&self, name: &Name, _: &Selection, _: bool) -> Result<ApplyReport> {
        self.note("workspace_apply", name);
        Err(Error::unsupported("no workspaces here"))
    }

    fn workspace_discard(&self, name: &Name, _: &[RelPath]) -> Result<usize> {
        self.note("workspace_discard", name);
        Ok(0)
    }
}

impl Syncs for FakeApi {
    fn sync_start(&self, spec: &SyncSpec, _: &dyn Watch) -> Result<SyncSummary> {
        self.note("sync_start", spec);
        Err(Error::unsupported("no syncs here"))
    }

    fn sync_list(&self) -> Result<Vec<SyncSummary>> {
        self.note("sync_list", &());
        Ok(Vec::new())
    }

    fn sync_inspect(&self, _: &str) -> Result<SyncSummary> {
        Err(Error::new(Kind::NotFound, "no syncs here"))
    }

    fn sync_stop(&self, _: &str) -> Result<()> {
        Err(Error::new(Kind::NotFound, "no syncs here"))
    }
}

impl Children for FakeApi {
    fn child_spawn(&self, parent: &Name, ask: &ChildSpec, _: &dyn Watch) -> Result<Child> {
        self.note("child_spawn", &(parent, ask));
        Err(Error::unsupported("no children here"))
    }

    fn child_list(&self, parent: &Name) -> Result<ChildListing> {
        self.note("child_list", parent);
        Ok(ChildListing { children: Vec::new(), spawned: 0, max_total: Some(10) })
    }

    fn child_remove(&self, parent: &Name, name: &Name) -> Result<()> {
        self.note("child_remove", &(parent, name));
        Ok(())
    }
}

impl Links for FakeApi {
    fn link_sftp(&self, name: &Name, user: Option<&UserRef>) -> Result<UnixStream> {
        self.note("link_sftp", &(name, user));
        Err(Error::unsupported("no links here"))
    }

    fn link_dial(&self, name: &Name, user: Option<&UserRef>, to: &Target) -> Result<UnixStream> {
        self.note("link_dial", &(name, user, to));
        Err(Error::unsupported("no links here"))
    }

    fn link_listen(
        &self,
        name: &Name,
        user: Option<&UserRef>,
        at: &Target,
    ) -> Result<Box<dyn LinkListener>> {
        self.note("link_listen", &(name, user, at));
        Err(Error::unsupported("no links here"))
    }
}
