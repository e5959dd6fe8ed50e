//! The process behind one running sandbox.
//!
//! It owns every Exec: starts it, keeps its pipes or terminal, writes the bounded log, feeds
//! whoever is attached, and records how it ended. One thread, one loop, every wait in it.

mod boot_disk;
mod client;
mod compromised;
mod ctl;
mod ending;
mod events;
mod exec;
mod execs;
mod guest;
mod health;
mod idle;
mod init;
mod life;
mod log;
mod machine;
mod machine_life;
mod measuring;
mod modifying;
mod outward;
mod pausing;
mod processes;
mod relay;
mod requests;
mod service;
mod streams;
mod usage;
mod volume;
mod wired;
mod worker;

pub use outward::Gateway;
pub use volume::serve_volume;
pub use worker::{Start, run};
