//! From a Spec to a Plan. Everything that depends on this host is decided here.

mod machine;
pub(crate) mod network;
mod workspace;

use crate::hardware;
use crate::host::{CgroupControllers, HostUser, half_of_memory, random, unused_ids};
use crate::store::Home;
use crate::volumes;
use msb_image::{PreparedImage, RunConfig, Settings};
pub(crate) use msb_spec::clock::now as now_ms;
use msb_spec::encoding::hex;
use msb_spec::{
    By, Bytes, Command, Cpus, Error, GuestKernel, GuestPath, Hostname, Ids, ImageRef, InitProgram,
    Isolation, IsolationChoice, Limit, Limits, Lower, MachineBase, Modify, Mount, MountSource,
    Name, Network, PLAN_VERSION, Patch, Plan, PlannedInit, PlannedMount, Result, Rootfs, Script,
    Security, SpawnPolicy, Spec, Stage, Upper, UserRef, VolumeName, VolumeStorage, WithinCeiling,
    check_env, env, state,
};
use rustix::thread::CapabilitySet;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Plans a sandbox. Changes nothing but the image store.
pub(crate) fn plan(
    home: &Home,
    spec: &WithinCeiling<Spec>,
    prepare: impl FnOnce(Isolation) -> Result<(PreparedImage, MachineBase)>,
) -> Result<Plan> {
    spec.validate().map_err(|error| error.at(Stage::Plan))?;
    let name = spec.name.clone().unwrap_or_else(random_name);
    let (kernel, isolation_reason) = isolation(home, spec.isolation)?;
    let isolation = if kernel.is_some() { Isolation::Vm } else { Isolation::Process };
    let mounts = mounts(home, spec, isolation)?;
    let (mut prepared, base) = prepare(isolation)?;
    let caller = HostUser::current();
    let user = user(spec, &prepared)?;
    let ids = match isolation {
        Isolation::Process => ids(home, spec, user.as_ref(), prepared.owners)?,
        Isolation::Vm => machine_ids(home, &base)?,
    };
    let single_user = isolation == Isolation::Process && matches!(ids, Ids::Single { .. });
    if single_user && prepared.has_directory(APT) {
        let own = Lower::of_image(single_user_layer(home)?);
        // A snapshot may contain the layer already.
        if !prepared.overlays[0].lowers.contains(&own) {
            prepared.overlays[0].lowers.insert(0, own);
        }
    }
    let short_run = spec.ephemeral && matches!(ids, Ids::Single { .. });
    let limits = match isolation {
        Isolation::Process => limits(&with_ceiling(spec), caller, short_run)?,
        Isolation::Vm => machine::limits(&machine::with_defaults(spec))?,
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
    let network = network::network(spec)?;
    let workspace = workspace::workspace(home, spec, &name)?;
    // setuid works on volumes, as on the writable layer: only ids of the sandbox own files there.
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

/// The spawn policy: that of the Spec, or of config.toml. Symlinks in image paths are resolved
/// here.
fn spawn_policy(
    home: &Home,
    spec: &WithinCeiling<Spec>,
    name: &Name,
) -> Result<Option<SpawnPolicy>> {
    let mut policy = match &spec.spawn {
        Some(policy) => policy.clone(),
        // config.toml selects policies by name and label. Without both, it is not read, so its
        // mistakes do not matter.
        None if spec.name.is_none() && spec.labels.is_empty() => return Ok(None),
        None => {
            let settings = Settings::read(home.path())?;
            let configured = match spec.is_operators() {
                true => settings.spawn(name, &spec.labels),
                false => settings.client_spawn(name, &spec.labels),
            };
            let Some(policy) = configured else { return Ok(None) };
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

/// The guest kernel if the sandbox becomes a microVM, else the reason why `auto` chose `process`.
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

/// The host ids of the VMM process. Files of a disk image have ids inside only; those of shared
/// directories have ids of the host.
fn machine_ids(home: &Home, base: &MachineBase) -> Result<Ids> {
    let caller = HostUser::current();
    let HostUser { uid, gid } = caller;
    Ok(match base {
        _ if caller.is_root() => shifted_ids(home)?,
        MachineBase::Shares => match caller.subordinate_ids() {
            Some((uids, gids)) => Ids::Subordinate { uid, gid, uids, gids },
            None => Ids::Single { uid, gid },
        },
        MachineBase::Image { .. } => Ids::Single { uid, gid },
    })
}

/// Unused ids for a sandbox of root. Refused where root may not mount, as in most containers: root
/// inside would be root outside, with files of /proc that take no capability to write.
fn shifted_ids(home: &Home) -> Result<Ids> {
    let caps = rustix::thread::capabilities(None).map(|sets| sets.effective);
    if caps.is_ok_and(|caps| !caps.contains(CapabilitySet::SYS_ADMIN)) {
        return Err(Error::unsupported("root without CAP_SYS_ADMIN cannot make sandboxes")
            .hint(
                "in a container: run msb as another user of it, or start it with \
                 `--cap-add SYS_ADMIN`, or with a rootless engine",
            )
            .at(Stage::Plan));
    }
    Ok(Ids::Shifted { range: unused_ids(&home.taken_ids())? })
}

fn random_name() -> Name {
    let digits = hex(random::<4>());
    Name::parse(&format!("sb-{digits}")).expect("letters, digits and a dash")
}

/// The configuration directory of apt, inside.
const APT: &str = "/etc/apt/apt.conf.d";

/// A layer that keeps apt from switching to its `_apt` user, which fails where root is the only id.
fn single_user_layer(home: &Home) -> Result<PathBuf> {
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
        let temp = directory.with_file_name(format!(".{}", std::process::id()));
        fs::write(&temp, "APT::Sandbox::User \"root\";\n")?;
        fs::set_permissions(&temp, Permissions::from_mode(0o644))?;
        fs::rename(&temp, &file)
    };
    make().map_err(|error| {
        Error::host(format!("cannot make `{}`", file.display()), error).at(Stage::Image)
    })?;
    Ok(layer)
}

/// The user of commands: that of the Spec or of the image. `None` is root.
fn user(spec: &Spec, prepared: &PreparedImage) -> Result<Option<UserRef>> {
    let user = match &spec.user {
        Some(user) => Some(user.clone()),
        None if prepared.config.user.is_empty() => None,
        None => Some(UserRef::parse(&prepared.config.user).map_err(|error| {
            error
                .under("the user of the image is not a valid user")
                .hint("`--user root` runs it as root")
                .at(Stage::Plan)
        })?),
    };
    Ok(user.filter(|user| spec.user.is_some() || !user.is_root()))
}

fn ids(home: &Home, spec: &Spec, user: Option<&UserRef>, owners: bool) -> Result<Ids> {
    let caller = HostUser::current();
    if caller.is_root() {
        return shifted_ids(home);
    }
    let HostUser { uid, gid } = caller;
    let other = user.filter(|user| !user.is_root());
    // Mapping a range runs two setuid programs and takes milliseconds. It is done for sandboxes
    // that last or need it. A volume may hold files of several users.
    let volumes = spec.mounts.iter().any(|mount| matches!(mount.source, MountSource::Volume(_)));
    if (other.is_some() || owners || volumes || !spec.ephemeral)
        && let Some((uids, gids)) = caller.subordinate_ids()
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

/// A Spec with the ceiling of the caller where it has no limits.
fn with_ceiling(spec: &WithinCeiling<Spec>) -> Spec {
    Spec {
        memory: spec.memory.or(spec.most_memory()),
        cpus: spec.cpus.or(spec.most_cpus()),
        disk: spec.disk.or(spec.most_disk()),
        ..Spec::clone(spec)
    }
}

fn limits(spec: &Spec, user: HostUser, short_run: bool) -> Result<Limits> {
    // With a single id RLIMIT_NPROC limits processes as well; finding a cgroup would take 2 % of a
    // short run.
    let needs_cgroup = !short_run || spec.memory.is_some() || spec.cpus.is_some();
    let controllers =
        if needs_cgroup { CgroupControllers::find() } else { CgroupControllers::default() };
    let by = |controller: &str, other: By| {
        if controllers.has(controller) { By::Cgroup } else { other }
    };
    let memory = match spec.memory {
        Some(value) => Some(Limit { value, by: by("memory", By::Watch) }),
        None if controllers.has("memory") => {
            Some(Limit { value: default_memory(), by: By::Cgroup })
        }
        None => None,
    };
    let pids = spec.pids.map(|value| Limit { value, by: by("pids", By::Rlimit) });
    let cpus = match spec.cpus {
        Some(value) if controllers.has("cpu") => Some(Limit { value, by: By::Cgroup }),
        Some(value) if value.millis % 1000 == 0 => Some(Limit { value, by: By::Affinity }),
        Some(value) => {
            return Err(no_fractional_cpus(value));
        }
        None => None,
    };
    let disk = match spec.disk {
        Some(value) if spec.ephemeral => Some(Limit { value, by: By::Tmpfs }),
        Some(value) if user.is_root() => {
            Some(Limit { value: check_min_disk(value)?, by: By::Disk })
        }
        Some(_) => {
            return Err(Error::unsupported("a limited disk that lasts needs root on this host")
                .hint("leave `--disk` out, or use `msb run`: its writable layer is in memory")
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
        // A persistent sandbox is also measured and frozen.
        wanted.extend(["cpu", "cpuacct", Limits::FREEZER, "memory", "pids"]);
    }
    let cgroup = controllers.only(&wanted);
    Ok(Limits { memory, cpus, pids, disk, cgroup, cgroup_owner: String::new() })
}

/// The limits of an existing sandbox with other amounts, and the size of its microVM. The disk
/// limit stays.
pub(crate) fn replan_limits(
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
        return Ok((limits(&spec, HostUser::current(), false)?, None));
    }
    let disk = present.disk.map(|limit| limit.value);
    let limits = machine::limits(&Spec { disk, ..spec })?;
    let size = machine::size(&limits);
    Ok((limits, Some(size)))
}

/// The default memory limit: 3/4 of the host's memory, in whole MiB. The tmpfs of an ephemeral
/// sandbox may take half of the memory.
fn default_memory() -> Bytes {
    Bytes::mib((half_of_memory() / 2 * 3) >> 20)
}

fn no_fractional_cpus(value: Cpus) -> Error {
    Error::unsupported(format!("cannot limit to {value} cpus without cgroups"))
        .hint("ask for whole cpus, or have a cgroup delegated; `msb doctor` tells how")
        .at(Stage::Plan)
}

/// Refuses disks below 8 MiB, which a file system needs for its own structures.
fn check_min_disk(value: Bytes) -> Result<Bytes> {
    if value >= Bytes::mib(8) {
        return Ok(value);
    }
    Err(Error::invalid(format!("a disk of {value} is too small")).hint("the minimum is 8M"))
}

pub(crate) fn mounts(home: &Home, spec: &Spec, isolation: Isolation) -> Result<Vec<PlannedMount>> {
    let find = |mount: &Mount| {
        let guest = mount.guest.as_str().to_owned();
        let (read_only, no_exec) = (mount.read_only, mount.no_exec);
        let path = match &mount.source {
            MountSource::Path(path) => path,
            MountSource::Volume(name) => {
                let (host, volume) = volumes::planned(home, name, isolation)?;
                let volume = Some(volume);
                return Ok(PlannedMount { host, guest, read_only, no_exec, file: false, volume });
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
        let file = meta.is_file();
        Ok(PlannedMount { host, guest, read_only, no_exec, file, volume: None })
    };
    let mut mounts = spec.mounts.iter().map(find).collect::<Result<Vec<_>>>()?;
    let disks = mounts.iter().filter_map(|mount| mount.volume.as_ref());
    let mut disks: Vec<&VolumeName> = disks
        .filter(|volume| volume.stored == VolumeStorage::Disk)
        .map(|volume| &volume.name)
        .collect();
    disks.sort();
    if let Some(twice) = disks.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(
            Error::invalid(format!("a disk can be mounted once: `{}`", twice[0])).at(Stage::Plan)
        );
    }
    // A mount below another one comes after it, whatever the order in the Spec.
    mounts.sort_by(|a, b| a.guest.cmp(&b.guest));
    Ok(mounts)
}

/// The environment of commands. Defaults, then the image, then the network, then the Spec; later
/// ones win.
fn environment(
    spec: &Spec,
    name: &Name,
    prepared: &PreparedImage,
    network: Option<&Network>,
) -> BTreeMap<String, String> {
    let mut environment = BTreeMap::from([
        ("PATH".to_owned(), DEFAULT_PATH.to_owned()),
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

/// The working directory: that of the Spec, the workspace, that of the image, or `/`.
fn workdir(spec: &Spec, prepared: &PreparedImage) -> String {
    if let (None, Some(workspace)) = (&spec.workdir, &spec.workspace) {
        return workspace.guest.to_string();
    }
    match (&spec.workdir, prepared.config.workdir.as_str()) {
        (Some(asked), _) => asked.clone(),
        (None, absolute) if absolute.starts_with('/') => absolute.to_owned(),
        (None, relative) => format!("/{relative}"),
    }
}

/// The patches before the first command: the working directory, then those of the Spec, then
/// scripts.
fn patches(spec: &Spec, prepared: &PreparedImage) -> Result<Vec<Patch>> {
    let mut patches = Vec::new();
    let workdir = workdir(spec, prepared);
    let shown = spec.workspace.as_ref().is_some_and(|own| own.guest.as_str() == workdir);
    let there = shown || spec.workdir.is_none() && prepared.has_directory(&workdir);
    if workdir != "/" && !there {
        let path = GuestPath::parse(&workdir).map_err(|error| match spec.workdir {
            Some(_) => error,
            None => error
                .under("the working directory of the image is not a valid path")
                .hint("`--workdir /` sets another one"),
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

/// The first command, not yet connected to its streams.
fn first_command(spec: &Spec, image: &RunConfig, shell: &str) -> Result<Option<Command>> {
    if spec.command.is_empty() && spec.entrypoint.is_empty() && !spec.default_command {
        return Ok(None);
    }
    let own_entrypoint = spec.entrypoint.is_empty();
    let none = Vec::new();
    let entrypoint = match own_entrypoint {
        // The init runs as PID 1 already.
        true if starts_with_init(spec, &image.entrypoint) => &none,
        true => &image.entrypoint,
        false => &spec.entrypoint,
    };
    // The CMD of an image is meant for its own ENTRYPOINT.
    let command = match (spec.command.is_empty(), own_entrypoint) {
        (true, true) if starts_with_init(spec, &image.cmd) => &none,
        (true, true) => &image.cmd,
        (true, false) => &none,
        (false, _) => &spec.command,
    };
    let mut argv: Vec<String> = entrypoint.iter().chain(command).cloned().collect();
    if argv.is_empty() && spec.restart.is_some() {
        return Err(Error::invalid("the image has no command that could be restarted")
            .hint("put one behind `--`, as in `msb create --restart always IMAGE -- COMMAND`")
            .at(Stage::Plan));
    }
    if argv.is_empty() {
        argv.push(shell.to_owned());
    }
    Ok(Some(Command { argv, timeout: spec.timeout, ..Command::default() }))
}

/// The init program of the image, as far as it is known before the start.
fn init(spec: &Spec, image: &RunConfig, isolation: Isolation) -> Result<Option<PlannedInit>> {
    let Some(init) = &spec.init else { return Ok(None) };
    if let (InitProgram::Path(path), Isolation::Process) = (&init.program, isolation)
        && InitProgram::is_systemd(path)
    {
        return Err(InitProgram::no_systemd(path).at(Stage::Plan));
    }
    // Otherwise the stop signal of the image is meant for its own program.
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

/// Whether ENTRYPOINT or CMD of an image is the init that becomes PID 1.
fn starts_with_init(spec: &Spec, words: &[String]) -> bool {
    let first = words.first();
    spec.init.as_ref().zip(first).is_some_and(|(init, first)| init.program.is(first))
}
