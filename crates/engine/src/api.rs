//! Implements the Operations of `msb_api` on this machine.

mod build;
mod children;
mod exec;
mod owned;
mod path_recheck;
mod pull_progress;
mod syncs;
mod workspaces;

use crate::files::{self, SymlinkPolicy};
use crate::images::{Credential, Fetching, PullOptions, RegistryOptions, Secret};
use crate::logs::Reader;
use crate::network::Lines;
use crate::sandboxes::Engine;
use crate::start::Launch;
use exec::{ExecRole, ExecWait, LocalExec};
use msb_api::{
    Api, Attributes, Audit, Changes, ClientScope, CopyCount, Create, DiskUsage, EventStream, Exec,
    ExecEntry, Execs, Files, ImageInspection, ImageSummary, Images, Inspection, LogFilter, LogLine,
    LogStream, Login, Metrics, Networks, Place, PrunedVolumes, Registry, Sample, Sandboxes,
    SettingChange, Snapshot, Snapshots, Summary, VerifyReport, Volume, Volumes, Watch, no_exec,
};
use msb_spec::{
    CallOrigin, Command, CommandStreams, Error, Exit, Kind, Modify, Name, Plan, Policy, Prune,
    PruneReport, PublishedPort, Reference, Result, Rule, Spec, VolumeName, VolumeSpec,
};
use msb_wire::record::Event;
use msb_wire::{FileRequest, Meta, NetRecord, NetTable, Request, StopResult};
pub use owned::SandboxTie;
pub(crate) use path_recheck::check as recheck_paths;
use pull_progress::PullProgress;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait before an Exec that has just ended is looked up again in the records.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Sandboxes for Engine {
    fn with_secrets(&self, secrets: Vec<(String, Vec<u8>)>) -> Arc<dyn Api> {
        let wiped = secrets.into_iter().map(|(name, value)| (name, value.into())).collect();
        Arc::new(Self::with_secrets(self, wiped))
    }

    fn with_origin(&self, origin: CallOrigin) -> Arc<dyn Api> {
        Arc::new(self.for_origin(origin))
    }

    fn sandbox_plan(&self, spec: &Spec, watch: &dyn Watch) -> Result<Plan> {
        let progress = PullProgress::new(watch);
        let fetching = Fetching { progress: &progress, ..Fetching::default() };
        self.checked_plan(spec, &CommandStreams::default(), &fetching)
    }

    fn sandbox_create(&self, ask: &Create, watch: &dyn Watch) -> Result<Summary> {
        let mut spec = ask.spec.clone();
        spec.ephemeral = false;
        let plan = owned::launch(self, &spec, ask, watch)?.detach()?;
        self.summary(&plan.name)
    }

    fn sandbox_list(&self) -> Result<Vec<Summary>> {
        Ok(self.list())
    }

    fn sandbox_inspect(&self, name: &Name) -> Result<Inspection> {
        self.inspect(name)
    }

    fn sandbox_summary(&self, name: &Name) -> Result<Summary> {
        self.summary(name)
    }

    fn sandbox_start(&self, name: &Name) -> Result<bool> {
        self.start(name)
    }

    fn sandbox_stop(&self, name: &Name, grace: Duration) -> Result<bool> {
        self.stop(name, grace)
    }

    fn sandbox_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.remove(name, force)
    }

    fn sandbox_drain(&self, name: &Name) -> Result<bool> {
        self.drain(name)
    }

    fn sandbox_pause(&self, name: &Name) -> Result<()> {
        self.pause(name)
    }

    fn sandbox_resume(&self, name: &Name) -> Result<()> {
        self.resume(name)
    }

    fn sandbox_renew(&self, name: &Name, left: Option<Duration>) -> Result<Option<u64>> {
        self.renew(name, left)
    }

    fn sandbox_modify(&self, name: &Name, ask: &Modify) -> Result<Vec<SettingChange>> {
        self.modify(name, ask)
    }

    fn sandbox_rename(&self, name: &Name, to: &Name) -> Result<()> {
        self.rename(name, to)
    }

    fn sandbox_wait(&self, name: &Name, limit: Option<Duration>) -> Result<Option<StopResult>> {
        let Some(limit) = limit else {
            return self.wait(name).map(Some);
        };
        self.wait_within(name, limit)
    }

    fn sandbox_metrics(&self, name: &Name) -> Result<Metrics> {
        self.metrics(name)
    }

    fn sandbox_logs(&self, name: &Name, filter: &LogFilter) -> Result<Box<dyn LogStream>> {
        Ok(Box::new(FollowReader { begun: false, source: self.logs(name, filter.clone())? }))
    }

    fn sandbox_history(&self, name: &Name) -> Result<Vec<Sample>> {
        self.history(name)
    }

    fn sandbox_audit(&self, name: &Name) -> Result<Audit> {
        self.audit(name)
    }

    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        Ok(Box::new(FollowReader { begun: false, source: self.events(name)? }))
    }
}

