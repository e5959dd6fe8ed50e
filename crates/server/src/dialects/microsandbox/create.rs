//! What a sandbox is to be, from the arguments of this dialect to a Spec.
//!
//! Whatever cannot be given is refused by name: nothing that a client asks for is left out in
//! silence.

use super::envelope::{Done, Failure, Outcome};
use super::exec::{LimitAsked, said};
use super::labels;
use super::lifecycle::GRACE;
use super::mounts::MountAsked;
use super::networks::{NetworkAsked, SecretAsked};
use super::patches::PatchAsked;
use super::rootfs::Rootfs;
use super::selector::shown;
use super::{Microsandbox, read};
use crate::dialect::Call;
use crate::exec;
use msb_api::{Api, Create};
use msb_spec::clock;
use msb_spec::{
    Bytes, Command, Cpus, Hostname, Init, InitProgram, Kind, Name, Script, Span, Spec, UserRef,
    VolumeSpec,
};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    name: Option<String>,
    command: Option<String>,
    image: Option<String>,
    rootfs: Option<Rootfs>,
    cpus: Option<u32>,
    memory_mib: Option<u64>,
    workdir: Option<String>,
    env: BTreeMap<String, String>,
    volumes: Vec<MountAsked>,
    mounts: Vec<MountAsked>,
    patches: Vec<PatchAsked>,
    entrypoint: Option<Vec<String>>,
    hostname: Option<String>,
    max_duration: Option<u64>,
    idle_timeout: Option<u64>,
    resources: Resources,
    process: Process,
    lifecycle: Lifecycle,
    network: Option<NetworkAsked>,
    secrets: Vec<SecretAsked>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Resources {
    cpus: Option<u32>,
    memory_mib: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Process {
    workdir: Option<String>,
    shell: Option<String>,
    env: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    entrypoint: Option<Vec<String>>,
    user: Option<String>,
    scripts: BTreeMap<String, String>,
    rlimits: Vec<LimitAsked>,
    init: Option<InitAsked>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct InitAsked {
    path: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Lifecycle {
    detached: Option<bool>,
    replace: bool,
    replace_timeout_ms: Option<u64>,
    max_duration_secs: Option<u64>,
    idle_timeout_secs: Option<u64>,
    log_level: Option<String>,
    metrics_sample_interval_ms: Option<u64>,
    disable_metrics_sample: bool,
    quiet_logs: bool,
}

/// A sandbox that is to be made, and what goes with it.
pub(super) struct Wanted {
    pub(super) spec: Spec,
    /// Values of Secrets, which go into no Spec.
    pub(super) secrets: Vec<(String, Vec<u8>)>,
    /// Volumes that are made if they are missing.
    pub(super) volumes: Vec<VolumeSpec>,
    /// What the file system of a disk has to be.
    pub(super) fstype: Option<String>,
    pub(super) warnings: Vec<String>,
}

impl Wanted {
    pub(super) fn bare(spec: Spec) -> Self {
        Self { spec, secrets: Vec::new(), volumes: Vec::new(), fstype: None, warnings: Vec::new() }
    }
}

impl Microsandbox {
    pub(super) fn sandbox_create(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let (name, entrypoint) = (asked.name()?, asked.entrypoint().to_vec());
        let mut wanted = self.wanted(&asked, call)?;
        wanted.spec.name = Some(name.clone());
        let api = self.ready(&wanted, call)?;
        self.replaced(&asked, &name)?;
        let ask =
            Create { spec: wanted.spec, replace: asked.lifecycle.replaces(), ..Create::default() };
        let summary = api.sandbox_create(&ask, call.watch.as_ref())?;
        if !entrypoint.is_empty() {
            let command = Command { argv: entrypoint, detached: true, ..Command::default() };
            let begun = api.exec_start(&name, &command).and_then(|exec| exec.input().detach());
            if let Err(error) = begun {
                // Half a sandbox is none.
                let _ = api.sandbox_remove(&name, true);
                return Err(error.into());
            }
        }
        if asked.lifecycle.detached == Some(false) {
            self.ends_with_us(&name);
            wanted.warnings.push("the sandbox is stopped when this server ends".to_owned());
        }
        let mut done = Done::new(json!({"name": name, "status": shown(summary.status)}));
        for warning in wanted.warnings {
            done = done.warning(Some(warning));
        }
        Ok(done.warning(summary.isolation_reason))
    }

    pub(super) fn sandbox_run(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let limit = self.settings.default_timeout;
        let name = match &asked.name {
            Some(name) => Name::parse(name)?,
            None => Name::parse(&made_up())?,
        };
        let mut wanted = self.wanted(&asked, call)?;
        let script = asked.command.clone().unwrap_or_default();
        let shell = wanted.spec.shell.clone().unwrap_or_else(|| "sh".to_owned());
        // What the image puts before commands is not for a shell.
        (wanted.spec.entrypoint, wanted.spec.command) = match asked.entrypoint() {
            [] => (vec![shell], vec!["-c".to_owned(), script]),
            entrypoint => (entrypoint.to_vec(), vec![shell, "-c".to_owned(), script]),
        };
        wanted.spec.name = Some(name.clone());
        wanted.spec.timeout = Some(Span(limit));
        let api = self.ready(&wanted, call)?;
        if asked.lifecycle.replaces() {
            self.replaced(&asked, &name)?;
            match api.sandbox_remove(&name, true) {
                Err(error) if error.kind() != Kind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        let (name, mut exec) = api.exec_run(&wanted.spec, call.watch.as_ref())?;
        let limit_bytes = self.settings.max_output;
        let captured = exec::finish(exec.as_mut(), None, limit_bytes, &call.cancel)?;
        drop(exec);
        let mut done = said(&captured, limit, false)?.with("name", json!(name));
        if asked.lifecycle.detached == Some(true) {
            let warning = "sandbox_run removes its sandbox in any case; sandbox_create keeps one";
            done = done.warning(Some(warning));
        }
        for warning in wanted.warnings {
            done = done.warning(Some(warning));
        }
        Ok(done)
    }

    /// The Operations, once everything is there that the sandbox needs.
    fn ready(&self, wanted: &Wanted, call: &Call) -> Result<Arc<dyn Api>, Failure> {
        let api = match wanted.secrets.is_empty() {
            true => Arc::clone(&self.world.api),
            false => self.world.api.giving(wanted.secrets.clone()),
        };
        self.make_volumes(wanted)?;
        if let Some(fstype) = &wanted.fstype {
            let plan = api.sandbox_plan(&wanted.spec, call.watch.as_ref())?;
            let found = match plan.machine.map(|machine| machine.base) {
                Some(msb_spec::MachineBase::Image { fstype, .. }) => fstype,
                _ => "none".to_owned(),
            };
            if found != *fstype {
                let text = format!("the disk holds a file system of type {found}, not {fstype}");
                return Err(Failure::new(text));
            }
        }
        Ok(api)
    }

    /// Makes the volumes of which a size is wanted, unless they are there with that size.
    pub(super) fn make_volumes(&self, wanted: &Wanted) -> Result<(), Failure> {
        for volume in &wanted.volumes {
            match self.world.api.volume_create(volume) {
                Err(error) if error.kind() == Kind::Exists => self.same_volume(volume)?,
                other => drop(other?),
            }
        }
        Ok(())
    }

    fn same_volume(&self, wanted: &VolumeSpec) -> Result<(), Failure> {
        let there = self.world.api.volume_inspect(&wanted.name)?;
        let size = wanted.size.map(|size| size.0);
        if size.is_some() && there.size != size {
            let text = format!("volume {} has another size", wanted.name);
            return Err(Failure::new(text).detail("hint", "leave sizeMib out to take it as it is"));
        }
        Ok(())
    }

    /// Lets the commands of a sandbox that is to be replaced end by themselves.
    fn replaced(&self, asked: &Asked, name: &Name) -> Result<(), Failure> {
        if !asked.lifecycle.replaces() {
            return Ok(());
        }
        let grace = asked.lifecycle.replace_timeout_ms.map_or(GRACE, Duration::from_millis);
        match self.world.api.sandbox_stop(name, grace) {
            Err(error) if error.kind() != Kind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn wanted(&self, asked: &Asked, call: &Call) -> Result<Wanted, Failure> {
        let mut wanted = Wanted::bare(self.world.defaults.clone());
        self.rootfs(&mut wanted, asked.image.as_deref(), asked.rootfs.as_ref(), call)?;
        asked.limits(&mut wanted.spec);
        asked.inside(&mut wanted.spec)?;
        for mount in asked.volumes.iter().chain(&asked.mounts) {
            self.mount(&mut wanted, mount)?;
        }
        for patch in &asked.patches {
            self.patch(&mut wanted, patch)?;
        }
        self.network(&mut wanted, asked.network.as_ref(), &asked.secrets, call)?;
        asked.lifecycle.note(&mut wanted.spec);
        Ok(wanted)
    }
}

impl Asked {
    fn name(&self) -> Result<Name, Failure> {
        Ok(Name::parse(self.name.as_deref().unwrap_or_default())?)
    }

    fn entrypoint(&self) -> &[String] {
        let nested = self.process.entrypoint.as_ref();
        nested.or(self.entrypoint.as_ref()).map(Vec::as_slice).unwrap_or_default()
    }

    fn limits(&self, spec: &mut Spec) {
        if let Some(cpus) = self.resources.cpus.or(self.cpus) {
            spec.cpus = Some(Cpus::whole(cpus));
        }
        if let Some(mib) = self.resources.memory_mib.or(self.memory_mib) {
            spec.memory = Some(mebibytes(mib));
        }
        let seconds = |it: u64| Span(Duration::from_secs(it));
        if let Some(limit) = self.lifecycle.max_duration_secs.or(self.max_duration) {
            spec.max_duration = Some(seconds(limit));
        }
        if let Some(limit) = self.lifecycle.idle_timeout_secs.or(self.idle_timeout) {
            spec.idle_timeout = Some(seconds(limit));
        }
    }

    fn inside(&self, spec: &mut Spec) -> Result<(), Failure> {
        let process = &self.process;
        if let Some(InitAsked { path, args, env }) = process.init.clone() {
            spec.init = Some(Init { program: InitProgram::parse(&path)?, args, env });
        }
        if let Some(workdir) = process.workdir.as_ref().or(self.workdir.as_ref()) {
            spec.workdir = Some(workdir.clone());
        }
        if process.shell.is_some() {
            spec.shell.clone_from(&process.shell);
        }
        spec.env.extend(self.env.clone());
        spec.env.extend(process.env.clone());
        if let Some(label) = process.labels.keys().find(|key| labels::is_ours(key)) {
            return Err(Failure::new(format!("this label is for msb alone: {label}")));
        }
        spec.labels.extend(process.labels.clone());
        if let Some(hostname) = &self.hostname {
            spec.hostname = Some(Hostname::parse(hostname)?);
        }
        if let Some(user) = &process.user {
            spec.user = Some(UserRef::parse(user)?);
        }
        for (name, body) in &process.scripts {
            spec.scripts.push(Script::new(name, body)?);
        }
        for limit in &process.rlimits {
            spec.rlimits.push(limit.limit()?);
        }
        Ok(())
    }
}

impl Lifecycle {
    fn replaces(&self) -> bool {
        self.replace || self.replace_timeout_ms.is_some()
    }

    /// Notes what later calls are to know.
    fn note(&self, spec: &mut Spec) {
        let mut note = |key: &str, value: String| drop(spec.labels.insert(key.to_owned(), value));
        if let Some(level) = &self.log_level {
            note(labels::LOG_LEVEL, level.clone());
        }
        if self.quiet_logs {
            note(labels::QUIET, "1".to_owned());
        }
        match (self.disable_metrics_sample, self.metrics_sample_interval_ms) {
            (true, _) | (_, Some(0)) => note(labels::METRICS, "off".to_owned()),
            (false, Some(interval)) => note(labels::METRICS, interval.to_string()),
            (false, None) => {}
        }
    }
}

/// More than there can be is as much as there can be.
pub(super) fn mebibytes(mib: u64) -> Bytes {
    Bytes(mib.saturating_mul(1 << 20))
}

/// A name for a sandbox that nobody asks for by name.
fn made_up() -> String {
    let chance = super::sessions::unguessable();
    format!("mcp-run-{}-{}", clock::now(), &chance[..4])
}
