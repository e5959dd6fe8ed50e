//! Where the sandboxes are that a verb is about: on this machine, or behind a server.
//!
//! The one place that decides it. A verb that can only act here is refused under `--remote`, never
//! done here instead.

use crate::{launcher, output};
use clap::Arg;
use msb_api::{Api, Status};
use msb_client::Client;
use msb_engine::Engine;
use msb_spec::{Error, Name, Result, env};
use std::sync::Arc;
use std::time::Duration;

/// Where the sandboxes are.
#[derive(Debug)]
pub(crate) enum Target {
    /// The sandboxes of this machine.
    Local,
    /// The sandboxes of an msb server.
    Remote(RemoteServer),
}

/// A server of msb, as it was named.
#[derive(Debug)]
pub(crate) struct RemoteServer {
    url: String,
    /// Whether the environment named it, so that a hint can say so.
    from_environment: bool,
}

/// How the flag is called, here and among what clap found.
pub(crate) const FLAG: &str = "remote";

/// The flag, for verbs.
pub(crate) fn flag() -> Arg {
    Arg::new(FLAG)
        .long(FLAG)
        .value_name("URL")
        .help("Ask the msb server there instead of this machine")
}

impl Target {
    /// What the flag says, or else the environment.
    pub(crate) fn chosen(flag: Option<String>) -> Self {
        let from_environment = flag.is_none();
        let url = flag.or_else(|| std::env::var(env::REMOTE).ok());
        match url.filter(|url| !url.is_empty()) {
            Some(url) => Self::Remote(RemoteServer { url, from_environment }),
            None => Self::Local,
        }
    }

    /// The Operations; on this machine with what dead workers left cleaned up.
    pub(crate) fn api(&self) -> Result<Arc<dyn Api>> {
        match self {
            Self::Local => Ok(Arc::new(engine()?)),
            Self::Remote(server) => server.api(),
        }
    }

    /// The Operations without cleaning up first, for verbs that must be quick.
    pub(crate) fn bare_api(&self) -> Result<Arc<dyn Api>> {
        match self {
            Self::Local => Ok(Arc::new(bare_engine()?)),
            Self::Remote(server) => server.api(),
        }
    }

    /// How often a verb that follows something polls: often enough to feel immediate, and seldom
    /// enough for a network.
    pub(crate) fn interval(&self) -> Duration {
        match self {
            Self::Local => Duration::from_millis(50),
            Self::Remote(_) => Duration::from_millis(250),
        }
    }
}

impl RemoteServer {
    /// The URL of the server as it was named.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whether `MSB_REMOTE` named it, and not a flag.
    pub(crate) fn is_from_environment(&self) -> bool {
        self.from_environment
    }

    /// The Operations, as the server does them.
    pub(crate) fn api(&self) -> Result<Arc<dyn Api>> {
        Ok(Arc::new(Client::connect(&self.url, std::env::var(env::API_KEY).ok())?))
    }

    /// Says that something can only be done on the machine of the server.
    pub(crate) fn refuse(&self, what: &str) -> Error {
        let hint = match self.from_environment {
            true => format!("run it where the server is; `{}` is set here", env::REMOTE),
            false => "run it where the server is".to_owned(),
        };
        Error::unsupported(format!("{what} cannot be done through a server"))
            .cause(format!("the server is `{}`", self.url))
            .hint(hint)
    }
}

/// The sandboxes of this machine, with what dead workers left cleaned up.
pub(crate) fn engine() -> Result<Engine> {
    let engine = bare_engine()?;
    tidy_up(&engine);
    Ok(engine)
}

/// Cleans up behind workers that were killed, and says so.
pub(crate) fn tidy_up(engine: &Engine) {
    for note in engine.repair() {
        output::note(note);
    }
}

/// The sandboxes of this machine without cleaning up first, for verbs that must be quick.
pub(crate) fn bare_engine() -> Result<Engine> {
    Engine::open(launcher())
}

/// Whether a sandbox runs; one that is not there any more does not.
pub(crate) fn runs(api: &dyn Api, name: &Name) -> bool {
    api.sandbox_summary(name).is_ok_and(|sandbox| is_up(sandbox.status))
}

/// Whether its worker lives.
pub(crate) fn is_up(status: Status) -> bool {
    matches!(status, Status::Running | Status::Paused | Status::Draining)
}
