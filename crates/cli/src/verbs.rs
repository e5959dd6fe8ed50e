//! One file for each verb: its flags, and the Operations it calls.

pub(crate) mod apply;
pub(crate) mod archive;
pub(crate) mod attach;
pub(crate) mod bootstrap;
pub(crate) mod build;
pub(crate) mod completion;
pub(crate) mod cp;
pub(crate) mod create;
pub(crate) mod diff;
pub(crate) mod discard;
pub(crate) mod disk;
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
pub(crate) mod sync;
pub(crate) mod volume;

use crate::words;
use msb_engine::Engine;
use msb_spec::{Exit, Plan, Result};

/// The sandboxes of this machine, with what dead workers left cleaned up.
fn engine() -> Result<Engine> {
    let engine = bare_engine()?;
    tidy_up(&engine);
    Ok(engine)
}

/// Cleans up behind workers that were killed, and says so.
pub(crate) fn tidy_up(engine: &Engine) {
    for note in engine.repair() {
        words::note(note);
    }
}

/// The same without looking at anything, for what must be quick.
fn bare_engine() -> Result<Engine> {
    Engine::open(crate::launcher())
}

/// Nobody is downgraded silently.
fn say_isolation(plan: &Plan, quiet: bool) {
    if let Some(reason) = plan.isolation_reason.as_ref().filter(|_| !quiet) {
        words::note(format!(
            "isolation is `{}`, not a microVM: {reason} (`--isolation {}` accepts it)",
            plan.isolation, plan.isolation
        ));
    }
}

/// The exit code of a command, and the reason if it did not end by itself.
fn finished(exit: &Exit) -> i32 {
    match (exit.ending.reason(), exit.reason()) {
        (Some(reason), _) => words::note(format!("the command was ended: {reason}")),
        (None, Some(reason)) => words::note(reason),
        (None, None) => {}
    }
    exit.status()
}
