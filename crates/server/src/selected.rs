//! A dialect with fewer tools.

use crate::content::{Block, Content};
use crate::dialect::{About, Answer, Call, Dialect, Prompt, Resource, Template, Tool, Who};
use msb_spec::Error;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Only the tools whose names fit.
pub struct Selected {
    dialect: Arc<dyn Dialect>,
    tools: Vec<Tool>,
}

impl Selected {
    /// Keeps the tools that fit one of the patterns; a `*` stands for anything. A pattern that fits
    /// none is given back.
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

impl std::fmt::Debug for Selected {
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

impl Dialect for Selected {
    fn about(&self) -> About {
        self.dialect.about()
    }

    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn refused(&self, error: &Error) -> Answer {
        self.dialect.refused(error)
    }

    fn call(&self, call: &Call) -> Answer {
        if self.dialect.tools().iter().any(|tool| tool.name == call.tool)
            && !self.tools.iter().any(|tool| tool.name == call.tool)
        {
            let text = format!("tool `{}` is not among those that this server shows", call.tool);
            return Answer::failed(text);
        }
        self.dialect.call(call)
    }

    fn resources(&self) -> Vec<Resource> {
        self.dialect.resources()
    }

    fn templates(&self) -> Vec<Template> {
        self.dialect.templates()
    }

    fn read(&self, uri: &str, who: &Who) -> Option<msb_spec::Result<Content>> {
        self.dialect.read(uri, who)
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
        self.dialect.complete(prompt, argument, typed, who)
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
