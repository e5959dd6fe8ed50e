//! Arguments of the tools, and the sandboxes that a caller may use.

use super::Server;
use crate::cancel::Cancel;
use crate::dialect::{Caller, ToolCall};
use crate::dialects::DialectName;
use crate::keys::KeyError;
use crate::namespace::{Namespace, Scope};
use crate::repl::ReplScope;
use crate::scoped_api::ScopedApi;
use msb_api::{Api, Watch};
use msb_spec::{CallOrigin, Error, Name, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The caller of a request, with its progress and cancellation.
pub(crate) struct CallContext<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) cancel: &'a Cancel,
    pub(crate) watch: Arc<dyn Watch>,
    /// The origin of the request, for the event log.
    pub(crate) origin: CallOrigin,
}

impl<'a> CallContext<'a> {
    pub(super) fn new(call: &'a ToolCall) -> Self {
        let (caller, cancel, watch) = (&call.caller, &call.cancel, Arc::clone(&call.watch));
        Self { caller, cancel, watch, origin: call.origin(DialectName::Server) }
    }
}

/// Arguments of the tool `sandbox_start`.
#[derive(Debug, Deserialize)]
pub(crate) struct StartArgs {
    pub(super) sandbox: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) config: Option<SandboxConfig>,
}

/// Settings of a new sandbox. Clients send null for those that they leave out.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SandboxConfig {
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

/// Arguments of the tool `sandbox_stop`.
#[derive(Debug, Deserialize)]
pub(crate) struct StopArgs {
    pub(super) sandbox: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
}

/// Arguments of the tool `sandbox_run_code`.
#[derive(Debug, Deserialize)]
pub(crate) struct RunCodeArgs {
    pub(super) sandbox: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    pub(super) code: String,
    pub(super) language: String,
    #[serde(default)]
    pub(super) timeout: Option<TimeoutSeconds>,
}

/// Arguments of the tool `sandbox_run_command`.
#[derive(Debug, Deserialize)]
pub(crate) struct RunCommandArgs {
    pub(super) sandbox: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    pub(super) command: String,
    #[serde(default)]
    pub(super) args: Option<Vec<String>>,
    #[serde(default)]
    pub(super) timeout: Option<TimeoutSeconds>,
}

/// Arguments of the tool `sandbox_get_metrics`.
#[derive(Debug, Deserialize)]
pub(crate) struct MetricsArgs {
    #[serde(default)]
    pub(super) sandbox: Option<String>,
    #[serde(default)]
    pub(super) namespace: Option<String>,
}

/// A time limit in seconds, with a fraction, greater than zero.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "f64")]
pub(crate) struct TimeoutSeconds(pub(super) Duration);

impl TryFrom<f64> for TimeoutSeconds {
    type Error = &'static str;
    fn try_from(seconds: f64) -> std::result::Result<Self, Self::Error> {
        match Duration::try_from_secs_f64(seconds) {
            Ok(duration) if !duration.is_zero() => Ok(Self(duration)),
            _ => Err("a timeout is a number of seconds greater than zero"),
        }
    }
}

/// The sandboxes that a call can use: all, or those of one namespace.
pub(super) struct SandboxView {
    pub(super) api: Arc<dyn Api>,
    /// The namespace that the caller has chosen.
    pub(super) namespace: Option<Namespace>,
    /// The scope of the interpreters.
    pub(super) scope: ReplScope,
    /// Whether its names are stored names, of all namespaces.
    pub(super) is_unscoped: bool,
}

impl Server {
    /// The sandboxes of a namespace, if the caller may use it.
    pub(super) fn view(
        &self,
        CallContext { caller, origin, .. }: &CallContext<'_>,
        namespace: Option<&str>,
    ) -> Result<SandboxView> {
        let api = self.config.api.with_origin(origin.clone());
        let chosen = namespace.map(Scope::parse).transpose()?;
        let (chosen, paths) = match (&caller.scope, chosen) {
            (Scope::One(own), Some(Scope::One(chosen))) if *own != chosen => {
                return Err(KeyError::Namespace.into());
            }
            (Scope::One(_), Some(Scope::All)) => return Err(KeyError::Namespace.into()),
            (Scope::One(own), _) => (own.clone(), Arc::new(self.config.paths.of_namespace(own))),
            (Scope::All, Some(Scope::One(chosen))) if !chosen.is_default() => {
                (chosen, Arc::clone(&self.config.paths))
            }
            // The names of the CLI, so that both mean the same sandbox.
            (Scope::All, chosen) => {
                let namespace = match chosen {
                    Some(Scope::One(chosen)) => Some(chosen),
                    None | Some(Scope::All) => None,
                };
                let scope = ReplScope::new(Scope::All, namespace.clone());
                return Ok(SandboxView { api, namespace, scope, is_unscoped: true });
            }
        };
        let scope = ReplScope::new(caller.scope.clone(), Some(chosen.clone()));
        let api = Arc::new(ScopedApi::new(api, chosen.clone()).with_host_paths(paths));
        Ok(SandboxView { api, namespace: Some(chosen), scope, is_unscoped: false })
    }
}

/// Longest sandbox name in bytes.
const LONGEST: usize = 63;

/// A sandbox name by the rules of that server; a dot is allowed too, because the CLI allows it.
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
