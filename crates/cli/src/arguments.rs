//! The flags that describe a sandbox, shared by `run` and `create`.

use crate::network_arguments::NetworkArgs;
use crate::pull_progress::{Bars, FetchArgs};
use crate::selection::pair;
use crate::service_arguments::ServiceArgs;
use crate::target::Target;
use crate::{host_limits, listing, output, plan_text, terminal};
use clap::Args;
use msb_engine::Engine;
use msb_engine::images::Fetching;
use msb_spec::{
    Bytes, CommandStreams, Cpus, Error, Hostname, ImageRef, Init, InitProgram, Mount, MountSource,
    Name, Patch, Plan, Platform, Profile, PullWhen, Result, Rlimit, SandboxDefaults, Script, Span,
    SpawnPolicy, Spec, Stdin, Tmpfs, UserRef, Workspace,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a sandbox is made of.
#[derive(Debug, Args)]
pub(crate) struct SandboxArgs {
    /// What it starts from: the name of an image, a directory, or `host` (this machine's programs)
    #[arg(value_name = "IMAGE")]
    image: Option<String>,
    /// When to pull the image: always, if-missing or never [default: if-missing]
    #[arg(long, value_name = "WHEN")]
    pull: Option<PullWhen>,
    /// Platform of the image, as in `linux/arm64`
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<Platform>,
    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
    /// Name of the sandbox
    #[arg(long, short, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Remove a sandbox of the same name first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Describe the sandbox in a TOML file; flags win over it
    #[arg(long, value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Isolation tier: auto, vm or process
    #[arg(long, value_name = "TIER", help_heading = ISOLATION)]
    isolation: Option<String>,
    /// How tight it is closed: default or restricted
    #[arg(long, value_name = "PROFILE", help_heading = ISOLATION)]
    security: Option<String>,
    /// Allow user namespaces inside (weaker: hands back parts of the kernel)
    #[arg(long, help_heading = ISOLATION)]
    allow_userns: bool,
    #[command(flatten)]
    network: NetworkArgs,
    /// Processors, as in `2` or `0.5`
    #[arg(long, value_name = "N", help_heading = LIMITS)]
    cpus: Option<Cpus>,
    /// Memory, as in `512M`; a bare number is MiB [default: 3/4 of the host's, 1G in a microVM]
    #[arg(long, short, value_name = "SIZE", value_parser = Bytes::parse_size, help_heading = LIMITS)]
    memory: Option<Bytes>,
    /// Processes and threads [default: 4096]
    #[arg(long, value_name = "N", help_heading = LIMITS)]
    pids: Option<u32>,
    /// Size of the writable layer, as in `10G`; a bare number is MiB
    #[arg(long, value_name = "SIZE", value_parser = Bytes::parse_size, help_heading = LIMITS)]
    disk: Option<Bytes>,
    /// Resource limit of every command, as in `nofile=1024:4096`
    #[arg(long = "rlimit", value_name = "NAME=SOFT[:HARD]", help_heading = LIMITS)]
    rlimits: Vec<Rlimit>,
    /// End the sandbox after this long
    #[arg(long, value_name = "TIME", help_heading = LIMITS)]
    max_duration: Option<Span>,
    /// End the sandbox when nothing ran in it for this long
    #[arg(long, value_name = "TIME", help_heading = LIMITS)]
    idle_timeout: Option<Span>,
    /// Pause the sandbox when nothing happened in it for this long, until something does
    #[arg(long, value_name = "TIME", help_heading = LIMITS)]
    idle_pause: Option<Span>,
    #[command(flatten)]
    service: ServiceArgs,
    /// Let it have children: `default`, or as in `max=3,total=10,cpus=6,memory=1536M,ttl=5m`
    #[arg(long, value_name = "POLICY", help_heading = LIMITS)]
    spawn: Option<SpawnPolicy>,
    /// Environment variable; without a value, the caller's
    #[arg(long = "env", short, value_name = "NAME[=VALUE]", help_heading = INSIDE)]
    env: Vec<String>,
    /// File of environment variables, one `NAME=VALUE` a line
    #[arg(long, value_name = "FILE", help_heading = INSIDE)]
    env_file: Vec<PathBuf>,
    /// Working directory; made if it is missing
    #[arg(long, short, value_name = "PATH", help_heading = INSIDE)]
    workdir: Option<String>,
    /// User that runs commands, as in `1000` or `www-data:www-data`
    #[arg(long, short, value_name = "USER", help_heading = INSIDE)]
    user: Option<UserRef>,
    /// Host name
    #[arg(long, value_name = "NAME", help_heading = INSIDE)]
    hostname: Option<Hostname>,
    /// Label, for finding it again
    #[arg(long = "label", short, value_name = "KEY=VALUE", help_heading = INSIDE)]
    labels: Vec<String>,
    /// Hand PID 1 to the image's own init: `auto`, or its path such as `/sbin/init`
    #[arg(long, value_name = "PROGRAM", help_heading = INSIDE)]
    init: Option<InitProgram>,
    /// Shell of the sandbox [default: /bin/sh]
    #[arg(long, value_name = "PATH", help_heading = INSIDE)]
    pub(crate) shell: Option<String>,
    /// Program that the command is handed to
    #[arg(long, value_name = "PROGRAM", help_heading = INSIDE)]
    entrypoint: Option<String>,
    /// Host directory shown copy-on-write, for `msb diff` and `apply` [GUEST: /workspace]
    #[arg(long, value_name = "DIR[:GUEST]", help_heading = FILES)]
    pub(crate) workspace: Option<Workspace>,
    /// Host directory or file (`./here`), or a volume (`name`), shown inside; options: ro, noexec
    #[arg(long = "volume", short = 'v', value_name = "SOURCE:GUEST[:OPTS]", help_heading = FILES)]
    volumes: Vec<Mount>,
    /// Host file shown inside
    #[arg(
        long,
        value_name = "HOST:GUEST[:OPTS]",
        value_parser = Mount::parse_path,
        help_heading = FILES
    )]
    mount_file: Vec<Mount>,
    /// Memory file system inside [SIZE: 512M]
    #[arg(
        long,
        value_name = "PATH[:SIZE,OPTS]",
        value_parser = Tmpfs::parse_typed,
        help_heading = FILES
    )]
    tmpfs: Vec<Tmpfs>,
    /// Script put on PATH inside
    #[arg(long = "script", value_name = "NAME=BODY", help_heading = FILES)]
    scripts: Vec<String>,
    /// Copy a host file or directory in before the first command
    #[arg(long = "copy", value_name = "SRC:DST", help_heading = FILES)]
    copies: Vec<String>,
    /// Make a file with this text before the first command
    #[arg(long = "text", value_name = "PATH=TEXT", help_heading = FILES)]
    texts: Vec<String>,
    /// Add text to a file before the first command
    #[arg(long = "append", value_name = "PATH=TEXT", help_heading = FILES)]
    appends: Vec<String>,
    /// Make a directory before the first command
    #[arg(long = "mkdir", value_name = "PATH", help_heading = FILES)]
    mkdirs: Vec<String>,
    /// Remove a file or tree before the first command
    #[arg(long = "remove", value_name = "PATH", help_heading = FILES)]
    removes: Vec<String>,
    /// Make a symbolic link before the first command
    #[arg(long = "symlink", value_name = "PATH=TARGET", help_heading = FILES)]
    symlinks: Vec<String>,
    /// More such changes, as a list in a TOML file
    #[arg(long = "patch", value_name = "FILE", help_heading = FILES)]
    patch_files: Vec<PathBuf>,
    /// Say nothing but results and errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Print the Plan and start nothing; an image that is missing is pulled
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the Plan, or the name, as JSON; errors, too
    #[arg(long)]
    pub(crate) json: bool,
}

