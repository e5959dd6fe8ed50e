//! The MCP clients that are supported: the file, section and form of their settings.

use super::edit::Value;
use crate::settings_file::{self, SettingsFile};
use clap::ValueEnum;
use msb_spec::{Error, Result, env};
use std::path::{Path, PathBuf};

/// A program that uses MCP servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Client {
    ClaudeCode,
    ClaudeDesktop,
    Cursor,
    Vscode,
    Windsurf,
    Zed,
}

/// The settings that an entry is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// For this user, everywhere.
    User,
    /// Those of the project in the current directory.
    Project,
}

impl Client {
    /// As its makers call it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code",
            Self::ClaudeDesktop => "Claude Desktop",
            Self::Cursor => "Cursor",
            Self::Vscode => "VS Code",
            Self::Windsurf => "Windsurf",
            Self::Zed => "Zed",
        }
    }

    /// The member of the file's object that holds servers by name.
    pub(crate) fn section(self) -> &'static str {
        match self {
            Self::Vscode => "servers",
            Self::Zed => "context_servers",
            _ => "mcpServers",
        }
    }

    /// What an entry says beside its command.
    pub(crate) fn marks(self) -> Option<(&'static str, Value)> {
        match self {
            Self::ClaudeCode | Self::Cursor | Self::Vscode => {
                Some(("type", Value::Text("stdio".to_owned())))
            }
            // Before 2026 it told servers apart by this; since then it passes over it.
            Self::Zed => Some(("source", Value::Text("custom".to_owned()))),
            Self::ClaudeDesktop | Self::Windsurf => None,
        }
    }

    /// Whether it is started from a desktop: it has another PATH than a shell.
    pub(crate) fn is_of_desktop(self) -> bool {
        self != Self::ClaudeCode
    }

    /// When the client reads its settings again.
    pub(crate) fn notices(self) -> &'static str {
        match self {
            Self::ClaudeCode => "sessions of Claude Code that begin now have it; `/mcp` shows it",
            Self::ClaudeDesktop => "quit Claude Desktop wholly and start it again",
            Self::Cursor => "start Cursor again; it is in the settings under MCP",
            Self::Vscode => "`MCP: List Servers` in VS Code starts it",
            Self::Windsurf => "press refresh in Windsurf's list of MCP servers",
            Self::Zed => "Zed starts it at once; it is in the settings of the agent panel",
        }
    }

    /// The file of its settings.
    pub(crate) fn place(self, scope: Scope) -> Result<SettingsFile> {
        match (scope, self.project_file()) {
            (Scope::User, _) => SettingsFile::of_user(&self.user_file()?),
            (Scope::Project, Some(path)) => SettingsFile::of_project(Path::new(path)),
            (Scope::Project, None) => {
                let message = format!("{} has no settings of a project", self.title());
                Err(Error::unsupported(message).hint("leave `--project` out"))
            }
        }
    }

    fn user_file(self) -> Result<PathBuf> {
        let of_desktop = || {
            if cfg!(target_os = "macos") {
                return Ok(settings_file::home()?.join("Library/Application Support"));
            }
            settings_file::config()
        };
        Ok(match self {
            Self::ClaudeCode => match settings_file::absolute(env::CLAUDE_CONFIG_DIR) {
                Some(own) => own.join(".claude.json"),
                None => settings_file::home()?.join(".claude.json"),
            },
            Self::ClaudeDesktop => of_desktop()?.join("Claude/claude_desktop_config.json"),
            Self::Cursor => settings_file::home()?.join(".cursor/mcp.json"),
            Self::Vscode => of_desktop()?.join("Code/User/mcp.json"),
            Self::Windsurf => settings_file::home()?.join(".codeium/windsurf/mcp_config.json"),
            Self::Zed => settings_file::config()?.join("zed/settings.json"),
        })
    }

    fn project_file(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some(".mcp.json"),
            Self::Cursor => Some(".cursor/mcp.json"),
            Self::Vscode => Some(".vscode/mcp.json"),
            Self::Zed => Some(".zed/settings.json"),
            Self::ClaudeDesktop | Self::Windsurf => None,
        }
    }
}
