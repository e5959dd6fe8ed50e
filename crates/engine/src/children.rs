//! Child sandboxes, created on behalf of a sandbox within its budget.
//!
//! The budget is computed from the existing Plans and a counter in the directory of the parent, so
//! no process has to live for it. `families.lock` serialises spawning children and removing
//! parents: a budget cannot be spent twice.

mod network;

use crate::api::recheck_paths;
use crate::host::random;
use crate::images::Fetching;
use crate::planning::now_ms;
use crate::repair;
use crate::sandboxes::Engine;
use crate::start::{Launch, LaunchUntil};
use crate::store::{Home, create_private_file};
use msb_api::{Child, ChildListing, ChildSpec};
use msb_spec::encoding::hex;
use msb_spec::{
    Authority, Bytes, CommandStreams, Cpus, DEEPEST, Error, Family, Hostname, ImageRef, Isolation,
    IsolationChoice, Kind, Name, Peers, Plan, Result, Span, SpawnPolicy, Spec, Stage, state,
};
use msb_sys::lock::LockGuard;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the spawn lock is waited for. Holding it takes milliseconds, also for fifty children.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
/// How long removal waits for a child that is being created.
const MAKING_LIMIT: Duration = Duration::from_secs(15);
/// The most bytes of a spawn record.
const RECORD_LIMIT: u64 = 4096;

/// The spawn record in the directory of a parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SpawnRecord {
    /// A random id that changes with each reset, so that children from before are recognised.
    life: String,
    /// The number of children ever spawned.
    spawned: u32,
}

/// The child sandboxes of a state directory: their records, budgets and ends.
#[derive(Debug, Clone, Copy)]
pub struct ChildSandboxes<'a> {
    engine: &'a Engine,
    home: &'a Home,
}

impl Engine {
    /// The child sandboxes of this state directory.
    pub fn children(&self) -> ChildSandboxes<'_> {
        ChildSandboxes { engine: self, home: self.home() }
    }
}

