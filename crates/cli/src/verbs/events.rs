//! `msb events`: what has happened to a sandbox, and on its network.

use super::engine;
use crate::table::Act;
use crate::words::{self, Outcome};
use crate::{clock, listing, net_text};
use clap::Parser;
use msb_engine::{Engine, Lines};
use msb_spec::{Decision, Name, Result};
use msb_wire::record::{Event, Happened};
use msb_wire::{NetEvent, NetRecord};
use serde::Serialize;
use serde::de::DeserializeOwned;
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

/// Often enough to feel immediate; a file has no better way to say that it grew.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

impl Act for Events {
    fn act(self) -> Outcome {
        let engine = engine()?;
        let name = Name::parse(&self.name)?;
        if self.net {
            let wanted = |record: &NetRecord| !self.denied || is_denied(&record.what);
            self.show(&engine, &name, engine.net_events(&name)?, wanted, net_line)?;
        } else {
            self.show(&engine, &name, engine.events(&name)?, |_| true, event_line)?;
        }
        Ok(0)
    }
}

impl Events {
    fn show<T: DeserializeOwned + Serialize>(
        &self,
        engine: &Engine,
        name: &Name,
        mut lines: Lines<T>,
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
        say(lines.all()?);
        if !self.follow {
            return Ok(());
        }
        loop {
            let running = engine.is_running(name);
            say(lines.more()?);
            if !running {
                return Ok(());
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
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
