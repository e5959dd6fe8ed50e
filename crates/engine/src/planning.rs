//! From what was asked to what is done. Everything that depends on this host is decided here.

mod machine;
pub(crate) mod network;
mod workspace;

use crate::hardware;
use crate::host::{Controllers, User, half_of_memory, random, unused_ids};
use crate::store::Home;
use crate::volumes;
use msb_image::{Prepared, RunConfig, Settings};
use msb_spec::{
    By, Bytes, Command, Cpus, Error, GuestKernel, GuestPath, Hostname, Ids, ImageRef, InitProgram,
    Isolation, IsolationChoice, Limit, Limits, Lower, MachineBase, Modify, Mount, MountSource,
    Name, Network, PLAN_VERSION, Patch, Plan, PlannedInit, PlannedMount, Result, Rootfs, Script,
    Security, SpawnPolicy, Spec, Stage, Stored, Upper, UserRef, VolumeName, WithinCeiling,
    check_env, env, state,
};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Decides everything about a sandbox. Touches nothing but images.
pub(crate) fn plan(
    home: &Home,
    spec: &WithinCeiling<Spec>,
    prepare: impl FnOnce(Isolation) -> Result<(Prepared, MachineBase)>,
) -> Result<Plan> {
    spec.validate().map_err(|error| error.at(Stage::Plan))?;
    let name = spec.name.clone().unwrap_or_else(made_up_name);
    let (kernel, isolation_reason) = isolation(home, spec.isolation)?;
    let isolation = if kernel.is_some() { Isolation::Vm } else { Isolation::Process };
    let mounts = mounts(home, spec, isolation)?;
    let (mut prepared, base) = prepare(isolation)?;
    let caller = User::current();
    let user = user(spec, &prepared)?;
    let ids = match isolation {
        Isolation::Process => ids(home, spec, user.as_ref(), prepared.owners)?,
        Isolation::Vm => machine_ids(home, &base)?,
    };
    let one_user = isolation == Isolation::Process && matches!(ids, Ids::Single { .. });
    if one_user && prepared.has_directory(APT) {
        let own = Lower::of_image(one_user_layer(home)?);
        // A snapshot may have it already.
        if !prepared.overlays[0].lowers.contains(&own) {
            prepared.overlays[0].lowers.insert(0, own);
        }
    }
    let brief = spec.ephemeral && matches!(ids, Ids::Single { .. });
    let limits = match isolation {
        Isolation::Process => limits(&bounded(spec), caller, brief)?,
        Isolation::Vm => machine::limits(&machine::bounded(spec))?,
    };
    let limits = Limits { cgroup_owner: home.short_hash(), ..limits };
    let machine = kernel.map(|kernel| machine::machine(&limits, kernel, base));
    let upper = match (spec.ephemeral && machine.is_none(), limits.disk) {
        (true, disk) => {
            Upper::Memory { size: disk.map_or_else(half_of_memory, |limit| limit.value.0) }
        }
        (false, Some(_)) => Upper::Disk { path: home.directory(&name).join(state::DISK) },
        (false, None) => Upper::Directory { path: home.directory(&name).join(state::LAYER) },
    };
    let network = network::network(spec, isolation)?;
    let workspace = workspace::workspace(home, spec, &name)?;
    // A volume is the sandbox's own as its writable layer is: a setuid file there is root's inside.
    let allow_setid = mounts.iter().all(|mount| mount.read_only || mount.volume.is_some());
    let shell = spec.shell.clone().unwrap_or_else(|| "/bin/sh".to_owned());
    let env = environment(spec, &name, &prepared, network.as_ref());
    check_env(&env).map_err(|error| error.at(Stage::Plan))?;
    let plan = Plan {
        version: PLAN_VERSION,
        created: now_ms(),
        isolation,
        isolation_reason,
        env,
        workdir: workdir(spec, &prepared),
        command: first_command(spec, &prepared.config, &shell)?,
        init: init(spec, &prepared.config, isolation)?,
        patches: patches(spec, &prepared)?,
        snapshot: match &spec.image {
            ImageRef::Snapshot(name) => Some(name.clone()),
            _ => None,
        },
        image: prepared.image,
        image_digest: prepared.digest,
        rootfs: Rootfs { overlays: prepared.overlays, own: 0, upper },
        machine,
        ids,
        hostname: spec.hostname.clone().unwrap_or_else(|| Hostname::of(&name)),
        labels: spec.labels.clone(),
        user,
        network,
        mounts,
        workspace,
        tmpfs: spec.tmpfs.clone(),
        limits,
        rlimits: spec.rlimits.clone(),
        security: Security { profile: spec.security, allow_userns: spec.allow_userns, allow_setid },
        max_duration: spec.max_duration,
        idle_timeout: spec.idle_timeout,
        idle_pause: spec.idle_pause,
        restart: spec.restart,
        health: spec.health.clone(),
        ephemeral: spec.ephemeral,
        spawn: spawn_policy(home, spec, &name)?,
        family: None,
        shell,
        name,
    };
    Ok(plan)
}