const ISOLATION: &str = "Isolation";
const LIMITS: &str = "Limits";
const INSIDE: &str = "Inside";
const FILES: &str = "Files";

impl SandboxArgs {
    /// The image as it was typed.
    pub(crate) fn image(&self) -> Option<&str> {
        self.image.as_deref()
    }

    /// Shows what was decided.
    pub(crate) fn show(&self, plan: &Plan) {
        if self.json {
            listing::json(plan);
        } else {
            output::write_stdout(plan_text::written(plan).as_bytes());
        }
    }

    /// Decides everything, and fetches the image on the way.
    pub(crate) fn plan(
        &self,
        engine: &Engine,
        spec: &Spec,
        streams: &CommandStreams,
    ) -> Result<Plan> {
        let bars = Bars::new(self.quiet);
        engine.plan_with(spec, streams, &Fetching { reach: self.fetch.reach(), progress: &bars })
    }

    /// Whether all this could be run here, apart from what the caller has to bring; fetches the
    /// image on the way.
    pub(crate) fn check(mut self, engine: &Engine) -> Result<()> {
        self.env.retain(|flag| flag.contains('='));
        let spec = self.spec(&Target::Local)?;
        spec.validate()?;
        // What is shown to it is found from where it is called.
        let spec = Spec {
            ephemeral: true,
            mounts: Vec::new(),
            workspace: None,
            patches: Vec::new(),
            ..spec
        };
        self.plan(engine, &spec, &CommandStreams::default()).map(drop)
    }

