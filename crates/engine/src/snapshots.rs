//! Snapshots, clones, rollback and reset.
//!
//! A snapshot of a stopped sandbox takes the same time for ten files and for a million: its
//! writable layer is frozen and becomes a lower layer, and the sandbox gets a new writable layer.
//! Sandboxes made from the snapshot share its layers.

mod archive;
mod changes;
mod cross_tier;
mod flatten;
mod records;
mod running;
mod verify;
mod vm_layer_export;
mod workspace_copy;

use crate::host::{HostUser, random, unused_ids};
use crate::layers;
use crate::planning::now_ms;
use crate::sandboxes::Engine;
use crate::store::{LockedSandbox, temp_name};
use crate::volumes;
use msb_api::Changes;
pub use msb_api::{Snapshot, VerifyReport};
use msb_image::{PreparedImage, RunConfig};
use msb_spec::encoding::hex;
use msb_spec::{
    Error, Hostname, Ids, ImageRef, Isolation, Kind, Lower, MachineBase, Name, Overlay, Plan,
    Restart, Result, Upper, env, state,
};
use msb_sys::lock::LockGuard;
use msb_wire::record::EventKind;
use records::{SnapshotRecord, SnapshotRecords};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
pub use verify::TIDY_ARGUMENT;
use workspace_copy::WorkspaceCopy;

/// How long the lock of a stopped sandbox is waited for. Removing a large layer is the slowest step
/// under it.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// How long garbage collection waits for the layer lock before it is left to the next run.
const GC_LOCK_LIMIT: Duration = Duration::from_secs(2);

/// The most frozen disks below a microVM; each needs an interrupt line.
const MAX_DISKS: usize = 8;
/// The grace period of a microVM that was started to replay its journal.
const REPAIR_GRACE: Duration = Duration::from_secs(10);

/// The snapshots of a state directory, and the frozen layers below sandboxes and snapshots.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotStore<'a> {
    engine: &'a Engine,
}

impl Engine {
    /// The snapshots of this state directory.
    pub fn snapshots(&self) -> SnapshotStore<'_> {
        SnapshotStore { engine: self }
    }
}

