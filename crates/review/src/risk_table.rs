//! Paths that make the host run something later, each with the program that runs it.
//!
//! Tables and no code: to know one more path is to add one line. A pattern is matched against the
//! end of a path, name by name and without regard to case; `*` stands for any part of a name and
//! `**` for any number of names. Directories are never meant, only what is in them; a link that takes
//! the place of one is.
//!
//! The tables come from a survey of version control, build tools, package managers, linters, editors,
//! agents, shells and services: an entry is a file that a program executes, or that names what it
//! executes, fetches or loads, without being named itself. What no table knows and looks like
//! configuration is flagged as well; see `risk.rs` and docs/storage.md.

mod agents;
mod builds;
mod data;
mod editors;
mod languages;
mod services;
mod version_control;

pub(crate) use data::{GIT_DATA, HIDDEN_DATA};
pub(crate) use version_control::GIT_DIRECTORY;

/// One line of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    pub(crate) pattern: &'static str,
    /// The program that runs, loads or obeys it.
    pub(crate) program: &'static str,
    /// What the program does with it.
    pub(crate) action: &'static str,
}

const fn rule(pattern: &'static str, program: &'static str, action: &'static str) -> Rule {
    Rule { pattern, program, action }
}

/// Everything that is known to be run by a program without being asked to. The first that matches
/// counts.
pub(crate) const RULES: &[&[Rule]] = &[
    version_control::RULES,
    agents::RULES,
    editors::RULES,
    builds::RULES,
    languages::RULES,
    services::RULES,
];
