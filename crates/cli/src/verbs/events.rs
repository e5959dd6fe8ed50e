//! `msb events`: what has happened to a sandbox, and on its network.

use super::bare_engine;
use crate::at::{At, runs};
use crate::table::ActAt;
use crate::words::{self, Outcome};
use crate::{clock, listing, net_text};
use clap::Parser;
use msb_api::Api;
use msb_spec::{Decision, Kind, Name, Result};
use msb_wire::record::{Event, Happened};
use msb_wire::{NetEvent, NetRecord};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Shows what has happened to a sandbox, or what was decided for its flows.
#[derive(Debug, Parser)]
#[command(override_usage = "msb events [OPTIONS] NAME")]
pub(crate) struct Events {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// What was decided for its flows: whom it reached, whom it did not, and by which rule
    #[arg(long)]
    net: bool,
    /// Only what was refused
    #[arg(long, requires = "net")]
    denied: bool,
    /// Go on as more happens, until the sandbox ends
    #[arg(long, short)]
    follow: bool,
    /// Print a JSON object for each
    #[arg(long)]
    json: bool,
}

impl ActAt for Events {
    fn act_at(self, at: &At) -> Outcome {
        let api = at.api()?;
        let name = Name::parse(&self.name)?;
        // None once it has ended, and else how long to wait for more.
        let pause = || runs(&*api, &name).then(|| at.interval());
        if self.net {
            let wanted = |record: &NetRecord| !self.denied || is_denied(&record.what);
            self.show(&pause, net_events(at, &api, &name)?, wanted, net_line)?;
        } else {
            self.show(&pause, events(at, &api, &name)?, |_| true, event_line)?;
        }
        Ok(0)
    }
}

impl Events {
    fn show<T: Serialize>(
        &self,
        pause: &dyn Fn() -> Option<Duration>,
        mut more: More<T>,
        wanted: impl Fn(&T) -> bool,
        line: fn(&T) -> String,
    ) -> Result<()> {
        let say = |records: Vec<T>| {
            for record in records.iter().filter(|record| wanted(record)) {
                words::say(match self.json {
                    true => listing::safe(&serde_json::to_string(record).unwrap_or_default()),
                    false => line(record),
                });
            }
        };
        say(more()?);
        if !self.follow {
            return Ok(());
        }
        loop {
            let pause = pause();
            say(more()?);
            let Some(pause) = pause else { return Ok(()) };
            std::thread::sleep(pause);
        }
    }
}

/// What comes, asked for again and again.
type More<T> = Box<dyn FnMut() -> Result<Vec<T>>>;

/// What has happened so far, and then what came since.
fn events(at: &At, api: &Arc<dyn Api>, name: &Name) -> Result<More<Event>> {
    match at {
        At::Here => {
            let mut events = api.sandbox_events(name)?;
            Ok(Box::new(move || events.more()))
        }
        At::There(_) => {
            let (api, name) = (Arc::clone(api), name.clone());
            Ok(anew(move || api.sandbox_events(&name)?.more()))
        }
    }
}

/// What was decided on the network so far, and then what came since.
fn net_events(at: &At, api: &Arc<dyn Api>, name: &Name) -> Result<More<NetRecord>> {
    match at {
        At::Here => {
            let mut lines = bare_engine()?.net_events(name)?;
            let mut begun = false;
            Ok(Box::new(move || match std::mem::replace(&mut begun, true) {
                false => lines.all(),
                true => lines.more(),
            }))
        }
        At::There(_) => {
            let (api, name) = (Arc::clone(api), name.clone());
            Ok(anew(move || api.network_events(&name)))
        }
    }
}

/// Asks for everything each time and gives what was not there before. A sandbox that has gone
/// meanwhile has nothing more to tell.
fn anew<T>(ask: impl Fn() -> Result<Vec<T>> + 'static) -> More<T> {
    let mut seen = None;
    Box::new(move || {
        let all = match ask() {
            Err(error) if seen.is_some() && error.kind() == Kind::NotFound => return Ok(Vec::new()),
            all => all?,
        };
        let before = seen.replace(all.len()).unwrap_or(0);
        Ok(all.into_iter().skip(before).collect())
    })
}

fn is_denied(event: &NetEvent) -> bool {
    matches!(event, NetEvent::Decided(verdict) if verdict.decision == Decision::Deny)
}

fn net_line(record: &NetRecord) -> String {
    let what = match &record.what {
        NetEvent::Decided(verdict) => net_text::verdict(verdict),
        NetEvent::Ended { flow, sent, received } => {
            format!("end    flow {flow}: {sent} bytes out, {received} in")
        }
        NetEvent::Skipped { count } => format!("       {count} more are not listed"),
    };
    format!("{}  {what}", clock::written(record.time))
}

fn event_line(event: &Event) -> String {
    let what = match &event.happened {
        Happened::Started { worker } => format!("started, worker {worker}"),
        Happened::Created => "made as asked".to_owned(),
        Happened::Draining => "takes no new commands".to_owned(),
        Happened::Paused => "paused".to_owned(),
        Happened::Resumed => "resumed".to_owned(),
        Happened::Renewed { ends: Some(ends) } => format!("to end at {}", clock::written(*ends)),
        Happened::Renewed { ends: None } => "not to end by itself".to_owned(),
        Happened::Disconnected => "its gateway ended: there is no way out any more".to_owned(),
        Happened::Stopped { ending, .. } => {
            format!("stopped: {}", ending.reason().unwrap_or("by itself"))
        }
        Happened::Repaired => "cleaned up behind its worker".to_owned(),
    };
    format!("{}  {what}", clock::written(event.time))
}
