//! Tests that names, titles, annotations and schemas are those that clients were written for.

use super::Bench;
use crate::dialect::Dialect;
use serde_json::{Value, json};

const GOLDEN: &str = include_str!("../../../../tests/dialects/microsandbox-mcp.json");

/// A schema without descriptions.
fn bare(schema: Value) -> Value {
    match schema {
        Value::Object(members) => members
            .into_iter()
            .filter(|(key, value)| key != "description" || !value.is_string())
            .map(|(key, value)| (key, bare(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(bare).collect(),
        other => other,
    }
}

#[test]
fn tools_are_those_of_microsandbox_mcp() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let bench = Bench::new();
    let ours: Vec<Value> = bench
        .dialect
        .tools()
        .iter()
        .map(|tool| {
            assert!(!tool.description.is_empty(), "{}", tool.name);
            json!({
                "name": tool.name,
                "title": tool.title,
                "annotations": {
                    "readOnlyHint": tool.hints.read_only,
                    "destructiveHint": tool.hints.destructive,
                    "idempotentHint": tool.hints.idempotent,
                },
                "inputSchema": bare(Value::Object(tool.input.as_ref().clone())),
                "execution": {"taskSupport": "forbidden"},
            })
        })
        .collect();
    let theirs = golden["tools"].as_array().unwrap();
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(*ours, bare(theirs.clone()), "{}", theirs["name"]);
    }
}

#[test]
fn resources_are_those_of_microsandbox_mcp() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let ours: Vec<Value> = Bench::new()
        .dialect
        .resources()
        .iter()
        .map(|it| json!({"uri": it.uri, "name": it.name, "title": it.title, "mimeType": it.mime_type}))
        .collect();
    assert_eq!(Value::Array(ours), bare(golden["resources"].clone()));
}
