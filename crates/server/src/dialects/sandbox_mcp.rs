//! The dialect of sandbox-mcp: 35 tools, sandboxes by names that are made when they are first used.
//!
//! A sandbox of this dialect has the name that its client gives it and a label that says whose it is; one of
//! that name that somebody else made is left alone. Everything about it is kept with it, with its
//! volumes, or in the state directory (`ledger`); what is kept here is its shell and who has used it
//! lately. Failures are ordinary text that begins with `Error`, as clients of that server expect.

mod asked;
mod background;
mod base;
mod begin;
mod commands;
mod environment;
mod family;
mod files;
mod git;
mod idle;
mod install;
mod ledger;
mod live;
mod measure;
mod network;
mod overview;
mod ports;
mod settings;
mod shell;
mod snapshots;
mod stream;
mod syncs;
mod text;

#[cfg(test)]
mod tests;

pub use settings::{Profile as SandboxMcpProfile, Settings as SandboxMcpSettings};

use super::World;
use crate::dialect::{About, Answer, Call, Dialect, Tool};
use crate::listed;
use base::Base;
use ledger::Ledger;
use live::Lives;
use msb_api::Api;
use msb_spec::{Error, Result};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What a model should know before it calls anything.
const INSTRUCTIONS: &str = "Sandboxes are isolated machines for commands and files. Every tool works \
    in the sandbox `default` unless another name is given, and a sandbox is made when it is first used. \
    Run commands with exec and Python with python; start servers with bg and reach them with expose. \
    Work in /workspace: it and the package caches survive reset and destroy, everything else of a sandbox \
    does not. Sandboxes reach each other by their names. Those that nobody uses for half an hour end, but \
    not `default`. An answer that begins with `Error` says what went wrong.";

/// The dialect `sandbox-mcp`.
pub(super) struct SandboxMcp {
    surface: Arc<Surface>,
    tools: Vec<Tool>,
}

/// What the tools work on.
struct Surface {
    world: World,
    /// The sandboxes that were used here.
    lives: Lives,
    ledger: Ledger,
    /// What new sandboxes start from.
    base: Base,
}

impl SandboxMcp {
    pub(super) fn new(world: World) -> Self {
        let ledger = Ledger::at(world.sandbox_mcp.state.clone());
        let surface = Arc::new(Surface {
            base: Base::new(world.sandbox_mcp.state.clone()),
            lives: Lives::default(),
            ledger,
            world,
        });
        idle::watch(&surface);
        Self { surface, tools: listed::tools(include_str!("sandbox_mcp/tools.json")) }
    }
}

impl Dialect for SandboxMcp {
    fn about(&self) -> About {
        About {
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

    fn call(&self, call: &Call) -> Answer {
        let Some(tool) = self.tools.iter().find(|tool| tool.name == call.tool) else {
            return Answer::failed(format!("Unknown tool: {}", call.tool));
        };
        let arguments = match asked::read(tool, &call.arguments) {
            Ok(arguments) => arguments,
            Err(wrong) => return Answer::failed(wrong),
        };
        let text = self.surface.call(call, arguments).unwrap_or_else(|error| told(&error));
        let structured = Some(json!({ "result": text }));
        Answer { text: vec![text], structured, ..Answer::default() }
    }
}

impl Surface {
    fn api(&self) -> &Arc<dyn Api> {
        &self.world.api
    }

    fn call(&self, call: &Call, arguments: Map<String, Value>) -> Result<String> {
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

/// Arguments that have the types of their schema.
fn typed<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| Error::invalid("the arguments cannot be read").cause(error))
}

/// A failure as this dialect tells it: text like any other.
fn told(error: &Error) -> String {
    format!("Error: {}", words(error))
}

/// Everything that is known about a failure.
fn words(error: &Error) -> String {
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