impl ChildSandboxes<'_> {
    /// Creates and starts a child of a running sandbox, with options for fetching its image.
    pub fn spawn(&self, parent: &Name, ask: &ChildSpec, fetching: &Fetching<'_>) -> Result<Child> {
        self.spawn_with_alias(parent, ask, None, fetching)
    }

    /// Creates a child for code in the sandbox, which refers to it by an alias. The name outside
    /// does not depend on the alias: code inside can neither probe nor take names of the host.
    pub(crate) fn spawn_with_alias(
        &self,
        parent: &Name,
        ask: &ChildSpec,
        alias: Option<&Name>,
        fetching: &Fetching<'_>,
    ) -> Result<Child> {
        let about =
            |error: Error| error.under(format!("cannot spawn a child of sandbox `{parent}`"));
        let (plan, policy) = self.may_spawn(parent).map_err(about)?;
        let mut spec = child_of(&plan, &policy, ask).map_err(about)?;
        // The image is fetched before the lock is taken. The policy of the parent bounds the child,
        // and was checked against the ceiling.
        let plan_child = |spec: &Spec| {
            let admitted = Authority::Operator.spec(spec)?;
            self.engine.plan_within(&admitted, &CommandStreams::default(), fetching)
        };
        plan_child(&spec)?;
        let new = {
            let _lock = self.spawn_lock()?;
            let (_, policy) = self.may_spawn(parent).map_err(about)?;
            let record = self.record(parent)?.unwrap_or_else(SpawnRecord::new);
            let all_children = self.all_children();
            self.check_budget(parent, &policy, &record, &all_children, &spec).map_err(about)?;
            check_alias(parent, alias, &all_children).map_err(about)?;
            let name = self.child_name(parent, ask, &record).map_err(about)?;
            let network = network::shared(&plan, &policy, &name);
            let join = network::joined(&plan, &policy, &name);
            spec.network = network::asked(&plan, &policy, network.is_some(), join);
            spec.name = Some(name);
            spec.hostname = alias.map(Hostname::of);
            let mut child = plan_child(&spec)?;
            // Policies of config.toml do not apply: the name may come from inside.
            child.spawn.clone_from(&spec.spawn);
            recheck_paths(&spec, &child)?;
            let generation = generation(&plan) + 1;
            let life = record.life.clone();
            child.family = Some(Family {
                parent: parent.clone(),
                alias: alias.cloned(),
                life,
                generation,
                network,
                net: network::way_out(&plan, &policy),
                ports: policy.ports,
            });
            let spawned = record.spawned.saturating_add(1);
            self.write_record(parent, &SpawnRecord { spawned, ..record })?;
            self.engine.make_sandbox(child)?
        };
        let mut child = self.engine.start_new(new)?;
        let until = LaunchUntil::CommandStarted;
        child.complete(&Launch { until, ..Launch::default() })?;
        // The parent may have been removed before the child was visible.
        if self.is_orphan(child.plan()) {
            return Err(Error::new(Kind::State, format!("sandbox `{parent}` is gone")));
        }
        let child = child.detach()?;
        self.child(&child).ok_or_else(|| self.home.unknown(&child.name))
    }

    /// The children of a sandbox, by name, and its remaining budget.
    pub fn list(&self, parent: &Name) -> Result<ChildListing> {
        let plan = self.home.plan(parent)?;
        let record = self.record(parent)?;
        let all_children = self.all_children();
        let own = all_children.iter().filter(|child| is_child_of(child, parent));
        Ok(ChildListing {
            children: own.filter_map(|child| self.child(child)).collect(),
            spawned: record.map_or(0, |record| record.spawned),
            max_total: plan.spawn.map(|policy| policy.max_total),
        })
    }

    /// Removes a child of a sandbox with its own children.
    pub fn remove(&self, parent: &Name, name: &Name) -> Result<()> {
        match self.home.plan(name) {
            Ok(plan) if is_child_of(&plan, parent) => self.engine.remove(name, true),
            _ => {
                Err(Error::new(Kind::NotFound, format!("no child `{name}` of sandbox `{parent}`"))
                    .hint(format!("`msb children {parent}` lists those there are")))
            }
        }
    }

    /// The Plan and spawn policy of a running parent; fails if it may not spawn.
    fn may_spawn(&self, parent: &Name) -> Result<(Plan, SpawnPolicy)> {
        let plan = self.home.plan(parent)?;
        let Some(policy) = plan.spawn.clone() else {
            return Err(Error::new(
                Kind::Denied,
                format!("sandbox `{parent}` may have no children"),
            )
            .hint("make it with `--spawn`, or name it in config.toml"));
        };
        if generation(&plan) >= DEEPEST {
            return Err(Error::new(
                Kind::Denied,
                format!("sandbox `{parent}` is a grandchild, which may have no children"),
            ));
        }
        if !self.home.is_running(parent) {
            return Err(Error::new(Kind::State, format!("sandbox `{parent}` is not running"))
                .hint(format!("`msb start {parent}` starts it")));
        }
        Ok((plan, policy))
    }

    /// The Plans of all child sandboxes. Those with a dead worker are repaired and skipped.
    fn all_children(&self) -> Vec<Plan> {
        let is_child = |name: &Name| {
            let plan = self.home.plan(name).ok().filter(|plan| plan.family.is_some())?;
            msb_log::warn_on_failure!(repair::one(self.home, name), "cannot repair a child");
            self.home.has(name).then_some(plan)
        };
        self.home.names().iter().filter_map(is_child).collect()
    }

    /// Fails if one more child exceeds the budget of the parent or of its ancestors. The
    /// sandbox_mcp dialect of the server tells the limits apart by the words of these messages.
    fn check_budget(
        &self,
        parent: &Name,
        policy: &SpawnPolicy,
        record: &SpawnRecord,
        all_children: &[Plan],
        spec: &Spec,
    ) -> Result<()> {
        let own = all_children.iter().filter(|child| is_child_of(child, parent)).count();
        let limit = |what: String| Err(Error::new(Kind::Limit, what));
        if own >= policy.max_concurrent as usize {
            return limit(format!("it may have no more than {own} at once"));
        }
        if record.spawned >= policy.max_total {
            return limit(format!("it may have no more than {} in its life", policy.max_total));
        }
        let mut above = Some((parent.clone(), policy.clone()));
        while let Some((name, policy)) = above {
            let below: Vec<&Plan> =
                all_children.iter().filter(|plan| descends(plan, &name, all_children)).collect();
            let cpus: u64 = below.iter().map(|plan| u64::from(cpus_of(plan).millis)).sum();
            let more = spec.cpus.map_or(0, |cpus| u64::from(cpus.millis));
            if cpus + more > u64::from(policy.cpus.millis) {
                return limit(format!("all below `{name}` may have {} cpus together", policy.cpus));
            }
            let memory: u64 = below.iter().map(|plan| memory_of(plan).0).sum();
            if memory + spec.memory.map_or(0, |memory| memory.0) > policy.memory.0 {
                let most = policy.memory;
                return limit(format!("all below `{name}` may have {most} of memory together"));
            }
            let next =
                all_children.iter().find(|plan| plan.name == name).and_then(parent_of).cloned();
            above = next.and_then(|name| {
                let policy = self.home.plan(&name).ok()?.spawn?;
                Some((name, policy))
            });
        }
        Ok(())
    }

    /// The name of a new child. It must be in the namespace of the parent.
    fn child_name(&self, parent: &Name, ask: &ChildSpec, record: &SpawnRecord) -> Result<Name> {
        if let Some(name) = &ask.name {
            if namespace(name) != namespace(parent) {
                return Err(Error::invalid(format!("not a name for a child: `{name}`")));
            }
            return match self.home.has(name) {
                true => Err(Error::new(Kind::Exists, format!("sandbox `{name}` already exists"))),
                false => Ok(name.clone()),
            };
        }
        let free = |number: u32| {
            let name = Name::parse(&format!("{parent}-child-{number:04}")).ok()?;
            (!self.home.has(&name)).then_some(name)
        };
        let after = record.spawned.saturating_add(1)..;
        after.take(1000).find_map(free).ok_or_else(|| {
            Error::invalid(format!("no free name can be derived from `{parent}`"))
                .hint("choose a name")
        })
    }

    fn child(&self, plan: &Plan) -> Option<Child> {
        let summary = self.engine.summary(&plan.name).ok()?;
        let lives = plan.max_duration.map(milliseconds);
        let family = plan.family.as_ref()?;
        Some(Child {
            name: plan.name.clone(),
            parent: family.parent.clone(),
            image: plan.image.clone(),
            isolation: plan.isolation,
            status: summary.status,
            cpus: cpus_of(plan),
            memory: memory_of(plan),
            created: plan.created,
            expires: lives.map(|lives| plan.created.saturating_add(lives)),
            generation: family.generation,
            peers: match (&family.network, plan.network.as_ref().map(|network| &network.join)) {
                (_, Some(Some(_))) => Peers::All,
                (Some(_), _) => Peers::Family,
                (None, _) => Peers::None,
            },
            net: family.net,
            ports: family.ports,
        })
    }

    /// Removes a sandbox by `gone` under the spawn lock, then its children.
    pub(crate) fn remove_with_children(
        &self,
        name: &Name,
        gone: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if !self.home.directory(name).join(state::CHILDREN).exists() {
            return gone();
        }
        let lock = self.spawn_lock()?;
        gone()?;
        drop(lock);
        self.end_children(name)
    }

    /// Ends the children of a sandbox that is reset.
    pub(crate) fn end_for_reset(&self, name: &Name) -> Result<()> {
        let Some(record) = self.record(name)? else { return Ok(()) };
        let lock = self.spawn_lock()?;
        self.write_record(name, &SpawnRecord { spawned: record.spawned, ..SpawnRecord::new() })?;
        drop(lock);
        self.end_children(name)
    }

    fn end_children(&self, parent: &Name) -> Result<()> {
        for child in self.all_children().iter().filter(|child| is_child_of(child, parent)) {
            self.end_child(child)?;
        }
        Ok(())
    }

    /// Retries while the child is being created.
    fn end_child(&self, child: &Plan) -> Result<()> {
        let since = Instant::now();
        loop {
            match self.engine.remove(&child.name, true) {
                Err(error) if error.kind() == Kind::NotFound => {
                    // It has ended by itself and left its own children.
                    self.end_orphans();
                    return Ok(());
                }
                Err(_) if since.elapsed() < MAKING_LIMIT => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                done => return done,
            }
        }
    }

    /// Removes orphans: children of a parent that is gone or was reset. Returns one line for each.
    pub(crate) fn end_orphans(&self) -> Vec<String> {
        // The lock file does not exist before the first child.
        if !self.home.spawn_lock_file().exists() {
            return Vec::new();
        }
        let orphans = self.all_children().into_iter().filter(|child| self.is_orphan(child));
        let ended = orphans.filter(|child| self.engine.remove(&child.name, true).is_ok());
        ended.map(|child| format!("removed sandbox `{}`: its parent is gone", child.name)).collect()
    }

    fn is_orphan(&self, child: &Plan) -> bool {
        let Some(family) = &child.family else { return false };
        match self.record(&family.parent) {
            Ok(record) => record.is_none_or(|record| record.life != family.life),
            // An unreadable record is no reason to remove a child.
            Err(_) => false,
        }
    }

    fn record(&self, parent: &Name) -> Result<Option<SpawnRecord>> {
        let path = self.home.directory(parent).join(state::CHILDREN);
        let failed = |error: io::Error| {
            Error::host(format!("cannot read the spawn record of `{parent}`"), error)
        };
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let mut text = Vec::new();
        file.take(RECORD_LIMIT).read_to_end(&mut text).map_err(failed)?;
        serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.into()))
    }

    fn write_record(&self, parent: &Name, record: &SpawnRecord) -> Result<()> {
        let directory = self.home.directory(parent);
        let temp = directory.join(crate::store::temp_name("making", state::CHILDREN));
        let write = || -> io::Result<()> {
            let mut file = create_private_file(&temp)?;
            file.write_all(&serde_json::to_vec(record).expect("our own types always serialise"))?;
            msb_sys::files::write_before_rename(&file)?;
            fs::rename(&temp, directory.join(state::CHILDREN))
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&temp);
            crate::store::write_error("child", error, &directory)
        })
    }

    fn spawn_lock(&self) -> Result<LockGuard> {
        lock(&self.home.spawn_lock_file())
            .map_err(|error| Error::host("cannot count children", error))
    }
}

