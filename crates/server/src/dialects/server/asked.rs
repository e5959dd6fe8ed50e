//! What clients of this dialect ask for, and in whose sandboxes.

use super::Server;
use crate::cancel::Cancel;
use crate::dialect::{Call, Who};
use crate::keys::Refused;
use crate::namespace::{Namespace, Reaches};
use crate::repl::Scope;
use crate::scoped::Scoped;
use msb_api::{Api, Watch};
use msb_spec::{Error, Name, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Who asks, and what they are told on the way.
pub(crate) struct Asked<'a> {
    pub(crate) who: &'a Who,
    pub(crate) cancel: &'a Cancel,
    pub(crate) watch: Arc<dyn Watch>,
}

impl<'a> Asked<'a> {
    pub(super) fn new(call: &'a Call) -> Self {
        Self { who: &call.who, cancel: &call.cancel, watch: Arc::clone(&call.watch) }
    }
}

/// A sandbox to be started.
#[derive(Debug, Deserialize)]
pub(crate) struct Start {
    pub(super) sandbox: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) config: Option<Config>,
}

/// How a new sandbox is made. Clients send null for what they do not mean.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Config {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) volumes: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ports: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) envs: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) depends_on: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) workdir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shell: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scripts: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exec: Option<String>,
}

/// A sandbox.
#[derive(Debug, Deserialize)]
pub(crate) struct Sandbox {
    pub(super) sandbox: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
}

/// Code for an interpreter.
#[derive(Debug, Deserialize)]
pub(crate) struct Code {
    pub(super) sandbox: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    pub(super) code: String,
    pub(super) language: String,
    #[serde(default)]
    pub(super) timeout: Option<Seconds>,
}

/// A command line.
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    pub(super) sandbox: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    pub(super) command: String,
    #[serde(default)]
    pub(super) args: Option<Vec<String>>,
    #[serde(default)]
    pub(super) timeout: Option<Seconds>,
}

/// Sandboxes to be measured.
#[derive(Debug, Deserialize)]
pub(crate) struct Measured {
    #[serde(default)]
    pub(super) sandbox: Option<String>,
    #[serde(default)]
    pub(super) namespace: Option<String>,
}

/// A time in seconds, whole or not, and more than none.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "f64")]
pub(crate) struct Seconds(pub(super) Duration);

impl TryFrom<f64> for Seconds {
    type Error = &'static str;
    fn try_from(seconds: f64) -> std::result::Result<Self, Self::Error> {
        match Duration::try_from_secs_f64(seconds) {
            Ok(duration) if !duration.is_zero() => Ok(Self(duration)),
            _ => Err("a timeout is a number of seconds above zero"),
        }
    }
}

/// Some sandboxes: all, or those of one namespace.
pub(super) struct View {
    pub(super) api: Arc<dyn Api>,
    /// The one that was chosen.
    pub(super) namespace: Option<Namespace>,
    /// Whose interpreters.
    pub(super) scope: Scope,
    /// Whether its names are those of the state directory, of every namespace.
    pub(super) is_unscoped: bool,
}

impl Server {
    /// The sandboxes that a caller means and may use.
    pub(super) fn view(&self, who: &Who, namespace: Option<&str>) -> Result<View> {
        let api = Arc::clone(&self.world.api);
        let chosen = namespace.map(Reaches::parse).transpose()?;
        let (chosen, paths) = match (&who.reaches, chosen) {
            (Reaches::One(own), Some(Reaches::One(chosen))) if *own != chosen => {
                return Err(Refused::Namespace.into());
            }
            (Reaches::One(_), Some(Reaches::All)) => return Err(Refused::Namespace.into()),
            (Reaches::One(own), _) => (own.clone(), Arc::new(self.world.paths.of_namespace(own))),
            (Reaches::All, Some(Reaches::One(chosen))) if !chosen.is_usual() => {
                (chosen, Arc::clone(&self.world.paths))
            }
            // What the CLI sees, so that both mean the same.
            (Reaches::All, chosen) => {
                let namespace = match chosen {
                    Some(Reaches::One(chosen)) => Some(chosen),
                    None | Some(Reaches::All) => None,
                };
                let scope = Scope::new(Reaches::All, namespace.clone());
                return Ok(View { api, namespace, scope, is_unscoped: true });
            }
        };
        let scope = Scope::new(who.reaches.clone(), Some(chosen.clone()));
        let api = Arc::new(Scoped::new(api, chosen.clone()).with_host_paths(paths));
        Ok(View { api, namespace: Some(chosen), scope, is_unscoped: false })
    }
}

/// Longest name of a sandbox.
const LONGEST: usize = 63;

/// A name, as that server takes it; a dot is allowed too, because the CLI allows it.
pub(super) fn sandbox_name(text: &str) -> Result<Name> {
    let letter = |c: char| c.is_ascii_alphanumeric();
    let part = |c: char| letter(c) || matches!(c, '-' | '_' | '.');
    let wrong = match text {
        "" => "Sandbox name cannot be empty",
        _ if text.len() > LONGEST => "Sandbox name cannot exceed 63 characters",
        _ if !text.chars().all(part) => {
            "Sandbox name can only contain alphanumeric characters, hyphens, or underscores"
        }
        _ if !text.starts_with(letter) => "Sandbox name must start with an alphanumeric character",
        _ => return Name::parse(text),
    };
    Err(Error::invalid(wrong))
}
