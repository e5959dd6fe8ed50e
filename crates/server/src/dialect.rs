//! What a dialect is, without a word of MCP's own types.

use crate::cancel::Cancel;
use crate::content::{Block, Content};
use crate::namespace::Reaches;
use msb_api::{Part, Watch};
use msb_spec::Error;
use serde_json::{Map, Value};
use std::sync::Arc;

/// One set of tools, with its names, schemas and habits.
///
/// Calls block and come from many threads at once. A call is told to stop through
/// [`Call::cancel`]; whatever it has started in a sandbox for that call has to end then.
pub trait Dialect: Send + Sync {
    /// How it introduces itself.
    fn about(&self) -> About;

    /// Its tools, in the order they are listed.
    fn tools(&self) -> &[Tool];

    /// Calls a tool. What fails is an answer too: whoever called is a model, and reads it. A tool that
    /// does not exist comes here as well, because dialects differ in what they say then.
    fn call(&self, call: &Call) -> Answer;

    /// What is said to somebody whose call is not even begun.
    fn refused(&self, error: &Error) -> Answer {
        Answer::failed(match error.advice() {
            Some(hint) => format!("{error}\nhint: {hint}"),
            None => error.to_string(),
        })
    }

    /// What can be read.
    fn resources(&self) -> Vec<Resource> {
        Vec::new()
    }

    /// What can be read where the reader says part of the place.
    fn templates(&self) -> Vec<Template> {
        Vec::new()
    }

    /// Reads a resource; none if there is no such one. Who wants to know when it changes is told once
    /// two readings differ, so what differs every time does not belong in it.
    fn read(&self, uri: &str, who: &Who) -> Option<msb_spec::Result<Content>> {
        let _ = (uri, who);
        None
    }

    /// What can be asked for as a prompt.
    fn prompts(&self) -> Vec<Prompt> {
        Vec::new()
    }

    /// A prompt, as its user would say it; none if there is no such one.
    fn prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Option<Result<Vec<Block>, String>> {
        let _ = (name, arguments);
        None
    }

    /// What an argument of a prompt may be, if it begins like this.
    fn complete(&self, prompt: &str, argument: &str, typed: &str, who: &Who) -> Vec<String> {
        let _ = (prompt, argument, typed, who);
        Vec::new()
    }
}

/// How a dialect introduces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Its server's name.
    pub name: &'static str,
    /// The same for people.
    pub title: Option<&'static str>,
    /// What a model should know before it calls anything.
    pub instructions: Option<&'static str>,
    /// Whether it has resources.
    pub resources: bool,
    /// Whether it has prompts.
    pub prompts: bool,
}

/// A tool as it is listed.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its name for people.
    pub title: Option<String>,
    /// What it does and when to take it, for a model.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub input: Arc<Map<String, Value>>,
    /// The JSON Schema of what it answers with, if that has a structure.
    pub output: Option<Arc<Map<String, Value>>>,
    /// What it may do.
    pub hints: Hints,
}

/// What a tool may do; none is not said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hints {
    /// It changes nothing.
    pub read_only: Option<bool>,
    /// It may remove something.
    pub destructive: Option<bool>,
    /// Twice is the same as once.
    pub idempotent: Option<bool>,
    /// It reaches beyond this machine.
    pub open_world: Option<bool>,
}

/// One call of a tool.
#[derive(Clone)]
pub struct Call {
    /// Which.
    pub tool: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// Who calls.
    pub who: Who,
    /// Told when the client wants no answer any more.
    pub cancel: Cancel,
    /// Told how far it is, if the client wants to know.
    pub watch: Arc<dyn Watch>,
    /// Whoever waits for the answer.
    pub client: Arc<dyn Client>,
}

/// Whoever waits for the answer to a call, and may be asked something meanwhile.
pub trait Client: Send + Sync {
    /// Sends a request of MCP and waits for its result. The word says why there is none.
    fn ask(&self, method: &str, params: Value) -> Result<Value, String>;
}

/// Nobody who could be asked.
#[derive(Debug)]
pub struct Unasked;

impl Client for Unasked {
    fn ask(&self, method: &str, _: Value) -> Result<Value, String> {
        Err(format!("nobody can be asked for `{method}`"))
    }
}

impl Call {
    /// A call that nobody watches or cancels.
    pub fn new(tool: &str, arguments: Map<String, Value>) -> Self {
        Self {
            tool: tool.to_owned(),
            arguments,
            who: Who::default(),
            cancel: Cancel::default(),
            watch: Arc::new(msb_api::Unwatched),
            client: Arc::new(Unasked),
        }
    }

    /// Tells how far it is, as a share of one.
    pub fn tell(&self, what: &str, share: f64) {
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "in 0..=1000")]
        let done = (share.clamp(0.0, 1.0) * 1000.0) as u64;
        self.watch.step(what, Some(Part { done, of: 1000 }));
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("tool", &self.tool).finish_non_exhaustive()
    }
}

/// Who calls. What belongs to one is not shown to another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Who {
    /// The key that the caller showed, by its id; none on stdio and where no key is asked for.
    pub key: Option<String>,
    /// Which namespaces the key is for.
    pub reaches: Reaches,
}

/// What a tool answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Blocks of text.
    pub text: Vec<String>,
    /// Blocks of other kinds, which follow.
    pub more: Vec<Block>,
    /// The same with a structure.
    pub structured: Option<Value>,
    /// Whether it failed.
    pub failed: bool,
}

impl Answer {
    /// One block of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: vec![text.into()], ..Self::default() }
    }

    /// A structure, and the same as text for clients that do not know structures.
    pub fn structured(value: Value) -> Self {
        Self { text: vec![value.to_string()], structured: Some(value), ..Self::default() }
    }

    /// A failure.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { text: vec![text.into()], failed: true, ..Self::default() }
    }
}

/// Something that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Where.
    pub uri: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its name for people.
    pub title: Option<&'static str>,
    /// What it is, for a model.
    pub description: &'static str,
    /// Its type.
    pub mime_type: &'static str,
}

/// Where something can be read once the reader has filled in the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Where, with names in braces for what is to be filled in.
    pub uri: &'static str,
    /// Its name.
    pub name: &'static str,
    /// What it is, for a model.
    pub description: &'static str,
    /// Its type.
    pub mime_type: &'static str,
}

/// Something that a person can ask a model to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// Its arguments: name, what it is, whether it is needed.
    pub arguments: &'static [(&'static str, &'static str, bool)],
}
