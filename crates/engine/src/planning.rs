//! From what was asked to what is done. Everything that depends on this host is decided here.

use crate::host::{Controllers, User, half_of_memory, random, subordinate, unused_ids};
use crate::store::Home;
use msb_spec::{
    By, Bytes, Command, Error, GuestPath, Hostname, Ids, Isolation, IsolationChoice, Limit, Limits,
    Name, PLAN_VERSION, Patch, Plan, PlannedMount, Result, Rootfs, Script, Security, Spec, Stage,
    Upper, UserRef, env, state,
};
use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Decides everything about a sandbox. Touches nothing but derived image layers.
pub(crate) fn plan(home: &Home, spec: &Spec) -> Result<Plan> {
    spec.validate().map_err(|error| error.at(Stage::Plan))?;
    let name = spec.name.clone().unwrap_or_else(made_up_name);
    let (isolation, isolation_reason) = isolation(spec.isolation)?;
    let prepared = msb_image::prepare(&spec.image, &home.layers())?;
    let user = User::current();
    let limits = Limits { cgroup_owner: home.short_hash(), ..limits(spec, user)? };
    let upper = match (spec.ephemeral, limits.disk) {
        (true, disk) => {
            Upper::Memory { size: disk.map_or_else(half_of_memory, |limit| limit.value.0) }
        }
        (false, Some(_)) => Upper::Disk { path: home.directory(&name).join(state::DISK) },
        (false, None) => Upper::Directory { path: home.directory(&name).join(state::LAYER) },
    };
    let mounts = mounts(spec)?;
    let allow_setid = mounts.iter().all(|mount| mount.read_only);
    let shell = spec.shell.clone().unwrap_or_else(|| "/bin/sh".to_owned());
    let plan = Plan {
        version: PLAN_VERSION,
        created: now_ms(),
        isolation,
        isolation_reason,
        image: prepared.image,
        rootfs: Rootfs { overlays: prepared.overlays, upper },
        ids: ids(spec, user)?,
        hostname: spec.hostname.clone().unwrap_or_else(|| Hostname::of(&name)),
        labels: spec.labels.clone(),
        env: environment(spec, &name, &prepared.path),
        workdir: spec.workdir.clone().unwrap_or_else(|| "/".to_owned()),
        user: spec.user.clone(),
        mounts,
        tmpfs: spec.tmpfs.clone(),
        limits,
        rlimits: spec.rlimits.clone(),
        security: Security { profile: spec.security, allow_userns: spec.allow_userns, allow_setid },
        max_duration: spec.max_duration,
        idle_timeout: spec.idle_timeout,
        ephemeral: spec.ephemeral,
        patches: patches(spec)?,
        command: first_command(spec),
        shell,
        name,
    };
    Ok(plan)
}

/// What a tier costs is said by whoever shows the Plan; here is only why it was chosen.
fn isolation(choice: IsolationChoice) -> Result<(Isolation, Option<String>)> {
    match choice {
        IsolationChoice::Process => Ok((Isolation::Process, None)),
        IsolationChoice::Auto => {
            let reason = "this version of msb has no microVM tier yet".to_owned();
            Ok((Isolation::Process, Some(reason)))
        }
        IsolationChoice::Vm => {
            Err(Error::unsupported("isolation `vm` is not in this version of msb")
                .hint("`--isolation process` runs it with namespaces, seccomp and Landlock")
                .at(Stage::Plan))
        }
    }
}

fn made_up_name() -> Name {
    let digits: String = random::<4>().iter().map(|byte| format!("{byte:02x}")).collect();
    Name::parse(&format!("sb-{digits}")).expect("letters, digits and a dash")
}

fn ids(spec: &Spec, user: User) -> Result<Ids> {
    if user.is_root() {
        return Ok(Ids::Shifted { range: unused_ids() });
    }
    let User { uid, gid } = user;
    let wants_others = spec.user.as_ref().is_some_and(|user| !user.is_root());
    // Mapping a range takes two setuid programs and milliseconds: for what lasts, or needs it.
    if wants_others || !spec.ephemeral {
        let name = user.name().unwrap_or_default();
        if let Some((uids, gids)) = subordinate(&name, uid) {
            return Ok(Ids::Subordinate { uid, gid, uids, gids });
        }
    }
    if let Some(other) = spec.user.as_ref().filter(|user| !user.is_root()) {
        return Err(only_root(other));
    }
    Ok(Ids::Single { uid, gid })
}

fn only_root(user: &UserRef) -> Error {
    Error::unsupported(format!("only root can exist in a sandbox of this user, not `{user}`"))
        .hint("install `uidmap` (newuidmap) and have /etc/subuid grant ids, or run msb as root")
        .at(Stage::Plan)
}

