//! The Operations, done on this machine.

mod build;
mod exec;
mod judged;
mod kept;
mod watched;

use crate::files::{self, Links};
use crate::images::{Credential, Fetching, Pull, Reach, Secret};
use crate::logs::Reader;
use crate::network::Lines;
use crate::sandboxes::Engine;
use exec::{Begun, End, Local};
pub(crate) use judged::check as check_judged;
use msb_api::{
    Api, Attributes, Audit, Changes, ClientScope, Copied, Create, DiskUsage, EventStream, Exec,
    ExecEntry, Execs, Files, ImageInspection, ImageSummary, Images, Inspection, LogFilter, LogLine,
    LogStream, Login, Metrics, Modified, Networks, Place, PrunedVolumes, Registry, Sample,
    Sandboxes, Snapshot, Snapshots, Summary, Verified, Volume, Volumes, Watch, no_exec,
};
use msb_spec::{
    Command, Error, Exit, Kind, Modify, Name, Plan, Policy, Prune, Pruned, Published, Reference,
    Result, Rule, Spec, Stdin, VolumeName, VolumeSpec,
};
use msb_wire::record::Event;
use msb_wire::{FileRequest, Meta, NetRecord, NetTable, Request, Stopped};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use watched::Watched;

/// After how long to look again at something that has just ended, and may be written down any moment.
const AGAIN: Duration = Duration::from_millis(5);

impl Sandboxes for Engine {
    fn giving(&self, secrets: Vec<(String, Vec<u8>)>) -> Arc<dyn Api> {
        let wiped = secrets.into_iter().map(|(name, value)| (name, value.into())).collect();
        Arc::new(Self::giving(self, wiped))
    }

    fn sandbox_plan(&self, spec: &Spec, watch: &dyn Watch) -> Result<Plan> {
        let progress = Watched::new(watch);
        let fetching = Fetching { progress: &progress, ..Fetching::default() };
        let plan = self.plan_with(spec, &fetching)?;
        judged::check(spec, &plan)?;
        Ok(plan)
    }

    fn sandbox_create(&self, ask: &Create, watch: &dyn Watch) -> Result<Summary> {
        let mut spec = ask.spec.clone();
        spec.ephemeral = false;
        let progress = Watched::new(watch);
        let reach = reach(&ask.registry);
        let mut plan = self.plan_with(&spec, &Fetching { reach, progress: &progress })?;
        judged::check(&spec, &plan)?;
        if let Some(command) = &mut plan.command {
            // Whoever asks does not wait for it, and it goes on without them.
            command.detached = true;
        }
        watch.step("starting the sandbox", None);
        let mut caller = self.create(&plan, ask.replace)?;
        let mut begun = self.begin_through(&plan, &mut caller, Links::Refused);
        if plan.command.is_some() {
            begun = begun.and_then(|()| caller.started());
        }
        if let Err(error) = begun {
            // Half a sandbox is none.
            drop(caller);
            let _ = self.remove(&plan.name, true);
            return Err(error);
        }
        let left = caller.detach();
        // A short command may have ended already, and the sandbox with it.
        if plan.command.is_none() {
            left?;
        }
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

    fn sandbox_modify(&self, name: &Name, ask: &Modify) -> Result<Vec<Modified>> {
        self.modify(name, ask)
    }

    fn sandbox_rename(&self, name: &Name, to: &Name) -> Result<()> {
        self.rename(name, to)
    }

    fn sandbox_wait(&self, name: &Name, limit: Option<Duration>) -> Result<Option<Stopped>> {
        let Some(limit) = limit else {
            return self.wait(name).map(Some);
        };
        self.wait_within(name, limit)
    }

    fn sandbox_metrics(&self, name: &Name) -> Result<Metrics> {
        self.metrics(name)
    }

    fn sandbox_logs(&self, name: &Name, filter: &LogFilter) -> Result<Box<dyn LogStream>> {
        Ok(Box::new(Growing { begun: false, source: self.logs(name, filter.clone())? }))
    }

    fn sandbox_history(&self, name: &Name) -> Result<Vec<Sample>> {
        self.history(name)
    }

    fn sandbox_audit(&self, name: &Name) -> Result<Audit> {
        self.audit(name)
    }

    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        Ok(Box::new(Growing { begun: false, source: self.events(name)? }))
    }
}

/// Something that is read once from the start, and then as it grows.
struct Growing<T> {
    begun: bool,
    source: T,
}

