//! A sandbox as asked for, filled in step by step.

use crate::sandbox::Sandbox;
use crate::sandboxes::Sandboxes;
use crate::worker::{Worker, blocking};
use msb_engine::images::Fetching;
use msb_engine::{Launch, LaunchUntil, SecretValue};
use msb_spec::{
    Bytes, CommandStreams, Cpus, Error, GuestPath, Health, Hostname, ImageRef, Init, InitProgram,
    IsolationChoice, Mount, MountSource, Name, Patch, Platform, Profile, PullWhen, Restart, Result,
    Rlimit, Script, Span, SpawnPolicy, Spec, Tmpfs, UserRef, VolumeName, env,
};
use std::path::PathBuf;
use std::time::Duration;

/// Describes a new sandbox. A mistake in it is reported by [`SandboxBuilder::create`], before
/// anything is touched.
#[derive(Debug, Clone)]
pub struct SandboxBuilder {
    sandboxes: Sandboxes,
    spec: Spec,
    isolation: Option<IsolationChoice>,
    pub(crate) given: Vec<(String, SecretValue)>,
    replace: bool,
    detached: bool,
    mistake: Option<Error>,
}

impl SandboxBuilder {
    pub(crate) fn new(sandboxes: Sandboxes, name: &str) -> Self {
        let builder = Self {
            sandboxes,
            spec: Spec::with_defaults(),
            isolation: None,
            given: Vec::new(),
            replace: false,
            detached: false,
            mistake: None,
        };
        builder.name(name)
    }

