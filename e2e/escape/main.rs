//! Attacks, each through the real binary, each proven by looking at the host.
//!
//! The numbers in the doc comments are those of the list of attacks in `ESCAPES.md`.

mod control;
mod files;
mod helper_processes;
mod hostile_worker;
mod images;
mod links;
mod namespace_root;
mod process;
mod protocol;
mod resources;
mod sparse_files;
mod sync;
mod volumes;
mod worker;
mod workspace;
