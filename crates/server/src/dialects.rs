//! The dialects there are.

mod core;
mod microsandbox;
mod opensandbox;
mod sandbox_mcp;
pub(crate) mod server;

pub use opensandbox::{Remote as OpenSandboxRemote, Settings as OpenSandboxSettings};
pub use sandbox_mcp::{SandboxMcpProfile, SandboxMcpSettings};
pub use server::Server;

use crate::asking::Asking;
use crate::dialect::Dialect;
use crate::paths::HostPaths;
pub use microsandbox::Settings as MicrosandboxSettings;
use msb_api::Api;
use msb_spec::{Error, Result, Spec};
use std::sync::Arc;

/// What every dialect works on.
#[derive(Clone)]
pub struct World {
    /// Where sandboxes are.
    pub api: Arc<dyn Api>,
    /// Which files of this host clients may name.
    pub paths: Arc<HostPaths>,
    /// What a sandbox is where its client says nothing else.
    pub defaults: Spec,
    /// How the dialect `microsandbox` is set up.
    pub microsandbox: MicrosandboxSettings,
    /// How the dialect `opensandbox` is.
    pub opensandbox: OpenSandboxSettings,
    /// How the dialect `sandbox-mcp` is.
    pub sandbox_mcp: SandboxMcpSettings,
}

impl World {
    /// One whose dialects are set up as is usual.
    pub fn new(api: Arc<dyn Api>, paths: Arc<HostPaths>, defaults: Spec) -> Self {
        let microsandbox = MicrosandboxSettings::default();
        let opensandbox = OpenSandboxSettings::default();
        let sandbox_mcp = SandboxMcpSettings::default();
        Self { api, paths, defaults, microsandbox, opensandbox, sandbox_mcp }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("paths", &self.paths).finish_non_exhaustive()
    }
}

/// A dialect by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Named {
    /// Ours: few tools, small in a model's context.
    Core,
    /// The tools of microsandbox-mcp.
    Microsandbox,
    /// That of the microsandbox server: five tools, and interpreters that keep their state.
    Server,
    /// That of OpenSandbox's MCP server.
    OpenSandbox,
    /// That of sandbox-mcp.
    SandboxMcp,
}

impl Named {
    /// All of them.
    pub const ALL: &[Self] =
        &[Self::Core, Self::Microsandbox, Self::Server, Self::OpenSandbox, Self::SandboxMcp];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Microsandbox => "microsandbox",
            Self::Server => "server",
            Self::OpenSandbox => "opensandbox",
            Self::SandboxMcp => "sandbox-mcp",
        }
    }

    /// One that is ready to be served.
    pub fn dialect(self, world: World) -> Arc<dyn Dialect> {
        let dialect: Arc<dyn Dialect> = match self {
            Self::Core => Arc::new(core::Core::new(world)),
            Self::Microsandbox => {
                let settings = world.microsandbox.clone();
                Arc::new(microsandbox::Microsandbox::new(world, settings))
            }
            Self::Server => Arc::new(Server::new(world)),
            Self::OpenSandbox => {
                let settings = world.opensandbox.clone();
                Arc::new(opensandbox::OpenSandbox::new(world, &settings))
            }
            Self::SandboxMcp => Arc::new(sandbox_mcp::SandboxMcp::new(world)),
        };
        Arc::new(Asking::new(dialect, self))
    }
}

impl std::str::FromStr for Named {
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
