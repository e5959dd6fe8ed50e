//! The Operations, each as what is asked for over HTTP.

use crate::exec::{self, RemoteExec};
use crate::{
    BYTES, Client, EVENTS, JSON, NOBODY, TAR, copies, events, json, members, parsed, query,
};
use msb_api::http::streams::{
    self, FileRead, FileWrite, Follow, SnapshotLoad, SnapshotSave, StartExec, StartRun,
};
use msb_api::http::*;
use msb_api::{
    Api, Applied, Attributes, Audit, Brood, Change, Changes, Child, ChildSpec, Children,
    ClientScope, Copied, Create, Depth, DiskUsage, Event, EventStream, Exec, ExecEntry, Execs,
    Files, ImageInspection, ImageSummary, Images, Inspection, LogFilter, LogLine, LogStream, Meta,
    Metrics, Modified, NetRecord, NetTable, Networks, Place, PrunedVolumes, Registry, RelPath,
    Sample, Sandboxes, Selection, Snapshot, Snapshots, Stopped, Summary, SyncSpec, SyncSummary,
    Syncs, Verified, Volume, Volumes, Watch, Workspaces,
};
use msb_spec::{
    Command, Error, Exit, Modify, Name, Plan, Policy, Prune, Pruned, Published, Reference, Result,
    Rule, Spec, VolumeName, VolumeSpec,
};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;
use ureq::SendBody;

impl Client {
    /// The values of Secrets as they are sent.
    fn values(&self) -> Result<Values> {
        let text = |(name, value): &(String, Vec<u8>)| match std::str::from_utf8(value) {
            Ok(value) => Ok((name.clone(), value.to_owned())),
            Err(_) => Err(Error::unsupported(format!(
                "the value of secret `{name}` is no text, which a server cannot be sent"
            ))),
        };
        self.secrets.iter().map(text).collect()
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Sandboxes for Client {
    fn giving(&self, secrets: Vec<(String, Vec<u8>)>) -> Arc<dyn Api> {
        Arc::new(Self { secrets: secrets.into(), ..self.clone() })
    }

    fn sandbox_plan(&self, spec: &Spec, watch: &dyn Watch) -> Result<Plan> {
        self.watched(&SandboxPlan { spec: spec.clone(), secrets: self.values()? }, watch)
    }

    fn sandbox_create(&self, ask: &Create, watch: &dyn Watch) -> Result<Summary> {
        let Create { spec, replace, registry } = ask.clone();
        self.watched(&SandboxCreate { spec, replace, registry, secrets: self.values()? }, watch)
    }

    fn sandbox_list(&self) -> Result<Vec<Summary>> {
        self.ask(&SandboxList {})
    }

    fn sandbox_inspect(&self, name: &Name) -> Result<Inspection> {
        self.ask(&SandboxInspect { name: name.clone() })
    }

    fn sandbox_summary(&self, name: &Name) -> Result<Summary> {
        self.ask(&SandboxSummary { name: name.clone() })
    }

    fn sandbox_start(&self, name: &Name) -> Result<bool> {
        let ask = SandboxStart { name: name.clone(), secrets: self.values()? };
        Ok(self.ask(&ask)?.changed)
    }

    fn sandbox_stop(&self, name: &Name, grace: Duration) -> Result<bool> {
        let ask = SandboxStop { name: name.clone(), grace_ms: milliseconds(grace) };
        Ok(self.ask(&ask)?.changed)
    }

    fn sandbox_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.ask(&SandboxRemove { name: name.clone(), force }).map(drop)
    }

    fn sandbox_drain(&self, name: &Name) -> Result<bool> {
        Ok(self.ask(&SandboxDrain { name: name.clone() })?.changed)
    }

    fn sandbox_pause(&self, name: &Name) -> Result<()> {
        self.ask(&SandboxPause { name: name.clone() }).map(drop)
    }

    fn sandbox_resume(&self, name: &Name) -> Result<()> {
        self.ask(&SandboxResume { name: name.clone() }).map(drop)
    }

    fn sandbox_renew(&self, name: &Name, left: Option<Duration>) -> Result<Option<u64>> {
        let ask = SandboxRenew { name: name.clone(), left_ms: left.map(milliseconds) };
        Ok(self.ask(&ask)?.at)
    }

    fn sandbox_modify(&self, name: &Name, ask: &Modify) -> Result<Vec<Modified>> {
        self.ask(&SandboxModify { name: name.clone(), change: ask.clone() })
    }

    fn sandbox_rename(&self, name: &Name, to: &Name) -> Result<()> {
        self.ask(&SandboxRename { name: name.clone(), to: to.clone() }).map(drop)
    }

    fn sandbox_wait(&self, name: &Name, limit: Option<Duration>) -> Result<Option<Stopped>> {
        let ask = SandboxWait { name: name.clone(), limit_ms: limit.map(milliseconds) };
        Ok(self.ask(&ask)?.stopped)
    }

    fn sandbox_metrics(&self, name: &Name) -> Result<Metrics> {
        self.ask(&SandboxMetrics { name: name.clone() })
    }

    fn sandbox_logs(&self, name: &Name, filter: &LogFilter) -> Result<Box<dyn LogStream>> {
        let LogFilter { exec, source, since, until, grep } = filter.clone();
        let name = name.clone();
        let follow = Follow { name, skip: 0, exec, source, since, until, grep };
        // Now, so that a sandbox that is not there is told of now.
        let Follow { name, exec, source, since, until, grep, .. } = follow.clone();
        let first = self.ask(&SandboxLogs { name, exec, source, since, until, grep })?;
        let later = Later::Lines(first.lines);
        let path = streams::LOGS_FOLLOW;
        Ok(Box::new(Lines { followed: Followed::new(self, path, follow, later), rest: first.rest }))
    }

    fn sandbox_history(&self, name: &Name) -> Result<Vec<Sample>> {
        self.ask(&SandboxHistory { name: name.clone() })
    }

    fn sandbox_audit(&self, name: &Name) -> Result<Audit> {
        self.ask(&SandboxAudit { name: name.clone() })
    }

    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        let first = self.ask(&SandboxEvents { name: name.clone() })?;
        let (name, skip) = (name.clone(), 0);
        let (exec, source, since, until, grep) = (None, None, None, None, None);
        let follow = Follow { name, skip, exec, source, since, until, grep };
        Ok(Box::new(Happenings(Followed::new(
            self,
            streams::EVENTS_FOLLOW,
            follow,
            Later::Lines(first),
        ))))
    }
}

