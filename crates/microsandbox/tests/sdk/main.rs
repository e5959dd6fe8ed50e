//! The SDK against the real `msb`, each test with a state directory of its own.
//!
//! The executable is named by `MSB_PATH` or `MSB_BIN`, or lies where cargo has built it.

mod errors;
mod execs;
mod files;
mod launch_faults;
mod life;
mod links;
mod logs;
mod scratch;
mod settings;
mod snapshots;
mod streams;
mod syncs;
mod volumes;
mod workspace;
