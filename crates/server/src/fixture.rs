//! The tools, resources and prompts that the MCP conformance suite expects of a server.
//!
//! It has no sandboxes: it lets an independent test suite check how this crate speaks MCP.

mod elicitations;

use crate::content::{ContentPart, ResourceBody, ResourceContent};
use crate::dialect::{
    Caller, Dialect, DialectInfo, PromptInfo, ResourceInfo, ResourceTemplate, Tool, ToolCall,
    ToolResult,
};
use crate::dialects::{DialectName, ServerConfig};
use crate::http_state::{AuthMode, HttpState};
use crate::paths::HostPaths;
use crate::recorder::Recorder;
use crate::tool_list;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The state of a listener that serves the fixture instead of `named`, without sandboxes.
pub fn state(name: DialectName) -> HttpState {
    let paths = Arc::new(HostPaths::below([], "the fixture"));
    let api = Arc::new(Recorder::default());
    let config = ServerConfig::new(api, paths, msb_spec::Spec::with_defaults());
    HttpState::new(config, AuthMode::Open).with_dialect(name, Arc::new(Fixture::default()))
}

struct Fixture(Vec<Tool>);

impl Default for Fixture {
    fn default() -> Self {
        Self(tool_list::tools(include_str!("fixture/tools.json")))
    }
}

/// A PNG of one red pixel.
const PNG: &[u8] = include_bytes!("fixture/pixel.png");
/// A WAV file without samples.
const WAV: &[u8] =
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\0\0\0\0";

/// A delay between messages: the suite checks that they arrive one after the other.
const PAUSE: Duration = Duration::from_millis(50);

impl Fixture {
    fn answered(&self, call: &ToolCall) -> Result<ToolResult, String> {
        let image = || ContentPart::Image("image/png".to_owned(), PNG.to_vec());
        let embedded = |uri: &str, mime_type: &str, text: &str| {
            ContentPart::Resource(uri.to_owned(), ResourceContent::text(mime_type, text))
        };
        let only = |block| ToolResult { more: vec![block], ..ToolResult::default() };
        let argument = |name: &str| match call.arguments.get(name) {
            Some(Value::String(text)) => Ok(text.as_str()),
            _ => Err(format!("argument `{name}` is missing")),
        };
        Ok(match call.tool.as_str() {
            "test_simple_text" => ToolResult::text("This is a simple text response for testing."),
            "test_image_content" => only(image()),
            "test_audio_content" => only(ContentPart::Audio("audio/wav".to_owned(), WAV.to_vec())),
            "test_embedded_resource" => {
                let text = "This is an embedded resource content.";
                only(embedded("test://embedded-resource", "text/plain", text))
            }
            "test_multiple_content_types" => {
                let (uri, text) =
                    ("test://mixed-content-resource", r#"{"test":"data","value":123}"#);
                let more = vec![image(), embedded(uri, "application/json", text)];
                ToolResult { more, ..ToolResult::text("Multiple content types test:") }
            }
            "test_tool_with_logging" => {
                for what in ["started", "processes", "completed"] {
                    call.watch.step(&format!("Tool execution {what}"), None);
                    std::thread::sleep(PAUSE);
                }
                ToolResult::text("It has logged.")
            }
            "test_tool_with_progress" => {
                for share in [0.0, 0.5, 1.0] {
                    call.tell("on its way", share);
                    std::thread::sleep(PAUSE);
                }
                ToolResult::text("Progress was reported.")
            }
            "test_error_handling" => {
                return Err("This tool intentionally returns an error for testing".to_owned());
            }
            "test_sampling" | "test_missing_capability" => {
                let content =
                    json!({"type": "text", "text": argument("prompt").unwrap_or("Hello")});
                let messages = json!([{"role": "user", "content": content}]);
                let params = json!({"messages": messages, "maxTokens": 100});
                let got = call.client.ask("sampling/createMessage", params)?;
                ToolResult::text(format!("LLM response: {}", got["content"]["text"]))
            }
            "test_elicitation" => {
                elicitations::ask(call, argument("message")?, elicitations::PERSON)?
            }
            "test_elicitation_sep1034_defaults" => {
                elicitations::ask(call, "Defaults", elicitations::DEFAULTS)?
            }
            "test_elicitation_sep1330_enums" => {
                elicitations::ask(call, "Enums", elicitations::ENUMS)?
            }
            "test_reconnection" => {
                std::thread::sleep(PAUSE);
                ToolResult::text("It is still here.")
            }
            "json_schema_2020_12_tool" => ToolResult::text("Its schema is what counts."),
            other => return Err(format!("no tool `{other}`")),
        })
    }
}

impl Dialect for Fixture {
    fn about(&self) -> DialectInfo {
        DialectInfo {
            name: "msb-fixture",
            title: None,
            instructions: None,
            resources: true,
            prompts: true,
        }
    }

