//! `msb sync`: a directory of the host, kept in step inside a running sandbox.

use super::bare_engine;
use super::cp::{CopyEnd, bar};
use crate::listing::{self, Listing};
use crate::output::{self, Failure, Outcome};
use crate::pull_progress::Steps;
use crate::remote;
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_api::{SyncSpec, SyncState, SyncSummary};
use msb_engine::{Engine, SyncEnd, SyncEvent};
use msb_spec::{Bytes, Error, Result};
use std::ffi::OsString;

/// Copies a directory into a running sandbox, and sends what changes in it until it is stopped.
#[derive(Debug, Parser)]
#[command(override_usage = "msb sync start [OPTIONS] SRC NAME:PATH")]
pub(crate) struct SyncStartArgs {
    /// A directory of the host
    #[arg(value_name = "SRC")]
    source: OsString,
    /// Where to in a sandbox that runs, as in `box:/app`
    #[arg(value_name = "NAME:PATH")]
    target: OsString,
    /// Leave this out, as a line of a .gitignore would (may be given several times)
    #[arg(long = "exclude", value_name = "GLOB")]
    excludes: Vec<String>,
    /// Do not leave out .git, node_modules, __pycache__ and .venv
    #[arg(long)]
    no_default_excludes: bool,
    /// Stay, and tell what is sent; Ctrl-C ends it
    #[arg(long)]
    foreground: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

impl SyncStartArgs {
    fn spec(&self) -> Result<SyncSpec> {
        let (source, sandbox, target) =
            match (CopyEnd::parse(&self.source)?, CopyEnd::parse(&self.target)?) {
                (CopyEnd::Host(source), CopyEnd::Inside(name, target)) => (source, name, target),
                (CopyEnd::Inside(..), _) => {
                    return Err(Error::unsupported("a sync goes from the host into a sandbox")
                        .hint("`msb cp box:/path .` copies out of one"));
                }
                (_, CopyEnd::Host(_) | CopyEnd::Stream) | (CopyEnd::Stream, _) => {
                    return Err(Error::invalid("the target is not in a sandbox")
                        .hint("write it as `msb sync start ./src box:/app`"));
                }
            };
        let (excludes, default_excludes) = (self.excludes.clone(), !self.no_default_excludes);
        Ok(SyncSpec { source, sandbox, target, excludes, default_excludes })
    }
}

impl TargetVerb for SyncStartArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let spec = self.spec()?;
        let engine = match target {
            Target::Local => bare_engine()?,
            Target::Remote(server) if self.foreground => {
                return Err(server.refuse("`msb sync start --foreground`").into());
            }
            Target::Remote(server) => {
                remote::absolute(&spec.source)?;
                let started = server.api()?.sync_start(&spec, &Steps::new(self.quiet))?;
                if started.status.failures > 0 {
                    output::note("what could not be sent is tried again; `msb sync ls` tells");
                }
                output::result("id", started.id);
                return Ok(0);
            }
        };
        if self.foreground {
            return stay(&engine, &spec);
        }
        let bar = bar(self.quiet);
        let mut failures = 0;
        let started = engine.start_sync(&spec, &mut |event| match event {
            SyncEvent::Sent { bytes, .. } => bar.set_position(bytes),
            SyncEvent::Failed(error) => {
                failures += 1;
                bar.suspend(|| output::note(one_line(&error)));
            }
            _ => {}
        });
        bar.finish_and_clear();
        let id = started?;
        if failures > 0 {
            output::note("what could not be sent is tried again; `msb sync ls` tells");
        }
        output::result("id", id);
        Ok(0)
    }
}

/// Is the sync, and tells what it does.
fn stay(engine: &Engine, spec: &SyncSpec) -> Outcome {
    let observer = Box::new(|event| match event {
        SyncEvent::Sent { .. } => {}
        SyncEvent::Ready { id } => output::progress(format!("ready: sync {id} follows the source")),
        SyncEvent::Put(path) if path.is_empty() => {}
        SyncEvent::Put(path) => output::progress(format!("put {path}")),
        SyncEvent::Touched(path) => output::progress(format!("mode {path}")),
        SyncEvent::Removed(path) => output::progress(format!("removed {path}")),
        SyncEvent::Renamed(from, to) => output::progress(format!("renamed {from} to {to}")),
        SyncEvent::Failed(error) => output::note(one_line(&error)),
    });
    if let SyncEnd::Reason(reason) = engine.run_sync(spec, observer)? {
        output::note(format!("the sync has ended: {reason}"));
    }
    Ok(0)
}

fn one_line(error: &Error) -> String {
    let causes = error.causes().iter().map(|cause| format!(": {cause}"));
    [error.message().to_owned()].into_iter().chain(causes).collect()
}

/// Lists the syncs there are. One that has ended is listed once.
#[derive(Debug, Parser)]
#[command(override_usage = "msb sync ls [OPTIONS]")]
pub(crate) struct SyncLsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print IDs only
    #[arg(long, short)]
    quiet: bool,
}

impl TargetVerb for SyncLsArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let syncs = api.sync_list()?;
        if self.json {
            listing::json(&syncs);
        } else if self.quiet {
            syncs.iter().for_each(|sync| output::print(&sync.id));
            return Ok(0);
        } else {
            let heads = ["ID", "SOURCE", "TARGET", "STATE", "FILES", "SENT", "RATE", "ERROR"];
            let mut table = Listing::new(&heads);
            syncs.iter().for_each(|sync| table.row(&cells(sync)));
            table.print();
        }
        if let Target::Local = target {
            let engine = bare_engine()?;
            for sync in syncs.iter().filter(|sync| sync.status.state == SyncState::Ended) {
                engine.forget_sync(&sync.id);
            }
        }
        Ok(0)
    }
}

fn cells(sync: &SyncSummary) -> [String; 8] {
    let status = &sync.status;
    let state = match &status.reason {
        Some(reason) => format!("{}: {reason}", status.state.as_str()),
        None => status.state.as_str().to_owned(),
    };
    let rate = match status.rate {
        0 => "-".to_owned(),
        rate => format!("{}/s", Bytes(rate)),
    };
    let error = match (&status.last_error, status.failures) {
        (None, _) => "-".to_owned(),
        (Some(error), 0 | 1) => error.clone(),
        (Some(error), failures) => format!("{error} (and {} more)", failures - 1),
    };
    [
        sync.id.clone(),
        sync.source.clone(),
        format!("{}:{}", sync.sandbox, sync.target),
        state,
        status.files.to_string(),
        Bytes(status.bytes).to_string(),
        rate,
        error,
    ]
}

/// Ends syncs; what they have sent stays.
#[derive(Debug, Parser)]
#[command(override_usage = "msb sync stop ID...\n       msb sync stop --all")]
pub(crate) struct SyncStopArgs {
    /// Which, as `msb sync ls` lists them
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with = "ids")]
    all: bool,
}

impl TargetVerb for SyncStopArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let ids = match self.all {
            true => api.sync_list()?.into_iter().map(|sync| sync.id).collect(),
            false if self.ids.is_empty() => {
                return Err(Error::invalid("no sync was named")
                    .hint("give an ID, or `--all`")
                    .into());
            }
            false => self.ids,
        };
        let mut failed = false;
        for id in &ids {
            match api.sync_stop(id) {
                Err(error) if ids.len() > 1 => {
                    output::print_error(&error);
                    failed = true;
                }
                stopped => stopped?,
            }
        }
        if failed { Err(Failure::Reported) } else { Ok(0) }
    }
}
