//! What MCP clients do, through the real binary.

mod core;
mod http;
mod microsandbox;
mod opensandbox;
mod races;
mod server;
