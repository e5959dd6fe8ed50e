//! Sandboxes are started and stopped.

use super::asked::{Asked, Config, Sandbox, Start, sandbox_name};
use super::{Server, told};
use crate::repl::Language;
use msb_api::{Api, Create, Status, Watch, asked_by};
use msb_spec::{
    Bytes, Command, Cpus, Error, ImageRef, Kind, Mount, MountSource, Name, Published, Result,
    Script, Spec,
};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How long a client waits for a sandbox whose image may have to be fetched.
const FETCHING: Duration = Duration::from_secs(180);
/// How long it waits for another.
const STARTING: Duration = Duration::from_secs(60);
/// How long commands have to end.
const GRACE: Duration = Duration::from_secs(5);
/// What a sandbox was made from, in few letters.
const LABEL: &str = "msb.server.config";
/// The script that is run when a sandbox starts.
const START: &str = "start";

impl Server {
    /// Starts a sandbox, which is made if it does not exist; what to say about it.
    pub(crate) fn start(&self, asked: &Asked<'_>, start: &Start) -> Result<String> {
        let name = sandbox_name(&start.sandbox)?;
        let view = self.view(asked.who, start.namespace.as_deref())?;
        let usual = Config::default();
        let config = start.config.as_ref().unwrap_or(&usual);
        let begin = Begin {
            spec: self.spec(&name, config)?,
            default: config.image.as_deref().and_then(language_image),
            after: config.after(),
            depends_on: config
                .depends_on
                .iter()
                .flatten()
                .map(|name| sandbox_name(name))
                .collect::<Result<_>>()?,
            name,
            given: *config != usual,
        };
        let limit = if config.image.is_some() { FETCHING } else { STARTING };
        let (api, watch) = (Arc::clone(&view.api), Arc::clone(&asked.watch));
        let (told, answer) = mpsc::sync_channel(1);
        let asker = msb_api::asker();
        // Beside this one: whoever asked is not kept waiting for longer than they expect.
        std::thread::Builder::new()
            .name("start".to_owned())
            .spawn(move || {
                let run = || begin.run(api.as_ref(), watch.as_ref());
                drop(told.send(asked_by(asker, run)));
            })
            .map_err(|error| Error::host("cannot make a thread", error))?;
        let sandbox = &start.sandbox;
        match answer.recv_timeout(limit) {
            Ok(Ok(note)) => Ok(format!("Sandbox {sandbox} started successfully{note}")),
            Ok(Err(error)) => Err(error),
            Err(RecvTimeoutError::Timeout) => Ok(format!(
                "Sandbox {sandbox} was started, but timed out waiting for it to be fully running. \
                 It may still be initializing."
            )),
            Err(RecvTimeoutError::Disconnected) => Ok(format!(
                "Sandbox {sandbox} was started, but couldn't verify it's running: nobody tells"
            )),
        }
    }

    /// Stops a sandbox; what to say about it.
    pub(crate) fn stop(&self, asked: &Asked<'_>, sandbox: &Sandbox) -> Result<String> {
        let name = sandbox_name(&sandbox.sandbox)?;
        let view = self.view(asked.who, sandbox.namespace.as_deref())?;
        view.api.sandbox_summary(&name)?;
        self.repls.end(&view.scope, &name);
        view.api.sandbox_stop(&name, GRACE)?;
        Ok(format!("Sandbox {name} stopped successfully"))
    }