/// What comes after what there was.
enum Later<T> {
    /// It was not given away yet.
    Lines(Vec<T>),
    /// It is followed.
    Comes(Receiver<Result<Vec<T>>>),
    /// So many are known, and nothing is followed yet.
    Known(u64),
}

struct Followed<T> {
    client: Client,
    path: &'static str,
    ask: Follow,
    later: Later<T>,
}

impl<T: serde::de::DeserializeOwned + Send + 'static> Followed<T> {
    fn new(client: &Client, path: &'static str, ask: Follow, later: Later<T>) -> Self {
        Self { client: client.clone(), path, ask, later }
    }

    fn more(&mut self) -> Result<Vec<T>> {
        match std::mem::replace(&mut self.later, Later::Known(0)) {
            Later::Lines(items) => {
                self.later = Later::Known(items.len() as u64);
                Ok(items)
            }
            Later::Known(skip) => {
                self.later = Later::Comes(self.follow(skip)?);
                Ok(Vec::new())
            }
            Later::Comes(items) => {
                let came = match items.try_recv() {
                    Ok(came) => came,
                    Err(TryRecvError::Empty) => Ok(Vec::new()),
                    Err(TryRecvError::Disconnected) => {
                        Err(Error::new(msb_spec::Kind::Protocol, "the server hung up"))
                    }
                };
                self.later = Later::Comes(items);
                came
            }
        }
    }

    /// Opens the stream, which a thread reads.
    fn follow(&self, skip: u64) -> Result<Receiver<Result<Vec<T>>>> {
        let path = self.path.replace("{name}", self.ask.name.as_str());
        let mut rest = members(&Follow { skip, ..self.ask.clone() })?;
        rest.remove("name");
        let response = self.client.send("GET", &path, &query(&rest)?, SendBody::none(), EVENTS)?;
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for event in events::Events::new(response.into_body().into_reader()) {
                let came = event.and_then(|(name, data)| match name.as_str() {
                    "items" => parsed(&data),
                    "error" => Err(parsed(&data)?),
                    _ => Ok(Vec::new()),
                });
                if sender.send(came).is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }
}

struct Lines {
    followed: Followed<LogLine>,
    rest: Vec<LogLine>,
}

impl LogStream for Lines {
    fn more(&mut self) -> Result<Vec<LogLine>> {
        self.followed.more()
    }

    fn rest(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.rest)
    }
}

struct Happenings(Followed<Event>);

impl EventStream for Happenings {
    fn more(&mut self) -> Result<Vec<Event>> {
        self.0.more()
    }
}

