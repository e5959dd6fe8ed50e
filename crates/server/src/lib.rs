//! Serves sandboxes to MCP clients, in several dialects, and to HTTP clients.
//!
//! A dialect is one set of MCP tools. It translates tool calls into Operations of the
//! [`msb_api::Api`] and back. It makes no decisions of its own: see [`Dialect`].

mod arguments;
mod cancel;
mod content;
mod dialect;
mod dialects;
mod exec;
#[cfg(feature = "fixture")]
pub mod fixture;
mod http;
mod http_state;
mod keys;
mod mcp;
mod mcp_sessions;
mod namespace;
mod paths;
mod quota;
#[cfg(any(test, feature = "fixture"))]
#[cfg_attr(not(test), expect(dead_code, reason = "the fixture calls none of its Operations"))]
mod recorder;
mod repl;
mod rest;
mod rpc;
mod schema;
mod scoped_api;
mod session;
mod state_dir;
mod tool_filter;
mod tool_list;

pub use cancel::{Cancel, CancelHook};
pub use content::{ContentPart, ResourceBody, ResourceContent};
pub use dialect::{
    Caller, Dialect, DialectInfo, McpClient, NoMcpClient, PromptInfo, ResourceInfo,
    ResourceTemplate, Tool, ToolCall, ToolHints, ToolResult,
};
pub use dialects::{
    DialectName, MicrosandboxSettings, OpenSandboxRemote, OpenSandboxSettings, SandboxMcpProfile,
    SandboxMcpSettings, Server, ServerConfig,
};
pub use http::tls::{SelfSigned, fingerprint};
pub use http::{RequestLog, RequestLogFormat, ServedRoutes, serve_http};
pub use http_state::{AuthMode, HttpState};
pub use keys::{ApiKey, KeyError, Keys, NewKey, USUAL_EXPIRY};
pub use mcp::serve_stdio;
pub use namespace::{Namespace, Scope};
pub use paths::HostPaths;
pub use quota::MOST_CALLS;
pub use repl::{
    CodeEnd, CodeRequest, CodeResult, Interpreters, InterruptReason, Language, OutputLine,
    OutputStream, ReplScope,
};
pub use rest::document as openapi;
pub use rpc::{Reply, health, refused, rpc};
pub use scoped_api::ScopedApi;
pub use session::{OwnedSandbox, SandboxOwner, Session};
pub use tool_filter::ToolFilter;
