//! Sandboxes that were made for sandboxes, within a budget.
//!
//! What is counted are the sandboxes there are, and a number in the directory of their parent, so
//! that nothing is forgotten with whoever made them. Whoever makes one, or takes a parent away,
//! holds one lock of the state directory meanwhile: what a budget has left cannot be given twice.

mod network;

use crate::api::check_judged;
use crate::host::random;
use crate::images::Fetching;
use crate::planning::now_ms;
use crate::repair;
use crate::sandboxes::Engine;
use crate::store::create_private;
use msb_api::{Brood, Child, ChildSpec};
use msb_spec::{
    Authority, Bytes, Cpus, DEEPEST, Error, Family, Hostname, ImageRef, Isolation, IsolationChoice,
    Kind, Name, Peers, Plan, Result, Span, SpawnPolicy, Spec, Stage, state,
};
use msb_sys::lock::Held;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// To make or remove a sandbox's directory takes milliseconds, also for fifty at once.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
/// How long a child that is just being made is waited for.
const MAKING_LIMIT: Duration = Duration::from_secs(15);
/// Two short words and a number.
const RECORD_LIMIT: u64 = 4096;

/// What is kept about the children of a sandbox, in its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Another one after each reset, so that children of before are known.
    life: String,
    /// Children that were ever made.
    spawned: u32,
}

impl Engine {
    /// Makes a child of a running sandbox and starts it, with a say in how images are fetched.
    pub fn spawn(&self, parent: &Name, ask: &ChildSpec, fetching: &Fetching<'_>) -> Result<Child> {
        self.spawn_called(parent, ask, None, fetching)
    }

    /// Makes a child for a caller inside, which calls it by an alias. What it is called outside does not
    /// depend on that, so that code inside neither learns of names that are taken there nor takes any.
    pub(crate) fn spawn_called(
        &self,
        parent: &Name,
        ask: &ChildSpec,
        alias: Option<&Name>,
        fetching: &Fetching<'_>,
    ) -> Result<Child> {
        let about = |error: Error| error.under(format!("sandbox `{parent}` gets no child"));
        let (plan, policy) = self.may_spawn(parent).map_err(about)?;
        let mut spec = child_of(&plan, &policy, ask).map_err(about)?;
        // What may take long is done before the lock: then the image is there.
        // Its parent's policy was within the ceiling, and bounds it.
        let admitted = |spec: &Spec| Authority::Operator.spec(spec);
        self.plan_within(&admitted(&spec)?, fetching)?;
        let (child, made) = {
            let _lock = self.family_lock()?;
            let (_, policy) = self.may_spawn(parent).map_err(about)?;
            let record = self.record(parent)?.unwrap_or_else(Record::new);
            let kin = self.kin();
            self.check_budget(parent, &policy, &record, &kin, &spec).map_err(about)?;
            check_alias(parent, alias, &kin).map_err(about)?;
            let name = self.child_name(parent, ask, &record).map_err(about)?;
            let network = network::shared(&plan, &policy, &name);
            let join = network::joined(&plan, &policy, &name);
            spec.network = network::asked(&plan, &policy, network.is_some(), join);
            spec.name = Some(name);
            spec.hostname = alias.map(Hostname::of);
            let mut child = self.plan_within(&admitted(&spec)?, fetching)?;
            // Not by its name, which may come from inside.
            child.spawn.clone_from(&spec.spawn);
            check_judged(&spec, &child)?;
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
            self.write_record(parent, &Record { spawned, ..record })?;
            let made = self.make_sandbox(&child)?;
            (child, made)
        };
        let started = self.launch_made(made).and_then(|mut caller| {
            self.begin(&child, &mut caller)?;
            // Whoever took its parent away meanwhile may have looked before it was there.
            match self.is_orphan(&child) {
                true => Err(Error::new(Kind::State, format!("sandbox `{parent}` is gone"))),
                false => caller.detach(),
            }
        });
        if let Err(error) = started {
            let _ = self.remove(&child.name, true);
            return Err(error);
        }
        self.child(&child).ok_or_else(|| self.home().unknown(&child.name))
    }

    /// The children of a sandbox, by name, and what its policy leaves.
    pub fn children(&self, parent: &Name) -> Result<Brood> {
        let plan = self.home().plan(parent)?;
        let record = self.record(parent)?;
        let kin = self.kin();
        let own = kin.iter().filter(|child| is_child_of(child, parent));
        Ok(Brood {
            children: own.filter_map(|child| self.child(child)).collect(),
            spawned: record.map_or(0, |record| record.spawned),
            max_total: plan.spawn.map(|policy| policy.max_total),
        })
    }

