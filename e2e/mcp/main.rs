//! What MCP clients do, through the real binary.

mod audit;
mod browser;
mod ceiling;
mod core;
mod http;
mod load;
mod microsandbox;
mod opensandbox;
mod overload;
mod races;
mod remote;
mod rest;
mod sandbox_mcp;
mod server;
