//! What can be read without calling a tool: bare JSON, in no envelope.

use super::envelope::pretty;
use super::{Microsandbox, images, snapshots, volumes};
use crate::content::Content;
use crate::dialect::Resource;
use msb_spec::Result;
use serde_json::{Value, json};

const JSON: &str = "application/json";

pub(super) fn all() -> Vec<Resource> {
    let one = |uri, name, title, description| Resource {
        uri,
        name,
        title: Some(title),
        description,
        mime_type: JSON,
    };
    vec![
        one(
            "microsandbox://runtime",
            "runtime",
            "microsandbox runtime",
            "Whether sandboxes can be started here, and what this server allows.",
        ),
        one(
            "microsandbox://sandboxes",
            "sandboxes",
            "microsandbox sandboxes",
            "Every sandbox, as sandbox_list gives them.",
        ),
        one(
            "microsandbox://volumes",
            "volumes",
            "microsandbox volumes",
            "Every volume, as volume_list gives them.",
        ),
        one(
            "microsandbox://images",
            "images",
            "microsandbox images",
            "Every image on this machine, as image_list gives them.",
        ),
        one(
            "microsandbox://snapshots",
            "snapshots",
            "microsandbox snapshots",
            "Every snapshot, as snapshot_list gives them.",
        ),
        Resource {
            mime_type: "application/schema+json",
            ..one(
                "microsandbox://schemas/sandbox-create",
                "sandbox-create-schema",
                "sandbox create schema",
                "The JSON Schema of what sandbox_create takes.",
            )
        },
        one(
            "microsandbox://policy",
            "policy",
            "microsandbox MCP policy",
            "Which host paths clients may name, and the limits of this server.",
        ),
    ]
}

impl Microsandbox {
    /// What a resource holds; none if there is no such one.
    pub(super) fn resource(&self, uri: &str) -> Option<Result<Content>> {
        let api = &self.world.api;
        let found = match uri.strip_prefix("microsandbox://")? {
            "runtime" => Ok(self.runtime()),
            "policy" => Ok(self.settings.told(&self.world.paths)),
            "sandboxes" => {
                api.sandbox_list().map(|all| all.iter().map(|it| self.row(it)).collect())
            }
            "volumes" => api.volume_list().map(|all| all.iter().map(volumes::row).collect()),
            "images" => api.image_list().map(|all| all.iter().map(images::row).collect()),
            "snapshots" => api.snapshot_list().map(|all| all.iter().map(snapshots::row).collect()),
            "schemas/sandbox-create" => Ok(self.create_schema()),
            _ => return None,
        };
        Some(found.map(|value: Value| Content::text(JSON, pretty(&value))))
    }

    /// What `sandbox_create` takes, in the newer dialect of JSON Schema, where it is the same.
    fn create_schema(&self) -> Value {
        let tool = self.tools.iter().find(|tool| tool.name == "sandbox_create");
        let mut schema = tool.map(|tool| tool.input.as_ref().clone()).unwrap_or_default();
        let newer = "https://json-schema.org/draft/2020-12/schema";
        schema.insert("$schema".to_owned(), json!(newer));
        // As a document it also serves sandbox_run, which needs no name.
        schema.remove("required");
        let mut schema = Value::Object(schema);
        close(&mut schema);
        schema
    }
}

/// Says of every object that it has no further members, unless they are described.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members.contains_key("properties") {
                members.entry("additionalProperties").or_insert(Value::Bool(false));
            }
            members.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}
