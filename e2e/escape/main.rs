//! Attacks, each through the real binary, each proven by looking at the host.
//!
//! The numbers in the doc comments are those of the list of attacks in `ESCAPES.md`.

mod control;
mod files;
mod holes;
mod hostile;
mod images;
mod links;
mod process;
mod protocol;
mod resources;
mod sync;
mod volumes;
mod worker;
mod workspace;
