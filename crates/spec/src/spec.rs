//! What was asked for, in one value: flags, a file or the SDK fill it in.

use crate::{
    Bytes, Cpus, Error, Health, Hostname, ImageRef, Init, Mount, Name, NetworkSpec, Patch,
    Platform, PullWhen, Restart, Result, Rlimit, Script, Span, SpawnPolicy, Tmpfs, UserRef,
    Workspace,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which tier was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum IsolationChoice {
    /// `vm` where it works, else `process`, said loudly.
    #[default]
    Auto,
    /// A microVM or an error.
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

/// How tight the sandbox is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// What an ordinary image needs works, its own sudo and su too.
    #[default]
    Default,
    /// No capabilities, no new privileges, fewer system calls.
    Restricted,
}

/// A sandbox as asked for. Every field but the image may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Its name; one is made up if none is given.
    pub name: Option<Name>,
    /// What it starts from.
    pub image: ImageRef,
    /// When the image is fetched.
    pub pull: PullWhen,
    /// For which platform the image is to be; this machine's if it is not said.
    pub platform: Option<Platform>,
    /// Which tier.
    pub isolation: IsolationChoice,
    /// How tight.
    pub security: Profile,
    /// Whether user namespaces may be made inside.
    pub allow_userns: bool,
    /// What runs first; the rest of the command line.
    pub command: Vec<String>,
    /// Put before the command, in place of what the image puts there.
    pub entrypoint: Vec<String>,
    /// Whether the image's own command, or a shell, runs where none is given. If not, nothing does.
    pub default_command: bool,
    /// The image's own init as PID 1; none has ours there.
    pub init: Option<Init>,
    /// The shell for `--shell` and the SDK's `shell`.
    pub shell: Option<String>,
    /// Environment of every Exec.
    pub env: BTreeMap<String, String>,
    /// Where every Exec starts.
    pub workdir: Option<String>,
    /// Who runs every Exec.
    pub user: Option<UserRef>,
    /// Its host name.
    pub hostname: Option<Hostname>,
    /// For finding it again.
    pub labels: BTreeMap<String, String>,
    /// Processors.
    pub cpus: Option<Cpus>,
    /// Memory.
    pub memory: Option<Bytes>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// The writable layer.
    pub disk: Option<Bytes>,
    /// Resource limits of every Exec.
    pub rlimits: Vec<Rlimit>,
    /// Its network; none has only loopback.
    pub network: Option<NetworkSpec>,
    /// Host paths and volumes shown inside.
    pub mounts: Vec<Mount>,
    /// A host directory shown copy-on-write.
    pub workspace: Option<Workspace>,
    /// Memory file systems inside.
    pub tmpfs: Vec<Tmpfs>,
    /// Changes before the first command.
    pub patches: Vec<Patch>,
    /// Programs put on PATH.
    pub scripts: Vec<Script>,
    /// The sandbox ends after this.
    pub max_duration: Option<Span>,
    /// The sandbox ends when nothing ran for this long.
    pub idle_timeout: Option<Span>,
    /// The sandbox is paused when nothing happened in it for this long, until something does.
    pub idle_pause: Option<Span>,
    /// When the first command is begun again.
    pub restart: Restart,
    /// What tells whether it is well.
    pub health: Option<Health>,
    /// The first command is killed after this.
    pub timeout: Option<Span>,
    /// Removed when it ends; its writable layer is in memory.
    pub ephemeral: bool,
    /// What it may have made for it; none has no children.
    pub spawn: Option<SpawnPolicy>,
}

/// Fork bombs end here; build tools and browsers do not.
const DEFAULT_PIDS: u32 = 4096;

impl Spec {
    /// A Spec with the defaults that every surface fills in, where they can be seen.
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
            return Err(Error::invalid("a restart policy needs a command to begin again")
                .hint("put it behind `--`, as in `msb create --restart always IMAGE -- COMMAND`"));
        }
        if self.init.is_some() {
            return Err(Error::invalid("an init looks after services itself")
                .hint("leave out `--restart`, and let the image's init start the service"));
        }
        if self.ephemeral {
            return Err(Error::invalid("what is removed with its command is not begun again")
                .hint("`msb run -d --restart …` and `msb create` leave a sandbox that stays"));
        }
        Ok(())
    }
}

/// Whether a sandbox may be paused after so short a time.
pub(crate) fn check_idle_pause(idle: Option<Span>) -> Result<()> {
    /// Less could pause a sandbox between two commands of one script.
    const LEAST: std::time::Duration = std::time::Duration::from_secs(1);
    match idle {
        Some(span) if span.0 < LEAST => {
            Err(Error::invalid(format!("too short for an idle pause: `{span}`"))
                .hint("1s is the least"))
        }
        _ => Ok(()),
    }
}

/// What a sandbox or a volume is found by.
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

/// Whether a process can be given these variables.
pub fn check_env<'a>(env: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<()> {
    /// The kernel takes no longer string.
    const LONGEST: usize = 128 << 10;
    /// Half of what the kernel takes for all strings of a command together.
    const ALL: usize = 1 << 20;
    let mut all = 0;
    for (name, value) in env {
        check_env_name(name)?;
        if value.contains('\0') {
            return Err(Error::invalid(format!("a zero byte in the variable `{name}`")));
        }
        // With the sign between them and the end.
        let length = name.len() + value.len() + 2;
        if length > LONGEST {
            let shown: String = name.chars().take(60).collect();
            return Err(Error::invalid(format!("too long for a variable: `{shown}`"))
                .hint("128 KiB is the longest; put it into a file"));
        }
        all += length;
    }
    if all > ALL {
        return Err(Error::invalid(format!("too many variables: `{all}` bytes"))
            .hint("1 MiB is the most for all together; put some of it into a file"));
    }
    Ok(())
}

/// Environment names become C strings with `=` behind them.
pub(crate) fn check_env_name(name: &str) -> Result<()> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Error::invalid(format!("not a variable name: `{}`", name)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_over_the_sandbox_own_places_are_refused() {
        for (place, well) in
            [("/proc", false), ("/sys/fs", false), ("/process", true), ("/dev/shm", true)]
        {
            let spec = Spec { tmpfs: vec![Tmpfs::parse(place).unwrap()], ..Spec::default() };
            assert_eq!(spec.validate().is_ok(), well, "{place}");
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