    /// Ends a child of a sandbox, and those of its own.
    pub fn remove_child(&self, parent: &Name, name: &Name) -> Result<()> {
        match self.home().plan(name) {
            Ok(plan) if is_child_of(&plan, parent) => self.remove(name, true),
            _ => {
                Err(Error::new(Kind::NotFound, format!("no child `{name}` of sandbox `{parent}`"))
                    .hint(format!("`msb children {parent}` lists those there are")))
            }
        }
    }

    /// A sandbox that may have children and runs, with what it may have.
    fn may_spawn(&self, parent: &Name) -> Result<(Plan, SpawnPolicy)> {
        let plan = self.home().plan(parent)?;
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
                format!("sandbox `{parent}` is a child of a child, which have none"),
            ));
        }
        if !self.home().is_running(parent) {
            return Err(Error::new(Kind::State, format!("sandbox `{parent}` is not running"))
                .hint(format!("`msb start {parent}` starts it")));
        }
        Ok((plan, policy))
    }

    /// Every child of anybody. Those whose worker was killed are no more.
    fn kin(&self) -> Vec<Plan> {
        let is_child = |name: &Name| {
            let plan = self.home().plan(name).ok().filter(|plan| plan.family.is_some())?;
            let _ = repair::one(self.home(), name);
            self.home().has(name).then_some(plan)
        };
        self.home().names().iter().filter_map(is_child).collect()
    }

    /// Whether one more keeps to what its parent, and all above that, may have.
    fn check_budget(
        &self,
        parent: &Name,
        policy: &SpawnPolicy,
        record: &Record,
        kin: &[Plan],
        spec: &Spec,
    ) -> Result<()> {
        let own = kin.iter().filter(|child| is_child_of(child, parent)).count();
        let limit = |what: String| Err(Error::new(Kind::Limit, what));
        if own >= policy.max_concurrent as usize {
            return limit(format!("it may have no more than {own} at once"));
        }
        if record.spawned >= policy.max_total {
            return limit(format!("it may have no more than {} in its life", policy.max_total));
        }
        let mut above = Some((parent.clone(), policy.clone()));
        while let Some((name, policy)) = above {
            let below: Vec<&Plan> = kin.iter().filter(|plan| descends(plan, &name, kin)).collect();
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
            let next = kin.iter().find(|plan| plan.name == name).and_then(parent_of).cloned();
            above = next.and_then(|name| {
                let policy = self.home().plan(&name).ok()?.spawn?;
                Some((name, policy))
            });
        }
        Ok(())
    }

    /// What a child is called. Nobody gets a name in another's namespace.
    fn child_name(&self, parent: &Name, ask: &ChildSpec, record: &Record) -> Result<Name> {
        if let Some(name) = &ask.name {
            if namespace(name) != namespace(parent) {
                return Err(Error::invalid(format!("not a name for a child: `{name}`")));
            }
            return match self.home().has(name) {
                true => Err(Error::new(Kind::Exists, format!("sandbox `{name}` already exists"))),
                false => Ok(name.clone()),
            };
        }
        let free = |number: u32| {
            let name = Name::parse(&format!("{parent}-child-{number:04}")).ok()?;
            (!self.home().has(&name)).then_some(name)
        };
        let after = record.spawned.saturating_add(1)..;
        after.take(1000).find_map(free).ok_or_else(|| {
            Error::invalid(format!("no name can be made of `{parent}`")).hint("say one")
        })
    }

    fn child(&self, plan: &Plan) -> Option<Child> {
        let summary = self.summary(&plan.name).ok()?;
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

    /// Removes a sandbox that may have had children, while nobody makes more.
    pub(crate) fn leave_family(
        &self,
        name: &Name,
        gone: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if !self.home().directory(name).join(state::CHILDREN).exists() {
            return gone();
        }
        let lock = self.family_lock()?;
        gone()?;
        drop(lock);
        self.end_children(name)
    }

    /// Ends the children of a sandbox that begins anew.
    pub(crate) fn renew_family(&self, name: &Name) -> Result<()> {
        let Some(record) = self.record(name)? else { return Ok(()) };
        let lock = self.family_lock()?;
        self.write_record(name, &Record { spawned: record.spawned, ..Record::new() })?;
        drop(lock);
        self.end_children(name)
    }

    fn end_children(&self, parent: &Name) -> Result<()> {
        for child in self.kin().iter().filter(|child| is_child_of(child, parent)) {
            self.end_child(child)?;
        }
        Ok(())
    }

    /// Whoever is just making it holds it for a moment.
    fn end_child(&self, child: &Plan) -> Result<()> {
        let since = Instant::now();
        loop {
            match self.remove(&child.name, true) {
                Err(error) if error.kind() == Kind::NotFound => {
                    // It ended by itself, and left its own children.
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

    /// Ends children whose parent is not there any more, or has begun anew.
    pub(crate) fn end_orphans(&self) -> Vec<String> {
        // Nobody has ever had a child.
        if !self.home().families().exists() {
            return Vec::new();
        }
        let orphans = self.kin().into_iter().filter(|child| self.is_orphan(child));
        let ended = orphans.filter(|child| self.remove(&child.name, true).is_ok());
        ended
            .map(|child| format!("removed sandbox `{}`, whose parent is gone", child.name))
            .collect()
    }

    fn is_orphan(&self, child: &Plan) -> bool {
        let Some(family) = &child.family else { return false };
        match self.record(&family.parent) {
            Ok(record) => record.is_none_or(|record| record.life != family.life),
            // Whatever cannot be read now is no reason to end anything.
            Err(_) => false,
        }
    }

    fn record(&self, parent: &Name) -> Result<Option<Record>> {
        let path = self.home().directory(parent).join(state::CHILDREN);
        let failed = |error: io::Error| {
            Error::host(format!("cannot read what is kept about the children of `{parent}`"), error)
        };
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let mut text = Vec::new();
        file.take(RECORD_LIMIT).read_to_end(&mut text).map_err(failed)?;
        serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.into()))
    }

    fn write_record(&self, parent: &Name, record: &Record) -> Result<()> {
        let directory = self.home().directory(parent);
        let aside = directory.join(crate::store::passing("making", state::CHILDREN));
        let write = || -> io::Result<()> {
            let mut file = create_private(&aside)?;
            file.write_all(&serde_json::to_vec(record).expect("our own types always serialise"))?;
            msb_sys::files::write_before_rename(&file)?;
            fs::rename(&aside, directory.join(state::CHILDREN))
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&aside);
            crate::store::full_disk("child", error, &directory)
        })
    }

    fn family_lock(&self) -> Result<Held> {
        lock(&self.home().families()).map_err(|error| Error::host("cannot count children", error))
    }
}

