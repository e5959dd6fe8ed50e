//! Lists of tools, written down as JSON beside the code.

use crate::dialect::{Hints, Tool};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    name: String,
    title: Option<String>,
    description: String,
    input_schema: Map<String, Value>,
    output_schema: Option<Map<String, Value>>,
    #[serde(default)]
    annotations: Annotations,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Annotations {
    read_only_hint: Option<bool>,
    destructive_hint: Option<bool>,
    idempotent_hint: Option<bool>,
    open_world_hint: Option<bool>,
}

/// The tools of a file of ours, which is an array as `tools/list` gives it.
pub(crate) fn tools(json: &str) -> Vec<Tool> {
    let written: Vec<Written> = serde_json::from_str(json).expect("our own file is well-formed");
    let tool = |tool: Written| Tool {
        name: tool.name,
        title: tool.title,
        description: tool.description,
        input: Arc::new(tool.input_schema),
        output: tool.output_schema.map(Arc::new),
        hints: Hints {
            read_only: tool.annotations.read_only_hint,
            destructive: tool.annotations.destructive_hint,
            idempotent: tool.annotations.idempotent_hint,
            open_world: tool.annotations.open_world_hint,
        },
    };
    written.into_iter().map(tool).collect()
}
