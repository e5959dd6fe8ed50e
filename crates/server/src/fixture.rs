//! The tools, resources and prompts that the conformance suite of MCP wants to find in a server.
//!
//! Says nothing about sandboxes: it is there so that somebody else judges how this crate speaks MCP.

mod elicitations;

use crate::content::{Block, Body, Content};
use crate::dialect::{About, Answer, Call, Dialect, Prompt, Resource, Template, Tool, Who};
use crate::dialects::{Named, World};
use crate::fake::Fake;
use crate::listed;
use crate::paths::HostPaths;
use crate::site::{Door, Site};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A site that serves the fixture in place of `named`, and has no sandboxes.
pub fn site(named: Named) -> Site {
    let paths = Arc::new(HostPaths::below([], "nobody"));
    let world = World::new(Arc::new(Fake::default()), paths, msb_spec::Spec::with_defaults());
    Site::new(world, Door::Open).with_dialect(named, Arc::new(Fixture::default()))
}

struct Fixture(Vec<Tool>);

impl Default for Fixture {
    fn default() -> Self {
        Self(listed::tools(include_str!("fixture/tools.json")))
    }
}

/// One red pixel.
const PNG: &[u8] = include_bytes!("fixture/pixel.png");
/// No sound.
const WAV: &[u8] =
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\0\0\0\0";

/// The suite wants to see that messages come one after the other.
const PAUSE: Duration = Duration::from_millis(50);

impl Fixture {
    fn answered(&self, call: &Call) -> Result<Answer, String> {
        let image = || Block::Image("image/png".to_owned(), PNG.to_vec());
        let embedded = |uri: &str, mime_type: &str, text: &str| {
            Block::Resource(uri.to_owned(), Content::text(mime_type, text))
        };
        let only = |block| Answer { more: vec![block], ..Answer::default() };
        let said = |name: &str| match call.arguments.get(name) {
            Some(Value::String(text)) => Ok(text.as_str()),
            _ => Err(format!("argument `{name}` is missing")),
        };
        Ok(match call.tool.as_str() {
            "test_simple_text" => Answer::text("This is a simple text response for testing."),
            "test_image_content" => only(image()),
            "test_audio_content" => only(Block::Audio("audio/wav".to_owned(), WAV.to_vec())),
            "test_embedded_resource" => {
                let text = "This is an embedded resource content.";
                only(embedded("test://embedded-resource", "text/plain", text))
            }
            "test_multiple_content_types" => {
                let (uri, text) =
                    ("test://mixed-content-resource", r#"{"test":"data","value":123}"#);
                let more = vec![image(), embedded(uri, "application/json", text)];
                Answer { more, ..Answer::text("Multiple content types test:") }
            }
            "test_tool_with_logging" => {
                for what in ["started", "processes", "completed"] {
                    call.watch.step(&format!("Tool execution {what}"), None);
                    std::thread::sleep(PAUSE);
                }
                Answer::text("It has logged.")
            }
            "test_tool_with_progress" => {
                for share in [0.0, 0.5, 1.0] {
                    call.tell("on its way", share);
                    std::thread::sleep(PAUSE);
                }
                Answer::text("It has told its progress.")
            }
            "test_error_handling" => {
                return Err("This tool intentionally returns an error for testing".to_owned());
            }
            "test_sampling" | "test_missing_capability" => {
                let content = json!({"type": "text", "text": said("prompt").unwrap_or("Hello")});
                let messages = json!([{"role": "user", "content": content}]);
                let params = json!({"messages": messages, "maxTokens": 100});
                let got = call.client.ask("sampling/createMessage", params)?;
                Answer::text(format!("LLM response: {}", got["content"]["text"]))
            }
            "test_elicitation" => elicitations::ask(call, said("message")?, elicitations::PERSON)?,
            "test_elicitation_sep1034_defaults" => {
                elicitations::ask(call, "Defaults", elicitations::DEFAULTS)?
            }
            "test_elicitation_sep1330_enums" => {
                elicitations::ask(call, "Enums", elicitations::ENUMS)?
            }
            "test_reconnection" => {
                std::thread::sleep(PAUSE);
                Answer::text("It is still here.")
            }
            "json_schema_2020_12_tool" => Answer::text("Its schema is what counts."),
            other => return Err(format!("no tool `{other}`")),
        })
    }
}

impl Dialect for Fixture {
    fn about(&self) -> About {
        About {
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

    fn call(&self, call: &Call) -> Answer {
        self.answered(call).unwrap_or_else(Answer::failed)
    }

    fn resources(&self) -> Vec<Resource> {
        let one = |uri, name, mime_type| Resource {
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

    fn templates(&self) -> Vec<Template> {
        let (uri, name) = ("test://template/{id}/data", "template");
        let (description, mime_type) = ("For the suite.", "application/json");
        vec![Template { uri, name, description, mime_type }]
    }

    fn read(&self, uri: &str, _: &Who) -> Option<msb_spec::Result<Content>> {
        let text = |text: &str| Content::text("text/plain", text);
        Some(Ok(match uri.strip_prefix("test://")? {
            "static-text" => text("This is the content of the static text resource."),
            "watched-resource" => text("This one could change."),
            "static-binary" => {
                Content { mime_type: "image/png".to_owned(), body: Body::Bytes(PNG.to_vec()) }
            }
            other => {
                let id = other.strip_prefix("template/")?.strip_suffix("/data")?;
                let told =
                    json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
                Content::text("application/json", told.to_string())
            }
        }))
    }

    fn prompts(&self) -> Vec<Prompt> {
        let one = |name, arguments| Prompt { name, description: "For the suite.", arguments };
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
    ) -> Option<Result<Vec<Block>, String>> {
        let said = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
        let text = |text: &str| Block::Text(text.to_owned());
        Some(Ok(match name {
            "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
            "test_prompt_with_arguments" => {
                let (first, second) = (said("arg1"), said("arg2"));
                vec![text(&format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))]
            }
            "test_prompt_with_embedded_resource" => {
                let content = Content::text("text/plain", "Embedded resource content for testing.");
                let resource = Block::Resource(said("resourceUri").to_owned(), content);
                vec![resource, text("Please process the embedded resource above.")]
            }
            "test_prompt_with_image" => {
                let image = Block::Image("image/png".to_owned(), PNG.to_vec());
                vec![image, text("Please analyze the image above.")]
            }
            _ => return None,
        }))
    }

    fn complete(&self, _: &str, _: &str, typed: &str, _: &Who) -> Vec<String> {
        ["paris", "park", "party", "test"]
            .into_iter()
            .filter(|word| word.starts_with(typed))
            .map(str::to_owned)
            .collect()
    }
}