/// What it may have made for it, as asked or as settled. Paths of images lead through no link from
/// here on.
fn spawn_policy(
    home: &Home,
    spec: &WithinCeiling<Spec>,
    name: &Name,
) -> Result<Option<SpawnPolicy>> {
    let mut policy = match &spec.spawn {
        Some(policy) => policy.clone(),
        // Policies are for names and labels; whoever has none need not be told of mistakes there.
        None if spec.name.is_none() && spec.labels.is_empty() => return Ok(None),
        None => {
            let settings = Settings::read(home.path())?;
            let settled = match spec.is_operators() {
                true => settings.spawn(name, &spec.labels),
                false => settings.client_spawn(name, &spec.labels),
            };
            let Some(policy) = settled else { return Ok(None) };
            policy.clone()
        }
    };
    for image in &mut policy.images {
        if let ImageRef::Path(path) = image {
            let shown = path.display();
            let found = fs::canonicalize(&*path).map_err(|error| {
                Error::host(format!("children cannot start from `{shown}`"), error).at(Stage::Plan)
            })?;
            *path = found;
        }
    }
    Ok(Some(policy))
}

/// The kernel of the microVM that is to be, and else why `auto` does without one. What a tier
/// costs is said by whoever shows the Plan.
fn isolation(
    home: &Home,
    choice: IsolationChoice,
) -> Result<(Option<GuestKernel>, Option<String>)> {
    match choice {
        IsolationChoice::Process => Ok((None, None)),
        IsolationChoice::Vm => match hardware::usable(home) {
            Ok(kernel) => Ok((Some(kernel), None)),
            Err(error) => Err(error.under("isolation `vm` does not work here")),
        },
        IsolationChoice::Auto => match hardware::usable(home) {
            Ok(kernel) => Ok((Some(kernel), None)),
            Err(error) => Ok((None, Some(error.message().to_owned()))),
        },
    }
}

/// Whose ids a machine's process has. An image's own exist only inside; those of a directory are
/// the host's.
fn machine_ids(home: &Home, base: &MachineBase) -> Result<Ids> {
    let caller = User::current();
    let User { uid, gid } = caller;
    Ok(match base {
        _ if caller.is_root() => Ids::Shifted { range: unused_ids(&home.taken_ids())? },
        MachineBase::Shares => match caller.granted() {
            Some((uids, gids)) => Ids::Subordinate { uid, gid, uids, gids },
            None => Ids::Single { uid, gid },
        },
        MachineBase::Image { .. } => Ids::Single { uid, gid },
    })
}

fn made_up_name() -> Name {
    let digits: String = random::<4>().iter().map(|byte| format!("{byte:02x}")).collect();
    Name::parse(&format!("sb-{digits}")).expect("letters, digits and a dash")
}

/// Where apt reads its settings.
const APT: &str = "/etc/apt/apt.conf.d";

/// A layer that tells apt not to become another user: it looks whether it did, and where only
/// root exists it did not.
fn one_user_layer(home: &Home) -> Result<PathBuf> {
    let layer = home.path().join("extras/one-user");
    let file = layer.join("etc/apt/apt.conf.d/90-one-user");
    if file.exists() {
        return Ok(layer);
    }
    let make = || -> std::io::Result<()> {
        let directory = file.parent().unwrap_or(&layer);
        fs::create_dir_all(directory)?;
        let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755));
        directory.ancestors().take_while(|path| path.starts_with(&layer)).try_for_each(open)?;
        let aside = directory.with_file_name(format!(".{}", std::process::id()));
        fs::write(&aside, "APT::Sandbox::User \"root\";\n")?;
        fs::set_permissions(&aside, Permissions::from_mode(0o644))?;
        fs::rename(&aside, &file)
    };
    make().map_err(|error| {
        Error::host(format!("cannot make `{}`", file.display()), error).at(Stage::Image)
    })?;
    Ok(layer)
}