    /// The Spec that the flags, a file and the environment make together.
    pub(crate) fn spec(&self, target: &Target) -> Result<Spec> {
        let defaults = msb_engine::conf::defaults()?;
        let mut spec = match &self.conf {
            Some(path) => from_file(path, &defaults)?,
            None => defaults.spec(),
        };
        if let Some(name) = &self.name {
            spec.name = Some(Name::parse(name)?);
        }
        if let Some(image) = &self.image {
            spec.image = ImageRef::parse(image)?;
        }
        spec.pull = self.pull.unwrap_or(spec.pull);
        if self.platform.is_some() {
            spec.platform.clone_from(&self.platform);
        }
        self.isolation(&mut spec)?;
        spec.network = Some(self.network.network(spec.network.take(), &defaults)?);
        self.limits(&mut spec);
        if matches!(target, Target::Local) {
            host_limits::check(spec.cpus, spec.memory)?;
        }
        self.service.add_to(&mut spec)?;
        self.inside(&mut spec)?;
        self.files(&mut spec, target)?;
        Ok(spec)
    }

    fn isolation(&self, spec: &mut Spec) -> Result<()> {
        if let Some(tier) = &self.isolation {
            spec.isolation = tier.parse()?;
        }
        match self.security.as_deref() {
            None => {}
            Some("default") => spec.security = Profile::Default,
            Some("restricted") => spec.security = Profile::Restricted,
            Some(other) => {
                let message = format!("no such security profile: `{}`", other);
                return Err(Error::invalid(message).hint("it is `default` or `restricted`"));
            }
        }
        spec.allow_userns |= self.allow_userns;
        Ok(())
    }

    fn limits(&self, spec: &mut Spec) {
        fn set<T: Copy>(place: &mut Option<T>, value: Option<T>) {
            *place = value.or(*place);
        }
        set(&mut spec.cpus, self.cpus);
        set(&mut spec.memory, self.memory);
        set(&mut spec.pids, self.pids);
        set(&mut spec.disk, self.disk);
        set(&mut spec.max_duration, self.max_duration);
        set(&mut spec.idle_timeout, self.idle_timeout);
        set(&mut spec.idle_pause, self.idle_pause);
        spec.rlimits.extend(&self.rlimits);
        if self.spawn.is_some() {
            spec.spawn.clone_from(&self.spawn);
        }
    }

    fn inside(&self, spec: &mut Spec) -> Result<()> {
        for file in &self.env_file {
            spec.env.extend(environment_file(file)?);
        }
        spec.env.extend(environment(&self.env)?);
        for label in &self.labels {
            let (key, value) = pair(label)?;
            spec.labels.insert(key.to_owned(), value.to_owned());
        }
        let set = |place: &mut Option<String>, value: &Option<String>| {
            if value.is_some() {
                place.clone_from(value);
            }
        };
        set(&mut spec.workdir, &self.workdir);
        set(&mut spec.shell, &self.shell);
        if self.user.is_some() {
            spec.user.clone_from(&self.user);
        }
        if self.hostname.is_some() {
            spec.hostname.clone_from(&self.hostname);
        }
        if let Some(program) = &self.init {
            // Arguments and environment of a file were written for the init that it names.
            let same = spec.init.take().filter(|init| init.program == *program);
            spec.init = Some(same.unwrap_or_else(|| Init::of(program.clone())));
        }
        if let Some(program) = &self.entrypoint {
            spec.entrypoint = vec![program.clone()];
        }
        Ok(())
    }

