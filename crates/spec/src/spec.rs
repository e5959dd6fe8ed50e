//! The Spec: a sandbox as requested, from flags, a file or the SDK.

use crate::{
    Bytes, Cpus, Error, Health, Hostname, ImageRef, Init, Mount, Name, NetworkSpec, Patch,
    Platform, PullWhen, Restart, Result, Rlimit, Script, Span, SpawnPolicy, Tmpfs, UserRef,
    Workspace,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The isolation tier as requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum IsolationChoice {
    /// `vm` where it works, else `process` with a warning.
    #[default]
    Auto,
    /// A microVM, or an error.
    Vm,
    /// Namespaces, seccomp, Landlock and cgroups.
    Process,
}

impl std::str::FromStr for IsolationChoice {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "vm" => Ok(Self::Vm),
            "process" => Ok(Self::Process),
            other => Err(Error::invalid(format!("no such isolation: `{}`", other))
                .hint("it is `auto`, `vm` or `process`")),
        }
    }
}

/// Security profile: how strictly the sandbox is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Ordinary images work, with their own sudo and su.
    #[default]
    Default,
    /// No capabilities, no new privileges, fewer system calls.
    Restricted,
}

/// A sandbox as requested. All fields but the image may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Name of the sandbox; default: a generated one.
    pub name: Option<Name>,
    /// Image that it starts from.
    pub image: ImageRef,
    /// When the image is fetched.
    pub pull: PullWhen,
    /// Platform of the image; default: this host's.
    pub platform: Option<Platform>,
    /// The isolation tier as requested.
    pub isolation: IsolationChoice,
    /// Security profile of the sandbox.
    pub security: Profile,
    /// Whether user namespaces may be created inside.
    pub allow_userns: bool,
    /// First command: program name and arguments.
    pub command: Vec<String>,
    /// Arguments before the command, in place of the image's entrypoint.
    pub entrypoint: Vec<String>,
    /// Whether the image's own command, or a shell, runs if `command` is empty. If not, nothing
    /// runs.
    pub default_command: bool,
    /// The image's own init as PID 1; `None` has the guest of msb there.
    pub init: Option<Init>,
    /// Shell for `--shell` and the SDK's `shell`.
    pub shell: Option<String>,
    /// Environment variables of all Execs.
    pub env: BTreeMap<String, String>,
    /// Working directory of all Execs.
    pub workdir: Option<String>,
    /// User that all Execs run as.
    pub user: Option<UserRef>,
    /// Host name; default: the name of the sandbox.
    pub hostname: Option<Hostname>,
    /// Labels by which it is found.
    pub labels: BTreeMap<String, String>,
    /// Limit of the CPUs, such as `0.5`.
    pub cpus: Option<Cpus>,
    /// Limit of the memory, such as `512M`.
    pub memory: Option<Bytes>,
    /// Limit of processes and threads.
    pub pids: Option<u32>,
    /// Size limit of the writable layer.
    pub disk: Option<Bytes>,
    /// Resource limits of all Execs.
    pub rlimits: Vec<Rlimit>,
    /// Its network; `None` has only loopback.
    pub network: Option<NetworkSpec>,
    /// Mounts of host paths and volumes.
    pub mounts: Vec<Mount>,
    /// A host directory that is mounted copy-on-write.
    pub workspace: Option<Workspace>,
    /// Tmpfs mounts inside the sandbox.
    pub tmpfs: Vec<Tmpfs>,
    /// Changes before the first command.
    pub patches: Vec<Patch>,
    /// Scripts that are put on PATH.
    pub scripts: Vec<Script>,
    /// Time after its start at which it stops.
    pub max_duration: Option<Span>,
    /// Time without a running command after which it stops.
    pub idle_timeout: Option<Span>,
    /// Time without activity after which it is paused, until the next activity.
    pub idle_pause: Option<Span>,
    /// Restart policy of the first command.
    pub restart: Restart,
    /// Health check of the sandbox.
    pub health: Option<Health>,
    /// Time after which the first command is killed.
    pub timeout: Option<Span>,
    /// Whether it is removed when it stops; its writable layer is then in memory.
    pub ephemeral: bool,
    /// Policy for child sandboxes; `None` allows none.
    pub spawn: Option<SpawnPolicy>,
}

