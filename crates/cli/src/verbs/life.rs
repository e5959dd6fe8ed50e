//! The verbs that end and begin sandboxes.

use super::{bare_engine, engine, tidy_up};
use crate::listing;
use crate::selection::Selection;
use crate::table::Act;
use crate::words::{self, Outcome};
use clap::Parser;
use msb_spec::{Kind, Name, Span};
use serde::Serialize;
use std::time::Duration;

/// Starts sandboxes that have stopped.
#[derive(Debug, Parser)]
#[command(override_usage = "msb start NAME...")]
pub(crate) struct Start {
    #[command(flatten)]
    which: Selection,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

impl Act for Start {
    fn act(self) -> Outcome {
        let engine = engine()?;
        self.which.each(&engine, |name| {
            let started = engine.start(name)?;
            if !self.quiet {
                match started {
                    true => words::say(name),
                    false => words::note(format!("sandbox `{name}` runs already")),
                }
            }
            Ok(())
        })
    }
}

/// Stops sandboxes: asks their commands to end, then kills them.
#[derive(Debug, Parser)]
#[command(override_usage = "msb stop [OPTIONS] NAME...")]
pub(crate) struct Stop {
    #[command(flatten)]
    which: Selection,
    /// Kill at once
    #[arg(long, short)]
    force: bool,
    /// How long to wait before killing
    #[arg(long, short, value_name = "TIME", default_value = "10s")]
    timeout: Span,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

impl Act for Stop {
    fn act(self) -> Outcome {
        let engine = engine()?;
        let grace = if self.force { Duration::ZERO } else { self.timeout.0 };
        self.which.each(&engine, |name| {
            let stopped = engine.stop(name, grace)?;
            if !self.quiet {
                match stopped {
                    true => words::say(name),
                    false => words::note(format!("sandbox `{name}` was not running")),
                }
            }
            Ok(())
        })
    }
}

/// Stops sandboxes and starts them again.
#[derive(Debug, Parser)]
#[command(override_usage = "msb restart [OPTIONS] NAME...")]
pub(crate) struct Restart {
    #[command(flatten)]
    which: Selection,
    /// How long to wait before killing
    #[arg(long, short, value_name = "TIME", default_value = "10s")]
    timeout: Span,
}

impl Act for Restart {
    fn act(self) -> Outcome {
        let engine = engine()?;
        self.which.each(&engine, |name| {
            engine.stop(name, self.timeout.0)?;
            engine.start(name)?;
            words::say(name);
            Ok(())
        })
    }
}

/// Takes no new commands; the sandbox stops when its last one has ended.
#[derive(Debug, Parser)]
#[command(override_usage = "msb drain NAME...")]
pub(crate) struct Drain {
    #[command(flatten)]
    which: Selection,
}

impl Act for Drain {
    fn act(self) -> Outcome {
        let engine = engine()?;
        self.which.each(&engine, |name| {
            match engine.drain(name)? {
                true => words::say(name),
                false => words::note(format!("sandbox `{name}` was not running")),
            }
            Ok(())
        })
    }
}

/// Stops everything inside where it is. It uses no processor until it is resumed.
#[derive(Debug, Parser)]
#[command(override_usage = "msb pause NAME...")]
pub(crate) struct Pause {
    #[command(flatten)]
    which: Selection,
}

impl Act for Pause {
    fn act(self) -> Outcome {
        let engine = engine()?;
        self.which.each(&engine, |name| {
            engine.pause(name)?;
            words::say(name);
            Ok(())
        })
    }
}

/// Lets what was paused go on.
#[derive(Debug, Parser)]
#[command(override_usage = "msb resume NAME...")]
pub(crate) struct Resume {
    #[command(flatten)]
    which: Selection,
}

impl Act for Resume {
    fn act(self) -> Outcome {
        let engine = engine()?;
        self.which.each(&engine, |name| {
            engine.resume(name)?;
            words::say(name);
            Ok(())
        })
    }
}

/// Waits until sandboxes have ended, and tells how.
#[derive(Debug, Parser)]
#[command(override_usage = "msb wait [OPTIONS] NAME...")]
pub(crate) struct Wait {
    #[command(flatten)]
    which: Selection,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Ended {
    name: String,
    ending: msb_spec::Ending,
    reason: Option<&'static str>,
    exit: Option<msb_spec::Exit>,
    status: i32,
}

impl Act for Wait {
    fn act(self) -> Outcome {
        let engine = engine()?;
        let mut ended = Vec::new();
        self.which.each(&engine, |name| {
            let stopped = engine.wait(name)?;
            let status = stopped.exit.map_or(0, |exit| exit.status());
            let reason = stopped.reason();
            if !self.json {
                let why = reason.map_or(String::new(), |reason| format!("  ({reason})"));
                words::say(format!("{name}  {status}{why}"));
            }
            let (ending, exit) = (stopped.ending, stopped.exit);
            ended.push(Ended { name: name.to_string(), ending, reason, exit, status });
            Ok(())
        })?;
        if self.json {
            listing::json(&ended);
        }
        Ok(ended.iter().map(|one| one.status).find(|status| *status != 0).unwrap_or(0))
    }
}

/// Removes sandboxes with their files and logs.
#[derive(Debug, Parser)]
#[command(override_usage = "msb rm [OPTIONS] NAME...")]
pub(crate) struct Rm {
    #[command(flatten)]
    which: Selection,
    /// Stop them first
    #[arg(long, short)]
    force: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

impl Act for Rm {
    fn act(self) -> Outcome {
        let engine = bare_engine()?;
        let before: Vec<Name> = engine.list().into_iter().map(|sandbox| sandbox.name).collect();
        tidy_up(&engine);
        self.which.each(&engine, |name| {
            match engine.remove(name, self.force) {
                // Half a sandbox whose maker died has just been removed, as was asked.
                Err(error) if error.kind() == Kind::NotFound && before.contains(name) => {}
                removed => removed?,
            }
            if !self.quiet {
                words::say(name);
            }
            Ok(())
        })
    }
}