impl SnapshotStore<'_> {
    fn records(&self) -> SnapshotRecords {
        SnapshotRecords::new(self.engine.home().snapshots())
    }

    /// Creates a snapshot of the files of a sandbox.
    pub fn create(&self, name: &Name, of: &Name, note: Option<&str>) -> Result<Snapshot> {
        let records = self.records();
        records.check_free(name)?;
        let (plan, paused, layer_lock) = self.freeze_or_copy(of, None)?;
        let parent = records.nearest(&plan)?;
        let mut record = SnapshotRecord::new(parent, note, plan_to_record(plan));
        record.paused_us =
            paused.map(|paused| u64::try_from(paused.as_micros()).unwrap_or(u64::MAX));
        records.add(&record, name)?;
        drop(layer_lock);
        self.spawn_tidy();
        self.get(name)
    }

    /// All snapshots, the oldest first.
    pub fn list(&self) -> Result<Vec<Snapshot>> {
        let records = self.records();
        let all = records.all()?;
        let mut snapshots: Vec<Snapshot> =
            all.iter().map(|record| self.describe(record, &records, &all)).collect();
        snapshots.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        Ok(snapshots)
    }

    /// A snapshot by a name or its id.
    pub fn get(&self, name: &Name) -> Result<Snapshot> {
        let records = self.records();
        let record = records.find(name)?;
        Ok(self.describe(&record, &records, &records.all()?))
    }

    /// Adds a name to a snapshot.
    pub fn tag(&self, snapshot: &Name, name: &Name) -> Result<()> {
        let records = self.records();
        records.check_free(name)?;
        let record = records.find(snapshot)?;
        records.name(&record.id, name)
    }

    /// Removes a name of a snapshot, and the snapshot with its last name. A snapshot with children
    /// is kept unless `force`; their layers stay in any case.
    pub fn remove(&self, name: &Name, force: bool) -> Result<()> {
        let records = self.records();
        let snapshot = self.get(name)?;
        let last = snapshot.names.len() <= 1 || name.as_str() == snapshot.id;
        if last && !force && !snapshot.children.is_empty() {
            let shown: Vec<String> = snapshot.children.iter().map(|id| records.shown(id)).collect();
            return Err(Error::new(
                Kind::State,
                format!("other snapshots are based on `{name}`: {}", shown.join(", ")),
            )
            .hint(format!(
                "remove them first, or `msb snapshot rm -f {name}`: they keep the layers they need"
            )));
        }
        match last {
            true => records.remove(&snapshot.id)?,
            false => records.remove_name(name)?,
        }
        if last {
            self.gc_layers();
        }
        Ok(())
    }

    /// Creates a stopped sandbox from a snapshot, with the settings of the original sandbox except
    /// ports and Secrets.
    pub fn restore(&self, snapshot: &Name, name: &Name) -> Result<Plan> {
        self.restore_with(snapshot, name, &Changes::default())
    }

    /// Creates a stopped sandbox from a snapshot, with some settings changed.
    pub fn restore_with(&self, snapshot: &Name, name: &Name, changes: &Changes) -> Result<Plan> {
        let record = self.records().find(snapshot)?;
        let mut plan = self.derive_plan(&record.plan, name, self.new_ids_like(record.plan.ids)?);
        plan.snapshot = Some(snapshot.clone());
        plan.rootfs.own = 0;
        changes::apply(self.engine.home(), &mut plan, changes)?;
        self.materialize(&plan, None)?;
        Ok(plan)
    }

    /// Creates a stopped copy of a sandbox: files, workspace changes and settings, except ports.
    pub fn clone_sandbox(&self, of: &Name, name: &Name) -> Result<Plan> {
        if self.engine.home().has(name) {
            return Err(Error::new(Kind::Exists, format!("sandbox `{name}` already exists"))
                .hint("choose another name for the copy"));
        }
        let source = self.engine.existing(of)?;
        let ids = self.new_ids_like(source.ids)?;
        let workspace_copy = self.copy_workspace(&source, ids)?;
        let (frozen, _, _layer_lock) = self.freeze_or_copy(of, workspace_copy.as_ref())?;
        let plan = self.derive_plan(&frozen, name, ids);
        self.materialize(&plan, workspace_copy.as_ref())?;
        Ok(plan)
    }

    /// Rolls the files of a stopped sandbox back to a snapshot.
    pub fn rollback(&self, name: &Name, snapshot: &Name) -> Result<()> {
        let record = self.records().find(snapshot)?;
        let claim = self.lock_not_running(name)?;
        let mut plan = self.engine.existing(name)?;
        check_same_kind(&plan, &record.plan, snapshot)?;
        plan.rootfs.own = match own_layers_since(&plan, &record.plan) {
            Some(own) => own,
            // The snapshot is of another sandbox, which is the origin from now on.
            None => {
                plan.snapshot = Some(snapshot.clone());
                plan.image = record.plan.image.clone();
                plan.image_digest = record.plan.image_digest.clone();
                0
            }
        };
        plan.rootfs.overlays = record.plan.rootfs.overlays;
        if let (Some(machine), Some(then)) = (&mut plan.machine, record.plan.machine) {
            machine.base = then.base;
            machine.written = then.written;
        }
        self.replace_writable_layer(claim, &plan, false)
    }

    /// Rolls the files of a stopped sandbox back to its image, and discards workspace changes
    /// unless `keep_workspace`.
    pub fn reset(&self, name: &Name, keep_workspace: bool) -> Result<()> {
        let claim = self.lock_not_running(name)?;
        let mut plan = self.engine.existing(name)?;
        match &mut plan.machine {
            Some(machine) => drop(machine.written.drain(..plan.rootfs.own)),
            None => {
                for overlay in &mut plan.rootfs.overlays {
                    overlay.lowers.drain(..plan.rootfs.own);
                }
            }
        }
        plan.rootfs.own = 0;
        self.replace_writable_layer(claim, &plan, !keep_workspace)
    }

    /// Replaces the writable layer by an empty one. A background process removes unreferenced
    /// layers, since that takes time in proportion to their size.
    fn replace_writable_layer(
        &self,
        claim: LockedSandbox,
        plan: &Plan,
        discard_workspace: bool,
    ) -> Result<()> {
        WritableLayer::of(plan)?;
        self.engine.children().end_for_reset(&plan.name)?;
        self.archive_old_layers(&claim)?;
        // Keeps garbage collection from removing the layers of the snapshot.
        let layer_lock = self.pin_layers(plan)?;
        // Files that a sync has copied are gone with the layer, so its baseline is removed first.
        crate::sync::remove_baselines(&claim.directory);
        layers::replace(&claim, plan, discard_workspace)?;
        drop(layer_lock);
        self.archive_old_layers(&claim)?;
        // The background process must not inherit the lock.
        drop(claim);
        self.spawn_tidy();
        Ok(())
    }

    /// Moves replaced layers to the frozen layers, where garbage collection finds them.
    pub(crate) fn archive_old_layers(&self, claim: &LockedSandbox) -> Result<()> {
        let old = layers::leftovers(claim);
        if old.is_empty() {
            return Ok(());
        }
        let _layer_lock = self.share_layer_lock()?;
        for old in old {
            let target = self.engine.home().frozen().join(new_id());
            ensure_directory(&target)?;
            fs::rename(&old, target.join(old.file_name().unwrap_or_default()))
                .map_err(|error| Error::host(format!("cannot move `{}`", old.display()), error))?;
        }
        Ok(())
    }

    /// Takes the lock of a sandbox; fails if it runs.
    fn lock_not_running(&self, name: &Name) -> Result<LockedSandbox> {
        self.lock_if_stopped(name)?.ok_or_else(|| {
            Error::new(Kind::State, format!("sandbox `{name}` is running"))
                .hint(format!("`-f` stops it and starts it again; `msb stop {name}` ends it"))
        })
    }

    /// Takes the lock of a sandbox; `None` if it runs. Waits for short-lived holders of the lock.
    fn lock_if_stopped(&self, name: &Name) -> Result<Option<LockedSandbox>> {
        let since = Instant::now();
        loop {
            self.engine.existing(name)?;
            crate::repair::one(self.engine.home(), name)?;
            if let Some(claim) = self.engine.home().lock(name)? {
                return Ok(Some(claim));
            }
            let directory = self.engine.home().directory(name);
            let last = crate::repair::last_event(&directory).map(|event| event.happened);
            if !matches!(last, None | Some(EventKind::Stopped { .. })) {
                return Ok(None);
            }
            if since.elapsed() > LOCK_LIMIT {
                return Err(Error::new(Kind::Timeout, format!("sandbox `{name}` is being used")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Freezes or copies what a sandbox has written. Returns a Plan on top of it, the pause if the
    /// sandbox runs, and the layer lock that protects the result until a record refers to it. For a
    /// clone, workspace changes are copied in the same pause.
    fn freeze_or_copy(
        &self,
        name: &Name,
        workspace_copy: Option<&WorkspaceCopy<'_>>,
    ) -> Result<(Plan, Option<Duration>, LockGuard)> {
        let layer_lock = self.share_layer_lock()?;
        if let WritableLayer::Disk(disk) = WritableLayer::of(&self.engine.existing(name)?)?
            && !self.engine.home().is_running(name)
            && needs_repair(disk)
        {
            // Only a guest kernel reads a disk that a guest has written, so a microVM replays the
            // journal. If the sandbox runs already, its kernel has done it.
            if let Some(_alone) = self.engine.start_for_repair(name)? {
                self.engine.stop(name, REPAIR_GRACE)?;
            }
        }
        match self.lock_if_stopped(name)? {
            Some(claim) => {
                workspace_copy.map_or(Ok(()), WorkspaceCopy::copy)?;
                self.freeze(name, &claim).map(|plan| (plan, None, layer_lock))
            }
            None => {
                let (plan, paused) = self.copy_running(name, workspace_copy)?;
                Ok((plan, Some(paused), layer_lock))
            }
        }
    }

    /// Freezes the writable layer of a stopped sandbox and returns its new Plan.
    fn freeze(&self, name: &Name, claim: &LockedSandbox) -> Result<Plan> {
        let plan = self.engine.existing(name)?;
        self.archive_old_layers(claim)?;
        match WritableLayer::of(&plan)? {
            WritableLayer::Disk(_) => {
                if plan.machine.as_ref().is_some_and(|it| it.written.len() >= MAX_DISKS) {
                    return Err(Error::unsupported(format!(
                        "sandbox `{name}` has too many frozen disks already"
                    ))
                    .hint("roll it back to an earlier snapshot"));
                }
            }
            WritableLayer::Layer(layer) => {
                let overlays = &plan.rootfs.overlays;
                let uppers: Vec<_> =
                    (0..overlays.len()).map(|at| layer.join(format!("upper{at}"))).collect();
                if plan.rootfs.own > 0 && uppers.iter().all(|upper| is_empty(upper)) {
                    return Ok(plan);
                }
                for upper in &uppers {
                    create_missing_upper(upper, &plan)?;
                }
            }
        }
        let plan =
            with_frozen_layer(self.flatten(plan)?, &self.engine.home().frozen().join(new_id()));
        layers::replace(claim, &plan, false)?;
        Ok(plan)
    }

    /// A Plan for a new sandbox with the same files and settings.
    fn derive_plan(&self, plan: &Plan, name: &Name, ids: Ids) -> Plan {
        let mut plan = plan.clone();
        if plan.hostname == Hostname::of(&plan.name) {
            plan.hostname = Hostname::of(name);
        }
        plan.env.insert(env::SANDBOX.to_owned(), name.to_string());
        let directory = self.engine.home().directory(name);
        plan.rootfs.upper = match plan.machine {
            Some(_) => Upper::Disk { path: directory.join(state::DISK) },
            None => Upper::Directory { path: directory.join(state::LAYER) },
        };
        if let Some(workspace) = &mut plan.workspace {
            workspace.changes = self.engine.home().directory(name).join(state::WORKSPACE);
        }
        plan.name = name.clone();
        plan.created = now_ms();
        plan.ephemeral = false;
        plan.command = None;
        (plan.restart, plan.health) = (Restart::No, None);
        plan.patches = Vec::new();
        plan.ids = ids;
        if let Some(network) = &mut plan.network {
            network.ports = Vec::new();
        }
        plan
    }

    /// Creates the directory of a stopped sandbox, with copied workspace changes if there are.
    fn materialize(&self, plan: &Plan, workspace_copy: Option<&WorkspaceCopy<'_>>) -> Result<()> {
        let plan: &Plan = *self.engine.authority.plan(plan)?;
        let _layer_lock = self.pin_layers(plan)?;
        let _volume_locks = volumes::share_all(self.engine.home(), plan);
        let claim = self.engine.home().claim(plan, |directory| match workspace_copy {
            Some(workspace_copy) => {
                workspace_copy.put(directory)?;
                layers::make(plan, directory)
            }
            None => crate::start::fill_directory(plan, directory),
        })?;
        let unfinished = claim.directory.join(state::UNFINISHED);
        fs::remove_file(unfinished)
            .map_err(|error| Error::host(format!("cannot make sandbox `{}`", plan.name), error))?;
        crate::repair::not_started(&claim.directory);
        self.engine.check_count(&plan.name).inspect_err(|_| {
            msb_log::warn_on_failure!(
                self.engine.home().discard(&claim),
                "cannot remove a partial sandbox"
            );
        })
    }

    fn describe(
        &self,
        record: &SnapshotRecord,
        records: &SnapshotRecords,
        all: &[SnapshotRecord],
    ) -> Snapshot {
        let children = all.iter().filter(|other| other.parent.as_ref() == Some(&record.id));
        let plan = &record.plan;
        let sums: Option<Vec<_>> =
            self.layer_dirs(plan).iter().map(|layer| layer.digest()).collect();
        let image = plan.image_digest.as_ref().map(ToString::to_string).unwrap_or_default();
        let digest = |sums: &Vec<verify::LayerDigest>| {
            sums.iter().rev().fold(image.clone(), |below, sum| verify::join(&below, &sum.digest))
        };
        Snapshot {
            digest: sums.as_ref().map(digest),
            files: sums.as_ref().map(|sums| sums.iter().map(|sum| sum.files).sum()),
            bytes: sums.as_ref().map(|sums| sums.iter().map(|sum| sum.bytes).sum()),
            id: record.id.clone(),
            names: records.names_of(&record.id),
            created: record.created,
            sandbox: plan.name.clone(),
            image: plan.image.clone(),
            image_digest: plan.image_digest.clone(),
            isolation: plan.isolation,
            note: record.note.clone(),
            parent: record.parent.clone(),
            children: children.map(|child| child.id.clone()).collect(),
            paused_us: record.paused_us,
        }
    }

    /// A snapshot as the image of a new sandbox.
    pub(crate) fn prepare(
        &self,
        name: &Name,
        isolation: Isolation,
    ) -> Result<(PreparedImage, MachineBase)> {
        let record = self.records().find(name)?;
        let plan = &self.plan_for_tier(&record, isolation)?;
        let of_image = match &plan.image {
            ImageRef::Name(reference) => {
                let images = self.engine.images()?;
                let found = images.find(reference)?.filter(|image| {
                    plan.image_digest.is_none() || plan.image_digest.as_ref() == Some(&image.digest)
                });
                found.map(|image| image.config)
            }
            _ => None,
        };
        let mut variables = plan.env.clone();
        variables.remove(env::SANDBOX);
        let config = RunConfig {
            env: variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect(),
            workdir: plan.workdir.clone(),
            user: plan.user.as_ref().map(ToString::to_string).unwrap_or_default(),
            ..of_image.unwrap_or_default()
        };
        // Directories of the host are not scanned; this user may own some of their files.
        let mut lowers = plan.rootfs.overlays.iter().flat_map(|overlay| &overlay.lowers);
        let owners = plan.ids.many() || lowers.any(|lower| !lower.owned);
        let prepared = PreparedImage {
            overlays: plan.rootfs.overlays.clone(),
            image: plan.image.clone(),
            digest: plan.image_digest.clone(),
            config,
            owners,
            path: Vec::new(),
            layers: Vec::new(),
        };
        let base = plan.machine.as_ref().map_or(MachineBase::Shares, |it| it.base.clone());
        Ok((prepared, base))
    }

    /// The frozen disks of a snapshot, for a microVM.
    pub(crate) fn written_disks(&self, snapshot: &Name) -> Result<Vec<PathBuf>> {
        let record = self.records().find(snapshot)?;
        let plan = self.plan_for_tier(&record, Isolation::Vm)?;
        Ok(plan.machine.map(|machine| machine.written).unwrap_or_default())
    }

    /// Locks frozen layers against removal while a Plan that refers to them becomes a sandbox.
    /// `None` if it refers to none.
    pub(crate) fn pin_layers(&self, plan: &Plan) -> Result<Option<LockGuard>> {
        if plan.written().next().is_none() {
            return Ok(None);
        }
        let lock = self.share_layer_lock()?;
        match plan.written().find(|path| !path.exists()) {
            Some(_) => Err(Error::new(
                Kind::State,
                format!("the layers of `{}` were removed meanwhile", plan.image),
            )),
            None => Ok(Some(lock)),
        }
    }

    /// Removes leftovers of processes that were killed while they made a snapshot.
    pub(crate) fn repair_layers(&self) {
        let entries = fs::read_dir(self.engine.home().frozen()).into_iter().flatten();
        if entries.filter_map(|entry| entry.ok()).any(|entry| is_stale(&entry.path())) {
            self.gc_layers();
        }
    }

    /// Removes frozen layers that no sandbox and no snapshot refers to. Failures are left to the
    /// next run.
    pub(crate) fn gc_layers(&self) {
        self.remove_dirs(&self.detach_unreferenced());
    }

    /// Removes trees without holding the layer lock, since that takes long.
    fn remove_dirs(&self, unneeded: &[PathBuf]) {
        for path in unneeded {
            self.engine.remove_tree_as_owner(path);
        }
    }

    /// Renames unreferenced layers to temporary names, under the layer lock, and returns these.
    fn detach_unreferenced(&self) -> Vec<PathBuf> {
        let nothing = Vec::new;
        let frozen = self.engine.home().frozen();
        let Ok(entries) = fs::read_dir(&frozen) else { return nothing() };
        let Ok(lock) = self.open_layer_lock().map(LockGuard) else { return nothing() };
        // Creating a sandbox from a layer takes precedence. Another run of this may have read the
        // Plans before the last reference was dropped.
        if wait_for_lock_within(GC_LOCK_LIMIT, || msb_sys::lock::try_lock(&lock.0)).is_err() {
            return nothing();
        }
        let Some(referenced) = self.referenced_layers() else { return nothing() };
        entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .inspect(|path| {
                if path.is_file() && is_stale(path) {
                    let _ = fs::remove_file(path);
                }
            })
            .filter(|path| {
                path.is_dir()
                    && !is_in_progress(path)
                    && !referenced.iter().any(|lower| lower.starts_with(path))
            })
            .filter_map(|path| {
                for extension in ["sum", "seal"] {
                    let _ = fs::remove_file(path.with_extension(extension));
                }
                let temp = frozen.join(temp_name("removing", &new_id()));
                fs::rename(path, &temp).ok().map(|()| temp)
            })
            .collect()
    }

    /// The layers that Plans and snapshots refer to; `None` if one of them cannot be read.
    fn referenced_layers(&self) -> Option<Vec<PathBuf>> {
        let mut plans = Vec::new();
        for name in self.engine.home().names() {
            let directory = self.engine.home().directory(&name);
            for file in [state::PLAN, state::NEXT_PLAN] {
                plans.extend(crate::store::read_plan(&directory.join(file), &name).ok()?);
            }
        }
        plans.extend(self.recorded_plans().ok()?);
        let written = |plan: &Plan| -> Vec<_> { plan.written().map(Path::to_owned).collect() };
        Some(plans.iter().flat_map(written).collect())
    }

    /// The Plans of all snapshots, on both tiers.
    pub(crate) fn recorded_plans(&self) -> Result<Vec<Plan>> {
        let records = self.records().all()?.into_iter();
        let plans = |record: SnapshotRecord| {
            std::iter::once(record.plan).chain(record.other.map(|other| *other))
        };
        Ok(records.flat_map(plans).collect())
    }

    /// Takes the layer lock shared: no layer is removed meanwhile.
    fn share_layer_lock(&self) -> Result<LockGuard> {
        let lock = LockGuard(self.open_layer_lock()?);
        wait_for_lock(|| msb_sys::lock::try_share(&lock.0))?;
        Ok(lock)
    }

    fn open_layer_lock(&self) -> Result<fs::File> {
        let frozen = self.engine.home().frozen();
        ensure_directory(&frozen)?;
        fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(frozen.join(state::LOCK))
            .map_err(|error| Error::host("cannot lock the layers of snapshots", error))
    }
}

/// A Plan with the layer that its sandbox has written, now at `target`, on top of its lower layers.
fn with_frozen_layer(mut plan: Plan, target: &Path) -> Plan {
    let written_as = written_as(&plan.ids);
    match &mut plan.machine {
        Some(machine) => machine.written.insert(0, target.join(state::DISK)),
        None => {
            for (at, overlay) in plan.rootfs.overlays.iter_mut().enumerate() {
                let path = target.join(format!("upper{at}"));
                overlay.lowers.insert(0, Lower { path, owned: true, written_as });
            }
        }
    }
    plan.rootfs.own += 1;
    plan
}

/// The host id that is root in layers of a sandbox with these ids.
fn written_as(ids: &Ids) -> Option<u32> {
    match ids {
        Ids::Shifted { range } => Some(range.start),
        Ids::Single { .. } | Ids::Subordinate { .. } => Some(0),
    }
}

/// How many own layers the sandbox has at the state of `then`; `None` if that state has another
/// base.
fn own_layers_since(plan: &Plan, then: &Plan) -> Option<usize> {
    let own = plan.rootfs.own;
    if let (Some(machine), Some(then)) = (&plan.machine, &then.machine) {
        let base = &machine.written[own..];
        let same = machine.base == then.base && then.written.ends_with(base);
        return same.then(|| then.written.len() - base.len());
    }
    let overlays = plan.rootfs.overlays.iter().zip(&then.rootfs.overlays);
    let depths = overlays.map(|(overlay, then)| {
        let base = &overlay.lowers[own..];
        then.lowers.ends_with(base).then(|| then.lowers.len() - base.len())
    });
    depths.collect::<Option<Vec<usize>>>()?.first().copied()
}

/// Whether the journal of an ext4 disk needs a replay. Reads one feature bit; the host reads
/// nothing else of a disk that a guest has written.
fn needs_repair(disk: &Path) -> bool {
    const INCOMPATIBLE_FEATURES: u64 = 1024 + 96;
    const RECOVER: u32 = 4;
    let mut bytes = [0; 4];
    let read =
        fs::File::open(disk).and_then(|file| file.read_exact_at(&mut bytes, INCOMPATIBLE_FEATURES));
    read.is_ok() && u32::from_le_bytes(bytes) & RECOVER != 0
}

impl SnapshotStore<'_> {
    /// Ids of the same kind for another sandbox of this user.
    fn new_ids_like(&self, ids: Ids) -> Result<Ids> {
        Ok(match ids {
            Ids::Shifted { .. } => {
                Ids::Shifted { range: unused_ids(&self.engine.home().taken_ids())? }
            }
            ids => ids,
        })
    }
}

fn new_id() -> String {
    hex(random::<16>())
}

/// Waits up to 30 s for a lock that others hold for moments.
fn wait_for_lock(take: impl FnMut() -> std::io::Result<bool>) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(30);
    wait_for_lock_within(LIMIT, take)
}

fn wait_for_lock_within(
    limit: Duration,
    mut take: impl FnMut() -> std::io::Result<bool>,
) -> Result<()> {
    let since = Instant::now();
    loop {
        let acquired = take().map_err(|error| Error::host("cannot lock the layers", error))?;
        if acquired {
            return Ok(());
        }
        if since.elapsed() > limit {
            return Err(Error::new(Kind::Timeout, "the layers of snapshots are being cleaned up"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A Plan as a snapshot records it: without Secrets, ports, command, patches and spawn policy.
fn plan_to_record(mut plan: Plan) -> Plan {
    if let Some(network) = &mut plan.network {
        for (name, _) in crate::planning::network::environment(network) {
            plan.env.remove(&name);
        }
        network.secrets = Vec::new();
        network.ports = Vec::new();
    }
    plan.command = None;
    (plan.restart, plan.health) = (Restart::No, None);
    plan.patches = Vec::new();
    plan.spawn = None;
    plan
}

/// The writable layer of a sandbox that can be frozen.
enum WritableLayer<'a> {
    /// A directory with one upper directory for each overlay.
    Layer(&'a Path),
    /// The disk image of a microVM.
    Disk(&'a Path),
}

impl<'a> WritableLayer<'a> {
    fn of(plan: &'a Plan) -> Result<Self> {
        if let Some(family) = &plan.family {
            let (name, parent) = (&plan.name, &family.parent);
            return Err(Error::unsupported(format!(
                "sandbox `{name}` is a child of `{parent}`; children are not kept"
            )));
        }
        match &plan.rootfs.upper {
            _ if plan.ephemeral => {
                Err(Error::unsupported(format!("sandbox `{}` is ephemeral", plan.name))
                    .hint("make it with `msb create`, or `msb run --name NAME`"))
            }
            Upper::Directory { path } => Ok(Self::Layer(path)),
            Upper::Disk { path } if plan.machine.is_some() => Ok(Self::Disk(path)),
            Upper::Memory { .. } | Upper::Disk { .. } => Err(Error::unsupported(format!(
                "sandbox `{}` writes to a disk of a fixed size, which cannot be frozen",
                plan.name
            ))
            .hint("make it without `--disk`, or with `--isolation vm`")),
        }
    }
}

fn check_same_kind(plan: &Plan, other: &Plan, snapshot: &Name) -> Result<()> {
    let overlays = |plan: &Plan| -> Vec<String> {
        plan.rootfs.overlays.iter().map(|Overlay { at, .. }| at.clone()).collect()
    };
    if plan.isolation != other.isolation {
        return Err(other_tier(snapshot, other.isolation));
    }
    if overlays(plan) != overlays(other) {
        return Err(Error::invalid("the snapshot is of another kind of image")
            .hint("`msb restore` makes a new sandbox of it"));
    }
    Ok(())
}

fn other_tier(name: &Name, isolation: Isolation) -> Error {
    Error::unsupported(format!("snapshot `{name}` is of the tier `{isolation}`"))
        .hint(format!("`msb run snapshot:{name}` makes a sandbox of it on either tier"))
}

/// Whether this is a temporary file or directory of a process that was killed.
fn is_stale(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    [".making-", ".removing-"].iter().any(|it| name.starts_with(it)) && !is_in_progress(path)
}

/// Whether this is a temporary directory of a live process.
fn is_in_progress(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let pid = name.rsplit_once('-').and_then(|(_, pid)| pid.parse::<u32>().ok());
    name.starts_with('.') && pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

fn is_empty(path: &Path) -> bool {
    match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Creates an upper directory; a sandbox that never ran has none.
fn create_missing_upper(upper: &Path, plan: &Plan) -> Result<()> {
    let created = match fs::create_dir(upper) {
        Ok(()) if HostUser::current().is_root() => {
            let (uid, gid) = plan.ids.root();
            std::os::unix::fs::chown(upper, Some(uid), Some(gid))
        }
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    };
    created.map_err(|error| Error::host(format!("cannot make `{}`", upper.display()), error))
}

fn ensure_directory(path: &Path) -> Result<()> {
    match crate::store::create_private_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::host(format!("cannot make `{}`", path.display()), error))
        }
        _ => Ok(()),
    }
}
