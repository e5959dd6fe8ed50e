//! The server, used by third-party clients: packages of npm and PyPI, by their names
//! and versions.
//!
//! They judge how MCP is spoken, which does not depend on the user: so they run once.

mod conformance;
mod inspector;
mod installed;
mod metrics;
mod openapi;
mod python;
mod servers;