    fn files(&self, spec: &mut Spec, target: &Target) -> Result<()> {
        if self.workspace.is_some() {
            spec.workspace.clone_from(&self.workspace);
        }
        spec.mounts.extend(self.volumes.iter().cloned());
        for mount in &self.mount_file {
            // What a server has at its paths only it can see.
            if let (Target::Local, MountSource::Path(path)) = (target, &mount.source)
                && !path.is_file()
            {
                let message = format!("not a file: `{}`", path.display());
                return Err(Error::invalid(message).hint("`-v` mounts directories"));
            }
            spec.mounts.push(mount.clone());
        }
        spec.tmpfs.extend(self.tmpfs.iter().cloned());
        for script in &self.scripts {
            spec.scripts.push(Script::parse(script)?);
        }
        let path = |text: &String| msb_spec::GuestPath::parse(text);
        for text in &self.mkdirs {
            spec.patches.push(Patch::Mkdir { path: path(text)? });
        }
        for text in &self.copies {
            spec.patches.push(Patch::copy(text)?);
        }
        for text in &self.texts {
            spec.patches.push(Patch::text(text)?);
        }
        for text in &self.appends {
            spec.patches.push(Patch::append(text)?);
        }
        for text in &self.symlinks {
            spec.patches.push(Patch::symlink(text)?);
        }
        for text in &self.removes {
            spec.patches.push(Patch::Remove { path: path(text)? });
        }
        for file in &self.patch_files {
            spec.patches
                .extend(msb_engine::conf::patches(&read(file)?).map_err(|e| about(file, e))?);
        }
        Ok(())
    }
}

/// What a command's streams are joined to.
#[derive(Debug, Args)]
pub(crate) struct StreamArgs {
    /// Connect stdin, which is the default
    #[arg(long, short, conflicts_with = "no_stdin")]
    interactive: bool,
    /// Give the command a terminal; at a terminal that is the default
    #[arg(long, short, conflicts_with = "no_tty")]
    tty: bool,
    /// Give the command pipes, even at a terminal
    #[arg(long)]
    no_tty: bool,
    /// Close the command's stdin
    #[arg(long)]
    no_stdin: bool,
}

impl StreamArgs {
    /// Whether the command gets a terminal, and what it reads. At a terminal the first is the
    /// default; what runs in the background has neither.
    pub(crate) fn choose(&self, background: bool) -> (bool, Stdin) {
        let tty = !self.no_tty && !background && (self.tty || terminal::is_there());
        let stdin = if self.no_stdin || background { Stdin::Closed } else { Stdin::Streamed };
        (tty, stdin)
    }

    /// Whether stdin or a terminal was asked for by a flag.
    pub(crate) fn is_interactive(&self) -> bool {
        self.interactive || self.tty
    }

    /// Refuses flags for stdin and a terminal for a command in the background, which has neither.
    pub(crate) fn check_background(&self, background: bool, hint: &str) -> Result<()> {
        let flag = match (self.interactive, self.tty) {
            _ if !background => return Ok(()),
            (true, true) => "-it",
            (true, false) => "-i",
            (false, true) => "-t",
            (false, false) => return Ok(()),
        };
        let message = format!("a command in the background has no stdin and no terminal: `{flag}`");
        Err(Error::invalid(message).hint(format!("leave out `{flag}`; {hint}")))
    }

    /// The streams of a sandbox's first command.
    pub(crate) fn of_first_command(&self, background: bool) -> CommandStreams {
        let (tty, stdin) = self.choose(background);
        CommandStreams {
            stdin,
            tty: tty.then(terminal::size),
            term: tty.then(own_term),
            detached: background,
        }
    }
}

/// Programs at a terminal must know which.
pub(crate) fn pass_term(tty: bool, env: &mut Vec<(String, String)>) {
    if tty && !env.iter().any(|(name, _)| name == "TERM") {
        env.push(("TERM".to_owned(), own_term()));
    }
}

/// The kind of the caller's terminal.
fn own_term() -> String {
    std::env::var("TERM").unwrap_or_else(|_| "xterm".to_owned())
}

/// Variables from flags: `NAME=VALUE`, or `NAME` for the caller's own value.
pub(crate) fn environment(flags: &[String]) -> Result<BTreeMap<String, String>> {
    let one = |flag: &String| match flag.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => match std::env::var(flag) {
            Ok(value) => Ok((flag.clone(), value)),
            Err(_) => Err(Error::invalid(format!("no variable to pass on: `{}`", flag))
                .hint("it is not set here; write `NAME=VALUE` to give one")),
        },
    };
    flags.iter().map(one).collect()
}

fn environment_file(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = read(path)?;
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| match line.split_once('=') {
            Some((name, value)) => Ok((name.trim().to_owned(), value.to_owned())),
            // The line is not repeated: it may be part of a secret.
            None => Err(about(path, Error::invalid(format!("line {number} is not `NAME=VALUE`")))),
        })
        .collect()
}

fn from_file(path: &Path, defaults: &SandboxDefaults) -> Result<Spec> {
    msb_engine::conf::spec_over(&read(path)?, defaults).map_err(|error| about(path, error))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::host(format!("cannot read `{}`", path.display()), error))
}

fn about(path: &Path, error: Error) -> Error {
    error.under(format!("cannot use `{}`", path.display()))
}