    fn spec(&self, name: &Name, config: &Config) -> Result<Spec> {
        let mut spec = Spec { name: Some(name.clone()), ..self.world.defaults.clone() };
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
            let port = Published::parse(text).map_err(about)?;
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

    /// A path of the host, if clients may name it. Of those, keys of one namespace may name a part,
    /// which their view says by itself.
    fn host_path(&self, path: &Path) -> Result<PathBuf> {
        self.world.paths.check(path)
    }
}

impl Config {
    /// The same for the same settings.
    fn digest(&self) -> String {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let digest = ring::digest::digest(&ring::digest::SHA256, &text);
        digest.as_ref().iter().take(16).fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The command line that goes on while the sandbox runs.
    fn after(&self) -> Option<String> {
        let start = self.scripts.as_ref().is_some_and(|scripts| scripts.contains_key(START));
        self.exec.clone().or_else(|| start.then(|| START.to_owned()))
    }
}

/// The language that an image is for, if it is one of those of the old server.
fn language_image(image: &str) -> Option<Language> {
    let name = image.split([':', '@']).next().unwrap_or(image);
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    [Language::Python, Language::Node].into_iter().find(|language| language.image() == name)
}

/// Everything that is needed to start a sandbox.
struct Begin {
    name: Name,
    spec: Spec,
    /// Whether anything was said about how it is to be.
    given: bool,
    /// Which language it is for; there is a way without the image then.
    default: Option<Language>,
    depends_on: Vec<Name>,
    after: Option<String>,
}

impl Begin {
    /// Starts it; what has to be said about how.
    fn run(self, api: &dyn Api, watch: &dyn Watch) -> Result<String> {
        for other in &self.depends_on {
            let about = |error: Error| error.under(format!("`{}` depends on `{other}`", self.name));
            api.sandbox_start(other).map_err(about)?;
        }
        let (begun, note) = match api.sandbox_summary(&self.name) {
            Ok(found) => (self.again(api, &found)?, String::new()),
            Err(error) if error.kind() == Kind::NotFound => (true, self.make(api, watch)?),
            Err(error) => return Err(error),
        };
        if let (Some(line), true) = (&self.after, begun) {
            let shell = self.spec.shell.clone().unwrap_or_else(|| "sh".to_owned());
            let argv = vec![shell, "-c".to_owned(), line.clone()];
            let command = Command { argv, detached: true, ..Command::default() };
            api.exec_start(&self.name, &command)?.input().detach()?;
        }
        Ok(note)
    }

    /// One that exists. Whether it was not running.
    fn again(&self, api: &dyn Api, found: &msb_api::Summary) -> Result<bool> {
        let same = found.labels.get(LABEL) == self.spec.labels.get(LABEL);
        if self.given && !same {
            let text = format!("sandbox `{}` exists with another configuration", self.name);
            return Err(Error::new(Kind::Exists, text)
                .hint("start it without `config` to use it as it is, or choose another name"));
        }
        match found.status {
            Status::Running => Ok(false),
            Status::Paused => api.sandbox_resume(&self.name).map(|()| false),
            Status::Draining | Status::Stopped | Status::Crashed => api.sandbox_start(&self.name),
        }
    }

    fn make(&self, api: &dyn Api, watch: &dyn Watch) -> Result<String> {
        let ask = Create { spec: self.spec.clone(), ..Create::default() };
        let error = match api.sandbox_create(&ask, watch) {
            Ok(_) => return Ok(String::new()),
            Err(error) => error,
        };
        let Some(language) = self.default.filter(|_| is_unreachable(&error)) else {
            return Err(error);
        };
        let mut ask = ask;
        ask.spec.image = ImageRef::Host;
        // If that does not work either, the first reason is the one that counts.
        api.sandbox_create(&ask, watch).map_err(|second| {
            error.clone().cause(format!("and not with `host` either: {}", told(&second)))
        })?;
        let (image, language) = (language.image(), language.as_str());
        Ok(format!(
            ". Its image `{image}` could not be fetched ({error}), so it has the programs of this \
             host instead: `{language}` is there if it is installed here"
        ))
    }
}

/// Whether nobody answered who has the image.
fn is_unreachable(error: &Error) -> bool {
    let texts = std::iter::once(error.message()).chain(error.causes().iter().map(String::as_str));
    let silent = texts.into_iter().any(|text| text.starts_with("cannot reach "));
    matches!(error.kind(), Kind::Host | Kind::Timeout) && silent
}
