//! Reviews the changes of a sandbox in a workspace, and applies them to the host.
//!
//! A workspace is an overlay: the host directory below, the upper directory of the sandbox above.
//! This crate compares both, decides which changes may be applied, and applies all of them or none.
//! The upper directory is not trusted and may change while it is read. No program is run. Writes go
//! only to the host directory and to the crate's own notes.

mod apply;
mod baseline;
mod content;
mod dir_fd;
mod discard;
mod failpoint;
mod find_changes;
mod git_patch;
mod gitignore;
mod journal;
mod patch;
mod recover;
mod risk;
mod risk_table;
mod selection;
mod staging;
#[cfg(test)]
mod tests;
mod workspace;

pub use patch::between;
pub use selection::judge;
pub use workspace::{Workspace, typed_path};
