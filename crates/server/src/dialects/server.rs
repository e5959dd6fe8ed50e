//! The dialect of the microsandbox server: five tools and two prompts, and an interpreter for each
//! sandbox and language that keeps its state. `/api/v1/rpc` asks for the same; see `rpc`.

mod asked;
mod metrics;
mod run;
mod start;
#[cfg(test)]
mod tests;

pub(crate) use asked::{Asked, Code, Line, Measured, Sandbox, Start};

use super::World;
use crate::arguments;
use crate::content::Block;
use crate::dialect::{About, Answer, Call, Dialect, Prompt, Tool, Who};
use crate::listed;
use crate::namespace::{Reaches, split};
use crate::repl::Repls;
use msb_api::Summary;
use msb_spec::Error;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The dialect `server`, with its interpreters.
#[derive(Debug)]
pub struct Server {
    world: World,
    tools: Vec<Tool>,
    repls: Repls,
}

impl Server {
    /// On this world, whose Api is that of all namespaces.
    pub fn new(world: World) -> Self {
        let tools = listed::tools(include_str!("server/tools.json"));
        Self { world, tools, repls: Repls::default() }
    }

    fn answered(&self, call: &Call) -> std::result::Result<Answer, String> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: Error| format!("Error: {what} failed: {}", told(&error))
        };
        let asked = Asked::new(call);
        match call.tool.as_str() {
            "sandbox_start" => {
                let text = self.start(&asked, &read::<Start>(call)?);
                text.map(sentence).map_err(failed("Sandbox start"))
            }
            "sandbox_stop" => {
                let text = self.stop(&asked, &read::<Sandbox>(call)?);
                text.map(sentence).map_err(failed("Sandbox stop"))
            }
            "sandbox_run_code" => {
                let ran = self.run_code(&asked, &read::<Code>(call)?);
                let ran = ran.map_err(failed("Run code"))?;
                let lost = ran["status"] == "error";
                Ok(Answer { failed: lost, ..pretty(&ran) })
            }
            "sandbox_run_command" => {
                let ran = self.run_command(&asked, &read::<Line>(call)?);
                ran.map(|ran| pretty(&ran)).map_err(failed("Run command"))
            }
            "sandbox_get_metrics" => {
                let seen = self.metrics(&asked, &read::<Measured>(call)?);
                seen.map(|seen| pretty(&seen)).map_err(failed("Get metrics"))
            }
            other => Err(format!("Error: Tool '{other}' not found")),
        }
    }
}

fn read<T: DeserializeOwned>(call: &Call) -> std::result::Result<T, String> {
    arguments::read(&call.arguments)
        .map_err(|text| format!("Error: {} was called with wrong arguments: {text}", call.tool))
}

/// A sentence, as JSON: clients of that server read it so.
fn sentence(text: String) -> Answer {
    Answer::text(Value::String(text).to_string())
}

fn pretty(value: &Value) -> Answer {
    Answer::text(serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string()))
}

/// An error as a model reads it.
pub(crate) fn told(error: &Error) -> String {
    match error.advice() {
        // The CLI is not at hand; the tool is.
        Some(hint) if hint.starts_with("`msb start") => {
            format!("{error}\nhint: call sandbox_start first")
        }
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}

/// Name, what it is, whether it is needed.
const ARGUMENTS: &[(&str, &str, bool)] = &[
    ("sandbox_name", "Name for the new sandbox", true),
    ("namespace", "Group of sandboxes that it is in; usually left out", false),
];

impl Dialect for Server {
    fn about(&self) -> About {
        About {
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

    fn call(&self, call: &Call) -> Answer {
        self.answered(call).unwrap_or_else(Answer::failed)
    }

    fn prompts(&self) -> Vec<Prompt> {
        vec![
            Prompt {
                name: "create_python_sandbox",
                description: "Make a sandbox for Python and get it ready",
                arguments: ARGUMENTS,
            },
            Prompt {
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
    ) -> Option<std::result::Result<Vec<Block>, String>> {
        let (what, image) = match name {
            "create_python_sandbox" => ("Python", "microsandbox/python"),
            "create_node_sandbox" => ("Node.js", "microsandbox/node"),
            _ => return None,
        };
        Some(prompt(what, image, arguments).map(|text| vec![Block::Text(text)]))
    }

    fn complete(&self, _: &str, argument: &str, typed: &str, who: &Who) -> Vec<String> {
        if argument != "namespace" {
            return Vec::new();
        }
        let mut all = match &who.reaches {
            Reaches::One(namespace) => vec![namespace.as_str().to_owned()],
            // One that cannot be listed now can still be typed.
            Reaches::All => self.world.api.sandbox_list().map_or(Vec::new(), |sandboxes| {
                let one = |sandbox: &Summary| split(sandbox.name.as_str()).0.to_owned();
                sandboxes.iter().map(one).collect()
            }),
        };
        // The empty one is of names that are in none.
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
    let sandbox = asked::sandbox_name(sandbox).map_err(|error| error.to_string())?;
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