impl Execs for Client {
    fn exec_start(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        let path = streams::EXEC_SOCKET.replace("{name}", name.as_str());
        let first = StartExec { command: command.clone(), stdin: None };
        let exec = RemoteExec::open(self, &path, Some(&first), NOBODY)?;
        exec::without_stdin(&exec, command.stdin)?;
        Ok(Box::new(exec))
    }

    fn exec_attach(&self, name: &Name, id: u64) -> Result<Box<dyn Exec>> {
        let path = streams::ATTACH_SOCKET.replace("{name}", name.as_str());
        let path = path.replace("{id}", &id.to_string());
        Ok(Box::new(RemoteExec::open(self, &path, None::<&StartExec>, NOBODY)?))
    }

    fn exec_run(&self, spec: &Spec, watch: &dyn Watch) -> Result<(Name, Box<dyn Exec>)> {
        let first = StartRun { spec: spec.clone(), stdin: None, secrets: self.values()? };
        let exec = RemoteExec::open(self, streams::RUN_SOCKET, Some(&first), watch)?;
        Ok((exec.sandbox().clone(), Box::new(exec)))
    }

    fn exec_signal(&self, name: &Name, id: u64, signal: i32) -> Result<()> {
        self.ask(&ExecSignal { name: name.clone(), id, signal }).map(drop)
    }

    fn exec_wait(&self, name: &Name, id: u64, limit: Duration) -> Result<Option<Exit>> {
        let ask = ExecWait { name: name.clone(), id, limit_ms: milliseconds(limit) };
        Ok(self.ask(&ask)?.exit)
    }

    fn exec_list(&self, name: &Name) -> Result<Vec<ExecEntry>> {
        self.ask(&ExecList { name: name.clone() })
    }
}

fn inside(path: &[u8]) -> InsidePath {
    InsidePath(path.to_vec())
}

impl Files for Client {
    fn file_read(
        &self,
        at: &Place,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let Where { sandbox, volume, user } = at.into();
        let ask = FileRead { sandbox, volume, user, path: inside(path), offset, length };
        let query = query(&members(&ask)?)?;
        let response = self.send("GET", streams::FILE_CONTENT, &query, SendBody::none(), BYTES)?;
        let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut piece = vec![0; 64 << 10];
        loop {
            let count = body
                .read(&mut piece)
                .map_err(|error| Error::host("the file broke off on its way", error))?;
            match count {
                0 => return Ok(()),
                count => take(&piece[..count])?,
            }
        }
    }

    fn file_write(
        &self,
        at: &Place,
        path: &[u8],
        mode: u32,
        append: bool,
        mut content: &mut dyn Read,
    ) -> Result<u64> {
        let Where { sandbox, volume, user } = at.into();
        let ask = FileWrite { sandbox, volume, user, path: inside(path), mode, append };
        let query = query(&members(&ask)?)?;
        let body = SendBody::from_reader(&mut content);
        let mut response = self.send("PUT", streams::FILE_CONTENT, &query, body, JSON)?;
        json::<Count>(&mut response).map(|done| done.count)
    }

    fn file_stat(&self, at: &Place, path: &[u8], follow: bool) -> Result<Meta> {
        self.ask(&FileStat::at(at, inside(path), follow))?.try_into()
    }

    fn file_real(&self, at: &Place, path: &[u8]) -> Result<Vec<u8>> {
        Ok(self.ask(&FileReal::at(at, inside(path)))?.path.0)
    }

    fn file_list(&self, at: &Place, path: &[u8]) -> Result<Vec<Meta>> {
        let entries = self.ask(&FileList::at(at, inside(path)))?;
        entries.into_iter().map(Meta::try_from).collect()
    }

    fn file_mkdir(&self, at: &Place, path: &[u8], parents: bool) -> Result<()> {
        self.ask(&FileMkdir::at(at, inside(path), parents)).map(drop)
    }

    fn file_remove(&self, at: &Place, path: &[u8], recursive: bool) -> Result<()> {
        self.ask(&FileRemove::at(at, inside(path), recursive)).map(drop)
    }

    fn file_rename(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.ask(&FileRename::at(at, inside(from), inside(to))).map(drop)
    }

    fn file_copy(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.ask(&FileCopy::at(at, inside(from), inside(to))).map(drop)
    }

    fn file_symlink(&self, at: &Place, path: &[u8], target: &[u8]) -> Result<()> {
        self.ask(&FileSymlink::at(at, inside(path), inside(target))).map(drop)
    }

