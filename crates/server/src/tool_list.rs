//! Reads the tool lists that are stored as JSON files beside the code.

use crate::dialect::{Tool, ToolHints};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ToolJson {
    name: String,
    title: Option<String>,
    description: String,
    input_schema: Map<String, Value>,
    output_schema: Option<Map<String, Value>>,
    #[serde(default)]
    annotations: AnnotationsJson,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct AnnotationsJson {
    read_only_hint: Option<bool>,
    destructive_hint: Option<bool>,
    idempotent_hint: Option<bool>,
    open_world_hint: Option<bool>,
}

/// Parses a tool list: a JSON array as `tools/list` returns it.
pub(crate) fn tools(json: &str) -> Vec<Tool> {
    let written: Vec<ToolJson> = serde_json::from_str(json).expect("our own file is well-formed");
    let tool = |tool: ToolJson| Tool {
        name: tool.name,
        title: tool.title,
        description: tool.description,
        input: Arc::new(tool.input_schema),
        output: tool.output_schema.map(Arc::new),
        hints: ToolHints {
            read_only: tool.annotations.read_only_hint,
            destructive: tool.annotations.destructive_hint,
            idempotent: tool.annotations.idempotent_hint,
            open_world: tool.annotations.open_world_hint,
        },
    };
    written.into_iter().map(tool).collect()
}