    fn tools(&self) -> &[Tool] {
        &self.0
    }

    fn call(&self, call: &ToolCall) -> ToolResult {
        self.answered(call).unwrap_or_else(ToolResult::failed)
    }

    fn resources(&self) -> Vec<ResourceInfo> {
        let one = |uri, name, mime_type| ResourceInfo {
            uri,
            name,
            title: None,
            description: "For the suite.",
            mime_type,
        };
        vec![
            one("test://static-text", "static-text", "text/plain"),
            one("test://static-binary", "static-binary", "image/png"),
            one("test://watched-resource", "watched-resource", "text/plain"),
        ]
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        let (uri, name) = ("test://template/{id}/data", "template");
        let (description, mime_type) = ("For the suite.", "application/json");
        vec![ResourceTemplate { uri, name, description, mime_type }]
    }

    fn read(&self, uri: &str, _: &Caller) -> Option<msb_spec::Result<ResourceContent>> {
        let text = |text: &str| ResourceContent::text("text/plain", text);
        Some(Ok(match uri.strip_prefix("test://")? {
            "static-text" => text("This is the content of the static text resource."),
            "watched-resource" => text("This one could change."),
            "static-binary" => ResourceContent {
                mime_type: "image/png".to_owned(),
                body: ResourceBody::Bytes(PNG.to_vec()),
            },
            other => {
                let id = other.strip_prefix("template/")?.strip_suffix("/data")?;
                let body =
                    json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
                ResourceContent::text("application/json", body.to_string())
            }
        }))
    }

    fn prompts(&self) -> Vec<PromptInfo> {
        let one = |name, arguments| PromptInfo { name, description: "For the suite.", arguments };
        vec![
            one("test_simple_prompt", &[]),
            one("test_prompt_with_arguments", &[("arg1", "First", true), ("arg2", "Second", true)]),
            one("test_prompt_with_embedded_resource", &[("resourceUri", "What to embed", true)]),
            one("test_prompt_with_image", &[]),
        ]
    }

    fn prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Option<Result<Vec<ContentPart>, String>> {
        let argument = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
        let text = |text: &str| ContentPart::Text(text.to_owned());
        Some(Ok(match name {
            "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
            "test_prompt_with_arguments" => {
                let (first, second) = (argument("arg1"), argument("arg2"));
                vec![text(&format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))]
            }
            "test_prompt_with_embedded_resource" => {
                let content =
                    ResourceContent::text("text/plain", "Embedded resource content for testing.");
                let resource = ContentPart::Resource(argument("resourceUri").to_owned(), content);
                vec![resource, text("Please process the embedded resource above.")]
            }
            "test_prompt_with_image" => {
                let image = ContentPart::Image("image/png".to_owned(), PNG.to_vec());
                vec![image, text("Please analyze the image above.")]
            }
            _ => return None,
        }))
    }

    fn complete(&self, _: &str, _: &str, typed: &str, _: &Caller) -> Vec<String> {
        ["paris", "park", "party", "test"]
            .into_iter()
            .filter(|word| word.starts_with(typed))
            .map(str::to_owned)
            .collect()
    }
}