/// A file that is read from the start once, and then as it grows.
struct FollowReader<T> {
    begun: bool,
    source: T,
}

impl LogStream for FollowReader<Reader> {
    fn more(&mut self) -> Result<Vec<LogLine>> {
        match std::mem::replace(&mut self.begun, true) {
            true => self.source.more(),
            false => self.source.all(),
        }
    }

    fn rest(&mut self) -> Vec<LogLine> {
        self.source.rest()
    }
}

impl EventStream for FollowReader<Lines<Event>> {
    fn more(&mut self) -> Result<Vec<Event>> {
        match std::mem::replace(&mut self.begun, true) {
            true => self.source.more(),
            false => self.source.all(),
        }
    }
}

impl Execs for Engine {
    fn exec_start(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        if command.argv.is_empty() {
            return Err(Error::invalid("a command needs a program to execute"));
        }
        let connection = self.exec(name, command.clone())?;
        Ok(Box::new(LocalExec::begin(self, name, connection.into_stream(), ExecRole::Owner)?))
    }

    fn exec_attach(&self, name: &Name, id: u64) -> Result<Box<dyn Exec>> {
        let connection = self.connect(name, &Request::Attach { id })?;
        Ok(Box::new(LocalExec::begin(self, name, connection.into_stream(), ExecRole::Attached)?))
    }

    fn exec_run(&self, spec: &Spec, watch: &dyn Watch) -> Result<(Name, Box<dyn Exec>)> {
        let mut spec = spec.clone();
        spec.ephemeral = true;
        let progress = PullProgress::new(watch);
        let fetching = Fetching { progress: &progress, ..Fetching::default() };
        let plan = self.checked_plan(&spec, &CommandStreams::with_stdin(), &fetching)?;
        if plan.command.is_none() {
            return Err(Error::invalid("there is no command to run"));
        }
        watch.step("starting the sandbox", None);
        let launch = Launch { symlinks: SymlinkPolicy::Refuse, ..Launch::default() };
        let (plan, stream) = self.launch(plan, &launch)?.into_stream();
        let exec = LocalExec::first(self, &plan.name, stream)?;
        Ok((plan.name, Box::new(exec)))
    }

    fn exec_signal(&self, name: &Name, id: u64, signal: i32) -> Result<()> {
        self.kill(name, id, signal)
    }

