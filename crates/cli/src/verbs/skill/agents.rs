//! The coding agents that read skills, and where from.

use crate::places;
use clap::ValueEnum;
use msb_spec::{Result, env};
use std::path::PathBuf;

/// A program that reads skills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Agent {
    ClaudeCode,
    Codex,
    Cursor,
    Gemini,
    Copilot,
}

impl Agent {
    /// Its directory of skills in a project.
    pub(super) fn of_project(self) -> &'static str {
        match self {
            Self::ClaudeCode => ".claude/skills",
            Self::Codex => ".agents/skills",
            Self::Cursor => ".cursor/skills",
            Self::Gemini => ".gemini/skills",
            Self::Copilot => ".github/skills",
        }
    }

    /// That of the user.
    pub(super) fn of_user(self) -> Result<PathBuf> {
        Ok(match self {
            Self::ClaudeCode => match places::absolute(env::CLAUDE_CONFIG_DIR) {
                Some(own) => own.join("skills"),
                None => places::home()?.join(".claude/skills"),
            },
            Self::Codex => places::home()?.join(".agents/skills"),
            Self::Cursor => places::home()?.join(".cursor/skills"),
            Self::Gemini => places::home()?.join(".gemini/skills"),
            Self::Copilot => places::home()?.join(".copilot/skills"),
        })
    }
}
