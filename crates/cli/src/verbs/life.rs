//! The verbs that end and begin sandboxes.

use super::{bare_engine, tidy_up};
use crate::listing;
use crate::output::{self, Outcome};
use crate::selection::Selection;
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_api::Api;
use msb_spec::{Error, Kind, Name, Span};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Starts sandboxes that have stopped.
#[derive(Debug, Parser)]
#[command(override_usage = "msb start NAME...")]
pub(crate) struct StartArgs {
    #[command(flatten)]
    which: Selection,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

impl TargetVerb for StartArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        self.which.each(&*api, |name| {
            let started = api.sandbox_start(name)?;
            if !self.quiet {
                match started {
                    true => output::result("name", name),
                    false => output::note(format!("sandbox `{name}` runs already")),
                }
            }
            Ok(())
        })
    }
}

/// Stops sandboxes: asks their commands to end, then kills them.
#[derive(Debug, Parser)]
#[command(override_usage = "msb stop [OPTIONS] NAME...")]
pub(crate) struct StopArgs {
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

impl TargetVerb for StopArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let grace = if self.force { Duration::ZERO } else { self.timeout.0 };
        self.which.each(&*api, |name| {
            let stopped = api.sandbox_stop(name, grace)?;
            if !self.quiet {
                match stopped {
                    true => output::result("name", name),
                    false => output::note(format!("sandbox `{name}` was not running")),
                }
            }
            Ok(())
        })
    }
}

/// Stops sandboxes and starts them again.
#[derive(Debug, Parser)]
#[command(override_usage = "msb restart [OPTIONS] NAME...")]
pub(crate) struct RestartArgs {
    #[command(flatten)]
    which: Selection,
    /// How long to wait before killing
    #[arg(long, short, value_name = "TIME", default_value = "10s")]
    timeout: Span,
}

impl TargetVerb for RestartArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        self.which.each(&*api, |name| {
            api.sandbox_stop(name, self.timeout.0)?;
            api.sandbox_start(name)?;
            output::result("name", name);
            Ok(())
        })
    }
}

/// Takes no new commands; the sandbox stops when its last one has ended.
#[derive(Debug, Parser)]
#[command(override_usage = "msb drain NAME...")]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    which: Selection,
}

impl TargetVerb for DrainArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        self.which.each(&*api, |name| {
            match api.sandbox_drain(name)? {
                true => output::result("name", name),
                false => output::note(format!("sandbox `{name}` was not running")),
            }
            Ok(())
        })
    }
}

/// Stops everything inside where it is. It uses no processor until it is resumed.
#[derive(Debug, Parser)]
#[command(override_usage = "msb pause NAME...")]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    which: Selection,
}

impl TargetVerb for PauseArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        self.which.each(&*api, |name| {
            api.sandbox_pause(name)?;
            output::result("name", name);
            Ok(())
        })
    }
}

/// Lets what was paused go on.
#[derive(Debug, Parser)]
#[command(override_usage = "msb resume NAME...")]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    which: Selection,
}

impl TargetVerb for ResumeArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        self.which.each(&*api, |name| {
            api.sandbox_resume(name)?;
            output::result("name", name);
            Ok(())
        })
    }
}

/// Waits until sandboxes have ended, and tells how.
#[derive(Debug, Parser)]
#[command(override_usage = "msb wait [OPTIONS] NAME...")]
pub(crate) struct WaitArgs {
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

impl TargetVerb for WaitArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let mut ended = Vec::new();
        self.which.each(&*api, |name| {
            let stopped = api.sandbox_wait(name, None)?;
            let stopped = stopped.ok_or_else(|| Error::new(Kind::State, "it still runs"))?;
            let status = stopped.exit.map_or(0, |exit| exit.status());
            let reason = stopped.reason();
            if !self.json {
                let why = reason.map_or(String::new(), |reason| format!("  ({reason})"));
                output::print(format!("{name}  {status}{why}"));
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
pub(crate) struct RmArgs {
    #[command(flatten)]
    which: Selection,
    /// Stop them first
    #[arg(long, short)]
    force: bool,
    /// Say nothing but errors
    #[arg(long, short)]
    quiet: bool,
}

impl TargetVerb for RmArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let (api, before) = match target {
            Target::Local => {
                let engine = bare_engine()?;
                let before = engine.list().into_iter().map(|sandbox| sandbox.name).collect();
                tidy_up(&engine);
                (Arc::new(engine) as Arc<dyn Api>, before)
            }
            Target::Remote(server) => (server.api()?, Vec::<Name>::new()),
        };
        self.which.each(&*api, |name| {
            match api.sandbox_remove(name, self.force) {
                // An unfinished sandbox of a killed `create` has just been removed, as was asked.
                Err(error) if error.kind() == Kind::NotFound && before.contains(name) => {}
                removed => removed?,
            }
            if !self.quiet {
                output::result("name", name);
            }
            Ok(())
        })
    }
}
