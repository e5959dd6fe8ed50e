//! `cargo xtask gen`: the code of the SDKs that follows from docs/openapi.json.
//!
//! The files are checked in, so that nothing has to be generated to install an SDK. `--check` fails
//! if one of them is not what would be written.

mod python;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use crate::workspace;

/// The files that are generated, and what writes them. One line for each language.
const TARGETS: &[(&str, Generator)] = &[("sdk/python/microsandbox/_generated.py", python::module)];

/// Writes the text of one file.
type Generator = fn(&Schema) -> String;

/// Writes all generated files, or with `--check` compares them.
pub(crate) fn command(options: &[&str]) -> Result<ExitCode> {
    let check = match options {
        [] => false,
        ["--check"] => true,
        _ => bail!("`gen` takes only `--check`"),
    };
    let root = workspace::root();
    let text = fs::read_to_string(root.join("docs/openapi.json"))?;
    let schema = Schema::new(&serde_json::from_str(&text)?)?;
    let mut stale = Vec::new();
    for (path, write) in TARGETS {
        let (file, new) = (root.join(path), write(&schema));
        match fs::read_to_string(&file).is_ok_and(|old| old == new) {
            true => {}
            false if check => stale.push(*path),
            false => {
                fs::write(&file, new).with_context(|| format!("cannot write `{path}`"))?;
                println!("wrote {path}");
            }
        }
    }
    if stale.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("not up to date: {}; run `cargo xtask gen`", stale.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The types and Operations of the document, for every language.
struct Schema {
    /// Schemas by their names, sorted.
    types: Map<String, Value>,
    /// Operations with one JSON request and one JSON response, in the order of their paths.
    operations: Vec<Operation>,
}

/// An Operation that has one request and one response.
struct Operation {
    /// The `op` of a session.
    name: String,
    /// One sentence about it.
    summary: String,
    /// Arguments of path, query and body; required ones first.
    arguments: Vec<Argument>,
    /// Schema of the response.
    response: Value,
}

/// One argument of an Operation.
struct Argument {
    name: String,
    schema: Value,
    required: bool,
}

impl Schema {
    fn new(document: &Value) -> Result<Self> {
        let types = document["components"]["schemas"].as_object().context("no schemas")?.clone();
        let paths = document["paths"].as_object().context("no paths")?;
        let methods = paths.values().filter_map(Value::as_object).flat_map(Map::values);
        let operations = methods.filter_map(Operation::new).collect();
        Ok(Self { types, operations })
    }
}

impl Operation {
    /// None for an Operation that streams: its calls are written by hand.
    fn new(method: &Value) -> Option<Self> {
        const JSON: &str = "application/json";
        let response = method["responses"]["200"]["content"][JSON].get("schema")?.clone();
        let body = &method["requestBody"]["content"];
        if body.is_object() && body.get(JSON).is_none() {
            return None;
        }
        let mut arguments = Vec::new();
        for parameter in method["parameters"].as_array().into_iter().flatten() {
            arguments.push(Argument {
                name: parameter["name"].as_str()?.to_owned(),
                schema: parameter["schema"].clone(),
                required: parameter["required"].as_bool().unwrap_or(false),
            });
        }
        let members = &body[JSON]["schema"];
        for (name, schema) in members["properties"].as_object().into_iter().flatten() {
            let required = is_required(members, name);
            arguments.push(Argument { name: name.clone(), schema: schema.clone(), required });
        }
        arguments.sort_by_key(|argument| !argument.required);
        Some(Self {
            name: method["operationId"].as_str()?.to_owned(),
            summary: method["summary"].as_str().unwrap_or_default().to_owned(),
            arguments,
            response,
        })
    }
}

/// Whether the object that `schema` describes always has this member.
fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().into_iter().flatten().any(|member| member == name)
}
