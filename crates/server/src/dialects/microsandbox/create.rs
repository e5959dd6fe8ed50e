//! Converts the arguments of a new sandbox to a Spec.
//!
//! Settings that cannot be applied are refused by name. None is ignored silently.

use super::envelope::{Outcome, ToolFailure, ToolSuccess};
use super::exec::{RlimitParams, command_result};
use super::labels;
use super::lifecycle::GRACE;
use super::mounts::MountParams;
use super::networks::{NetworkParams, SecretParams};
use super::patches::PatchParams;
use super::rootfs::RootfsParams;
use super::selector::shown;
use super::{Microsandbox, read};
use crate::dialect::ToolCall;
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
struct CreateParams {
    name: Option<String>,
    command: Option<String>,
    image: Option<String>,
    rootfs: Option<RootfsParams>,
    cpus: Option<u32>,
    memory_mib: Option<u64>,
    workdir: Option<String>,
    env: BTreeMap<String, String>,
    volumes: Vec<MountParams>,
    mounts: Vec<MountParams>,
    patches: Vec<PatchParams>,
    entrypoint: Option<Vec<String>>,
    hostname: Option<String>,
    max_duration: Option<u64>,
    idle_timeout: Option<u64>,
    resources: ResourceParams,
    process: ProcessParams,
    lifecycle: LifecycleParams,
    network: Option<NetworkParams>,
    secrets: Vec<SecretParams>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResourceParams {
    cpus: Option<u32>,
    memory_mib: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ProcessParams {
    workdir: Option<String>,
    shell: Option<String>,
    env: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    entrypoint: Option<Vec<String>>,
    user: Option<String>,
    scripts: BTreeMap<String, String>,
    rlimits: Vec<RlimitParams>,
    init: Option<InitParams>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct InitParams {
    path: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LifecycleParams {
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

/// A sandbox to create, with everything that it needs.
pub(super) struct SandboxRequest {
    pub(super) spec: Spec,
    /// Values of secrets, which are not part of the Spec.
    pub(super) secrets: Vec<(String, Vec<u8>)>,
    /// Volumes that are created if they are missing.
    pub(super) volumes: Vec<VolumeSpec>,
    /// The required file system of a disk.
    pub(super) fstype: Option<String>,
    pub(super) warnings: Vec<String>,
}

impl SandboxRequest {
    pub(super) fn bare(spec: Spec) -> Self {
        Self { spec, secrets: Vec::new(), volumes: Vec::new(), fstype: None, warnings: Vec::new() }
    }
}

impl Microsandbox {
    pub(super) fn sandbox_create(&self, call: &ToolCall) -> Outcome {
        let params: CreateParams = read(call)?;
        let (name, entrypoint) = (params.name()?, params.entrypoint().to_vec());
        let mut request = self.sandbox_request(&params, call)?;
        request.spec.name = Some(name.clone());
        let api = self.ready(&request, call)?;
        self.stop_replaced(&params, &name)?;
        let ask = Create {
            spec: request.spec,
            replace: params.lifecycle.replaces(),
            ..Create::default()
        };
        let summary = api.sandbox_create(&ask, call.watch.as_ref())?;
        if !entrypoint.is_empty() {
            let command = Command { argv: entrypoint, detached: true, ..Command::default() };
            let started = api.exec_start(&name, &command).and_then(|exec| exec.input().detach());
            if let Err(error) = started {
                // A partially configured sandbox is removed.
                let _ = api.sandbox_remove(&name, true);
                return Err(error.into());
            }
        }
        if params.lifecycle.detached == Some(false) {
            self.ends_with_us(&name);
            request.warnings.push("the sandbox is stopped when this server ends".to_owned());
        }
        let mut done = ToolSuccess::new(json!({"name": name, "status": shown(summary.status)}));
        for warning in request.warnings {
            done = done.warning(Some(warning));
        }
        Ok(done.warning(summary.isolation_reason))
    }

    pub(super) fn sandbox_run(&self, call: &ToolCall) -> Outcome {
        let params: CreateParams = read(call)?;
        let limit = self.settings.default_timeout;
        let name = match &params.name {
            Some(name) => Name::parse(name)?,
            None => Name::parse(&random_name())?,
        };
        let mut request = self.sandbox_request(&params, call)?;
        let script = params.command.clone().unwrap_or_default();
        let shell = request.spec.shell.clone().unwrap_or_else(|| "sh".to_owned());
        // The entrypoint of the image must not precede a shell.
        (request.spec.entrypoint, request.spec.command) = match params.entrypoint() {
            [] => (vec![shell], vec!["-c".to_owned(), script]),
            entrypoint => (entrypoint.to_vec(), vec![shell, "-c".to_owned(), script]),
        };
        request.spec.name = Some(name.clone());
        request.spec.timeout = Some(Span(limit));
        let api = self.ready(&request, call)?;
        if params.lifecycle.replaces() {
            self.stop_replaced(&params, &name)?;
            match api.sandbox_remove(&name, true) {
                Err(error) if error.kind() != Kind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        let (name, mut exec) = api.exec_run(&request.spec, call.watch.as_ref())?;
        let limit_bytes = self.settings.max_output;
        let captured = exec::finish(exec.as_mut(), None, limit_bytes, &call.cancel)?;
        drop(exec);
        let mut done = command_result(&captured, limit, false)?.with("name", json!(name));
        if params.lifecycle.detached == Some(true) {
            let warning = "sandbox_run removes its sandbox in any case; sandbox_create keeps one";
            done = done.warning(Some(warning));
        }
        for warning in request.warnings {
            done = done.warning(Some(warning));
        }
        Ok(done)
    }

    /// The Api to create the sandbox with, after volumes and secrets are prepared.
    fn ready(
        &self,
        request: &SandboxRequest,
        call: &ToolCall,
    ) -> Result<Arc<dyn Api>, ToolFailure> {
        let api = match request.secrets.is_empty() {
            true => Arc::clone(&self.config.api),
            false => self.config.api.with_secrets(request.secrets.clone()),
        };
        self.make_volumes(request)?;
        if let Some(fstype) = &request.fstype {
            let plan = api.sandbox_plan(&request.spec, call.watch.as_ref())?;
            let found = match plan.machine.map(|machine| machine.base) {
                Some(msb_spec::MachineBase::Image { fstype, .. }) => fstype,
                _ => "none".to_owned(),
            };
            if found != *fstype {
                let text = format!("the disk holds a file system of type {found}, not {fstype}");
                return Err(ToolFailure::new(text));
            }
        }
        Ok(api)
    }

    /// Creates the volumes that have a size, unless they exist with that size.
    pub(super) fn make_volumes(&self, request: &SandboxRequest) -> Result<(), ToolFailure> {
        for volume in &request.volumes {
            match self.config.api.volume_create(volume) {
                Err(error) if error.kind() == Kind::Exists => self.same_volume(volume)?,
                other => drop(other?),
            }
        }
        Ok(())
    }

    fn same_volume(&self, spec: &VolumeSpec) -> Result<(), ToolFailure> {
        let there = self.config.api.volume_inspect(&spec.name)?;
        let size = spec.size.map(|size| size.0);
        if size.is_some() && there.size != size {
            let text = format!("volume {} has another size", spec.name);
            return Err(
                ToolFailure::new(text).detail("hint", "leave sizeMib out to use it as it is")
            );
        }
        Ok(())
    }

    /// Stops a sandbox that is to be replaced, with a grace period for its commands.
    fn stop_replaced(&self, params: &CreateParams, name: &Name) -> Result<(), ToolFailure> {
        if !params.lifecycle.replaces() {
            return Ok(());
        }
        let grace = params.lifecycle.replace_timeout_ms.map_or(GRACE, Duration::from_millis);
        match self.config.api.sandbox_stop(name, grace) {
            Err(error) if error.kind() != Kind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn sandbox_request(
        &self,
        params: &CreateParams,
        call: &ToolCall,
    ) -> Result<SandboxRequest, ToolFailure> {
        let mut request = SandboxRequest::bare(self.config.defaults.clone());
        self.rootfs(&mut request, params.image.as_deref(), params.rootfs.as_ref(), call)?;
        params.apply_limits(&mut request.spec);
        params.apply_process(&mut request.spec)?;
        for mount in params.volumes.iter().chain(&params.mounts) {
            self.mount(&mut request, mount)?;
        }
        for patch in &params.patches {
            self.patch(&mut request, patch)?;
        }
        self.network(&mut request, params.network.as_ref(), &params.secrets, call)?;
        params.lifecycle.add_labels(&mut request.spec);
        Ok(request)
    }
}

impl CreateParams {
    fn name(&self) -> Result<Name, ToolFailure> {
        Ok(Name::parse(self.name.as_deref().unwrap_or_default())?)
    }

    fn entrypoint(&self) -> &[String] {
        let nested = self.process.entrypoint.as_ref();
        nested.or(self.entrypoint.as_ref()).map(Vec::as_slice).unwrap_or_default()
    }

    fn apply_limits(&self, spec: &mut Spec) {
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

    fn apply_process(&self, spec: &mut Spec) -> Result<(), ToolFailure> {
        let process = &self.process;
        if let Some(InitParams { path, args, env }) = process.init.clone() {
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
            return Err(ToolFailure::new(format!("this label is reserved for msb: {label}")));
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

impl LifecycleParams {
    fn replaces(&self) -> bool {
        self.replace || self.replace_timeout_ms.is_some()
    }

    /// Stores settings for later calls in labels.
    fn add_labels(&self, spec: &mut Spec) {
        let mut add_labels =
            |key: &str, value: String| drop(spec.labels.insert(key.to_owned(), value));
        if let Some(level) = &self.log_level {
            add_labels(labels::LOG_LEVEL, level.clone());
        }
        if self.quiet_logs {
            add_labels(labels::QUIET, "1".to_owned());
        }
        match (self.disable_metrics_sample, self.metrics_sample_interval_ms) {
            (true, _) | (_, Some(0)) => add_labels(labels::METRICS, "off".to_owned()),
            (false, Some(interval)) => add_labels(labels::METRICS, interval.to_string()),
            (false, None) => {}
        }
    }
}

/// Converts MiB to bytes, saturating.
pub(super) fn mebibytes(mib: u64) -> Bytes {
    Bytes(mib.saturating_mul(1 << 20))
}

/// A random name for a sandbox without one.
fn random_name() -> String {
    let chance = super::exec_sessions::unguessable();
    format!("mcp-run-{}-{}", clock::now(), &chance[..4])
}
