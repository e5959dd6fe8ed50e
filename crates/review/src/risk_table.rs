//! Paths that make the host run something later, each with the program that runs it.
//!
//! To add a path, add one line. A pattern is matched against the end of a path, component by
//! component and ignoring case. `*` matches a part of a component and `**` any number of
//! components. Directories themselves are not matched, only files in them; a symlink in place of a
//! directory is.
//!
//! The tables come from a survey of version control, build tools, package managers, linters,
//! editors, agents, shells and services. An entry is a file that a program executes, or that names
//! what it executes, fetches or loads, without being named itself. Configuration that no table
//! lists is flagged as well; see `risk.rs` and docs/storage.md.

mod agents;
mod builds;
mod data;
mod editors;
mod languages;
mod services;
mod version_control;

pub(crate) use data::{GIT_DATA, HIDDEN_DATA};
pub(crate) use version_control::GIT_DIRECTORY;

/// One rule of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RiskRule {
    pub(crate) pattern: &'static str,
    /// The program that runs, loads or reads it.
    pub(crate) program: &'static str,
    /// What the program does with it.
    pub(crate) action: &'static str,
}

const fn rule(pattern: &'static str, program: &'static str, action: &'static str) -> RiskRule {
    RiskRule { pattern, program, action }
}

/// All rules. The first that matches counts.
pub(crate) const RULES: &[&[RiskRule]] = &[
    version_control::RULES,
    agents::RULES,
    editors::RULES,
    builds::RULES,
    languages::RULES,
    services::RULES,
];
