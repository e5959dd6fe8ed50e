//! A dialect restricted to some of its tools.

use crate::content::{ContentPart, ResourceContent};
use crate::dialect::{
    Caller, Dialect, DialectInfo, PromptInfo, ResourceInfo, ResourceTemplate, Tool, ToolCall,
    ToolResult,
};
use msb_spec::Error;
use serde_json::{Map, Value};
use std::sync::Arc;

/// A dialect that lists and calls only the selected tools.
pub struct ToolFilter {
    dialect: Arc<dyn Dialect>,
    tools: Vec<Tool>,
}

impl ToolFilter {
    /// Keeps the tools that match one of the patterns, in which `*` matches any text. The error is
    /// a pattern that matches no tool.
    pub fn new(dialect: Arc<dyn Dialect>, patterns: &[String]) -> Result<Self, String> {
        let all = dialect.tools();
        if let Some(pattern) =
            patterns.iter().find(|it| !all.iter().any(|tool| fits(it, &tool.name)))
        {
            return Err(pattern.clone());
        }
        let wanted = |tool: &&Tool| patterns.iter().any(|pattern| fits(pattern, &tool.name));
        let tools = all.iter().filter(wanted).cloned().collect();
        Ok(Self { dialect, tools })
    }
}

impl std::fmt::Debug for ToolFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Selected").field("tools", &self.tools.len()).finish_non_exhaustive()
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len())
                .filter(|at| name.is_char_boundary(*at))
                .any(|at| fits(rest, &name[at..]))
        }),
    }
}

impl Dialect for ToolFilter {
    fn about(&self) -> DialectInfo {
        self.dialect.about()
    }

    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn refused(&self, error: &Error) -> ToolResult {
        self.dialect.refused(error)
    }

    fn call(&self, call: &ToolCall) -> ToolResult {
        if self.dialect.tools().iter().any(|tool| tool.name == call.tool)
            && !self.tools.iter().any(|tool| tool.name == call.tool)
        {
            let text = format!("tool `{}` is disabled on this server", call.tool);
            return ToolResult::failed(text);
        }
        self.dialect.call(call)
    }

    fn resources(&self) -> Vec<ResourceInfo> {
        self.dialect.resources()
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        self.dialect.templates()
    }

    fn read(&self, uri: &str, caller: &Caller) -> Option<msb_spec::Result<ResourceContent>> {
        self.dialect.read(uri, caller)
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
        self.dialect.complete(prompt, argument, typed, caller)
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, well) in [
            ("sandbox_run", "sandbox_run", true),
            ("sandbox_fs_*", "sandbox_fs_read", true),
            ("*_read", "volume_fs_read", true),
            ("*fs*", "volume_fs_read", true),
            ("sandbox_fs_*", "sandbox_run", false),
            ("run", "sandbox_run", false),
        ] {
            assert_eq!(fits(pattern, name), well, "{pattern} {name}");
        }
    }
}