/// Who runs commands: whoever was asked for, or whom the image names. None is root.
fn user(spec: &Spec, prepared: &Prepared) -> Result<Option<UserRef>> {
    let user = match &spec.user {
        Some(user) => Some(user.clone()),
        None if prepared.config.user.is_empty() => None,
        None => Some(UserRef::parse(&prepared.config.user).map_err(|error| {
            error
                .under("the image names a user that none can be")
                .hint("`--user root` runs it as root")
                .at(Stage::Plan)
        })?),
    };
    Ok(user.filter(|user| spec.user.is_some() || !user.is_root()))
}

fn ids(home: &Home, spec: &Spec, user: Option<&UserRef>, owners: bool) -> Result<Ids> {
    let caller = User::current();
    if caller.is_root() {
        return Ok(Ids::Shifted { range: unused_ids(&home.taken_ids())? });
    }
    let User { uid, gid } = caller;
    let other = user.filter(|user| !user.is_root());
    // Mapping a range takes two setuid programs and milliseconds: for what lasts, or needs it.
    // A volume holds files of whoever wrote them before.
    let volumes = spec.mounts.iter().any(|mount| matches!(mount.source, MountSource::Volume(_)));
    if (other.is_some() || owners || volumes || !spec.ephemeral)
        && let Some((uids, gids)) = caller.granted()
    {
        return Ok(Ids::Subordinate { uid, gid, uids, gids });
    }
    match other {
        Some(other) => Err(only_root(other, spec.user.is_none())),
        None => Ok(Ids::Single { uid, gid }),
    }
}

pub(crate) fn only_root(user: &UserRef, by_image: bool) -> Error {
    let instead = if by_image { "; `--user root` runs the image as root" } else { "" };
    Error::unsupported(format!("only root can exist in a sandbox of this user, not `{user}`"))
        .hint(format!(
            "install `uidmap` (newuidmap) and have /etc/subuid grant ids, or run msb as root{instead}"
        ))
        .at(Stage::Plan)
}

/// With the limits that a client has where it asked for none.
fn bounded(spec: &WithinCeiling<Spec>) -> Spec {
    Spec {
        memory: spec.memory.or(spec.most_memory()),
        cpus: spec.cpus.or(spec.most_cpus()),
        disk: spec.disk.or(spec.most_disk()),
        ..Spec::clone(spec)
    }
}

