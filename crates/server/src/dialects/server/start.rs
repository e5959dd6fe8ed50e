//! Starts and stops sandboxes.

use super::args::{CallContext, SandboxConfig, StartArgs, StopArgs, sandbox_name};
use super::{Server, error_text};
use crate::repl::Language;
use msb_api::{Api, Create, Status, Watch};
use msb_spec::encoding::hex;
use msb_spec::{
    Bytes, Command, Cpus, Error, ImageRef, Kind, Mount, MountSource, Name, PublishedPort, Result,
    Script, Spec,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Longest wait for a sandbox whose image may have to be pulled.
const PULL_LIMIT: Duration = Duration::from_secs(180);
/// Longest wait for any other sandbox.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// The label with a digest of the settings.
const LABEL: &str = "msb.server.config";
/// The name of the script that runs when a sandbox starts.
const START: &str = "start";

impl Server {
    /// Starts a sandbox, or creates it if it does not exist. Returns the text of the result.
    pub(crate) fn start(&self, context: &CallContext<'_>, start: &StartArgs) -> Result<String> {
        let name = sandbox_name(&start.sandbox)?;
        let view = self.view(context, start.namespace.as_deref())?;
        let default_namespace = SandboxConfig::default();
        let config = start.config.as_ref().unwrap_or(&default_namespace);
        let begin = StartRequest {
            spec: self.spec(&name, config)?,
            default: config.image.as_deref().and_then(language_image),
            background_command: config.background_command(),
            depends_on: config
                .depends_on
                .iter()
                .flatten()
                .map(|name| sandbox_name(name))
                .collect::<Result<_>>()?,
            name,
            given: *config != default_namespace,
            has_default_image: config.image.is_none(),
        };
        let limit = if config.image.is_some() { PULL_LIMIT } else { START_LIMIT };
        let (api, watch) = (Arc::clone(&view.api), Arc::clone(&context.watch));
        let (error_text, answer) = mpsc::sync_channel(1);
        // In another thread: the client does not wait longer than it expects to.
        std::thread::Builder::new()
            .name("start".to_owned())
            .spawn(move || drop(error_text.send(begin.run(api.as_ref(), watch.as_ref()))))
            .map_err(|error| Error::host("cannot start a thread", error))?;
        let sandbox = &start.sandbox;
        match answer.recv_timeout(limit) {
            Ok(Ok(note)) => Ok(format!("Sandbox {sandbox} started successfully{note}")),
            Ok(Err(error)) => Err(error),
            Err(RecvTimeoutError::Timeout) => Ok(format!(
                "Sandbox {sandbox} was started, but timed out waiting for it to be fully running. \
                 It may still be initializing."
            )),
            Err(RecvTimeoutError::Disconnected) => Ok(format!(
                "Sandbox {sandbox} was started, but couldn't verify it's running: the start thread has ended"
            )),
        }
    }

    /// Stops a sandbox. Returns the text of the result.
    pub(crate) fn stop(&self, context: &CallContext<'_>, sandbox: &StopArgs) -> Result<String> {
        let name = sandbox_name(&sandbox.sandbox)?;
        let view = self.view(context, sandbox.namespace.as_deref())?;
        view.api.sandbox_summary(&name)?;
        self.interpreters.end(&view.scope, &name);
        view.api.sandbox_stop(&name, GRACE)?;
        Ok(format!("Sandbox {name} stopped successfully"))
    }

    fn spec(&self, name: &Name, config: &SandboxConfig) -> Result<Spec> {
        let mut spec = Spec { name: Some(name.clone()), ..self.config.defaults.clone() };
        if let Some(image) = &config.image {
            let about = |error: Error| error.under(format!("argument `config.image`: `{image}`"));
            spec.image = match ImageRef::parse(image).map_err(about)? {
                ImageRef::Path(path) => ImageRef::Path(self.host_path(&path)?),
                image => image,
            };
        }
        if let Some(mib) = config.memory {
            let bytes = mib.checked_mul(1 << 20).filter(|bytes| *bytes > 0);
            let wrong = || Error::invalid(format!("argument `config.memory`: not a size: `{mib}`"));
            spec.memory = Some(Bytes(bytes.ok_or_else(wrong)?));
        }
        match config.cpus {
            Some(0) => {
                return Err(Error::invalid("argument `config.cpus`: at least one is needed"));
            }
            Some(cpus) => spec.cpus = Some(Cpus::whole(cpus)),
            None => {}
        }
        for text in config.volumes.iter().flatten() {
            let about = |error: Error| error.under(format!("argument `config.volumes`: `{text}`"));
            let mut mount = Mount::parse(text).map_err(about)?;
            if let MountSource::Path(path) = mount.source {
                mount.source = MountSource::Path(self.host_path(&path).map_err(about)?);
            }
            spec.mounts.push(mount);
        }
        for text in config.ports.iter().flatten() {
            let about = |error: Error| error.under(format!("argument `config.ports`: `{text}`"));
            let port = PublishedPort::parse(text).map_err(about)?;
            spec.network.get_or_insert_default().ports.push(port);
        }
        for text in config.envs.iter().flatten() {
            let (name, value) = text.split_once('=').ok_or_else(|| {
                Error::invalid(format!("argument `config.envs`: not a variable: `{text}`"))
                    .hint("write it as `NAME=value`")
            })?;
            spec.env.insert(name.to_owned(), value.to_owned());
        }
        for (name, body) in config.scripts.iter().flatten() {
            let about = |error: Error| error.under("argument `config.scripts`");
            spec.scripts.push(Script::new(name, body).map_err(about)?);
        }
        spec.workdir = config.workdir.clone().or(spec.workdir);
        spec.shell = config.shell.clone().or(spec.shell);
        spec.labels.insert(LABEL.to_owned(), config.digest());
        spec.validate()?;
        Ok(spec)
    }

    /// A host path, if clients may name it. For keys of one namespace, the scoped `Api` restricts
    /// it
    /// further.
    fn host_path(&self, path: &Path) -> Result<PathBuf> {
        self.config.paths.check(path)
    }
}

impl SandboxConfig {
    /// A digest of the settings.
    fn digest(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let digest = ring::digest::digest(&ring::digest::SHA256, &text);
        hex(&digest.as_ref()[..16])
    }

    /// The command line that runs in the background after the start.
    fn background_command(&self) -> Option<String> {
        let start = self.scripts.as_ref().is_some_and(|scripts| scripts.contains_key(START));
        self.exec.clone().or_else(|| start.then(|| START.to_owned()))
    }
}

/// The language of an image, if it is one of the old server's images.
fn language_image(image: &str) -> Option<Language> {
    let name = image.split([':', '@']).next().unwrap_or(image);
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    [Language::Python, Language::Node].into_iter().find(|language| language.image() == name)
}

/// Everything that is needed to start a sandbox.
struct StartRequest {
    name: Name,
    spec: Spec,
    /// Whether the client sent any settings.
    given: bool,
    /// Whether the client named no image.
    has_default_image: bool,
    /// The language; then `host` can replace an image that cannot be pulled.
    default: Option<Language>,
    depends_on: Vec<Name>,
    background_command: Option<String>,
}

impl StartRequest {
    /// Starts the sandbox. Returns a note for the client.
    fn run(self, api: &dyn Api, watch: &dyn Watch) -> Result<String> {
        for other in &self.depends_on {
            let about = |error: Error| error.under(format!("`{}` depends on `{other}`", self.name));
            api.sandbox_start(other).map_err(about)?;
        }
        let (begun, mut note) = match api.sandbox_summary(&self.name) {
            Ok(existing) => (self.start_existing(api, &existing)?, String::new()),
            Err(error) if error.kind() == Kind::NotFound => (true, self.create(api, watch)?),
            Err(error) => return Err(error),
        };
        if let Some(reason) = isolation_reason(api, &self.name) {
            note.push_str(&format!(". It is not a microVM: {reason}"));
        }
        if let (Some(line), true) = (&self.background_command, begun) {
            let shell = self.spec.shell.clone().unwrap_or_else(|| "sh".to_owned());
            let argv = vec![shell, "-c".to_owned(), line.clone()];
            let command = Command { argv, detached: true, ..Command::default() };
            api.exec_start(&self.name, &command)?.input().detach()?;
        }
        Ok(note)
    }

    /// Starts an existing sandbox. Returns whether it was stopped.
    fn start_existing(&self, api: &dyn Api, existing: &msb_api::Summary) -> Result<bool> {
        let same = existing.labels.get(LABEL) == self.spec.labels.get(LABEL);
        if self.given && !same {
            let text = format!("sandbox `{}` exists with another configuration", self.name);
            return Err(Error::new(Kind::Exists, text)
                .hint("start it without `config` to use it as it is, or choose another name"));
        }
        match existing.status {
            Status::Running => Ok(false),
            Status::Paused => api.sandbox_resume(&self.name).map(|()| false),
            Status::Draining | Status::Stopped | Status::Crashed => api.sandbox_start(&self.name),
        }
    }

    fn create(&self, api: &dyn Api, watch: &dyn Watch) -> Result<String> {
        let ask = Create { spec: self.spec.clone(), ..Create::default() };
        let error = match api.sandbox_create(&ask, watch) {
            Ok(_) if self.has_default_image => {
                let image = &ask.spec.image;
                return Ok(format!(". No image was given; `{image}` is used"));
            }
            Ok(_) => return Ok(String::new()),
            Err(error) => error,
        };
        let Some(language) = self.default.filter(|_| is_unreachable(&error)) else {
            return Err(error);
        };
        let mut ask = ask;
        ask.spec.image = ImageRef::Host;
        // If this fails as well, the first error is reported.
        api.sandbox_create(&ask, watch).map_err(|second| {
            error.clone().cause(format!("and not with `host` either: {}", error_text(&second)))
        })?;
        let (image, language) = (language.image(), language.as_str());
        Ok(format!(
            ". Its image `{image}` could not be fetched ({error}), so it has the programs of this \
             host instead: `{language}` is there if it is installed here"
        ))
    }
}

/// Why a sandbox is not a microVM although one was preferred.
pub(super) fn isolation_reason(api: &dyn Api, name: &Name) -> Option<String> {
    // The note is not worth a failed call.
    api.sandbox_summary(name).ok()?.isolation_reason
}

/// Whether the registry could not be reached.
fn is_unreachable(error: &Error) -> bool {
    let texts = std::iter::once(error.message()).chain(error.causes().iter().map(String::as_str));
    let silent = texts.into_iter().any(|text| text.starts_with("cannot reach "));
    matches!(error.kind(), Kind::Host | Kind::Timeout) && silent
}
