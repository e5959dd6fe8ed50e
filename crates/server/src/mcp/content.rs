//! Contents and lists as MCP writes them.

use crate::content::{Block, Body, Content};
use crate::dialect::{Hints, Tool};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{ContentBlock, ResourceContents, ToolAnnotations};
use std::sync::Arc;

pub(super) fn block(block: Block) -> ContentBlock {
    match block {
        Block::Text(text) => ContentBlock::text(text),
        Block::Image(mime_type, bytes) => ContentBlock::image(STANDARD.encode(bytes), mime_type),
        Block::Audio(mime_type, bytes) => ContentBlock::audio(STANDARD.encode(bytes), mime_type),
        Block::Resource(uri, content) => ContentBlock::resource(contents(uri, content)),
    }
}

pub(super) fn contents(uri: String, content: Content) -> ResourceContents {
    let (mime_type, meta) = (Some(content.mime_type), None);
    match content.body {
        Body::Text(text) => ResourceContents::TextResourceContents { uri, mime_type, text, meta },
        Body::Bytes(bytes) => {
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
    if hints != Hints::default() {
        // Its title is the tool's own, not a hint.
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
