//! Content of tool results, resources and prompts.

/// The content of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceContent {
    /// The MIME type of the content.
    pub mime_type: String,
    /// The content itself, text or bytes.
    pub body: ResourceBody,
}

impl ResourceContent {
    /// Text content of this MIME type.
    pub fn text(mime_type: impl Into<String>, text: impl Into<String>) -> Self {
        Self { mime_type: mime_type.into(), body: ResourceBody::Text(text.into()) }
    }
}

/// Text or bytes of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceBody {
    /// Text, sent as it is.
    Text(String),
    /// Binary content, sent as base64.
    Bytes(Vec<u8>),
}

/// A content block of a tool result or of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentPart {
    /// A block of text.
    Text(String),
    /// An image: MIME type and bytes.
    Image(String, Vec<u8>),
    /// An audio clip: MIME type and bytes.
    Audio(String, Vec<u8>),
    /// An embedded resource: its URI and content.
    Resource(String, ResourceContent),
}