    /// Its name: 1 to 128 of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.with(Name::parse(name), |spec, name| spec.name = Some(name))
    }

    /// What it starts from: the name of an image such as `python:3.13`, a directory such as
    /// `./rootfs`, a disk for a microVM such as `./disk.img`, or `host`, the default. An image that
    /// is not here is pulled by `create`.
    #[must_use]
    pub fn image(self, image: &str) -> Self {
        self.with(ImageRef::parse(image), |spec, image| spec.image = image)
    }

    /// When the image is pulled; if it is missing, unless told.
    #[must_use]
    pub fn pull(mut self, when: PullWhen) -> Self {
        self.spec.pull = when;
        self
    }

    /// For which platform the image is to be, as in `linux/amd64`.
    #[must_use]
    pub fn platform(self, platform: &str) -> Self {
        self.with(Platform::parse(platform), |spec, platform| spec.platform = Some(platform))
    }

    /// Processors, in thousandths at the finest: `1`, `0.5`. A microVM has as many as that takes,
    /// and one unless told.
    #[must_use]
    pub fn cpus(self, cpus: impl Into<f64>) -> Self {
        let cpus = Cpus::parse(&format!("{:.3}", cpus.into()));
        self.with(cpus, |spec, cpus| spec.cpus = Some(cpus))
    }

    /// Memory of all its processes, in MiB. A microVM has so much in all, and 1024 unless told.
    #[must_use]
    pub fn memory(self, mib: u64) -> Self {
        self.with(mebibytes(mib), |spec, memory| spec.memory = Some(memory))
    }

    /// Processes and threads; 4096 unless told.
    #[must_use]
    pub fn pids(mut self, pids: u32) -> Self {
        self.spec.pids = Some(pids);
        self
    }

    /// Size of its writable layer, in MiB. In a microVM it is a disk of 10240 unless told, which
    /// takes no more room than was written.
    #[must_use]
    pub fn disk(self, mib: u64) -> Self {
        self.with(mebibytes(mib), |spec, disk| spec.disk = Some(disk))
    }

    /// Sets a variable for every Exec.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.env.insert(name.into(), value.into());
        self
    }

    /// Sets variables for every Exec.
    #[must_use]
    pub fn envs<N: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.spec.env.extend(variables);
        self
    }

    /// Where every Exec starts; made if it is missing.
    #[must_use]
    pub fn workdir(mut self, directory: impl Into<String>) -> Self {
        self.spec.workdir = Some(directory.into());
        self
    }

    /// The user of every Exec: `name`, `1000`, `name:group` or `1000:1000`.
    #[must_use]
    pub fn user(self, user: &str) -> Self {
        self.with(UserRef::parse(user), |spec, user| spec.user = Some(user))
    }

    /// Its host name; its name unless told.
    #[must_use]
    pub fn hostname(self, hostname: &str) -> Self {
        self.with(Hostname::parse(hostname), |spec, hostname| spec.hostname = Some(hostname))
    }

    /// Adds a label, for finding it again.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.labels.insert(key.into(), value.into());
        self
    }

    /// Shows a [`Volume`](crate::Volume) inside, to read and write.
    #[must_use]
    pub fn volume(self, name: &str, guest: &str) -> Self {
        self.show(VolumeName::parse(name).map(MountSource::Volume), guest, false)
    }

    /// Shows a [`Volume`](crate::Volume) inside, only to read.
    #[must_use]
    pub fn volume_read_only(self, name: &str, guest: &str) -> Self {
        self.show(VolumeName::parse(name).map(MountSource::Volume), guest, true)
    }

    /// Shows a host path inside, to read and write.
    #[must_use]
    pub fn mount(self, host: impl Into<PathBuf>, guest: &str) -> Self {
        self.show(Ok(MountSource::Path(host.into())), guest, false)
    }

    /// Shows a host path inside, only to read.
    #[must_use]
    pub fn mount_read_only(self, host: impl Into<PathBuf>, guest: &str) -> Self {
        self.show(Ok(MountSource::Path(host.into())), guest, true)
    }

    fn show(self, source: Result<MountSource>, guest: &str, read_only: bool) -> Self {
        let mount = source.and_then(|source| Mount::new(source, guest, read_only));
        self.with(mount, |spec, mount| spec.mounts.push(mount))
    }

    /// Puts a memory file system inside, as `/cache` or `/cache:64M`.
    #[must_use]
    pub fn tmpfs(self, tmpfs: &str) -> Self {
        self.with(Tmpfs::parse(tmpfs), |spec, tmpfs| spec.tmpfs.push(tmpfs))
    }

    /// Puts a program on PATH inside; without a `#!` line it is a shell script.
    #[must_use]
    pub fn script(self, name: &str, body: &str) -> Self {
        self.with(Script::new(name, body), |spec, script| spec.scripts.push(script))
    }

    /// Makes a change to the file system before anything runs.
    #[must_use]
    pub fn patch(mut self, patch: Patch) -> Self {
        self.spec.patches.push(patch);
        self
    }

    /// Copies a file or directory of the host in before anything runs.
    #[must_use]
    pub fn copy(self, from: impl Into<PathBuf>, to: &str) -> Self {
        let copy = GuestPath::parse(to).map(|to| Patch::Copy { from: from.into(), to });
        self.with(copy, |spec, copy| spec.patches.push(copy))
    }

    /// Limits a resource of every Exec: `nofile=1024` or `nofile=1024:4096`.
    #[must_use]
    pub fn rlimit(self, limit: &str) -> Self {
        self.with(Rlimit::parse(limit), |spec, limit| spec.rlimits.push(limit))
    }

    /// The tier; by default `MSB_ISOLATION` or else `auto`, which takes a microVM where one
    /// works and namespaces elsewhere. Its [`Plan`](crate::Plan) says which it became, and why it
    /// is not a microVM.
    #[must_use]
    pub fn isolation(mut self, isolation: IsolationChoice) -> Self {
        self.isolation = Some(isolation);
        self
    }

    /// How tight it is closed.
    #[must_use]
    pub fn security(mut self, profile: Profile) -> Self {
        self.spec.security = profile;
        self
    }

    /// Whether user namespaces may be made inside.
    #[must_use]
    pub fn allow_userns(mut self, allow: bool) -> Self {
        self.spec.allow_userns = allow;
        self
    }

    /// It ends after this.
    #[must_use]
    pub fn max_duration(mut self, duration: Duration) -> Self {
        self.spec.max_duration = Some(Span(duration));
        self
    }

    /// It ends when nothing ran for this long.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.spec.idle_timeout = Some(Span(timeout));
        self
    }

    /// It is paused when nothing happened for this long, until something does.
    #[must_use]
    pub fn idle_pause(mut self, idle: Duration) -> Self {
        self.spec.idle_pause = Some(Span(idle));
        self
    }

    /// Runs this as its first command, and begins it again by the policy; also when it is started
    /// anew. Without a policy the sandbox ends with it.
    #[must_use]
    pub fn service<S: Into<String>>(
        mut self,
        argv: impl IntoIterator<Item = S>,
        policy: Restart,
    ) -> Self {
        self.spec.command = argv.into_iter().map(Into::into).collect();
        self.spec.restart = policy;
        self
    }

    /// What tells whether it is well.
    #[must_use]
    pub fn health(mut self, check: Health) -> Self {
        self.spec.health = Some(check);
        self
    }

    /// Lets it have children, within this.
    #[must_use]
    pub fn spawn(mut self, policy: SpawnPolicy) -> Self {
        self.spec.spawn = Some(policy);
        self
    }

    /// Hands PID 1 to the image's own init once everything is in place: `auto`, or its path such as
    /// `/sbin/init`. The sandbox ends with it.
    #[must_use]
    pub fn init(mut self, program: &str) -> Self {
        match InitProgram::parse(program) {
            Ok(program) => self.spec.init = Some(Init::of(program)),
            Err(error) => drop(self.mistake.get_or_insert(error)),
        }
        self
    }

    /// The shell of [`Sandbox::shell`]; `/bin/sh` unless told.
    #[must_use]
    pub fn shell(mut self, shell: impl Into<String>) -> Self {
        self.spec.shell = Some(shell.into());
        self
    }

    /// Whether a sandbox of this name is ended and removed first.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Whether it is removed when it ends. What it writes is then kept in memory.
    #[must_use]
    pub fn ephemeral(mut self, ephemeral: bool) -> Self {
        self.spec.ephemeral = ephemeral;
        self
    }

    /// Whether it goes on when its handle is dropped or this process dies.
    #[must_use]
    pub fn detached(mut self, detached: bool) -> Self {
        self.detached = detached;
        self
    }

    /// Keeps it in another state directory.
    #[must_use]
    pub fn home(mut self, path: impl Into<PathBuf>) -> Self {
        self.sandboxes = self.sandboxes.home(path);
        self
    }

    /// Makes the sandbox and starts it.
    pub async fn create(self) -> Result<Sandbox> {
        blocking(move || self.make()).await
    }

    fn make(mut self) -> Result<Sandbox> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        self.spec.isolation = match (self.isolation, std::env::var(env::ISOLATION)) {
            (Some(choice), _) => choice,
            (None, Ok(named)) => named.parse()?,
            (None, Err(_)) => IsolationChoice::default(),
        };
        let network = self.spec.network.take().unwrap_or_default();
        self.spec.network = Some(network.or_usual(std::env::var(env::NET).ok().as_deref())?);
        let engine = self.sandboxes.engine()?.with_secrets(self.given);
        let streams = CommandStreams::in_background();
        let plan = engine.plan_with(&self.spec, &streams, &Fetching::default())?;
        let launch = Launch {
            replace: self.replace,
            until: LaunchUntil::CommandStarted,
            // While the sandbox comes up there is time to tidy up behind others.
            while_booting: Some(&|| drop(engine.repair())),
            ..Launch::default()
        };
        let running = engine.launch(plan, &launch)?;
        let (plan, tie) = match self.detached {
            true => (running.detach()?, None),
            false => running.into_owner(),
        };
        Ok(Sandbox::new(Worker::new(engine, plan.name), plan.shell, tie))
    }

    pub(crate) fn with<T>(mut self, parsed: Result<T>, set: impl FnOnce(&mut Spec, T)) -> Self {
        match parsed {
            Ok(value) => set(&mut self.spec, value),
            Err(error) => {
                self.mistake.get_or_insert(error);
            }
        }
        self
    }
}

