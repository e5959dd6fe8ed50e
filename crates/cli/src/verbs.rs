//! One file for each verb: its flags, and the Operations it calls.

pub(crate) mod api;
pub(crate) mod apply;
pub(crate) mod archive;
pub(crate) mod attach;
pub(crate) mod bootstrap;
pub(crate) mod build;
pub(crate) mod children;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod create;
pub(crate) mod diff;
pub(crate) mod discard;
pub(crate) mod disk;
pub(crate) mod docs;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod image;
pub(crate) mod inspect;
pub(crate) mod install;
pub(crate) mod kill;
pub(crate) mod life;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod mcp;
pub(crate) mod mcp_install;
pub(crate) mod metrics;
pub(crate) mod modify;
pub(crate) mod net;
pub(crate) mod port;
pub(crate) mod ps;
pub(crate) mod pull;
pub(crate) mod registry;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod setup;
pub(crate) mod skill;
pub(crate) mod snapshot;
pub(crate) mod ssh;
pub(crate) mod sync;
pub(crate) mod volume;

use crate::output;
use crate::target::{bare_engine, engine, tidy_up};
use msb_spec::{Exit, Name};
use std::fmt::Display;

/// A fallback to the `process` tier is never silent.
fn say_isolation(isolation: impl Display, reason: Option<&str>, quiet: bool) {
    if let Some(reason) = reason.filter(|_| !quiet) {
        output::note(format!(
            "isolation is `{isolation}`, not a microVM: {reason} (`--isolation {isolation}` accepts it)"
        ));
    }
}

/// How to come back to a command that goes on without us.
fn say_detached(name: &Name, exec: u64) {
    output::note(format!("detached; `msb attach {name} {exec}`"));
}

/// The exit code of a command, and the reason if it did not end by itself.
fn finished(exit: &Exit) -> i32 {
    match (exit.ending.reason(), exit.reason()) {
        (Some(reason), _) => output::note(format!("the command was ended: {reason}")),
        (None, Some(reason)) => output::note(reason),
        (None, None) => {}
    }
    exit.status()
}
