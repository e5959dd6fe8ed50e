//! A dialect that says who asks for what it has done.

use crate::content::{Block, Content};
use crate::dialect::{About, Answer, Call, Dialect, Prompt, Resource, Template, Tool, Who};
use crate::dialects::Named;
use crate::namespace::Reaches;
use msb_api::asked_by;
use msb_spec::{Asker, Error};
use serde_json::{Map, Value};
use std::sync::Arc;

impl Who {
    /// The same by the way that was taken.
    pub(crate) fn by(&self, way: Asker) -> Asker {
        let asker = match &self.key {
            Some(key) => way.with_key(key),
            None => way,
        };
        match &self.reaches {
            Reaches::All => asker,
            Reaches::One(namespace) => asker.in_namespace(namespace.as_str()),
        }
    }
}

/// A dialect under its name.
pub(crate) struct Asking {
    dialect: Arc<dyn Dialect>,
    named: Named,
}

impl Asking {
    pub(crate) fn new(dialect: Arc<dyn Dialect>, named: Named) -> Self {
        Self { dialect, named }
    }

    fn asker(&self, who: &Who) -> Option<Asker> {
        Some(who.by(Asker::mcp(self.named.as_str())))
    }
}

impl Dialect for Asking {
    fn about(&self) -> About {
        self.dialect.about()
    }

    fn tools(&self) -> &[Tool] {
        self.dialect.tools()
    }

    fn call(&self, call: &Call) -> Answer {
        asked_by(self.asker(&call.who), || self.dialect.call(call))
    }

    fn refused(&self, error: &Error) -> Answer {
        self.dialect.refused(error)
    }

    fn resources(&self) -> Vec<Resource> {
        self.dialect.resources()
    }

    fn templates(&self) -> Vec<Template> {
        self.dialect.templates()
    }

    fn read(&self, uri: &str, who: &Who) -> Option<msb_spec::Result<Content>> {
        asked_by(self.asker(who), || self.dialect.read(uri, who))
    }

    fn prompts(&self) -> Vec<Prompt> {
        self.dialect.prompts()
    }

    fn prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Option<Result<Vec<Block>, String>> {
        self.dialect.prompt(name, arguments)
    }

    fn complete(&self, prompt: &str, argument: &str, typed: &str, who: &Who) -> Vec<String> {
        asked_by(self.asker(who), || self.dialect.complete(prompt, argument, typed, who))
    }
}
