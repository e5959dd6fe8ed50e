//! A dialect wrapper that records which caller each Operation is made for (audit origin).

use crate::content::{ContentPart, ResourceContent};
use crate::dialect::{
    Caller, Dialect, DialectInfo, PromptInfo, ResourceInfo, ResourceTemplate, Tool, ToolCall,
    ToolResult,
};
use crate::dialects::DialectName;
use crate::namespace::Scope;
use msb_api::with_origin;
use msb_spec::{CallOrigin, Error};
use serde_json::{Map, Value};
use std::sync::Arc;

impl Caller {
    /// Adds the caller's key and namespace to an audit origin.
    pub(crate) fn origin(&self, way: CallOrigin) -> CallOrigin {
        let audit_origin = match &self.key {
            Some(key) => way.with_key(key),
            None => way,
        };
        match &self.scope {
            Scope::All => audit_origin,
            Scope::One(namespace) => audit_origin.in_namespace(namespace.as_str()),
        }
    }
}

/// A dialect, with the name that its audit origins carry.
pub(crate) struct AuditedDialect {
    dialect: Arc<dyn Dialect>,
    name: DialectName,
}

impl AuditedDialect {
    pub(crate) fn new(dialect: Arc<dyn Dialect>, name: DialectName) -> Self {
        Self { dialect, name }
    }

    fn audit_origin(&self, caller: &Caller) -> Option<CallOrigin> {
        Some(caller.origin(CallOrigin::mcp(self.name.as_str())))
    }
}

impl Dialect for AuditedDialect {
    fn about(&self) -> DialectInfo {
        self.dialect.about()
    }

    fn tools(&self) -> &[Tool] {
        self.dialect.tools()
    }

    fn call(&self, call: &ToolCall) -> ToolResult {
        with_origin(self.audit_origin(&call.caller), || self.dialect.call(call))
    }

    fn refused(&self, error: &Error) -> ToolResult {
        self.dialect.refused(error)
    }

    fn resources(&self) -> Vec<ResourceInfo> {
        self.dialect.resources()
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        self.dialect.templates()
    }

    fn read(&self, uri: &str, caller: &Caller) -> Option<msb_spec::Result<ResourceContent>> {
        with_origin(self.audit_origin(caller), || self.dialect.read(uri, caller))
    }

    fn prompts(&self) -> Vec<PromptInfo> {
        self.dialect.prompts()
    }

    fn prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Option<Result<Vec<ContentPart>, String>> {
        self.dialect.prompt(name, arguments)
    }

    fn complete(&self, prompt: &str, argument: &str, typed: &str, caller: &Caller) -> Vec<String> {
        with_origin(self.audit_origin(caller), || {
            self.dialect.complete(prompt, argument, typed, caller)
        })
    }
}