fn limits(spec: &Spec, user: User) -> Result<Limits> {
    // One id's processes are limited as hard by rlimit; looking for a cgroup that a short run does
    // not need would be a fiftieth of it.
    let brief = spec.ephemeral && !user.is_root() && spec.user.is_none();
    let needs_cgroup = !brief || spec.memory.is_some() || spec.cpus.is_some();
    let controllers = if needs_cgroup { Controllers::find() } else { Controllers::default() };
    let by = |controller: &str, other: By| {
        if controllers.has(controller) { By::Cgroup } else { other }
    };
    let memory = spec.memory.map(|value| Limit { value, by: by("memory", By::Watch) });
    let pids = spec.pids.map(|value| Limit { value, by: by("pids", By::Rlimit) });
    let cpus = match spec.cpus {
        Some(value) if controllers.has("cpu") => Some(Limit { value, by: By::Cgroup }),
        Some(value) if value.millis % 1000 == 0 => Some(Limit { value, by: By::Affinity }),
        Some(value) => {
            return Err(Error::unsupported(format!(
                "cannot limit to {value} cpus without cgroups"
            ))
            .hint("ask for whole cpus, or have a cgroup delegated; `msb doctor` tells how")
            .at(Stage::Plan));
        }
        None => None,
    };
    let disk = match spec.disk {
        Some(value) if spec.ephemeral => Some(Limit { value, by: By::Tmpfs }),
        Some(value) if user.is_root() => Some(Limit { value: at_least_8m(value)?, by: By::Disk }),
        Some(_) => {
            return Err(Error::unsupported("a limited disk that lasts needs root on this host")
                .hint("leave `--disk` out, or use `msb run`, whose writable layer is in memory")
                .at(Stage::Plan));
        }
        None => None,
    };
    let mut wanted: Vec<&str> = Vec::new();
    if spec.ephemeral {
        let held = |by: Option<By>| by == Some(By::Cgroup);
        let asked = [
            ("memory", held(memory.map(|limit| limit.by))),
            ("pids", held(pids.map(|limit| limit.by))),
            ("cpu", held(cpus.map(|limit| limit.by))),
        ];
        wanted.extend(asked.iter().filter(|(_, asked)| *asked).map(|(name, _)| *name));
    } else {
        // What lasts is also measured.
        wanted.extend(["cpu", "cpuacct", "memory", "pids"]);
    }
    let cgroup = controllers.only(&wanted);
    Ok(Limits { memory, cpus, pids, disk, cgroup, cgroup_owner: String::new() })
}

/// A file system needs room for itself.
fn at_least_8m(value: Bytes) -> Result<Bytes> {
    if value >= Bytes::mib(8) {
        return Ok(value);
    }
    Err(Error::invalid(format!("a disk of {value} is too small")).hint("8M is the least"))
}

fn mounts(spec: &Spec) -> Result<Vec<PlannedMount>> {
    let find = |mount: &msb_spec::Mount| {
        let shown = mount.host.display();
        let about = |error| Error::host(format!("cannot mount `{shown}`"), error).at(Stage::Plan);
        let host = fs::canonicalize(&mount.host).map_err(about)?;
        let meta = fs::metadata(&host).map_err(about)?;
        if !meta.is_dir() && !meta.is_file() {
            return Err(Error::invalid(format!("neither a directory nor a file: `{shown}`"))
                .at(Stage::Plan));
        }
        let guest = mount.guest.as_str().to_owned();
        Ok(PlannedMount { host, guest, read_only: mount.read_only, file: meta.is_file() })
    };
    let mut mounts = spec.mounts.iter().map(find).collect::<Result<Vec<_>>>()?;
    // A mount below another one comes after it, whatever the order they were asked in.
    mounts.sort_by(|a, b| a.guest.cmp(&b.guest));
    Ok(mounts)
}

fn environment(spec: &Spec, name: &Name, extra: &[String]) -> BTreeMap<String, String> {
    let mut path: Vec<&str> = Vec::new();
    if !spec.scripts.is_empty() {
        path.push(Script::DIRECTORY);
    }
    path.extend(USUAL_PATH.split(':'));
    for dir in extra.iter().map(String::as_str) {
        if !path.contains(&dir) {
            path.push(dir);
        }
    }
    let mut environment = BTreeMap::from([
        ("PATH".to_owned(), path.join(":")),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
        (env::SANDBOX.to_owned(), name.to_string()),
    ]);
    environment.extend(spec.env.clone());
    environment
}

/// What is changed before the first command: the working directory is there, then what was
/// asked, then scripts.
fn patches(spec: &Spec) -> Result<Vec<Patch>> {
    let mut patches = Vec::new();
    if let Some(workdir) = spec.workdir.as_deref().filter(|dir| *dir != "/") {
        patches.push(Patch::Mkdir { path: GuestPath::parse(workdir)? });
    }
    for patch in &spec.patches {
        if let Patch::Copy { from, to } = patch {
            let about = |error| Error::host(format!("cannot copy `{}`", from.display()), error);
            let from = std::path::absolute(from).map_err(about)?;
            fs::metadata(&from).map_err(|error| about(error).at(Stage::Plan))?;
            patches.push(Patch::Copy { from, to: to.clone() });
        } else {
            patches.push(patch.clone());
        }
    }
    patches.extend(spec.scripts.iter().map(Script::patch));
    Ok(patches)
}

/// The first command, without what only the surface knows: its terminal and stdin.
fn first_command(spec: &Spec) -> Option<Command> {
    let argv: Vec<String> = spec.entrypoint.iter().chain(&spec.command).cloned().collect();
    (!argv.is_empty()).then(|| Command { argv, timeout: spec.timeout, ..Command::default() })
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
