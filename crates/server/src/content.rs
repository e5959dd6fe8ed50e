//! What tools, resources and prompts say: text, and what is not text.

/// What is read of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// Its type.
    pub mime_type: String,
    /// What is in it.
    pub body: Body,
}

impl Content {
    /// Text of a type.
    pub fn text(mime_type: impl Into<String>, text: impl Into<String>) -> Self {
        Self { mime_type: mime_type.into(), body: Body::Text(text.into()) }
    }
}

/// What is in a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Text.
    Text(String),
    /// Anything else.
    Bytes(Vec<u8>),
}

/// A piece of an answer or of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Text.
    Text(String),
    /// Something to look at: its type, and it.
    Image(String, Vec<u8>),
    /// Something to listen to: its type, and it.
    Audio(String, Vec<u8>),
    /// What a resource holds, with where it can be read again.
    Resource(String, Content),
}