    fn exec_wait(&self, name: &Name, id: u64, limit: Duration) -> Result<Option<Exit>> {
        let until = Instant::now() + limit;
        loop {
            let all = self.execs(name)?;
            let found = all.iter().find(|entry| entry.id == id).ok_or_else(|| no_exec(name, id))?;
            let left = until.saturating_duration_since(Instant::now());
            if found.exit.is_some() || left.is_zero() {
                return Ok(found.exit);
            }
            match self.connect(name, &Request::Attach { id }) {
                Ok(connection) => match exec::wait_for_exit(connection, until)? {
                    ExecWait::Exited(exit) => return Ok(Some(exit)),
                    ExecWait::TimedOut => return Ok(None),
                    // It ended after the list was read; the record tells how.
                    ExecWait::Unknown => std::thread::sleep(left.min(POLL_INTERVAL)),
                },
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::State) => {
                    std::thread::sleep(left.min(POLL_INTERVAL));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn exec_list(&self, name: &Name) -> Result<Vec<ExecEntry>> {
        self.execs(name)
    }
}

impl Engine {
    /// Plans a sandbox and checks that its host paths are those of the Spec.
    fn checked_plan(
        &self,
        spec: &Spec,
        streams: &CommandStreams,
        fetching: &Fetching<'_>,
    ) -> Result<Plan> {
        let plan = self.plan_with(spec, streams, fetching)?;
        path_recheck::check(spec, &plan)?;
        Ok(plan)
    }

    /// Opens a connection for one file operation in a sandbox or a volume.
    fn files_at(&self, at: &Place) -> Result<files::Files> {
        match at {
            Place::Sandbox { name, user } => {
                let connection = self.connect(name, &Request::Files { user: user.clone() })?;
                Ok(files::Files::over(connection))
            }
            Place::Volume(name) => self.volumes().files(name),
        }
    }
}

impl Files for Engine {
    fn file_read(
        &self,
        at: &Place,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.files_at(at)?.read(path, offset, length, take)
    }

    fn file_write(
        &self,
        at: &Place,
        path: &[u8],
        mode: u32,
        append: bool,
        content: &mut dyn Read,
    ) -> Result<u64> {
        self.files_at(at)?.write(path, mode, append, content)
    }

    fn file_stat(&self, at: &Place, path: &[u8], follow: bool) -> Result<Meta> {
        self.files_at(at)?.stat(path, follow)
    }

    fn file_real(&self, at: &Place, path: &[u8]) -> Result<Vec<u8>> {
        self.files_at(at)?.real(path)
    }

    fn file_list(&self, at: &Place, path: &[u8]) -> Result<Vec<Meta>> {
        self.files_at(at)?.list(path)
    }

    fn file_mkdir(&self, at: &Place, path: &[u8], parents: bool) -> Result<()> {
        self.files_at(at)?.run(&FileRequest::Mkdir { path: path.to_vec(), parents })
    }

    fn file_remove(&self, at: &Place, path: &[u8], recursive: bool) -> Result<()> {
        self.files_at(at)?.run(&FileRequest::Remove { path: path.to_vec(), recursive })
    }

    fn file_rename(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.files_at(at)?.run(&FileRequest::Rename { from: from.to_vec(), to: to.to_vec() })
    }

    fn file_copy(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()> {
        self.files_at(at)?.run(&FileRequest::Copy { from: from.to_vec(), to: to.to_vec() })
    }

    fn file_symlink(&self, at: &Place, path: &[u8], target: &[u8]) -> Result<()> {
        let request = FileRequest::Symlink { path: path.to_vec(), target: target.to_vec() };
        self.files_at(at)?.run(&request)
    }

    fn file_set(&self, at: &Place, path: &[u8], attributes: &Attributes) -> Result<()> {
        let Attributes { mode, owner, group } = attributes.clone();
        self.files_at(at)?.run(&FileRequest::Set { path: path.to_vec(), mode, owner, group })
    }

    fn file_push(&self, at: &Place, from: &Path, to: &[u8]) -> Result<CopyCount> {
        self.files_at(at)?.refusing_symlinks().push(from, to, true, &mut |_| {})
    }

    fn file_pull(&self, at: &Place, from: &[u8], to: &Path) -> Result<CopyCount> {
        self.files_at(at)?.refusing_symlinks().pull(from, to, &mut |_| {})
    }
}

impl Images for Engine {
    fn for_client(self: Arc<Self>, scope: ClientScope) -> Arc<dyn Api> {
        Arc::new((*self).clone().for_client_of(scope))
    }

    fn image_list(&self) -> Result<Vec<ImageSummary>> {
        Self::image_list(self)
    }

    fn image_inspect(&self, name: &Reference) -> Result<ImageInspection> {
        Self::image_inspect(self, name)
    }

    fn image_pull(
        &self,
        name: &Reference,
        registry: Option<&Registry>,
        watch: &dyn Watch,
    ) -> Result<ImageInspection> {
        let store = self.images()?;
        let name = store.settings().meant(name);
        let progress = PullProgress::new(watch);
        let reach = self.reach(&registry.map(reach).unwrap_or_default());
        let pulled =
            store.pull(name, &PullOptions { reach, ..PullOptions::default() }, &progress)?;
        Self::image_inspect(self, &pulled.reference)
    }

    fn image_build(
        &self,
        name: &Reference,
        containerfile: &str,
        watch: &dyn Watch,
    ) -> Result<ImageInspection> {
        self.build_text(name, containerfile, watch)
    }

    fn image_remove(&self, name: &Reference, force: bool) -> Result<Reference> {
        Self::image_remove(self, name, force)
    }

    fn image_prune(
        &self,
        all: bool,
        older_than: Option<Duration>,
        dry_run: bool,
    ) -> Result<PruneReport> {
        Self::image_prune(self, &Prune { all, older_than, dry_run })
    }

    fn disk_usage(&self) -> Result<DiskUsage> {
        Self::disk_usage(self)
    }
}

impl Volumes for Engine {
    fn volume_create(&self, spec: &VolumeSpec) -> Result<Volume> {
        self.volumes().create(spec)
    }

    fn volume_list(&self) -> Result<Vec<Volume>> {
        Ok(self.volumes().list())
    }

    fn volume_inspect(&self, name: &VolumeName) -> Result<Volume> {
        self.volumes().get(name)
    }

    fn volume_remove(&self, name: &VolumeName, force: bool) -> Result<()> {
        self.volumes().remove(name, force)
    }

    fn volume_prune(&self, dry_run: bool) -> Result<PrunedVolumes> {
        self.volumes().prune(dry_run)
    }
}

impl Snapshots for Engine {
    fn snapshot_create(&self, name: &Name, of: &Name, note: Option<&str>) -> Result<Snapshot> {
        self.snapshots().create(name, of, note)
    }

    fn snapshot_list(&self) -> Result<Vec<Snapshot>> {
        self.snapshots().list()
    }

    fn snapshot_inspect(&self, name: &Name) -> Result<Snapshot> {
        self.snapshots().get(name)
    }

    fn snapshot_verify(&self, name: &Name) -> Result<VerifyReport> {
        self.snapshots().verify(name)
    }

    fn snapshot_tag(&self, snapshot: &Name, name: &Name) -> Result<()> {
        self.snapshots().tag(snapshot, name)
    }

    fn snapshot_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.snapshots().remove(name, force)
    }

    fn snapshot_save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()> {
        self.snapshots().save(name, whole, out)
    }

    fn snapshot_load(&self, name: Option<&Name>, archive: &mut dyn Read) -> Result<Snapshot> {
        let name = self.snapshots().load(name, archive, &crate::images::NoProgress)?;
        self.snapshots().get(&name)
    }

    fn snapshot_restore(
        &self,
        snapshot: &Name,
        name: &Name,
        changes: Option<&Changes>,
    ) -> Result<()> {
        let Some(changes) = changes else {
            return self.snapshots().restore(snapshot, name).map(drop);
        };
        let plan = self.snapshots().restore_with(snapshot, name, changes)?;
        path_recheck::check_mounts(&changes.mounts, &plan).inspect_err(|_| {
            // It has not been started, so nothing has read the mounted paths yet.
            msb_log::warn_on_failure!(
                self.remove(name, true),
                "cannot remove a sandbox that failed to start"
            );
        })
    }

    fn sandbox_clone(&self, of: &Name, name: &Name) -> Result<()> {
        self.snapshots().clone_sandbox(of, name).map(drop)
    }

    fn sandbox_rollback(&self, name: &Name, snapshot: &Name) -> Result<()> {
        self.snapshots().rollback(name, snapshot)
    }

    fn sandbox_reset(&self, name: &Name, keep_workspace: bool) -> Result<()> {
        self.snapshots().reset(name, keep_workspace)
    }
}

impl Networks for Engine {
    fn network_table(&self, name: &Name) -> Result<NetTable> {
        self.net_table(name)
    }

    fn network_allow(&self, name: &Name, rules: &[Rule]) -> Result<Policy> {
        self.add_rules(name, rules)
    }

    fn port_publish(&self, name: &Name, port: &PublishedPort) -> Result<PublishedPort> {
        self.publish(name, port)
    }

    fn port_withdraw(&self, name: &Name, port: &PublishedPort) -> Result<()> {
        self.withdraw(name, port)
    }

    fn network_events(&self, name: &Name) -> Result<Vec<NetRecord>> {
        self.net_events(name)?.all()
    }
}

fn reach(registry: &Registry) -> RegistryOptions {
    let login = registry.login.clone().map(|Login { user, password }| Credential::Password {
        user,
        secret: Secret::new(password),
    });
    RegistryOptions {
        insecure: registry.insecure,
        ca: registry.ca.clone(),
        login,
        ..RegistryOptions::default()
    }
}

fn worker_gone(cause: impl std::fmt::Display) -> Error {
    Error::new(Kind::Protocol, "the worker went away").cause(cause)
}