impl Record {
    fn new() -> Self {
        let life = random::<8>().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { life, spawned: 0 }
    }
}

/// Waits until nobody else counts.
fn lock(path: &Path) -> io::Result<Held> {
    let options = &mut File::options();
    let file = Held(options.read(true).write(true).create(true).truncate(false).open(path)?);
    let since = Instant::now();
    while !msb_sys::lock::try_lock(&file.0)? {
        if since.elapsed() > LOCK_LIMIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(file)
}

/// What a child is to be, but for its name.
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
        // What it writes is in its memory.
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
            Err(Error::new(Kind::Denied, format!("image `{asked}` is not for its children"))
                .hint(format!("they start from {}", names.join(" or ")))
                .at(Stage::Plan))
        }
    }
}

/// Whether a sandbox has no other child that it calls so.
fn check_alias(parent: &Name, alias: Option<&Name>, kin: &[Plan]) -> Result<()> {
    let Some(alias) = alias else { return Ok(()) };
    // These names are generated.
    if alias.as_str().starts_with(&format!("{}-child-", within(parent, parent))) {
        return Err(Error::invalid(format!("not a name for a child: `{alias}`")));
    }
    let has = |plan: &Plan| {
        let other = plan.family.as_ref().and_then(|family| family.alias.as_ref());
        other.map_or_else(|| within(parent, &plan.name), Name::as_str) == alias.as_str()
    };
    match kin.iter().any(|plan| is_child_of(plan, parent) && has(plan)) {
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

/// Whether a sandbox is a child, a child of a child and so on of another.
fn descends(plan: &Plan, from: &Name, kin: &[Plan]) -> bool {
    let mut parent = parent_of(plan);
    for _ in 0..=DEEPEST {
        match parent {
            Some(name) if name == from => return true,
            Some(name) => {
                parent = kin.iter().find(|plan| plan.name == *name).and_then(parent_of);
            }
            None => return false,
        }
    }
    false
}

/// A name as it is known to a sandbox, without its namespace.
pub(crate) fn within<'a>(sandbox: &Name, name: &'a Name) -> &'a str {
    let whole = name.as_str();
    let inner =
        namespace(sandbox).and_then(|namespace| whole.strip_prefix(namespace)?.strip_prefix("--"));
    inner.unwrap_or(whole)
}

/// What stands before `--` in the names of sandboxes of one namespace.
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