impl SpawnRecord {
    fn new() -> Self {
        let life = hex(random::<8>());
        Self { life, spawned: 0 }
    }
}

/// Takes the spawn lock; fails after `LOCK_LIMIT`.
fn lock(path: &Path) -> io::Result<LockGuard> {
    let options = &mut File::options();
    let file = LockGuard(options.read(true).write(true).create(true).truncate(false).open(path)?);
    let since = Instant::now();
    while !msb_sys::lock::try_lock(&file.0)? {
        if since.elapsed() > LOCK_LIMIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(file)
}

/// The Spec of a child, without its name and network.
fn child_of(parent: &Plan, policy: &SpawnPolicy, ask: &ChildSpec) -> Result<Spec> {
    let (cpus, memory) = policy.share(ask.cpus, ask.memory)?;
    let left = parent.family.as_ref().and(parent.max_duration).map(|span| {
        let ends = parent.created.saturating_add(milliseconds(span));
        Span(Duration::from_millis(ends.saturating_sub(now_ms())))
    });
    Ok(Spec {
        image: image(parent, policy, ask.image.as_ref())?,
        isolation: match parent.isolation {
            Isolation::Process => IsolationChoice::Process,
            Isolation::Vm => IsolationChoice::Vm,
        },
        security: parent.security.profile,
        cpus: Some(cpus),
        memory: Some(memory),
        // Its writable layer is a tmpfs within its memory.
        disk: Some(memory),
        max_duration: policy.ttl.into_iter().chain(left).min(),
        ephemeral: true,
        spawn: policy.for_child(generation(parent) + 1),
        ..Spec::with_defaults()
    })
}

fn image(parent: &Plan, policy: &SpawnPolicy, asked: Option<&ImageRef>) -> Result<ImageRef> {
    let own = match &parent.snapshot {
        Some(name) => ImageRef::Snapshot(name.clone()),
        None => parent.image.clone(),
    };
    let allowed = match policy.images.as_slice() {
        [] => std::slice::from_ref(&own),
        images => images,
    };
    match asked {
        None => Ok(allowed[0].clone()),
        Some(asked) if allowed.contains(asked) => Ok(asked.clone()),
        Some(asked) => {
            let names: Vec<String> = allowed.iter().map(|image| format!("`{image}`")).collect();
            Err(Error::new(
                Kind::Denied,
                format!("image `{asked}` is not allowed for its children"),
            )
            .hint(format!("they start from {}", names.join(" or ")))
            .at(Stage::Plan))
        }
    }
}

/// Fails if another child of the sandbox has this alias.
fn check_alias(parent: &Name, alias: Option<&Name>, all_children: &[Plan]) -> Result<()> {
    let Some(alias) = alias else { return Ok(()) };
    // Names of this form are generated.
    if alias.as_str().starts_with(&format!("{}-child-", within(parent, parent))) {
        return Err(Error::invalid(format!("not a name for a child: `{alias}`")));
    }
    let has = |plan: &Plan| {
        let other = plan.family.as_ref().and_then(|family| family.alias.as_ref());
        other.map_or_else(|| within(parent, &plan.name), Name::as_str) == alias.as_str()
    };
    match all_children.iter().any(|plan| is_child_of(plan, parent) && has(plan)) {
        true => Err(Error::new(Kind::Exists, format!("child `{alias}` already exists"))),
        false => Ok(()),
    }
}

fn parent_of(plan: &Plan) -> Option<&Name> {
    plan.family.as_ref().map(|family| &family.parent)
}

fn is_child_of(plan: &Plan, parent: &Name) -> bool {
    parent_of(plan) == Some(parent)
}

fn generation(plan: &Plan) -> u32 {
    plan.family.as_ref().map_or(0, |family| family.generation)
}

/// Whether a sandbox is a descendant of another.
fn descends(plan: &Plan, from: &Name, all_children: &[Plan]) -> bool {
    let mut parent = parent_of(plan);
    for _ in 0..=DEEPEST {
        match parent {
            Some(name) if name == from => return true,
            Some(name) => {
                parent = all_children.iter().find(|plan| plan.name == *name).and_then(parent_of);
            }
            None => return false,
        }
    }
    false
}

/// The name of a sandbox without the namespace of `sandbox`.
pub(crate) fn within<'a>(sandbox: &Name, name: &'a Name) -> &'a str {
    let whole = name.as_str();
    let inner =
        namespace(sandbox).and_then(|namespace| whole.strip_prefix(namespace)?.strip_prefix("--"));
    inner.unwrap_or(whole)
}

/// The namespace of a sandbox: the part of its name before `--`.
pub(crate) fn namespace(name: &Name) -> Option<&str> {
    name.as_str().split_once("--").map(|(namespace, _)| namespace)
}

fn cpus_of(plan: &Plan) -> Cpus {
    plan.limits.cpus.map_or(Cpus::whole(1), |limit| limit.value)
}

fn memory_of(plan: &Plan) -> Bytes {
    plan.limits.memory.map_or(Bytes(0), |limit| limit.value)
}

fn milliseconds(span: Span) -> u64 {
    u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX)
}
