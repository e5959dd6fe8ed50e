//! The dialect of sandbox-mcp: 35 tools; a sandbox is created when its name is first used.
//!
//! A sandbox of this dialect has the name that the client gives it, and a label that marks it. A
//! sandbox of that name without the label is never touched. Its data is stored in its volumes and
//! in
//! the state directory (`ledger`); only its shell and the time of its last use are kept in memory.
//! Failures are ordinary text that starts with `Error`, as clients of that server expect.

mod active;
mod background;
mod base_image;
mod children;
mod commands;
mod environment;
mod files;
mod format;
mod git;
mod idle;
mod install;
mod lifecycle;
mod network;
mod ports;
mod records;
mod settings;
mod shell;
mod snapshots;
mod stats;
mod status;
mod stream;
mod syncs;
mod validation;

#[cfg(test)]
mod tests;

pub use settings::{SandboxMcpProfile, SandboxMcpSettings};

use super::{DialectName, ServerConfig};
use crate::dialect::{Dialect, DialectInfo, Tool, ToolCall, ToolResult};
use crate::tool_list;
use active::ActiveSandboxes;
use base_image::BaseImage;
use msb_api::Api;
use msb_spec::{Error, Result};
use records::SandboxRecords;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What a model should know before its first call.
const INSTRUCTIONS: &str = "Sandboxes are isolated machines for commands and files. Every tool works \
    in the sandbox `default` unless another name is given, and a sandbox is created when it is first used. \
    Run commands with exec and Python with python; start servers with bg and reach them with expose. \
    Work in /workspace: it and the package caches survive reset and destroy, everything else of a sandbox \
    does not. Sandboxes reach each other by their names. Those that are unused for half an hour are removed, but \
    not `default`. A result that begins with `Error` says what went wrong.";

/// The dialect `sandbox-mcp`, with its list of tools.
pub(super) struct SandboxMcp {
    state: Arc<SandboxMcpState>,
    tools: Vec<Tool>,
}

/// The state that the tools share.
#[derive(Clone)]
struct SandboxMcpState {
    config: ServerConfig,
    /// The sandboxes that this server has used.
    active: Arc<ActiveSandboxes>,
    records: Arc<SandboxRecords>,
    /// Chooses the image of new sandboxes.
    base: Arc<BaseImage>,
}

impl SandboxMcp {
    pub(super) fn new(config: ServerConfig) -> Self {
        let directory = &config.sandbox_mcp.state;
        let state = Arc::new(SandboxMcpState {
            base: Arc::new(BaseImage::new(directory.clone())),
            active: Arc::default(),
            records: Arc::new(SandboxRecords::at(directory.clone())),
            config,
        });
        idle::watch(&state);
        Self { state, tools: tool_list::tools(include_str!("sandbox_mcp/tools.json")) }
    }
}

impl Dialect for SandboxMcp {
    fn about(&self) -> DialectInfo {
        DialectInfo {
            name: "sandbox",
            title: None,
            instructions: Some(INSTRUCTIONS),
            resources: true,
            prompts: true,
        }
    }

    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn call(&self, call: &ToolCall) -> ToolResult {
        let Some(tool) = self.tools.iter().find(|tool| tool.name == call.tool) else {
            return ToolResult::failed(format!("Unknown tool: {}", call.tool));
        };
        let arguments = match validation::read(tool, &call.arguments) {
            Ok(arguments) => arguments,
            Err(wrong) => return ToolResult::failed(wrong),
        };
        let config = self.state.config.for_call(DialectName::SandboxMcp, call);
        let state = SandboxMcpState { config, ..(*self.state).clone() };
        let text = state.call(call, arguments).unwrap_or_else(|error| failure_text(&error));
        let structured = Some(json!({ "result": text }));
        ToolResult { text: vec![text], structured, ..ToolResult::default() }
    }
}

impl SandboxMcpState {
    fn api(&self) -> &Arc<dyn Api> {
        &self.config.api
    }

    fn call(&self, call: &ToolCall, arguments: Map<String, Value>) -> Result<String> {
        let given = arguments;
        match call.tool.as_str() {
            "exec" => self.exec(call, &typed(given)?),
            "python" => self.python(call, &typed(given)?),
            "write_file" => self.write_file(call, &typed(given)?),
            "read_file" => self.read_file(call, &typed(given)?),
            "batch_write" => self.batch_write(call, &typed(given)?),
            "install" => self.install(call, &typed(given)?),
            "env" => self.env(call, &typed(given)?),
            "bg" => self.bg(call, &typed(given)?),
            "logs" => self.logs(call, &typed(given)?),
            "kill" => self.kill(call, &typed(given)?),
            "status" => self.status(),
            "health" => self.health(call),
            "stats" => self.stats(call, &typed(given)?),
            "reset" => self.reset(call, &typed(given)?),
            "list_all" => self.list_all(),
            "destroy" => self.destroy(&typed(given)?),
            "clone" => self.clone_sandbox(call, &typed(given)?),
            "history" => self.history(&typed(given)?),
            "upload" => self.upload(call, &typed(given)?),
            "download" => self.download(call, &typed(given)?),
            "git_clone" => self.git_clone(call, &typed(given)?),
            "sync_start" => self.sync_start(call, &typed(given)?),
            "sync_stop" => self.sync_stop(&typed(given)?),
            "snapshot" => self.snapshot(call, &typed(given)?),
            "restore" => self.restore(call, &typed(given)?),
            "list_snapshots" => self.list_snapshots(),
            "delete_snapshot" => self.delete_snapshot(&typed(given)?),
            "build_image" => self.build_image(call, &typed(given)?),
            "images" => self.images(),
            "expose" => self.expose(call, &typed(given)?),
            "unexpose" => self.unexpose(&typed(given)?),
            "network_info" => self.network_info(call),
            "spawn" => self.spawn(call, &typed(given)?),
            "children" => self.children(&typed(given)?),
            "destroy_child" => self.destroy_child(&typed(given)?),
            other => Err(Error::invalid(format!("no such tool: `{other}`"))),
        }
    }
}

/// Deserializes arguments that have been checked against the schema.
fn typed<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| Error::invalid("invalid arguments").cause(error))
}

/// A failure in the format of this dialect: ordinary text.
fn failure_text(error: &Error) -> String {
    format!("Error: {}", full_text(error))
}

/// Message, causes and hint of an error, as text.
fn full_text(error: &Error) -> String {
    let mut text = error.message().to_owned();
    for cause in error.causes() {
        text.push_str(": ");
        text.push_str(cause);
    }
    if let Some(hint) = error.advice() {
        text.push_str("\nhint: ");
        text.push_str(hint);
    }
    text
}