impl LogStream for Growing<Reader> {
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

impl EventStream for Growing<Lines<Event>> {
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
            return Err(Error::invalid("a command has a program"));
        }
        let connection = self.exec(name, command.clone())?;
        Ok(Box::new(Local::begin(connection.into_stream(), Begun::ByUs)?))
    }

    fn exec_attach(&self, name: &Name, id: u64) -> Result<Box<dyn Exec>> {
        let connection = self.connect(name, &Request::Attach { id })?;
        Ok(Box::new(Local::begin(connection.into_stream(), Begun::ByOthers)?))
    }

    fn exec_run(&self, spec: &Spec, watch: &dyn Watch) -> Result<(Name, Box<dyn Exec>)> {
        let mut spec = spec.clone();
        spec.ephemeral = true;
        let mut plan = self.sandbox_plan(&spec, watch)?;
        let no_command = || Error::invalid("there is no command to run");
        plan.command.as_mut().ok_or_else(no_command)?.stdin = Stdin::Streamed;
        watch.step("starting the sandbox", None);
        let mut caller = self.create(&plan, false)?;
        // Without changes to make, nobody waits between the start and the command.
        if !plan.patches.is_empty() {
            self.begin_through(&plan, &mut caller, Links::Refused)?;
        }
        Ok((plan.name, Box::new(Local::first(caller.into_stream())?)))
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
                Ok(connection) => match exec::end_of(connection, until)? {
                    End::Told(exit) => return Ok(Some(exit)),
                    End::NotYet => return Ok(None),
                    // Between two looks; what is recorded tells how.
                    End::Gone => std::thread::sleep(left.min(AGAIN)),
                },
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::State) => {
                    std::thread::sleep(left.min(AGAIN));
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
    /// One file operation there.
    fn files_at(&self, at: &Place) -> Result<files::Files> {
        match at {
            Place::Sandbox { name, user } => {
                let connection = self.connect(name, &Request::Files { user: user.clone() })?;
                Ok(files::Files::on(connection))
            }
            Place::Volume(name) => self.volume_files(name),
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

    fn file_push(&self, at: &Place, from: &Path, to: &[u8]) -> Result<Copied> {
        self.files_at(at)?.through_no_link().push(from, to, true, &mut |_| {})
    }

    fn file_pull(&self, at: &Place, from: &[u8], to: &Path) -> Result<Copied> {
        self.files_at(at)?.through_no_link().pull(from, to, &mut |_| {})
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

    fn image_pull(&self, name: &Reference, watch: &dyn Watch) -> Result<ImageInspection> {
        self.image_pull_from(name, &Registry::default(), watch)
    }

    fn image_pull_from(
        &self,
        name: &Reference,
        registry: &Registry,
        watch: &dyn Watch,
    ) -> Result<ImageInspection> {
        let store = self.images()?;
        let name = store.settings().meant(name);
        let progress = Watched::new(watch);
        let reach = self.reach(&reach(registry));
        let pulled = store.pull(name, &Pull { reach, ..Pull::default() }, &progress)?;
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

    fn image_prune(&self, prune: &Prune) -> Result<Pruned> {
        Self::image_prune(self, prune)
    }

    fn disk_usage(&self) -> Result<DiskUsage> {
        Self::disk_usage(self)
    }
}

impl Volumes for Engine {
    fn volume_create(&self, spec: &VolumeSpec) -> Result<Volume> {
        Self::volume_create(self, spec)
    }

    fn volume_list(&self) -> Result<Vec<Volume>> {
        Ok(Self::volume_list(self))
    }

    fn volume_inspect(&self, name: &VolumeName) -> Result<Volume> {
        self.volume(name)
    }

    fn volume_remove(&self, name: &VolumeName, force: bool) -> Result<()> {
        Self::volume_remove(self, name, force)
    }

    fn volume_prune(&self, dry_run: bool) -> Result<PrunedVolumes> {
        Self::volume_prune(self, dry_run)
    }
}

impl Snapshots for Engine {
    fn snapshot_create(&self, name: &Name, of: &Name, note: Option<&str>) -> Result<Snapshot> {
        self.snapshot(name, of, note)
    }

    fn snapshot_list(&self) -> Result<Vec<Snapshot>> {
        self.snapshots()
    }

    fn snapshot_inspect(&self, name: &Name) -> Result<Snapshot> {
        self.get_snapshot(name)
    }

    fn snapshot_verify(&self, name: &Name) -> Result<Verified> {
        self.verify_snapshot(name)
    }

    fn snapshot_tag(&self, snapshot: &Name, name: &Name) -> Result<()> {
        self.tag_snapshot(snapshot, name)
    }

    fn snapshot_remove(&self, name: &Name, force: bool) -> Result<()> {
        self.remove_snapshot(name, force)
    }

    fn snapshot_save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()> {
        self.save_snapshot(name, whole, out)
    }

    fn snapshot_load(&self, name: Option<&Name>, archive: &mut dyn Read) -> Result<Snapshot> {
        let name = self.load_snapshot(name, archive, &crate::images::Unwatched)?;
        self.get_snapshot(&name)
    }

    fn snapshot_restore(&self, snapshot: &Name, name: &Name) -> Result<()> {
        self.restore(snapshot, name).map(drop)
    }

    fn snapshot_restore_with(&self, snapshot: &Name, name: &Name, changes: &Changes) -> Result<()> {
        let plan = self.restore_with(snapshot, name, changes)?;
        judged::check_mounts(&changes.mounts, &plan).inspect_err(|_| {
            // It has not been started, so nobody has seen what it would show.
            let _ = self.remove(name, true);
        })
    }

    fn sandbox_clone(&self, of: &Name, name: &Name) -> Result<()> {
        self.clone_sandbox(of, name).map(drop)
    }

    fn sandbox_rollback(&self, name: &Name, snapshot: &Name) -> Result<()> {
        self.rollback(name, snapshot)
    }

    fn sandbox_reset(&self, name: &Name, keep_workspace: bool) -> Result<()> {
        self.reset(name, keep_workspace)
    }
}

impl Networks for Engine {
    fn network_table(&self, name: &Name) -> Result<NetTable> {
        self.net_table(name)
    }

    fn network_allow(&self, name: &Name, rules: &[Rule]) -> Result<Policy> {
        self.add_rules(name, rules)
    }

    fn port_publish(&self, name: &Name, port: &Published) -> Result<Published> {
        self.publish(name, port)
    }

    fn port_withdraw(&self, name: &Name, port: &Published) -> Result<()> {
        self.withdraw(name, port)
    }

    fn network_events(&self, name: &Name) -> Result<Vec<NetRecord>> {
        self.net_events(name)?.all()
    }
}

fn reach(registry: &Registry) -> Reach {
    let login = registry.login.clone().map(|Login { user, password }| Credential::Password {
        user,
        secret: Secret::new(password),
    });
    Reach { insecure: registry.insecure, ca: registry.ca.clone(), login, ..Reach::default() }
}

fn gone(cause: impl std::fmt::Display) -> Error {
    Error::new(Kind::Protocol, "the worker went away").cause(cause)
}