fn mebibytes(mib: u64) -> Result<Bytes> {
    Bytes::parse(&format!("{mib}M"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Kind;

    #[test]
    fn amounts_are_taken_as_people_write_them() {
        let builder = Sandboxes::new().builder("a").cpus(1).memory(512).disk(64);
        assert_eq!(builder.spec.cpus, Some(Cpus::whole(1)));
        assert_eq!(builder.spec.memory, Some(Bytes::mib(512)));
        assert_eq!(builder.spec.disk, Some(Bytes::mib(64)));
        assert_eq!(builder.cpus(0.3333).spec.cpus, Some(Cpus { millis: 333 }));
    }

    #[test]
    fn the_first_mistake_is_kept_and_nothing_panics() {
        for builder in [
            Sandboxes::new().builder("../a").memory(1),
            Sandboxes::new().builder("a").memory(0),
            Sandboxes::new().builder("a").memory(u64::MAX),
            Sandboxes::new().builder("a").cpus(f64::NAN),
            Sandboxes::new().builder("a").cpus(-1),
            Sandboxes::new().builder("a").mount("/tmp", "/"),
            Sandboxes::new().builder("a").volume("../a", "/data"),
            Sandboxes::new().builder("a").user("a b"),
            Sandboxes::new().builder("a").copy("/tmp", "relative"),
        ] {
            assert_eq!(builder.mistake.as_ref().map(Error::kind), Some(Kind::Invalid));
        }
    }
}
