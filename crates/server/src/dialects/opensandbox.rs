//! The dialect of OpenSandbox's MCP server: 19 tools; the server generates the ids of sandboxes.
//!
//! An id is the name of the sandbox, and its data is stored in labels. So the CLI sees it, and a
//! restart of the server loses nothing. The worker enforces the expiry. The server keeps in memory
//! only which caller has connected to which sandbox.

mod arguments;
mod command;
mod connections;
mod create;
mod encoding;
mod files;
mod health;
mod labels;
mod lifecycle;
mod metrics;
mod output;
mod search;
mod settings;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use settings::{OpenSandboxRemote, OpenSandboxSettings};

use super::{DialectName, ServerConfig};
use crate::dialect::{Caller, Dialect, DialectInfo, Tool, ToolCall, ToolResult};
use crate::{arguments as read_arguments, tool_list};
use arguments::SandboxTarget;
use connections::{ConnectedSandboxes, SandboxConnection};
use msb_api::Api;
use msb_spec::{Error, Kind, Name, Result};
use output::StatusOutput;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// What a model should know before its first call.
const INSTRUCTIONS: &str = "Sandboxes are isolated machines for commands and files. Make one with \
    sandbox_create and keep its sandbox_id: every other tool wants it. Run commands with command_run, \
    read and write files with the file tools, and end the sandbox with sandbox_kill. It expires by \
    itself: sandbox_renew gives it more time. A sandbox that was not made on this connection needs \
    sandbox_connect once, or connect_if_missing on each call. Paths are absolute.";

/// The dialect `opensandbox`, with its tools.
pub(super) struct OpenSandbox {
    state: Arc<OpenSandboxState>,
    tools: Vec<Tool>,
    /// Time limit of calls that neither create a sandbox nor run a command.
    limit: Option<Duration>,
}

/// The state that the tools share.
struct OpenSandboxState {
    config: ServerConfig,
    connections: Arc<ConnectedSandboxes>,
}

/// The result of a tool.
enum ToolOutput {
    /// One value and its text.
    One { text: String, value: Value },
    /// A list, with a text block for each value.
    Many(Vec<(String, Value)>),
}

impl ToolOutput {
    fn one(value: &impl Serialize) -> Result<Self> {
        let (text, value) = to_text_and_value(value)?;
        Ok(Self::One { text, value })
    }

    fn many(values: &[impl Serialize]) -> Result<Self> {
        values.iter().map(to_text_and_value).collect::<Result<_>>().map(Self::Many)
    }

    fn status(status: &'static str) -> Result<Self> {
        Self::one(&StatusOutput { status })
    }
}

/// A value as JSON text, in the order of its fields, and as a `Value`.
fn to_text_and_value(value: &impl Serialize) -> Result<(String, Value)> {
    let broken = |error: serde_json::Error| Error::host("cannot encode the result", error);
    Ok((
        serde_json::to_string_pretty(value).map_err(broken)?,
        serde_json::to_value(value).map_err(broken)?,
    ))
}

impl OpenSandbox {
    pub(super) fn new(config: ServerConfig, settings: &OpenSandboxSettings) -> Self {
        Self {
            state: Arc::new(OpenSandboxState { config, connections: Arc::default() }),
            tools: tool_list::tools(include_str!("opensandbox/tools.json")),
            limit: settings.request_timeout,
        }
    }
}

impl Dialect for OpenSandbox {
    fn about(&self) -> DialectInfo {
        DialectInfo {
            name: "OpenSandbox Sandbox",
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
        // These two have time limits of their own.
        let own_wait = matches!(call.tool.as_str(), "sandbox_create" | "command_run");
        match self.limit.filter(|_| !own_wait) {
            Some(limit) => self.call_with_limit(call, limit),
            None => self.state.call(call),
        }
    }
}

impl OpenSandbox {
    /// Returns an error when the time limit is over, and cancels the call.
    fn call_with_limit(&self, call: &ToolCall, limit: Duration) -> ToolResult {
        let (answer, answered) = mpsc::channel();
        let state = Arc::clone(&self.state);
        let copy = call.clone();
        std::thread::spawn(move || answer.send(state.call(&copy)));
        answered.recv_timeout(limit).unwrap_or_else(|_| {
            call.cancel.cancel();
            let text = format!("no result after {} s", limit.as_secs_f64());
            let error = Error::new(Kind::Timeout, text)
                .hint("the server was started with a `--request-timeout`; try again later");
            failure_result(&call.tool, &error)
        })
    }
}

impl OpenSandboxState {
    fn api(&self) -> &dyn Api {
        self.config.api.as_ref()
    }

    fn call(&self, call: &ToolCall) -> ToolResult {
        let config = self.config.for_call(DialectName::OpenSandbox, call);
        Self { config, connections: Arc::clone(&self.connections) }.answer(call)
    }

