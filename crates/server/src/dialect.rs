//! The `Dialect` trait and its types, independent of the MCP library.

use crate::cancel::Cancel;
use crate::content::{ContentPart, ResourceContent};
use crate::dialects::DialectName;
use crate::namespace::Scope;
use msb_api::{Part, Watch};
use msb_spec::{CallOrigin, Error};
use serde_json::{Map, Value};
use std::sync::Arc;

/// One set of MCP tools, with its names, schemas and result formats.
///
/// Calls block and come from many threads at once. [`ToolCall::cancel`] tells a call to stop;
/// commands that the call has started in a sandbox must end then.
pub trait Dialect: Send + Sync {
    /// Name, title and instructions of the server.
    fn about(&self) -> DialectInfo;

    /// The tools, in the order in which they are listed.
    fn tools(&self) -> &[Tool];

    /// Calls a tool. A failure is a result too, because a model reads it. Calls of unknown tools
    /// come here as well: each dialect has its own answer to them.
    fn call(&self, call: &ToolCall) -> ToolResult;

    /// The result of a call that is rejected before it starts.
    fn refused(&self, error: &Error) -> ToolResult {
        ToolResult::failed(match error.advice() {
            Some(hint) => format!("{error}\nhint: {hint}"),
            None => error.to_string(),
        })
    }

    /// The resources that clients can read.
    fn resources(&self) -> Vec<ResourceInfo> {
        Vec::new()
    }

    /// URI templates of further resources.
    fn templates(&self) -> Vec<ResourceTemplate> {
        Vec::new()
    }

    /// Reads a resource; none if the URI is unknown. Subscribers are notified when two readings
    /// differ, so the content must not contain values that change at every reading.
    fn read(&self, uri: &str, caller: &Caller) -> Option<msb_spec::Result<ResourceContent>> {
        let _ = (uri, caller);
        None
    }

    /// The prompts that clients can request.
    fn prompts(&self) -> Vec<PromptInfo> {
        Vec::new()
    }

    /// The messages of a prompt; none if the name is unknown.
    fn prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Option<Result<Vec<ContentPart>, String>> {
        let _ = (name, arguments);
        None
    }

    /// Completions for an argument of a prompt, given its beginning.
    fn complete(&self, prompt: &str, argument: &str, typed: &str, caller: &Caller) -> Vec<String> {
        let _ = (prompt, argument, typed, caller);
        Vec::new()
    }
}

/// Name and capabilities of a dialect, sent in reply to `initialize`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialectInfo {
    /// The name of the server.
    pub name: &'static str,
    /// A display name, for user interfaces.
    pub title: Option<&'static str>,
    /// What a model should know before its first call.
    pub instructions: Option<&'static str>,
    /// Whether the dialect offers resources.
    pub resources: bool,
    /// Whether the dialect offers prompts.
    pub prompts: bool,
}

/// A tool, as `tools/list` describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The name that calls use.
    pub name: String,
    /// A display name, for user interfaces.
    pub title: Option<String>,
    /// What it does and when to use it, for a model.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input: Arc<Map<String, Value>>,
    /// The JSON Schema of its structured result, if it has one.
    pub output: Option<Arc<Map<String, Value>>>,
    /// Annotations about its effects.
    pub hints: ToolHints,
}

/// Annotations about the effects of a tool; an absent one is not sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToolHints {
    /// The tool changes nothing.
    pub read_only: Option<bool>,
    /// The tool may delete or overwrite data.
    pub destructive: Option<bool>,
    /// Repeating a call has no further effect.
    pub idempotent: Option<bool>,
    /// The tool reaches beyond this machine.
    pub open_world: Option<bool>,
}

/// One call of a tool.
#[derive(Clone)]
pub struct ToolCall {
    /// The name of the tool.
    pub tool: String,
    /// The arguments, as the client sent them.
    pub arguments: Map<String, Value>,
    /// The caller, as it was authenticated.
    pub caller: Caller,
    /// Cancelled when the client no longer waits for the result.
    pub cancel: Cancel,
    /// Receives progress, if the client asked for it.
    pub watch: Arc<dyn Watch>,
    /// Sends requests to the client.
    pub client: Arc<dyn McpClient>,
}

