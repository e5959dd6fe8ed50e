//! The dialect of the microsandbox server: five tools, two prompts, and an interpreter for each
//! sandbox and language that keeps its state. `/api/v1/rpc` calls the same functions; see `rpc`.

mod args;
mod metrics;
mod run;
mod start;
#[cfg(test)]
mod tests;

pub(crate) use args::{CallContext, MetricsArgs, RunCodeArgs, RunCommandArgs, StartArgs, StopArgs};

use super::ServerConfig;
use crate::arguments;
use crate::content::ContentPart;
use crate::dialect::{Caller, Dialect, DialectInfo, PromptInfo, Tool, ToolCall, ToolResult};
use crate::namespace::{Scope, split};
use crate::repl::Interpreters;
use crate::tool_list;
use msb_api::Summary;
use msb_spec::Error;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The dialect `server`, with its interpreters.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    tools: Vec<Tool>,
    interpreters: Interpreters,
}

impl Server {
    /// The dialect over an `Api` of all namespaces.
    pub fn new(config: ServerConfig) -> Self {
        let tools = tool_list::tools(include_str!("server/tools.json"));
        Self { config, tools, interpreters: Interpreters::default() }
    }

    fn answered(&self, call: &ToolCall) -> std::result::Result<ToolResult, String> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: Error| format!("Error: {what} failed: {}", error_text(&error))
        };
        let context = CallContext::new(call);
        match call.tool.as_str() {
            "sandbox_start" => {
                let text = self.start(&context, &read::<StartArgs>(call)?);
                text.map(sentence_result).map_err(failed("Sandbox start"))
            }
            "sandbox_stop" => {
                let text = self.stop(&context, &read::<StopArgs>(call)?);
                text.map(sentence_result).map_err(failed("Sandbox stop"))
            }
            "sandbox_run_code" => {
                let ran = self.run_code(&context, &read::<RunCodeArgs>(call)?);
                let ran = ran.map_err(failed("Run code"))?;
                let lost = ran["status"] == "error";
                Ok(ToolResult { failed: lost, ..json_result(&ran) })
            }
            "sandbox_run_command" => {
                let ran = self.run_command(&context, &read::<RunCommandArgs>(call)?);
                ran.map(|ran| json_result(&ran)).map_err(failed("Run command"))
            }
            "sandbox_get_metrics" => {
                let seen = self.metrics(&context, &read::<MetricsArgs>(call)?);
                seen.map(|seen| json_result(&seen)).map_err(failed("Get metrics"))
            }
            other => Err(format!("Error: Tool '{other}' not found")),
        }
    }
}

fn read<T: DeserializeOwned>(call: &ToolCall) -> std::result::Result<T, String> {
    arguments::read(&call.arguments)
        .map_err(|text| format!("Error: {} was called with wrong arguments: {text}", call.tool))
}

/// A result of one sentence, as JSON text, as clients of that server expect.
fn sentence_result(text: String) -> ToolResult {
    ToolResult::text(Value::String(text).to_string())
}

fn json_result(value: &Value) -> ToolResult {
    ToolResult::text(serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string()))
}

/// An error as text for a model.
pub(crate) fn error_text(error: &Error) -> String {
    match error.advice() {
        // The client has no CLI, but it has the tool.
        Some(hint) if hint.starts_with("`msb start") => {
            format!("{error}\nhint: call sandbox_start first")
        }
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}

/// Arguments of the prompts: name, description, whether it is required.
const ARGUMENTS: &[(&str, &str, bool)] = &[
    ("sandbox_name", "Name for the new sandbox", true),
    ("namespace", "Group of sandboxes that it is in; usually left out", false),
];

impl Dialect for Server {
    fn about(&self) -> DialectInfo {
        DialectInfo {
            name: "microsandbox-server",
            title: None,
            instructions: None,
            resources: false,
            prompts: true,
        }
    }

    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn call(&self, call: &ToolCall) -> ToolResult {
        self.answered(call).unwrap_or_else(ToolResult::failed)
    }

    fn prompts(&self) -> Vec<PromptInfo> {
        vec![
            PromptInfo {
                name: "create_python_sandbox",
                description: "Make a sandbox for Python and get it ready",
                arguments: ARGUMENTS,
            },
            PromptInfo {
                name: "create_node_sandbox",
                description: "Make a sandbox for Node.js and get it ready",
                arguments: ARGUMENTS,
            },
        ]
    }

    fn prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Option<std::result::Result<Vec<ContentPart>, String>> {
        let (what, image) = match name {
            "create_python_sandbox" => ("Python", "microsandbox/python"),
            "create_node_sandbox" => ("Node.js", "microsandbox/node"),
            _ => return None,
        };
        Some(prompt(what, image, arguments).map(|text| vec![ContentPart::Text(text)]))
    }

    fn complete(&self, _: &str, argument: &str, typed: &str, caller: &Caller) -> Vec<String> {
        if argument != "namespace" {
            return Vec::new();
        }
        let mut all = match &caller.scope {
            Scope::One(namespace) => vec![namespace.as_str().to_owned()],
            // A namespace that cannot be listed now can still be typed.
            Scope::All => self.config.api.sandbox_list().map_or(Vec::new(), |sandboxes| {
                let one = |sandbox: &Summary| split(sandbox.name.as_str()).0.to_owned();
                sandboxes.iter().map(one).collect()
            }),
        };
        // Stored names outside of every namespace have an empty one.
        all.retain(|namespace| !namespace.is_empty() && namespace.starts_with(typed));
        all.sort();
        all.dedup();
        all
    }
}

fn prompt(
    what: &str,
    image: &str,
    arguments: &Map<String, Value>,
) -> std::result::Result<String, String> {
    let text = |name: &str| match arguments.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(format!("argument `{name}`: expected a string")),
    };
    let sandbox = text("sandbox_name")?.ok_or("argument `sandbox_name` is missing")?;
    let sandbox = args::sandbox_name(sandbox).map_err(|error| error.to_string())?;
    let namespace = match text("namespace")? {
        Some(namespace) => format!(" in the namespace `{namespace}`"),
        None => String::new(),
    };
    Ok(format!(
        "Create a {what} sandbox named `{sandbox}`{namespace} with the image `{image}`, 512 MiB of \
         memory and 1 CPU, and work in /workspace, which you make if it is not there. Tell me when \
         it is ready, and stop it when we are done."
    ))
}
