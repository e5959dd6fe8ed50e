//! Snapshots, clones and the ways back.
//!
//! A snapshot of a sandbox that does not run costs the same for ten files and for a million: its
//! writable layer is frozen, becomes a layer like those of its image, and the sandbox gets a new
//! one. Whatever is started from the snapshot lies on the same layers.

mod archive;
mod carried;
mod changes;
mod live;
mod records;
mod sealing;
mod shallow;
mod telling;
mod tiers;

use crate::host::{User, random, unused_ids};
use crate::layers;
use crate::planning::now_ms;
use crate::sandboxes::Engine;
use crate::store::{Claim, passing};
use crate::volumes;
use carried::Carried;
use msb_api::Changes;
pub use msb_api::{Snapshot, Verified};
use msb_image::{Prepared, RunConfig};
use msb_spec::{
    Error, Hostname, Ids, ImageRef, Isolation, Kind, Lower, MachineBase, Name, Overlay, Plan,
    Restart, Result, Upper, env, state,
};
use msb_sys::lock::Held;
use msb_wire::record::Happened;
use records::{Record, Records};
pub use sealing::TIDY_ARGUMENT;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Layers are changed in milliseconds; to remove a large one may take longer.
const HOLD_LIMIT: Duration = Duration::from_secs(60);

/// To find out what is needed takes milliseconds; who is slower is tried again the next time.
const THAW_LIMIT: Duration = Duration::from_secs(2);

/// Disks that a machine can have besides its own; each needs an interrupt.
const MOST_DISKS: usize = 8;
/// A machine that was started to repair its disk has nothing to end.
const REPAIR_GRACE: Duration = Duration::from_secs(10);

impl Engine {
    fn records(&self) -> Records {
        Records::new(self.home().snapshots())
    }

    /// Saves the filesystem of a sandbox under a name.
    pub fn snapshot(&self, name: &Name, of: &Name, note: Option<&str>) -> Result<Snapshot> {
        let records = self.records();
        records.check_free(name)?;
        let (plan, paused, kept) = self.frozen(of, None)?;
        let parent = records.nearest(&plan)?;
        let mut record = Record::new(parent, note, recorded(plan));
        record.paused_us =
            paused.map(|paused| u64::try_from(paused.as_micros()).unwrap_or(u64::MAX));
        records.add(&record, name)?;
        drop(kept);
        self.tidy_later();
        self.get_snapshot(name)
    }

