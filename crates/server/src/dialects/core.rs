//! Our own dialect: the tools that an agent needs most, small in a model's context.

mod commands;
mod files;
mod sandboxes;
mod snapshots;

use super::{DialectName, ServerConfig};
use crate::arguments;
use crate::dialect::{Dialect, DialectInfo, Tool, ToolCall, ToolResult};
use crate::tool_list;
use msb_spec::{Error, Result};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;

/// The dialect `core`, with its configuration.
pub(super) struct Core {
    config: ServerConfig,
    tools: Arc<[Tool]>,
}

/// Most bytes of each stream, and of a file, in a result: about what a model can still use.
const MOST_TEXT: usize = 64 << 10;

const INSTRUCTIONS: &str = "Sandboxes on this machine. `run` for one command or piece of code; \
`sandbox_create`, then `exec` and the file tools, for work in several steps. Errors say what to do next.";

impl Core {
    pub(super) fn new(config: ServerConfig) -> Self {
        let tools = tool_list::tools(&with_shapes(include_str!("core/tools.json")));
        Self { config, tools: tools.into() }
    }

    fn answered(&self, call: &ToolCall) -> Result<Value> {
        match call.tool.as_str() {
            "run" => self.run(call, read(call)?),
            "sandbox_create" => self.sandbox_create(call, read(call)?),
            "child_spawn" => self.child_spawn(call, read(call)?),
            "sandbox_list" => self.sandbox_list(&read(call)?),
            "sandbox_stop" => self.sandbox_stop(read(call)?),
            "exec" => self.exec(call, read(call)?),
            "exec_poll" => self.exec_poll(call, &read(call)?),
            "file_read" => self.file_read(&read(call)?),
            "file_write" => self.file_write(read(call)?),
            "file_edit" => self.file_edit(&read(call)?),
            "file_search" => self.file_search(call, read(call)?),
            "port_publish" => self.port_publish(&read(call)?),
            "snapshot_create" => self.snapshot_create(read(call)?),
            "snapshot_list" => self.snapshot_list(),
            "snapshot_restore" => self.snapshot_restore(read(call)?),
            other => {
                let names = self.tools.iter().map(|tool| tool.name.as_str());
                let error = Error::invalid(format!("no tool `{other}`"));
                Err(match msb_spec::nearest(other, names) {
                    Some(near) => error.hint(format!("did you mean `{near}`?")),
                    None => error.hint("`tools/list` lists the tools there are"),
                })
            }
        }
    }
}

fn read<T: DeserializeOwned>(call: &ToolCall) -> Result<T> {
    arguments::read(&call.arguments).map_err(|text| {
        Error::invalid(format!("`{}` was called with wrong arguments: {text}", call.tool))
    })
}

impl Dialect for Core {
    fn about(&self) -> DialectInfo {
        DialectInfo {
            name: "msb",
            title: Some("msb sandboxes"),
            instructions: Some(INSTRUCTIONS),
            resources: false,
            prompts: false,
        }
    }

    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn call(&self, call: &ToolCall) -> ToolResult {
        let config = self.config.for_call(DialectName::Core, call);
        match (Self { config, tools: Arc::clone(&self.tools) }).answered(call) {
            Ok(value) => ToolResult::structured(value),
            Err(error) => ToolResult::failed(error_text(&error)),
        }
    }
}

/// An error as text for a model.
fn error_text(error: &Error) -> String {
    let mut text = error.to_string();
    if let Some(hint) = error.advice() {
        text.push_str("\nhint: ");
        text.push_str(hint);
    }
    text
}

/// Replaces references to result schemas that several tools share.
fn with_shapes(list: &str) -> String {
    let ended = json!({"type": "object", "properties": {
        "exit_code": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "stdout": {"type": "string"},
        "stderr": {"type": "string"},
        "exec": {"type": "integer"},
        "running": {"type": "boolean"},
        "note": {"type": "string"},
    }, "required": ["exit_code", "stdout", "stderr"]});
    let sandbox = json!({"type": "object", "properties": {
        "name": {"type": "string"},
        "status": {"type": "string"},
        "image": {"type": "string"},
        "isolation": {"type": "string", "enum": ["vm", "process"]},
        "isolation_reason": {"type": "string"},
    }, "required": ["name", "status", "image", "isolation"]});
    let written = json!({"type": "object", "properties": {
        "path": {"type": "string"}, "bytes": {"type": "integer"}, "replaced": {"type": "integer"},
    }, "required": ["path", "bytes"]});
    let snapshot = json!({"type": "object", "properties": {
        "name": {"type": "string"},
        "id": {"type": "string"},
        "sandbox": {"type": "string"},
        "created_ms": {"type": "integer"},
        "paused_ms": {"type": "number"},
        "note": {"type": "string"},
    }, "required": ["name", "id", "sandbox", "created_ms"]});
    let shapes =
        [("ended", ended), ("sandbox", sandbox), ("written", written), ("snapshot", snapshot)];
    shapes.iter().fold(list.to_owned(), |list, (name, shape)| {
        list.replace(&format!("{{\"$ref\": \"{name}\"}}"), &shape.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_small_and_names_every_shape() {
        let list = with_shapes(include_str!("core/tools.json"));
        assert!(!list.contains("$ref"));
        let tools = tool_list::tools(&list);
        assert!(tools.len() <= 15);
        let value: Value = serde_json::from_str(&list).unwrap();
        assert!(value.to_string().len() <= 12 << 10, "{}", value.to_string().len());
        // Legal JSON Schema, but some clients cannot pass it to their model.
        assert!(!value.to_string().contains(r#""type":["#));
    }
}