    fn answer(&self, call: &ToolCall) -> ToolResult {
        let result = match call.tool.as_str() {
            "sandbox_create" => with(call, |arguments| self.create(call, arguments)),
            "sandbox_connect" => with(call, |arguments| self.connect(call, &arguments)),
            "sandbox_kill" => with(call, |arguments| self.kill(&arguments)),
            "sandbox_get_info" => with(call, |arguments| self.get_info(&arguments)),
            "sandbox_list" => with(call, |arguments| self.list(call, arguments)),
            "sandbox_renew" => with(call, |arguments| self.renew(&arguments)),
            "sandbox_get_metrics" => with(call, |arguments| self.metrics(call, &arguments)),
            "sandbox_healthcheck" => with(call, |arguments| self.healthcheck(call, &arguments)),
            "sandbox_get_endpoint" => with(call, |arguments| self.endpoint(call, &arguments)),
            "command_run" => with(call, |arguments| self.run(call, arguments)),
            "command_interrupt" => with(call, |arguments| self.interrupt(call, &arguments)),
            "file_read" => with(call, |arguments| self.read(call, &arguments)),
            "file_write" => with(call, |arguments| self.write(call, &arguments)),
            "file_delete" => with(call, |arguments| self.delete(call, &arguments)),
            "file_search" => with(call, |arguments| self.search(call, &arguments)),
            "file_create_directories" => {
                with(call, |arguments| self.make_directories(call, &arguments))
            }
            "file_delete_directories" => {
                with(call, |arguments| self.delete_directories(call, &arguments))
            }
            "file_move" => with(call, |arguments| self.move_files(call, &arguments)),
            "file_replace_contents" => with(call, |arguments| self.replace(call, &arguments)),
            unknown => return ToolResult::failed(format!("Unknown tool: {unknown}")),
        };
        match result {
            Ok(ToolOutput::One { text, value }) => {
                ToolResult { text: vec![text], structured: Some(value), ..ToolResult::default() }
            }
            Ok(ToolOutput::Many(values)) => {
                let (text, values): (Vec<String>, Vec<Value>) = values.into_iter().unzip();
                let structured = Some(json!({ "result": values }));
                ToolResult { text, structured, ..ToolResult::default() }
            }
            Err(error) => failure_result(&call.tool, &error),
        }
    }

    /// The name of the sandbox with this id. The scope of the caller is enforced by the Api.
    fn find(&self, id: &str) -> Result<Name> {
        let unknown = || {
            Error::new(Kind::NotFound, format!("no sandbox `{}`", msb_spec::shown(id)))
                .hint("`sandbox_list` lists the sandboxes")
        };
        let name = Name::parse(id).map_err(|_| unknown())?;
        match self.api().sandbox_summary(&name) {
            Ok(_) => Ok(name),
            Err(error) if labels::is_gone(&error) => Err(unknown()),
            Err(error) => Err(error),
        }
    }

    /// The sandbox of a call, for tools that need a connection.
    fn connected(
        &self,
        call: &ToolCall,
        arguments: &impl SandboxTarget,
    ) -> Result<SandboxConnection> {
        if let Some(connection) = self.connections.get(&call.caller, arguments.id()) {
            return Ok(connection);
        }
        let name = self.find(arguments.id())?;
        if !arguments.connects() {
            return Err(Error::new(Kind::State, format!("sandbox `{name}` is not connected here"))
                .hint("call `sandbox_connect` once, or set `connect_if_missing`"));
        }
        self.remember(&call.caller, name)
    }

    /// Records that a caller uses a sandbox.
    fn remember(&self, caller: &Caller, name: Name) -> Result<SandboxConnection> {
        let user = self.api().sandbox_inspect(&name)?.plan.user;
        let connection = SandboxConnection { name, user };
        self.connections.insert(caller, connection.clone());
        Ok(connection)
    }
}

/// Deserializes the arguments and calls the tool.
fn with<T: DeserializeOwned>(
    call: &ToolCall,
    act: impl FnOnce(T) -> Result<ToolOutput>,
) -> Result<ToolOutput> {
    read_arguments::read(&call.arguments).map_err(Error::invalid).and_then(act)
}

/// A failure with its causes and hint.
fn failure_result(tool: &str, error: &Error) -> ToolResult {
    let mut text = format!("Error executing tool {tool}: {}", error.message());
    for cause in error.causes() {
        text.push_str("\n  cause: ");
        text.push_str(cause);
    }
    if let Some(hint) = error.advice() {
        text.push_str("\nhint: ");
        text.push_str(hint);
    }
    ToolResult::failed(text)
}

/// An error about an argument.
fn argument_error(argument: &str, what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("argument `{argument}`: {what}"))
}
