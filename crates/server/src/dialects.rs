//! The list of dialects, and the configuration that they share.

mod core;
mod microsandbox;
mod opensandbox;
mod sandbox_mcp;
pub(crate) mod server;

pub use opensandbox::{OpenSandboxRemote, OpenSandboxSettings};
pub use sandbox_mcp::{SandboxMcpProfile, SandboxMcpSettings};
pub use server::Server;

use crate::dialect::{Dialect, ToolCall};
use crate::paths::HostPaths;
pub use microsandbox::MicrosandboxSettings;
use msb_api::Api;
use msb_spec::{Error, Result, Spec};
use std::sync::Arc;

/// The Api and the settings that every dialect gets.
#[derive(Clone)]
pub struct ServerConfig {
    /// The Operations on sandboxes.
    pub api: Arc<dyn Api>,
    /// The files of this host that clients may name.
    pub paths: Arc<HostPaths>,
    /// Defaults for what a client does not specify about a new sandbox.
    pub defaults: Spec,
    /// Settings of the dialect `microsandbox`.
    pub microsandbox: MicrosandboxSettings,
    /// Settings of the dialect `opensandbox`.
    pub opensandbox: OpenSandboxSettings,
    /// Settings of the dialect `sandbox-mcp`.
    pub sandbox_mcp: SandboxMcpSettings,
}

impl ServerConfig {
    /// A configuration with the default settings of each dialect.
    pub fn new(api: Arc<dyn Api>, paths: Arc<HostPaths>, defaults: Spec) -> Self {
        let microsandbox = MicrosandboxSettings::default();
        let opensandbox = OpenSandboxSettings::default();
        let sandbox_mcp = SandboxMcpSettings::default();
        Self { api, paths, defaults, microsandbox, opensandbox, sandbox_mcp }
    }

    /// The configuration for one call of a dialect: the event log records its caller.
    pub(crate) fn for_call(&self, dialect: DialectName, call: &ToolCall) -> Self {
        Self { api: self.api.with_origin(call.origin(dialect)), ..self.clone() }
    }
}

impl std::fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("paths", &self.paths).finish_non_exhaustive()
    }
}

/// The name of a dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DialectName {
    /// Our own dialect: few tools, small in a model's context.
    Core,
    /// The tools of microsandbox-mcp.
    Microsandbox,
    /// The tools of the microsandbox server: five, with interpreters that keep their state.
    Server,
    /// The tools of OpenSandbox's MCP server.
    OpenSandbox,
    /// The tools of sandbox-mcp, a server for Docker.
    SandboxMcp,
}

impl DialectName {
    /// All dialects, in the order in which they are listed.
    pub const ALL: &[Self] =
        &[Self::Core, Self::Microsandbox, Self::Server, Self::OpenSandbox, Self::SandboxMcp];

    /// The name, as it is written in flags and URLs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Microsandbox => "microsandbox",
            Self::Server => "server",
            Self::OpenSandbox => "opensandbox",
            Self::SandboxMcp => "sandbox-mcp",
        }
    }

    /// Creates an instance of the dialect.
    pub fn dialect(self, config: ServerConfig) -> Arc<dyn Dialect> {
        match self {
            Self::Core => Arc::new(core::Core::new(config)),
            Self::Microsandbox => {
                let settings = config.microsandbox.clone();
                Arc::new(microsandbox::Microsandbox::new(config, settings))
            }
            Self::Server => Arc::new(Server::new(config)),
            Self::OpenSandbox => {
                let settings = config.opensandbox.clone();
                Arc::new(opensandbox::OpenSandbox::new(config, &settings))
            }
            Self::SandboxMcp => Arc::new(sandbox_mcp::SandboxMcp::new(config)),
        }
    }
}

impl std::str::FromStr for DialectName {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|dialect| dialect.as_str() == text);
        found.copied().ok_or_else(|| {
            let all: Vec<String> =
                Self::ALL.iter().map(|it| format!("`{}`", it.as_str())).collect();
            Error::invalid(format!("no dialect `{text}`"))
                .hint(format!("there are {}", all.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Caller;
    use crate::recorder::FakeSandboxes;
    use msb_spec::CallOrigin;

    #[test]
    fn every_dialect_acts_for_its_caller() {
        for name in DialectName::ALL {
            let tool = match name {
                DialectName::Server => "sandbox_get_metrics",
                DialectName::SandboxMcp => "list_all",
                DialectName::Core | DialectName::Microsandbox | DialectName::OpenSandbox => {
                    "sandbox_list"
                }
            };
            let fake = FakeSandboxes::new(&["web"]);
            let paths = Arc::new(HostPaths::below([], "the test"));
            let dialect = name.dialect(ServerConfig::new(fake.api(), paths, Spec::default()));
            let caller = Caller { key: Some("0123".to_owned()), ..Caller::default() };
            let call = ToolCall { caller, ..ToolCall::new(tool, serde_json::Map::new()) };
            let answer = dialect.call(&call);
            let origins: Vec<_> = fake.calls().into_iter().map(|call| call.origin).collect();
            let origin = CallOrigin::mcp(name.as_str()).with_key("0123");
            assert_eq!(origins.first(), Some(&Some(origin.clone())), "{answer:?}");
            assert!(origins.iter().all(|it| it.as_ref() == Some(&origin)), "{name:?}: {origins:?}");
        }
    }
}