    /// Every snapshot, the oldest first.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let records = self.records();
        let all = records.all()?;
        let mut snapshots: Vec<Snapshot> =
            all.iter().map(|record| self.described(record, &records, &all)).collect();
        snapshots.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        Ok(snapshots)
    }

    /// One snapshot, by a name or its id.
    pub fn get_snapshot(&self, name: &Name) -> Result<Snapshot> {
        let records = self.records();
        let record = records.find(name)?;
        Ok(self.described(&record, &records, &records.all()?))
    }

    /// Gives a snapshot one more name.
    pub fn tag_snapshot(&self, snapshot: &Name, name: &Name) -> Result<()> {
        let records = self.records();
        records.check_free(name)?;
        let record = records.find(snapshot)?;
        records.name(&record.id, name)
    }

    /// Takes a name from a snapshot, and removes it with the last one. One that others lie on is
    /// kept unless `force`; they keep what they need of it in any case.
    pub fn remove_snapshot(&self, name: &Name, force: bool) -> Result<()> {
        let records = self.records();
        let snapshot = self.get_snapshot(name)?;
        let last = snapshot.names.len() <= 1 || name.as_str() == snapshot.id;
        if last && !force && !snapshot.children.is_empty() {
            let shown: Vec<String> = snapshot.children.iter().map(|id| records.shown(id)).collect();
            return Err(Error::new(
                Kind::State,
                format!("snapshots lie on `{name}`: {}", shown.join(", ")),
            )
            .hint(format!(
                "remove them first, or `msb snapshot rm -f {name}`: they keep the layers they need"
            )));
        }
        match last {
            true => records.remove(&snapshot.id)?,
            false => records.unname(name)?,
        }
        if last {
            self.thaw();
        }
        Ok(())
    }

    /// Makes a sandbox from a snapshot, with the settings of the one that it was taken of. Its
    /// ports and Secrets are not among them. It is not started.
    pub fn restore(&self, snapshot: &Name, name: &Name) -> Result<Plan> {
        self.restore_with(snapshot, name, &Changes::default())
    }

    /// The same, but for some of its settings.
    pub fn restore_with(&self, snapshot: &Name, name: &Name, changes: &Changes) -> Result<Plan> {
        let record = self.records().find(snapshot)?;
        let mut plan = self.derived(&record.plan, name, self.ids_like(record.plan.ids)?);
        plan.snapshot = Some(snapshot.clone());
        plan.rootfs.own = 0;
        changes::apply(self.home(), &mut plan, changes)?;
        self.settle_down(&plan, None)?;
        Ok(plan)
    }

    /// Makes a second sandbox of one: the same files, changes in its workspace and settings, but
    /// for its ports. It is not started.
    pub fn clone_sandbox(&self, of: &Name, name: &Name) -> Result<Plan> {
        if self.home().has(name) {
            return Err(Error::new(Kind::Exists, format!("sandbox `{name}` already exists"))
                .hint(format!("`msb rm {name}` removes it")));
        }
        let source = self.existing(of)?;
        let ids = self.ids_like(source.ids)?;
        let carried = self.carry(&source, ids)?;
        let (frozen, _, _kept) = self.frozen(of, carried.as_ref())?;
        let plan = self.derived(&frozen, name, ids);
        self.settle_down(&plan, carried.as_ref())?;
        Ok(plan)
    }

    /// Puts the files of a sandbox back to what a snapshot holds.
    pub fn rollback(&self, name: &Name, snapshot: &Name) -> Result<()> {
        let record = self.records().find(snapshot)?;
        let claim = self.still(name)?;
        let mut plan = self.existing(name)?;
        same_kind(&plan, &record.plan, snapshot)?;
        plan.rootfs.own = match since(&plan, &record.plan) {
            Some(own) => own,
            // Of another family: from now on this is where it comes from.
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
        self.begin_anew(claim, &plan, false)
    }

    /// Puts the files of a sandbox back to what its image holds, and forgets what it changed in
    /// its workspace unless `keep_workspace`.
    pub fn reset(&self, name: &Name, keep_workspace: bool) -> Result<()> {
        let claim = self.still(name)?;
        let mut plan = self.existing(name)?;
        match &mut plan.machine {
            Some(machine) => drop(machine.written.drain(..plan.rootfs.own)),
            None => {
                for overlay in &mut plan.rootfs.overlays {
                    overlay.lowers.drain(..plan.rootfs.own);
                }
            }
        }
        plan.rootfs.own = 0;
        self.begin_anew(claim, &plan, !keep_workspace)
    }

    /// Replaces the writable layer by an empty one. What nobody needs any more is removed by a
    /// process that is left behind, because that takes as long as there is much of it.
    fn begin_anew(&self, claim: Claim, plan: &Plan, forget: bool) -> Result<()> {
        Writable::of(plan)?;
        self.renew_family(&plan.name)?;
        self.put_away(&claim)?;
        // Whoever removes the snapshot meanwhile would take its layers away.
        let kept = self.keep_frozen(plan)?;
        // Before that: what a sync has sent is not there any more.
        crate::sync::forget_sent(&claim.directory);
        layers::replace(&claim, plan, forget)?;
        drop(kept);
        self.put_away(&claim)?;
        // Who is left behind must not keep it.
        drop(claim);
        self.tidy_later();
        Ok(())
    }

    /// Puts what the last change of layers has left to where the layers are that nobody needs.
    pub(crate) fn put_away(&self, claim: &Claim) -> Result<()> {
        let old = layers::old(claim);
        if old.is_empty() {
            return Ok(());
        }
        let _kept = self.share_frozen()?;
        for old in old {
            let place = self.home().frozen().join(new_id());
            make_directory(&place)?;
            fs::rename(&old, place.join(old.file_name().unwrap_or_default())).map_err(|error| {
                Error::host(format!("cannot put `{}` away", old.display()), error)
            })?;
        }
        Ok(())
    }

    /// The lock of a sandbox that must not run.
    fn still(&self, name: &Name) -> Result<Claim> {
        self.hold(name)?.ok_or_else(|| {
            Error::new(Kind::State, format!("sandbox `{name}` is running"))
                .hint(format!("`msb stop {name}` ends it"))
        })
    }

    /// The lock of a sandbox; none if it runs. Whoever else holds it for a moment is waited for.
    fn hold(&self, name: &Name) -> Result<Option<Claim>> {
        let since = Instant::now();
        loop {
            self.existing(name)?;
            crate::repair::one(self.home(), name)?;
            if let Some(claim) = self.home().lock(name)? {
                return Ok(Some(claim));
            }
            let directory = self.home().directory(name);
            let last = crate::repair::last_event(&directory).map(|event| event.happened);
            if !matches!(last, None | Some(Happened::Stopped { .. })) {
                return Ok(None);
            }
            if since.elapsed() > HOLD_LIMIT {
                return Err(Error::new(Kind::Timeout, format!("sandbox `{name}` is being used")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A Plan that lies on what a sandbox has written so far. If it runs, how long it stood still
    /// for that. What is returned last keeps the layers until a sandbox or a snapshot needs them.
    /// What was changed in the workspace is copied at the same moment, for a clone.
    fn frozen(
        &self,
        name: &Name,
        carried: Option<&Carried<'_>>,
    ) -> Result<(Plan, Option<Duration>, Held)> {
        let kept = self.share_frozen()?;
        if let Writable::Disk(disk) = Writable::of(&self.existing(name)?)?
            && !self.home().is_running(name)
            && needs_repair(disk)
        {
            // Only a machine reads what one has written: its kernel plays the journal back.
            // It runs already if somebody else was quicker, and is theirs then.
            if let Some(_alone) = self.start_alone(name)? {
                self.stop(name, REPAIR_GRACE)?;
            }
        }
        match self.hold(name)? {
            Some(claim) => {
                carried.map_or(Ok(()), Carried::copy)?;
                self.freeze(name, &claim).map(|plan| (plan, None, kept))
            }
            None => {
                let (plan, paused) = self.copied(name, carried)?;
                Ok((plan, Some(paused), kept))
            }
        }
    }

    /// Freezes what a sandbox has written so far; its Plan from now on.
    fn freeze(&self, name: &Name, claim: &Claim) -> Result<Plan> {
        let plan = self.existing(name)?;
        self.put_away(claim)?;
        match Writable::of(&plan)? {
            Writable::Disk(_) => {
                if plan.machine.as_ref().is_some_and(|it| it.written.len() >= MOST_DISKS) {
                    return Err(Error::unsupported(format!(
                        "sandbox `{name}` lies on too many disks already"
                    ))
                    .hint("roll it back to an earlier snapshot"));
                }
            }
            Writable::Layer(layer) => {
                let overlays = &plan.rootfs.overlays;
                let uppers: Vec<_> =
                    (0..overlays.len()).map(|at| layer.join(format!("upper{at}"))).collect();
                if plan.rootfs.own > 0 && uppers.iter().all(|upper| is_empty(upper)) {
                    return Ok(plan);
                }
                for upper in &uppers {
                    make_missing(upper, &plan)?;
                }
            }
        }
        let plan = placed(self.shallow(plan)?, &self.home().frozen().join(new_id()));
        layers::replace(claim, &plan, false)?;
        Ok(plan)
    }

    /// A Plan for another sandbox with these files and settings.
    fn derived(&self, plan: &Plan, name: &Name, ids: Ids) -> Plan {
        let mut plan = plan.clone();
        if plan.hostname == Hostname::of(&plan.name) {
            plan.hostname = Hostname::of(name);
        }
        plan.env.insert(env::SANDBOX.to_owned(), name.to_string());
        let directory = self.home().directory(name);
        plan.rootfs.upper = match plan.machine {
            Some(_) => Upper::Disk { path: directory.join(state::DISK) },
            None => Upper::Directory { path: directory.join(state::LAYER) },
        };
        if let Some(workspace) = &mut plan.workspace {
            workspace.changes = self.home().directory(name).join(state::WORKSPACE);
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

    /// Makes a sandbox that has never been started, with the changes in a workspace if there are.
    fn settle_down(&self, plan: &Plan, carried: Option<&Carried<'_>>) -> Result<()> {
        let plan: &Plan = *self.authority.plan(plan)?;
        let _kept = self.keep_frozen(plan)?;
        let _held = volumes::hold(self.home(), plan);
        let claim = self.home().claim(plan, |directory| match carried {
            Some(carried) => {
                carried.put(directory)?;
                layers::make(plan, directory)
            }
            None => crate::sandboxes::fill(plan, directory),
        })?;
        let unfinished = claim.directory.join(state::UNFINISHED);
        fs::remove_file(unfinished)
            .map_err(|error| Error::host(format!("cannot make sandbox `{}`", plan.name), error))?;
        crate::repair::not_started(&claim.directory);
        self.check_count(&plan.name).inspect_err(|_| {
            let _ = self.home().discard(&claim);
        })
    }

    fn described(&self, record: &Record, records: &Records, all: &[Record]) -> Snapshot {
        let children = all.iter().filter(|other| other.parent.as_ref() == Some(&record.id));
        let plan = &record.plan;
        let sums: Option<Vec<_>> = self.places(plan).iter().map(|place| place.sum()).collect();
        let image = plan.image_digest.as_ref().map(ToString::to_string).unwrap_or_default();
        let digest = |sums: &Vec<sealing::Sum>| {
            sums.iter().rev().fold(image.clone(), |below, sum| sealing::join(&below, &sum.digest))
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

    /// What a snapshot is as an image.
    pub(crate) fn prepare_snapshot(
        &self,
        name: &Name,
        isolation: Isolation,
    ) -> Result<(Prepared, MachineBase)> {
        let record = self.records().find(name)?;
        let plan = &self.on_tier(&record, isolation)?;
        let of_image = match &plan.image {
            ImageRef::Name(reference) => {
                let images = self.images()?;
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
        // Trees of the host are not looked at as the user, who may own some of what they hold.
        let mut lowers = plan.rootfs.overlays.iter().flat_map(|overlay| &overlay.lowers);
        let owners = plan.ids.many() || lowers.any(|lower| !lower.owned);
        let prepared = Prepared {
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

    /// The disks that a snapshot of a machine lies on.
    pub(crate) fn written_disks(&self, snapshot: &Name) -> Result<Vec<PathBuf>> {
        let record = self.records().find(snapshot)?;
        let plan = self.on_tier(&record, Isolation::Vm)?;
        Ok(plan.machine.map(|machine| machine.written).unwrap_or_default())
    }

    /// Keeps frozen layers from being removed while a Plan that needs them becomes a sandbox.
    pub(crate) fn keep_frozen(&self, plan: &Plan) -> Result<Option<Held>> {
        if plan.written().next().is_none() {
            return Ok(None);
        }
        let lock = self.share_frozen()?;
        match plan.written().find(|path| !path.exists()) {
            Some(_) => Err(Error::new(
                Kind::State,
                format!("the layers of `{}` were removed meanwhile", plan.image),
            )),
            None => Ok(Some(lock)),
        }
    }

    /// Removes what somebody has left who died while making a snapshot.
    pub(crate) fn repair_frozen(&self) {
        let entries = fs::read_dir(self.home().frozen()).into_iter().flatten();
        if entries.filter_map(|entry| entry.ok()).any(|entry| is_debris(&entry.path())) {
            self.thaw();
        }
    }

    /// Removes frozen layers that no sandbox and no snapshot needs. What cannot be removed now is
    /// tried again the next time.
    pub(crate) fn thaw(&self) {
        self.remove_all(&self.put_aside());
    }

    /// To remove much takes long, and nobody waits for it.
    fn remove_all(&self, unneeded: &[PathBuf]) {
        for path in unneeded {
            self.remove_whole(path);
        }
    }

    /// Gives those layers names under which nobody finds them any more.
    fn put_aside(&self) -> Vec<PathBuf> {
        let nothing = Vec::new;
        let frozen = self.home().frozen();
        let Ok(entries) = fs::read_dir(&frozen) else { return nothing() };
        let Ok(lock) = self.frozen_lock().map(Held) else { return nothing() };
        // Whoever makes a sandbox from one of them comes first. Another one who cleans up may have
        // looked before the last one who needed something went.
        if wait_within(THAW_LIMIT, || msb_sys::lock::try_lock(&lock.0)).is_err() {
            return nothing();
        }
        let Some(needed) = self.needed() else { return nothing() };
        entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .inspect(|path| {
                if path.is_file() && is_debris(path) {
                    let _ = fs::remove_file(path);
                }
            })
            .filter(|path| {
                path.is_dir()
                    && !is_making(path)
                    && !needed.iter().any(|lower| lower.starts_with(path))
            })
            .filter_map(|path| {
                for extension in ["sum", "seal"] {
                    let _ = fs::remove_file(path.with_extension(extension));
                }
                let aside = frozen.join(passing("removing", &new_id()));
                fs::rename(path, &aside).ok().map(|()| aside)
            })
            .collect()
    }

    /// The layers that are needed; none if that cannot be known.
    fn needed(&self) -> Option<Vec<PathBuf>> {
        let mut plans = Vec::new();
        for name in self.home().names() {
            let directory = self.home().directory(&name);
            for file in [state::PLAN, state::NEXT_PLAN] {
                plans.extend(crate::store::read_plan(&directory.join(file), &name).ok()?);
            }
        }
        plans.extend(self.recorded_plans().ok()?);
        let written = |plan: &Plan| -> Vec<_> { plan.written().map(Path::to_owned).collect() };
        Some(plans.iter().flat_map(written).collect())
    }

    /// The Plans that snapshots need images for.
    pub(crate) fn recorded_plans(&self) -> Result<Vec<Plan>> {
        let records = self.records().all()?.into_iter();
        let plans =
            |record: Record| std::iter::once(record.plan).chain(record.other.map(|other| *other));
        Ok(records.flat_map(plans).collect())
    }

    /// Keeps all layers where they are.
    fn share_frozen(&self) -> Result<Held> {
        let lock = Held(self.frozen_lock()?);
        wait_for(|| msb_sys::lock::try_share(&lock.0))?;
        Ok(lock)
    }

    fn frozen_lock(&self) -> Result<fs::File> {
        let frozen = self.home().frozen();
        make_directory(&frozen)?;
        fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(frozen.join(state::LOCK))
            .map_err(|error| Error::host("cannot lock the layers of snapshots", error))
    }
}

/// A Plan that lies on what its sandbox has written, which is in `place` from now on.
fn placed(mut plan: Plan, place: &Path) -> Plan {
    let written_as = written_as(&plan.ids);
    match &mut plan.machine {
        Some(machine) => machine.written.insert(0, place.join(state::DISK)),
        None => {
            for (at, overlay) in plan.rootfs.overlays.iter_mut().enumerate() {
                let path = place.join(format!("upper{at}"));
                overlay.lowers.insert(0, Lower { path, owned: true, written_as });
            }
        }
    }
    plan.rootfs.own += 1;
    plan
}

/// The id on disk that is root in what a sandbox with these ids writes.
fn written_as(ids: &Ids) -> Option<u32> {
    match ids {
        Ids::Shifted { range } => Some(range.start),
        Ids::Single { .. } | Ids::Subordinate { .. } => Some(0),
    }
}

/// How many layers a sandbox of this family has written itself to be where another Plan is; none
/// if that is of another family.
fn since(plan: &Plan, then: &Plan) -> Option<usize> {
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

/// Whether the journal of a disk has to be played back before anybody can read it. One number is
/// looked at, wherever it came from; nothing else of what a machine wrote is read here.
fn needs_repair(disk: &Path) -> bool {
    const INCOMPATIBLE_FEATURES: u64 = 1024 + 96;
    const RECOVER: u32 = 4;
    let mut bytes = [0; 4];
    let read =
        fs::File::open(disk).and_then(|file| file.read_exact_at(&mut bytes, INCOMPATIBLE_FEATURES));
    read.is_ok() && u32::from_le_bytes(bytes) & RECOVER != 0
}

impl Engine {
    /// Ids of another sandbox of the same user.
    fn ids_like(&self, ids: Ids) -> Result<Ids> {
        Ok(match ids {
            Ids::Shifted { .. } => Ids::Shifted { range: unused_ids(&self.home().taken_ids())? },
            ids => ids,
        })
    }
}

fn new_id() -> String {
    random::<16>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Waits a little for a lock that others only hold for moments.
fn wait_for(take: impl FnMut() -> std::io::Result<bool>) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(30);
    wait_within(LIMIT, take)
}

fn wait_within(limit: Duration, mut take: impl FnMut() -> std::io::Result<bool>) -> Result<()> {
    let since = Instant::now();
    loop {
        let taken = take().map_err(|error| Error::host("cannot lock the layers", error))?;
        if taken {
            return Ok(());
        }
        if since.elapsed() > limit {
            return Err(Error::new(Kind::Timeout, "the layers of snapshots are being cleaned up"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What of a Plan a snapshot keeps: not what it was given for one life.
fn recorded(mut plan: Plan) -> Plan {
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

/// Where a sandbox writes, if that can be frozen.
enum Writable<'a> {
    /// Directories, one for each overlay.
    Layer(&'a Path),
    /// The disk of a machine.
    Disk(&'a Path),
}

impl<'a> Writable<'a> {
    fn of(plan: &'a Plan) -> Result<Self> {
        if let Some(family) = &plan.family {
            let (name, parent) = (&plan.name, &family.parent);
            return Err(Error::unsupported(format!(
                "sandbox `{name}` is a child of `{parent}`, of which nothing is kept"
            )));
        }
        match &plan.rootfs.upper {
            _ if plan.ephemeral => {
                Err(Error::unsupported(format!("sandbox `{}` is gone when it ends", plan.name))
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

fn same_kind(plan: &Plan, other: &Plan, snapshot: &Name) -> Result<()> {
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

/// Whether somebody made or removed it who died before it was done.
fn is_debris(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    [".making-", ".removing-"].iter().any(|it| name.starts_with(it)) && !is_making(path)
}

/// Whether who makes or removes it still lives.
fn is_making(path: &Path) -> bool {
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

/// A sandbox that never ran has none.
fn make_missing(upper: &Path, plan: &Plan) -> Result<()> {
    let made = match fs::create_dir(upper) {
        Ok(()) if User::current().is_root() => {
            let (uid, gid) = plan.ids.root();
            std::os::unix::fs::chown(upper, Some(uid), Some(gid))
        }
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    };
    made.map_err(|error| Error::host(format!("cannot make `{}`", upper.display()), error))
}

fn make_directory(path: &Path) -> Result<()> {
    match crate::store::make_private(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::host(format!("cannot make `{}`", path.display()), error))
        }
        _ => Ok(()),
    }
}
