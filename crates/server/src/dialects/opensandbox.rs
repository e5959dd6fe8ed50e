//! The dialect of OpenSandbox's MCP server: 19 tools, sandboxes by ids that the server makes.
//!
//! An id is the name of the sandbox, and everything about it is kept with the sandbox: the CLI sees it,
//! and a restart of the server loses nothing. When it ends is enforced by its worker. What is kept
//! here is only who has connected to which.

mod arguments;
mod command;
mod create;
mod encoding;
mod files;
mod health;
mod known;
mod look;
mod measure;
mod names;
mod search;
mod settings;
mod shown;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use settings::{Remote, Settings};

use super::World;
use crate::dialect::{About, Answer, Call, Dialect, Tool, Who};
use crate::{arguments as read_arguments, listed};
use arguments::Located;
use known::{Known, Used};
use msb_api::{Api, asked_by};
use msb_spec::{Error, Kind, Name, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shown::Status;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// What a model should know before it calls anything.
const INSTRUCTIONS: &str = "Sandboxes are isolated machines for commands and files. Make one with \
    sandbox_create and keep its sandbox_id: every other tool wants it. Run commands with command_run, \
    read and write files with the file tools, and end the sandbox with sandbox_kill. It expires by \
    itself: sandbox_renew gives it more time. A sandbox that was not made on this connection needs \
    sandbox_connect once, or connect_if_missing on each call. Paths are absolute.";

/// The dialect `opensandbox`.
pub(super) struct OpenSandbox {
    surface: Arc<Surface>,
    tools: Vec<Tool>,
    /// How long a call may take that neither makes a sandbox nor runs a command.
    limit: Option<Duration>,
}

/// What the tools work on.
struct Surface {
    world: World,
    known: Known,
}

/// What a tool has to say.
enum Said {
    /// One thing.
    One { text: String, value: Value },
    /// A list, with a text for each.
    Many(Vec<(String, Value)>),
}

impl Said {
    fn one(value: &impl Serialize) -> Result<Self> {
        let (text, value) = written(value)?;
        Ok(Self::One { text, value })
    }

    fn many(values: &[impl Serialize]) -> Result<Self> {
        values.iter().map(written).collect::<Result<_>>().map(Self::Many)
    }

    fn status(status: &'static str) -> Result<Self> {
        Self::one(&Status { status })
    }
}

/// As text, in the order of its fields, and as a value.
fn written(value: &impl Serialize) -> Result<(String, Value)> {
    let broken = |error: serde_json::Error| Error::host("the answer cannot be written", error);
    Ok((
        serde_json::to_string_pretty(value).map_err(broken)?,
        serde_json::to_value(value).map_err(broken)?,
    ))
}

impl OpenSandbox {
    pub(super) fn new(world: World, settings: &Settings) -> Self {
        Self {
            surface: Arc::new(Surface { world, known: Known::default() }),
            tools: listed::tools(include_str!("opensandbox/tools.json")),
            limit: settings.request_timeout,
        }
    }
}

impl Dialect for OpenSandbox {
    fn about(&self) -> About {
        About {
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

    fn call(&self, call: &Call) -> Answer {
        // Making a sandbox and running a command have waits of their own.
        let own_wait = matches!(call.tool.as_str(), "sandbox_create" | "command_run");
        match self.limit.filter(|_| !own_wait) {
            Some(limit) => self.call_within(call, limit),
            None => self.surface.call(call),
        }
    }
}

impl OpenSandbox {
    /// Gives up on a call that takes too long; what it has begun is told to stop.
    fn call_within(&self, call: &Call, limit: Duration) -> Answer {
        let (answer, answered) = mpsc::channel();
        let surface = Arc::clone(&self.surface);
        let copy = call.clone();
        let asker = msb_api::asker();
        std::thread::spawn(move || answer.send(asked_by(asker, || surface.call(&copy))));
        answered.recv_timeout(limit).unwrap_or_else(|_| {
            call.cancel.cancel();
            let text = format!("there was no answer after {} s", limit.as_secs_f64());
            let error = Error::new(Kind::Timeout, text)
                .hint("the server was started with a `--request-timeout`; try again later");
            failed(&call.tool, &error)
        })
    }
}

impl Surface {
    fn api(&self) -> &dyn Api {
        self.world.api.as_ref()
    }

    fn call(&self, call: &Call) -> Answer {
        let said = match call.tool.as_str() {
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
            unknown => return Answer::failed(format!("Unknown tool: {unknown}")),
        };
        match said {
            Ok(Said::One { text, value }) => {
                Answer { text: vec![text], structured: Some(value), ..Answer::default() }
            }
            Ok(Said::Many(values)) => {
                let (text, values): (Vec<String>, Vec<Value>) = values.into_iter().unzip();
                let structured = Some(json!({ "result": values }));
                Answer { text, structured, ..Answer::default() }
            }
            Err(error) => failed(&call.tool, &error),
        }
    }

    /// The sandbox of an id. Which ones a caller reaches is the Api's matter.
    fn find(&self, id: &str) -> Result<Name> {
        let unknown = || {
            Error::new(Kind::NotFound, format!("no sandbox `{}`", msb_spec::shown(id)))
                .hint("`sandbox_list` tells which there are")
        };
        let name = Name::parse(id).map_err(|_| unknown())?;
        match self.api().sandbox_summary(&name) {
            Ok(_) => Ok(name),
            Err(error) if names::is_gone(&error) => Err(unknown()),
            Err(error) => Err(error),
        }
    }

    /// The same for tools that want it connected.
    fn connected(&self, call: &Call, arguments: &impl Located) -> Result<Used> {
        if let Some(used) = self.known.get(&call.who, arguments.id()) {
            return Ok(used);
        }
        let name = self.find(arguments.id())?;
        if !arguments.connects() {
            return Err(Error::new(Kind::State, format!("sandbox `{name}` is not connected here"))
                .hint("call `sandbox_connect` once, or set `connect_if_missing`"));
        }
        self.keep(&call.who, name)
    }

    /// Remembers that a caller uses a sandbox.
    fn keep(&self, who: &Who, name: Name) -> Result<Used> {
        let user = self.api().sandbox_inspect(&name)?.plan.user;
        let used = Used { name, user };
        self.known.insert(who, used.clone());
        Ok(used)
    }
}

/// Reads the arguments and does it.
fn with<T: DeserializeOwned>(call: &Call, act: impl FnOnce(T) -> Result<Said>) -> Result<Said> {
    read_arguments::read(&call.arguments).map_err(Error::invalid).and_then(act)
}

/// A failure with everything that is known about it.
fn failed(tool: &str, error: &Error) -> Answer {
    let mut text = format!("Error executing tool {tool}: {}", error.message());
    for cause in error.causes() {
        text.push_str("\n  cause: ");
        text.push_str(cause);
    }
    if let Some(hint) = error.advice() {
        text.push_str("\nhint: ");
        text.push_str(hint);
    }
    Answer::failed(text)
}

/// Something is wrong with an argument.
fn wrong(argument: &str, what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("argument `{argument}`: {what}"))
}