/// Stops fork bombs, and is enough for build tools and browsers.
const DEFAULT_PIDS: u32 = 4096;

impl Spec {
    /// A Spec with the defaults that all interfaces fill in, so that they are visible.
    pub fn with_defaults() -> Self {
        Self { pids: Some(DEFAULT_PIDS), ..Self::default() }
    }

    /// Checks what no single field can check.
    pub fn validate(&self) -> Result<()> {
        check_env(&self.env)?;
        check_labels(&self.labels)?;
        if let Some(dir) = self.workdir.as_ref().filter(|dir| !dir.starts_with('/')) {
            return Err(Error::invalid(format!(
                "the working directory is not absolute: `{}`",
                dir
            )));
        }
        if let Some(init) = &self.init {
            init.check()?;
        }
        if let Some(spawn) = &self.spawn {
            spawn.check()?;
        }
        self.check_service()?;
        if let Some(network) = &self.network {
            network.validate()?;
            if let Some(secret) = network.secrets.iter().find(|s| self.env.contains_key(&s.name)) {
                return Err(Error::invalid(format!(
                    "`{}` is both a secret and a variable",
                    secret.name
                ))
                .hint("a secret's variable holds its placeholder; leave out `--env`"));
            }
        }
        check_memory(self.memory)?;
        if self.pids == Some(0) {
            return Err(Error::invalid("a sandbox needs at least one process"));
        }
        let mut places: Vec<&str> = Vec::new();
        let mounts = self.mounts.iter().map(|mount| mount.guest.as_str());
        let mounts = mounts.chain(self.workspace.iter().map(|workspace| workspace.guest.as_str()));
        for place in mounts.chain(self.tmpfs.iter().map(|tmpfs| tmpfs.guest.as_str())) {
            let reserved = ["/proc", "/sys", "/dev", "/.msb"].iter().any(|top| {
                place.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            });
            if reserved && !place.starts_with("/dev/shm") {
                return Err(Error::invalid(format!("nothing can be mounted at `{place}`"))
                    .hint("/proc, /sys, /dev and /.msb are the sandbox's own"));
            }
            if places.contains(&place) {
                return Err(Error::invalid(format!("two mounts at `{place}`")));
            }
            places.push(place);
        }
        Ok(())
    }
}

impl Spec {
    fn check_service(&self) -> Result<()> {
        if let Some(health) = &self.health {
            health.check()?;
        }
        check_idle_pause(self.idle_pause)?;
        if !self.restart.is_some() {
            return Ok(());
        }
        if self.command.is_empty() && self.entrypoint.is_empty() && !self.default_command {
            return Err(Error::invalid("a restart policy needs a command")
                .hint("put it behind `--`, as in `msb create --restart always IMAGE -- COMMAND`"));
        }
        if self.init.is_some() {
            return Err(Error::invalid("an init and a restart policy exclude each other")
                .hint("leave out `--restart`, and let the image's init start the service"));
        }
        if self.ephemeral {
            return Err(Error::invalid(
                "a sandbox that is removed with its command cannot have a restart policy",
            )
            .hint("sandboxes of `msb run -d --restart …` and `msb create` stay"));
        }
        Ok(())
    }
}

/// Checks that a memory limit leaves room for a command.
pub(crate) fn check_memory(memory: Option<Bytes>) -> Result<()> {
    /// With half of it the kernel kills a shell before it prints; a microVM has a higher minimum.
    const MIN_MEMORY: Bytes = Bytes::mib(4);
    match memory {
        Some(memory) if memory < MIN_MEMORY => {
            Err(Error::invalid(format!("too little memory for a sandbox: `{memory}`"))
                .hint(format!("{MIN_MEMORY} is the minimum; write `512M` for 512 MiB")))
        }
        _ => Ok(()),
    }
}