fn limits(spec: &Spec, user: User, brief: bool) -> Result<Limits> {
    // One id's processes are limited as hard by rlimit; looking for a cgroup that a short run does
    // not need would be a fiftieth of it.
    let needs_cgroup = !brief || spec.memory.is_some() || spec.cpus.is_some();
    let controllers = if needs_cgroup { Controllers::find() } else { Controllers::default() };
    let by = |controller: &str, other: By| {
        if controllers.has(controller) { By::Cgroup } else { other }
    };
    let memory = match spec.memory {
        Some(value) => Some(Limit { value, by: by("memory", By::Watch) }),
        None if controllers.has("memory") => Some(Limit { value: usual_memory(), by: By::Cgroup }),
        None => None,
    };
    let pids = spec.pids.map(|value| Limit { value, by: by("pids", By::Rlimit) });
    let cpus = match spec.cpus {
        Some(value) if controllers.has("cpu") => Some(Limit { value, by: By::Cgroup }),
        Some(value) if value.millis % 1000 == 0 => Some(Limit { value, by: By::Affinity }),
        Some(value) => {
            return Err(no_part_of_a_cpu(value));
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
        // What lasts is also measured and paused.
        wanted.extend(["cpu", "cpuacct", Limits::FREEZER, "memory", "pids"]);
    }
    let cgroup = controllers.only(&wanted);
    Ok(Limits { memory, cpus, pids, disk, cgroup, cgroup_owner: String::new() })
}

/// The limits of a sandbox that exists, planned anew with other amounts, and what its microVM has
/// then. Its disk stays as it is.
pub(crate) fn limits_anew(
    plan: &Plan,
    ask: &WithinCeiling<&Modify>,
) -> Result<(Limits, Option<(u8, u32)>)> {
    let present = &plan.limits;
    let spec = Spec {
        memory: ask.memory.or(present.memory.map(|limit| limit.value)),
        cpus: ask.cpus.or(present.cpus.map(|limit| limit.value)),
        pids: ask.pids.or(present.pids.map(|limit| limit.value)),
        ephemeral: plan.ephemeral,
        ..Spec::default()
    };
    if plan.machine.is_none() {
        return Ok((limits(&spec, User::current(), false)?, None));
    }
    let disk = present.disk.map(|limit| limit.value);
    let limits = machine::limits(&Spec { disk, ..spec })?;
    let size = machine::size(&limits);
    Ok((limits, Some(size)))
}

/// The default memory limit: three quarters of the host's memory, in whole MiB. The
/// writable layer of one that does not last may be half of it, and the host goes on with the rest.
fn usual_memory() -> Bytes {
    Bytes::mib((half_of_memory() / 2 * 3) >> 20)
}

fn no_part_of_a_cpu(value: Cpus) -> Error {
    Error::unsupported(format!("cannot limit to {value} cpus without cgroups"))
        .hint("ask for whole cpus, or have a cgroup delegated; `msb doctor` tells how")
        .at(Stage::Plan)
}

/// A file system needs room for itself.
fn at_least_8m(value: Bytes) -> Result<Bytes> {
    if value >= Bytes::mib(8) {
        return Ok(value);
    }
    Err(Error::invalid(format!("a disk of {value} is too small")).hint("8M is the least"))
}

pub(crate) fn mounts(home: &Home, spec: &Spec, isolation: Isolation) -> Result<Vec<PlannedMount>> {
    let find = |mount: &Mount| {
        let (guest, read_only) = (mount.guest.as_str().to_owned(), mount.read_only);
        let path = match &mount.source {
            MountSource::Path(path) => path,
            MountSource::Volume(name) => {
                let (host, volume) = volumes::planned(home, name, isolation)?;
                let volume = Some(volume);
                return Ok(PlannedMount { host, guest, read_only, file: false, volume });
            }
        };
        let shown = path.display();
        let about = |error| Error::host(format!("cannot mount `{shown}`"), error).at(Stage::Plan);
        let host = fs::canonicalize(path).map_err(about)?;
        let meta = fs::metadata(&host).map_err(about)?;
        if !meta.is_dir() && !meta.is_file() {
            return Err(Error::invalid(format!("neither a directory nor a file: `{shown}`"))
                .at(Stage::Plan));
        }
        Ok(PlannedMount { host, guest, read_only, file: meta.is_file(), volume: None })
    };
    let mut mounts = spec.mounts.iter().map(find).collect::<Result<Vec<_>>>()?;
    let disks = mounts.iter().filter_map(|mount| mount.volume.as_ref());
    let mut disks: Vec<&VolumeName> =
        disks.filter(|volume| volume.stored == Stored::Disk).map(|volume| &volume.name).collect();
    disks.sort();
    if let Some(twice) = disks.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(
            Error::invalid(format!("a disk can be mounted once: `{}`", twice[0])).at(Stage::Plan)
        );
    }
    // A mount below another one comes after it, whatever the order they were asked in.
    mounts.sort_by(|a, b| a.guest.cmp(&b.guest));
    Ok(mounts)
}

