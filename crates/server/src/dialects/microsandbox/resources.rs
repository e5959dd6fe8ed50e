//! MCP resources: plain JSON, without the envelope.

use super::envelope::pretty;
use super::{Microsandbox, images, snapshots, volumes};
use crate::content::ResourceContent;
use crate::dialect::ResourceInfo;
use msb_spec::Result;
use serde_json::{Value, json};

const JSON: &str = "application/json";

pub(super) fn all() -> Vec<ResourceInfo> {
    let one = |uri, name, title, description| ResourceInfo {
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
            "Whether this host can start sandboxes, and the settings of this server.",
        ),
        one(
            "microsandbox://sandboxes",
            "sandboxes",
            "microsandbox sandboxes",
            "Every sandbox, as sandbox_list returns them.",
        ),
        one(
            "microsandbox://volumes",
            "volumes",
            "microsandbox volumes",
            "Every volume, as volume_list returns them.",
        ),
        one(
            "microsandbox://images",
            "images",
            "microsandbox images",
            "Every image on this host, as image_list returns them.",
        ),
        one(
            "microsandbox://snapshots",
            "snapshots",
            "microsandbox snapshots",
            "Every snapshot, as snapshot_list returns them.",
        ),
        ResourceInfo {
            mime_type: "application/schema+json",
            ..one(
                "microsandbox://schemas/sandbox-create",
                "sandbox-create-schema",
                "sandbox create schema",
                "The JSON Schema of the arguments of sandbox_create.",
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
    /// The content of a resource; none if the URI is unknown.
    pub(super) fn resource(&self, uri: &str) -> Option<Result<ResourceContent>> {
        let api = &self.config.api;
        let found = match uri.strip_prefix("microsandbox://")? {
            "runtime" => Ok(self.runtime()),
            "policy" => Ok(self.settings.public_view(&self.config.paths)),
            "sandboxes" => {
                api.sandbox_list().map(|all| all.iter().map(|it| self.row(it)).collect())
            }
            "volumes" => api.volume_list().map(|all| all.iter().map(volumes::row).collect()),
            "images" => api.image_list().map(|all| all.iter().map(images::row).collect()),
            "snapshots" => api.snapshot_list().map(|all| all.iter().map(snapshots::row).collect()),
            "schemas/sandbox-create" => Ok(self.create_schema()),
            _ => return None,
        };
        Some(found.map(|value: Value| ResourceContent::text(JSON, pretty(&value))))
    }

    /// The input schema of `sandbox_create`, labelled as JSON Schema 2020-12, which has the same
    /// meaning here.
    fn create_schema(&self) -> Value {
        let tool = self.tools.iter().find(|tool| tool.name == "sandbox_create");
        let mut schema = tool.map(|tool| tool.input.as_ref().clone()).unwrap_or_default();
        let newer = "https://json-schema.org/draft/2020-12/schema";
        schema.insert("$schema".to_owned(), json!(newer));
        // The document also describes sandbox_run, which needs no name.
        schema.remove("required");
        let mut schema = Value::Object(schema);
        close(&mut schema);
        schema
    }
}

/// Adds `additionalProperties: false` to every object without a schema for them.
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
