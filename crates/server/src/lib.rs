//! Serves sandboxes to whoever speaks MCP, in several dialects.
//!
//! A dialect is one set of tools. It translates what a client asks into Operations of the
//! [`msb_api::Api`] and back, and decides nothing: see [`Dialect`].

mod arguments;
mod asking;
mod cancel;
mod content;
mod dialect;
mod dialects;
mod exec;
#[cfg(any(test, feature = "fixture"))]
#[cfg_attr(not(test), expect(dead_code, reason = "the fixture asks it for nothing"))]
mod fake;
#[cfg(feature = "fixture")]
pub mod fixture;
mod http;
mod keys;
mod listed;
mod mcp;
mod namespace;
mod paths;
mod repl;
mod rest;
mod room;
mod rpc;
mod schema;
mod scoped;
mod selected;
mod sessions;
mod site;
mod state_dir;

pub use cancel::{Cancel, Hook};
pub use content::{Block, Body, Content};
pub use dialect::{
    About, Answer, Call, Client, Dialect, Hints, Prompt, Resource, Template, Tool, Unasked, Who,
};
pub use dialects::{
    MicrosandboxSettings, Named, OpenSandboxRemote, OpenSandboxSettings, SandboxMcpProfile,
    SandboxMcpSettings, Server, World,
};
pub use http::{Shown, serve_http};
pub use keys::{Key, Keys, Made, Refused, USUAL_EXPIRY};
pub use mcp::serve_stdio;
pub use namespace::{Namespace, Reaches};
pub use paths::HostPaths;
pub use repl::{Ask, Ended, Language, Line, Ran, Repls, Scope, Stream, Why};
pub use rest::document as openapi;
pub use room::MOST_CALLS;
pub use rpc::{Reply, health, refused, rpc};
pub use scoped::Scoped;
pub use selected::Selected;
pub use site::{Door, Site};