    fn file_set(&self, at: &Place, path: &[u8], attributes: &Attributes) -> Result<()> {
        self.ask(&FileSet::at(at, inside(path), attributes.clone())).map(drop)
    }

    fn file_push(&self, at: &Place, from: &Path, to: &[u8]) -> Result<Copied> {
        copies::push(self, at, from, to)
    }

    fn file_pull(&self, at: &Place, from: &[u8], to: &Path) -> Result<Copied> {
        copies::pull(self, at, from, to)
    }
}

impl Images for Client {
    /// The server that is asked takes everybody for a client.
    fn for_client(self: Arc<Self>, _: ClientScope) -> Arc<dyn Api> {
        self
    }

    fn image_list(&self) -> Result<Vec<ImageSummary>> {
        self.ask(&ImageList {})
    }

    fn image_inspect(&self, name: &Reference) -> Result<ImageInspection> {
        self.ask(&ImageInspect { name: name.clone() })
    }

    fn image_pull(&self, name: &Reference, watch: &dyn Watch) -> Result<ImageInspection> {
        self.watched(&ImagePull { name: name.clone(), registry: None }, watch)
    }

    fn image_pull_from(
        &self,
        name: &Reference,
        registry: &Registry,
        watch: &dyn Watch,
    ) -> Result<ImageInspection> {
        let registry = Some(registry.clone());
        self.watched(&ImagePull { name: name.clone(), registry }, watch)
    }

    fn image_remove(&self, name: &Reference, force: bool) -> Result<Reference> {
        self.ask(&ImageRemove { name: name.clone(), force })
    }

    fn image_build(
        &self,
        name: &Reference,
        containerfile: &str,
        watch: &dyn Watch,
    ) -> Result<ImageInspection> {
        let (name, containerfile) = (name.clone(), containerfile.to_owned());
        self.watched(&ImageBuild { name, containerfile }, watch)
    }

    fn image_prune(&self, prune: &Prune) -> Result<Pruned> {
        let older_than_ms = prune.older_than.map(milliseconds);
        self.ask(&ImagePrune { all: prune.all, older_than_ms, dry_run: prune.dry_run })
    }

    fn disk_usage(&self) -> Result<DiskUsage> {
        self.ask(&DiskUsed {})
    }
}

impl Volumes for Client {
    fn volume_create(&self, spec: &VolumeSpec) -> Result<Volume> {
        let VolumeSpec { name, kind, size, labels } = spec.clone();
        self.ask(&VolumeCreate { name, kind, size, labels })
    }

    fn volume_list(&self) -> Result<Vec<Volume>> {
        self.ask(&VolumeList {})
    }

    fn volume_inspect(&self, name: &VolumeName) -> Result<Volume> {
        self.ask(&VolumeInspect { name: name.clone() })
    }

    fn volume_remove(&self, name: &VolumeName, force: bool) -> Result<()> {
        self.ask(&VolumeRemove { name: name.clone(), force }).map(drop)
    }

    fn volume_prune(&self, dry_run: bool) -> Result<PrunedVolumes> {
        self.ask(&VolumePrune { dry_run })
    }
}

impl Snapshots for Client {
    fn snapshot_create(&self, name: &Name, of: &Name, note: Option<&str>) -> Result<Snapshot> {
        let note = note.map(str::to_owned);
        self.ask(&SnapshotCreate { name: name.clone(), of: of.clone(), note })
    }

    fn snapshot_list(&self) -> Result<Vec<Snapshot>> {
        self.ask(&SnapshotList {})
    }

    fn snapshot_inspect(&self, name: &Name) -> Result<Snapshot> {
        self.ask(&SnapshotInspect { name: name.clone() })
    }

    fn snapshot_verify(&self, name: &Name) -> Result<Verified> {
        self.ask(&SnapshotVerify { name: name.clone() })
    }

    fn snapshot_tag(&self, snapshot: &Name, name: &Name) -> Result<()> {
        self.ask(&SnapshotTag { name: snapshot.clone(), to: name.clone() }).map(drop)
    }

