//! What a sandbox has changed in a workspace, and bringing it to the host.
//!
//! A workspace is an overlay: the host's directory below, the sandbox's changes above. This crate
//! compares the two, decides what may be brought down, and does so wholly or not at all. It trusts
//! nothing in the upper tree, which its owner may change while it is read, runs no program, and
//! writes nothing outside the host's directory and its own notes.

mod apply;
mod baseline;
mod content;
mod discard;
mod fault;
mod ignored;
mod journal;
mod patch;
mod recover;
mod review;
mod risk;
mod risk_table;
mod selection;
mod staging;
#[cfg(test)]
mod tests;
mod tree;
mod walk;

pub use patch::between;
pub use review::{Workspace, typed_path};
pub use selection::judge;