/// The MCP client that waits for a result. The server can send requests to it meanwhile.
pub trait McpClient: Send + Sync {
    /// Sends an MCP request and waits for its result. The error says why there is none.
    fn ask(&self, method: &str, params: Value) -> Result<Value, String>;
}

/// A client that accepts no requests.
#[derive(Debug)]
pub struct NoMcpClient;

impl McpClient for NoMcpClient {
    fn ask(&self, method: &str, _: Value) -> Result<Value, String> {
        Err(format!("this client does not answer `{method}`"))
    }
}

impl ToolCall {
    /// A call without a caller, progress or cancellation.
    pub fn new(tool: &str, arguments: Map<String, Value>) -> Self {
        Self {
            tool: tool.to_owned(),
            arguments,
            caller: Caller::default(),
            cancel: Cancel::default(),
            watch: Arc::new(msb_api::NoProgress),
            client: Arc::new(NoMcpClient),
        }
    }

    /// The origin of the call, for the event log.
    pub(crate) fn origin(&self, dialect: DialectName) -> CallOrigin {
        self.caller.origin(CallOrigin::mcp(dialect.as_str()))
    }

    /// Reports progress; `share` is between 0 and 1.
    pub fn tell(&self, what: &str, share: f64) {
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "in 0..=1000")]
        let done = (share.clamp(0.0, 1.0) * 1000.0) as u64;
        self.watch.step(what, Some(Part { done, of: 1000 }));
    }
}

impl std::fmt::Debug for ToolCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// The authenticated caller of a request. State of one caller is hidden from others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The id of the caller's API key; none on stdio and on a server without keys.
    pub key: Option<String>,
    /// The namespaces that the key grants.
    pub scope: Scope,
}

impl Caller {
    /// Adds the caller's key and namespace to an origin.
    pub(crate) fn origin(&self, surface: CallOrigin) -> CallOrigin {
        let origin = match &self.key {
            Some(key) => surface.with_key(key),
            None => surface,
        };
        match &self.scope {
            Scope::All => origin,
            Scope::One(namespace) => origin.in_namespace(namespace.as_str()),
        }
    }
}

/// The result of a tool call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolResult {
    /// The text blocks, in order.
    pub text: Vec<String>,
    /// Blocks of other types, which follow the text.
    pub more: Vec<ContentPart>,
    /// The structured result, for tools with an output schema.
    pub structured: Option<Value>,
    /// Whether the call failed.
    pub failed: bool,
}

impl ToolResult {
    /// A result of one text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: vec![text.into()], ..Self::default() }
    }

    /// A structured result, repeated as text for clients that read only text.
    pub fn structured(value: Value) -> Self {
        Self { text: vec![value.to_string()], structured: Some(value), ..Self::default() }
    }

    /// A failure, with its message.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { text: vec![text.into()], failed: true, ..Self::default() }
    }
}

/// A resource that clients can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceInfo {
    /// The URI of the resource.
    pub uri: &'static str,
    /// The name of the resource.
    pub name: &'static str,
    /// A display name, for user interfaces.
    pub title: Option<&'static str>,
    /// What it contains, for a model.
    pub description: &'static str,
    /// The MIME type of its content.
    pub mime_type: &'static str,
}

/// A URI template for resources (RFC 6570).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceTemplate {
    /// The URI, with variables in braces.
    pub uri: &'static str,
    /// The name of the template.
    pub name: &'static str,
    /// What such resources contain, for a model.
    pub description: &'static str,
    /// The MIME type of their content.
    pub mime_type: &'static str,
}

/// A prompt that users can select.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptInfo {
    /// The name of the prompt.
    pub name: &'static str,
    /// What the prompt is for.
    pub description: &'static str,
    /// Its arguments: name, description, whether it is required.
    pub arguments: &'static [(&'static str, &'static str, bool)],
}
