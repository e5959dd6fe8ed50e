//! The dialects there are.

mod core;
mod microsandbox;
mod opensandbox;
pub(crate) mod server;

pub use opensandbox::{Remote as OpenSandboxRemote, Settings as OpenSandboxSettings};
pub use server::Server;

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
}

/// The dialect `microsandbox` with settings of its own; [`Named::dialect`] has the usual ones.
pub fn microsandbox(world: World, settings: MicrosandboxSettings) -> Arc<dyn Dialect> {
    Arc::new(microsandbox::Microsandbox::new(world, settings))
}

impl Named {
    /// All of them.
    pub const ALL: &[Self] =
        &[Self::Core, Self::Microsandbox, Self::Server, Self::OpenSandbox];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::OpenSandbox => "opensandbox",
            Self::Server => "server",
            Self::Microsandbox => "microsandbox",
        }
    }

    /// One that is ready to be served.
    pub fn dialect(self, world: World) -> Arc<dyn Dialect> {
        match self {
            Self::Core => Arc::new(core::Core::new(world)),
            Self::OpenSandbox => opensandbox(world, &OpenSandboxSettings::default()),
            Self::Server => Arc::new(Server::new(world)),
            Self::Microsandbox => microsandbox(world, MicrosandboxSettings::default()),
        }
    }
}

/// The dialect of OpenSandbox, set up as its flags say. Where its sandboxes are is the world's matter:
/// see [`OpenSandboxSettings::remote`].
pub fn opensandbox(world: World, settings: &OpenSandboxSettings) -> Arc<dyn Dialect> {
    Arc::new(opensandbox::OpenSandbox::new(world, settings))
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
