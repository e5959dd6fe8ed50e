//! The coding agents that read skills, and where from.

use crate::settings_file;
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
            Self::ClaudeCode => match settings_file::absolute(env::CLAUDE_CONFIG_DIR) {
                Some(own) => own.join("skills"),
                None => settings_file::home()?.join(".claude/skills"),
            },
            Self::Codex => settings_file::home()?.join(".agents/skills"),
            Self::Cursor => settings_file::home()?.join(".cursor/skills"),
            Self::Gemini => settings_file::home()?.join(".gemini/skills"),
            Self::Copilot => settings_file::home()?.join(".copilot/skills"),
        })
    }
}