/// Checks that an idle pause is at least 1 s.
pub(crate) fn check_idle_pause(idle: Option<Span>) -> Result<()> {
    /// A shorter time could pause a sandbox between two commands of one script.
    const MIN_IDLE: std::time::Duration = std::time::Duration::from_secs(1);
    match idle {
        Some(span) if span.0 < MIN_IDLE => {
            Err(Error::invalid(format!("too short for an idle pause: `{span}`"))
                .hint("1s is the least"))
        }
        _ => Ok(()),
    }
}

/// Checks keys and sizes of the labels.
pub(crate) fn check_labels(labels: &BTreeMap<String, String>) -> Result<()> {
    for (key, value) in labels {
        if key.is_empty() || key.len() + value.len() > 1024 || key.contains(['=', '\n', '\0']) {
            return Err(
                Error::invalid(format!("not a label: `{}`", key)).hint("write it as `key=value`")
            );
        }
    }
    Ok(())
}

/// Checks that a process can get these environment variables.
pub fn check_env<'a>(env: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<()> {
    /// Longest string that `execve(2)` accepts, in bytes.
    const MAX_VARIABLE: usize = 128 << 10;
    /// Half of what `execve(2)` accepts for all strings together, in bytes.
    const MAX_TOTAL: usize = 1 << 20;
    let mut all = 0;
    for (name, value) in env {
        check_env_name(name)?;
        if value.contains('\0') {
            return Err(Error::invalid(format!("a zero byte in the variable `{name}`")));
        }
        // With `=` and the terminating zero.
        let length = name.len() + value.len() + 2;
        if length > MAX_VARIABLE {
            let shown: String = name.chars().take(60).collect();
            return Err(Error::invalid(format!("too long for a variable: `{shown}`"))
                .hint("128 KiB is the longest; put it into a file"));
        }
        all += length;
    }
    if all > MAX_TOTAL {
        return Err(Error::invalid(format!("too many variables: `{all}` bytes"))
            .hint("1 MiB is the most for all together; put some of it into a file"));
    }
    Ok(())
}

/// Checks a variable name: not empty, without `=` and zero bytes.
pub(crate) fn check_env_name(name: &str) -> Result<()> {
    if name.is_empty() || name.contains(['=', '\0']) {
        // Behind `=` may be the value of a secret.
        let shown = name.split('=').next().unwrap_or_default();
        return Err(Error::invalid(format!("not a variable name: `{shown}`")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_over_reserved_paths_are_refused() {
        for (place, valid) in
            [("/proc", false), ("/sys/fs", false), ("/process", true), ("/dev/shm", true)]
        {
            let spec = Spec { tmpfs: vec![Tmpfs::parse(place).unwrap()], ..Spec::default() };
            assert_eq!(spec.validate().is_ok(), valid, "{place}");
        }
    }

    #[test]
    fn variables_that_no_process_can_be_given_are_refused() {
        let with = |value: String, count: usize| {
            let env = (0..count).map(|n| (format!("A{n}"), value.clone())).collect();
            Spec { env, ..Spec::default() }.validate()
        };
        assert!(with("x".repeat(100_000), 10).is_ok());
        assert!(with("x\0y".to_owned(), 1).is_err());
        assert!(with("x".repeat(128 << 10), 1).is_err());
        assert!(with("x".repeat(100_000), 11).is_err());
    }

    #[test]
    fn two_mounts_at_one_place_are_refused() {
        let spec = Spec {
            mounts: vec![Mount::parse("/a:/x").unwrap()],
            tmpfs: vec![Tmpfs::parse("/x/").unwrap()],
            ..Spec::default()
        };
        assert!(spec.validate().is_err());
    }

    #[test]
    fn an_init_and_a_restart_policy_exclude_each_other() {
        let spec = Spec {
            init: Some(Init::of(crate::InitProgram::Auto)),
            restart: Restart::parse("always").unwrap(),
            command: vec!["true".to_owned()],
            ..Spec::default()
        };
        assert!(spec.validate().is_err());
        assert!(Spec { init: None, ..spec }.validate().is_ok());
    }
}
