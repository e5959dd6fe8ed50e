//! Converts content and lists to the types of rmcp.

use crate::content::{ContentPart, ResourceBody, ResourceContent};
use crate::dialect::{Tool, ToolHints};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{ContentBlock, ResourceContents, ToolAnnotations};
use std::sync::Arc;

pub(super) fn block(block: ContentPart) -> ContentBlock {
    match block {
        ContentPart::Text(text) => ContentBlock::text(text),
        ContentPart::Image(mime_type, bytes) => {
            ContentBlock::image(STANDARD.encode(bytes), mime_type)
        }
        ContentPart::Audio(mime_type, bytes) => {
            ContentBlock::audio(STANDARD.encode(bytes), mime_type)
        }
        ContentPart::Resource(uri, content) => ContentBlock::resource(contents(uri, content)),
    }
}

pub(super) fn contents(uri: String, content: ResourceContent) -> ResourceContents {
    let (mime_type, meta) = (Some(content.mime_type), None);
    match content.body {
        ResourceBody::Text(text) => {
            ResourceContents::TextResourceContents { uri, mime_type, text, meta }
        }
        ResourceBody::Bytes(bytes) => {
            let blob = STANDARD.encode(bytes);
            ResourceContents::BlobResourceContents { uri, mime_type, blob, meta }
        }
    }
}

pub(super) fn listed(tool: &Tool) -> rmcp::model::Tool {
    let description = tool.description.clone();
    let mut listed =
        rmcp::model::Tool::new(tool.name.clone(), description, Arc::clone(&tool.input));
    listed.title.clone_from(&tool.title);
    listed.output_schema.clone_from(&tool.output);
    let hints = tool.hints;
    if hints != ToolHints::default() {
        // The title belongs to the tool itself, not to the annotations.
        listed.annotations = Some(ToolAnnotations::from_raw(
            None,
            hints.read_only,
            hints.destructive,
            hints.idempotent,
            hints.open_world,
        ));
    }
    listed
}