    fn snapshot_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.ask(&SnapshotRemove { name: name.clone(), force }).map(drop)
    }

    fn snapshot_save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()> {
        let path = streams::SNAPSHOT_SAVE.replace("{name}", name.as_str());
        let mut rest = members(&SnapshotSave { name: name.clone(), whole })?;
        rest.remove("name");
        let response = self.send("GET", &path, &query(&rest)?, SendBody::none(), TAR)?;
        let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
        std::io::copy(&mut body, out)
            .map(drop)
            .map_err(|error| Error::host("the archive broke off on its way", error))
    }

    fn snapshot_load(&self, name: Option<&Name>, mut archive: &mut dyn Read) -> Result<Snapshot> {
        let query = query(&members(&SnapshotLoad { name: name.cloned() })?)?;
        let body = SendBody::from_reader(&mut archive);
        let mut response = self.send("POST", streams::SNAPSHOT_LOAD, &query, body, TAR)?;
        json(&mut response)
    }

    fn snapshot_restore(&self, snapshot: &Name, name: &Name) -> Result<()> {
        let (name, to) = (snapshot.clone(), name.clone());
        self.ask(&SnapshotRestore { name, to, changes: None }).map(drop)
    }

    fn snapshot_restore_with(&self, snapshot: &Name, name: &Name, changes: &Changes) -> Result<()> {
        let (name, to) = (snapshot.clone(), name.clone());
        self.ask(&SnapshotRestore { name, to, changes: Some(changes.clone()) }).map(drop)
    }

    fn sandbox_clone(&self, of: &Name, name: &Name) -> Result<()> {
        self.ask(&SandboxClone { name: of.clone(), to: name.clone() }).map(drop)
    }

    fn sandbox_rollback(&self, name: &Name, snapshot: &Name) -> Result<()> {
        self.ask(&SandboxRollback { name: name.clone(), snapshot: snapshot.clone() }).map(drop)
    }

    fn sandbox_reset(&self, name: &Name, keep_workspace: bool) -> Result<()> {
        self.ask(&SandboxReset { name: name.clone(), keep_workspace }).map(drop)
    }
}

impl Networks for Client {
    fn network_table(&self, name: &Name) -> Result<NetTable> {
        self.ask(&NetworkTable { name: name.clone() })
    }

    fn network_allow(&self, name: &Name, rules: &[Rule]) -> Result<Policy> {
        self.ask(&NetworkAllow { name: name.clone(), rules: rules.to_vec() })
    }

    fn port_publish(&self, name: &Name, port: &Published) -> Result<Published> {
        self.ask(&PortPublish { name: name.clone(), port: port.clone() })
    }

    fn port_withdraw(&self, name: &Name, port: &Published) -> Result<()> {
        self.ask(&PortWithdraw { name: name.clone(), port: port.clone() }).map(drop)
    }

    fn network_events(&self, name: &Name) -> Result<Vec<NetRecord>> {
        self.ask(&NetworkEvents { name: name.clone() })
    }
}

impl Workspaces for Client {
    fn workspace_diff(&self, name: &Name, below: &[RelPath], depth: Depth) -> Result<Vec<Change>> {
        self.ask(&WorkspaceDiff { name: name.clone(), below: below.to_vec(), depth })
    }

    fn workspace_apply(
        &self,
        name: &Name,
        selection: &Selection,
        dry_run: bool,
    ) -> Result<Applied> {
        let (name, selection) = (name.clone(), selection.clone());
        self.ask(&WorkspaceApply { name, selection, dry_run })
    }

    fn workspace_discard(&self, name: &Name, paths: &[RelPath]) -> Result<usize> {
        let done = self.ask(&WorkspaceDiscard { name: name.clone(), paths: paths.to_vec() })?;
        Ok(usize::try_from(done.count).unwrap_or(usize::MAX))
    }
}

impl Syncs for Client {
    fn sync_start(&self, spec: &SyncSpec, watch: &dyn Watch) -> Result<SyncSummary> {
        self.watched(&SyncStart { spec: spec.clone() }, watch)
    }

    fn sync_list(&self) -> Result<Vec<SyncSummary>> {
        self.ask(&SyncList {})
    }

    fn sync_inspect(&self, id: &str) -> Result<SyncSummary> {
        self.ask(&SyncInspect { id: id.to_owned() })
    }

    fn sync_stop(&self, id: &str) -> Result<()> {
        self.ask(&SyncStop { id: id.to_owned() }).map(drop)
    }
}

impl Children for Client {
    fn child_spawn(&self, parent: &Name, ask: &ChildSpec, watch: &dyn Watch) -> Result<Child> {
        self.watched(&ChildSpawn { name: parent.clone(), spec: ask.clone() }, watch)
    }

    fn child_list(&self, parent: &Name) -> Result<Brood> {
        self.ask(&ChildList { name: parent.clone() })
    }

    fn child_remove(&self, parent: &Name, name: &Name) -> Result<()> {
        self.ask(&ChildRemove { name: parent.clone(), child: name.clone() }).map(drop)
    }
}