/// What every sandbox has, what the image says, what was asked: the later win.
fn environment(
    spec: &Spec,
    name: &Name,
    prepared: &Prepared,
    network: Option<&Network>,
) -> BTreeMap<String, String> {
    let mut environment = BTreeMap::from([
        ("PATH".to_owned(), USUAL_PATH.to_owned()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
    ]);
    let image = prepared.config.env.iter().filter_map(|variable| variable.split_once('='));
    environment.extend(image.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let path = environment.get("PATH").map(String::as_str).unwrap_or_default();
    let mut directories: Vec<&str> = Vec::new();
    if !spec.scripts.is_empty() {
        directories.push(Script::DIRECTORY);
    }
    directories.extend(path.split(':'));
    for directory in prepared.path.iter().map(String::as_str) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    environment.insert("PATH".to_owned(), directories.join(":"));
    environment.insert(env::SANDBOX.to_owned(), name.to_string());
    environment.extend(network.into_iter().flat_map(network::environment));
    environment.extend(spec.env.clone());
    environment
}

/// Where commands start: as asked, in the workspace, as the image says, or at the root.
fn workdir(spec: &Spec, prepared: &Prepared) -> String {
    if let (None, Some(workspace)) = (&spec.workdir, &spec.workspace) {
        return workspace.guest.to_string();
    }
    match (&spec.workdir, prepared.config.workdir.as_str()) {
        (Some(asked), _) => asked.clone(),
        (None, absolute) if absolute.starts_with('/') => absolute.to_owned(),
        (None, relative) => format!("/{relative}"),
    }
}

/// What is changed before the first command: the working directory is there, then what was
/// asked, then scripts.
fn patches(spec: &Spec, prepared: &Prepared) -> Result<Vec<Patch>> {
    let mut patches = Vec::new();
    let workdir = workdir(spec, prepared);
    let shown = spec.workspace.as_ref().is_some_and(|own| own.guest.as_str() == workdir);
    let there = shown || spec.workdir.is_none() && prepared.has_directory(&workdir);
    if workdir != "/" && !there {
        let path = GuestPath::parse(&workdir).map_err(|error| match spec.workdir {
            Some(_) => error,
            None => error
                .under("the image names a working directory that none can be")
                .hint("`--workdir /` starts elsewhere"),
        })?;
        patches.push(Patch::Mkdir { path });
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
fn first_command(spec: &Spec, image: &RunConfig, shell: &str) -> Result<Option<Command>> {
    if spec.command.is_empty() && spec.entrypoint.is_empty() && !spec.default_command {
        return Ok(None);
    }
    let own_entrypoint = spec.entrypoint.is_empty();
    let none = Vec::new();
    let entrypoint = match own_entrypoint {
        // It runs already, and there is one PID 1.
        true if starts_with_init(spec, &image.entrypoint) => &none,
        true => &image.entrypoint,
        false => &spec.entrypoint,
    };
    // The image's command was written for the image's entrypoint.
    let command = match (spec.command.is_empty(), own_entrypoint) {
        (true, true) if starts_with_init(spec, &image.cmd) => &none,
        (true, true) => &image.cmd,
        (true, false) => &none,
        (false, _) => &spec.command,
    };
    let mut argv: Vec<String> = entrypoint.iter().chain(command).cloned().collect();
    if argv.is_empty() && spec.restart.is_some() {
        return Err(Error::invalid("the image names no command to begin again")
            .hint("put one behind `--`, as in `msb create --restart always IMAGE -- COMMAND`")
            .at(Stage::Plan));
    }
    if argv.is_empty() {
        argv.push(shell.to_owned());
    }
    Ok(Some(Command { argv, timeout: spec.timeout, ..Command::default() }))
}

/// The image's own init, as far as it can be known from outside.
fn init(spec: &Spec, image: &RunConfig, isolation: Isolation) -> Result<Option<PlannedInit>> {
    let Some(init) = &spec.init else { return Ok(None) };
    if let (InitProgram::Path(path), Isolation::Process) = (&init.program, isolation)
        && InitProgram::is_systemd(path)
    {
        return Err(InitProgram::no_systemd(path).at(Stage::Plan));
    }
    // Otherwise what the image names is for its own program.
    let started = if image.entrypoint.is_empty() { &image.cmd } else { &image.entrypoint };
    let stop_signal = match starts_with_init(spec, started) {
        true => msb_sys::signal::parse(&image.stop_signal),
        false => None,
    };
    Ok(Some(PlannedInit {
        program: init.program.clone(),
        args: init.args.clone(),
        env: init.env.clone(),
        stop_signal,
    }))
}

/// Whether what an image starts is the init that becomes PID 1.
fn starts_with_init(spec: &Spec, words: &[String]) -> bool {
    let first = words.first();
    spec.init.as_ref().zip(first).is_some_and(|(init, first)| init.program.is(first))
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
