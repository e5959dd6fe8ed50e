//! `msb events`: what has happened to sandboxes, and on their networks.

use super::bare_engine;
use crate::output::{self, Outcome};
use crate::target::{Target, runs};
use crate::verb_table::TargetVerb;
use crate::{clock, event_text, listing, net_text};
use clap::Parser;
use msb_api::{Api, Audit};
use msb_spec::{Decision, Error, Kind, Name, Result};
use msb_wire::record::Event;
use msb_wire::{NetEvent, NetRecord};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shows what has happened to a sandbox, or to all; or what was decided for its flows.
#[derive(Debug, Parser)]
#[command(override_usage = "msb events [OPTIONS] [NAME]")]
pub(crate) struct EventsArgs {
    /// Name of the sandbox; all without it
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Network decisions: peers that were reached or refused, and by which rule
    #[arg(long, requires = "name")]
    net: bool,
    /// Only what was refused
    #[arg(long, requires = "net")]
    denied: bool,
    /// Only commands: the client that started each, and how it ended
    #[arg(long, conflicts_with = "net")]
    execs: bool,
    /// Go on as more happens, until the sandbox ends; for all, until it is interrupted
    #[arg(long, short)]
    follow: bool,
    /// Print a JSON object for each
    #[arg(long)]
    json: bool,
}

impl TargetVerb for EventsArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let Some(name) = &self.name else {
            return self.of_all(target, &api);
        };
        let name = Name::parse(name)?;
        // None once it has ended, and else how long to wait for more.
        let pause = || runs(&*api, &name).then(|| target.interval());
        if self.net {
            let wanted = |record: &NetRecord| !self.denied || is_denied(&record.what);
            self.show(&pause, net_events(target, &api, &name)?, wanted, net_line)?;
        } else {
            let line = |event: &Event| {
                format!("{}  {}", clock::written(event.time), event_text::what(event))
            };
            self.show(&pause, events(target, &api, &name)?, |event| self.wants(event), line)?;
        }
        Ok(0)
    }
}

/// How often it is looked for sandboxes that are new.
const LOOK_FOR_NEW: Duration = Duration::from_secs(1);
/// How often it is looked at those there are.
const LOOK: Duration = Duration::from_millis(250);

/// An event with the name of its sandbox.
#[derive(Serialize)]
struct Named {
    sandbox: String,
    #[serde(flatten)]
    event: Event,
}

impl EventsArgs {
    fn wants(&self, event: &Event) -> bool {
        !self.execs || event.happened.is_of_exec()
    }

    fn show<T: Serialize>(
        &self,
        pause: &dyn Fn() -> Option<Duration>,
        mut more: More<T>,
        wanted: impl Fn(&T) -> bool,
        line: impl Fn(&T) -> String,
    ) -> Result<()> {
        let say = |records: Vec<T>| {
            records
                .iter()
                .filter(|record| wanted(record))
                .for_each(|record| self.say(record, &line));
        };
        say(more()?);
        if !self.follow {
            return Ok(());
        }
        loop {
            let pause = pause();
            say(more()?);
            let Some(pause) = pause else { return Ok(()) };
            if output::stdout_is_closed() {
                return Ok(());
            }
            std::thread::sleep(pause);
        }
    }

    fn say<T: Serialize>(&self, record: &T, line: impl Fn(&T) -> String) {
        output::print(match self.json {
            true => listing::json_line(record),
            false => line(record),
        });
    }

    /// Those of every sandbox, by their time.
    fn of_all(&self, target: &Target, api: &Arc<dyn Api>) -> Outcome {
        let mut all: BTreeMap<String, More<Event>> = BTreeMap::new();
        let mut next_look = Instant::now();
        loop {
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK_FOR_NEW;
                let names: Vec<Name> = api.sandbox_list()?.into_iter().map(|it| it.name).collect();
                all.retain(|name, _| names.iter().any(|one| one.as_str() == name));
                for name in names {
                    if !all.contains_key(name.as_str())
                        // It may have gone while we looked.
                        && let Ok(more) = events(target, api, &name)
                    {
                        all.insert(name.to_string(), more);
                    }
                }
            }
            let mut news = Vec::new();
            for (sandbox, more) in &mut all {
                let events = more().unwrap_or_default();
                let wanted = events.into_iter().filter(|event| self.wants(event));
                news.extend(wanted.map(|event| Named { sandbox: sandbox.clone(), event }));
            }
            // Those of one sandbox keep their order, whatever its clock did.
            news.sort_by_key(|named| named.event.time);
            let width = all.keys().map(String::len).max().unwrap_or(0);
            for named in &news {
                self.say(named, |Named { sandbox, event }| {
                    let time = clock::written(event.time);
                    format!("{time}  {sandbox:<width$}  {}", event_text::what(event))
                });
            }
            if !self.follow || output::stdout_is_closed() {
                return Ok(0);
            }
            std::thread::sleep(LOOK.max(target.interval()));
        }
    }
}

/// Checks the event logs of sandboxes.
#[derive(Debug, Parser)]
#[command(override_usage = "msb events verify [OPTIONS] [NAME...]")]
pub(crate) struct EventsVerifyArgs {
    /// Names of sandboxes; all without them
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print the number and the hash of the last event, to be kept elsewhere
    #[arg(long, conflicts_with = "json")]
    head: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for EventsVerifyArgs {
    fn run_on(self, target: &Target) -> Outcome {
        // Nothing is tidied up first: that would add to what is to be checked.
        let api = target.bare_api()?;
        let audits = self.audits(&*api)?;
        if self.json {
            listing::json(&audits);
        } else {
            audits.iter().for_each(|audit| self.show(audit));
        }
        let damaged: Vec<&Audit> = audits.iter().filter(|it| !it.damage.is_empty()).collect();
        if let [first, ..] = damaged[..] {
            let name = &first.name;
            let message = match damaged.len() {
                1 => format!("the events of sandbox `{name}` are not as they were written"),
                count => format!("the events of {count} sandboxes are not as they were written"),
            };
            output::print_error(&Error::new(Kind::State, message).hint(
                "they were changed, or the host crashed or had no space while they were written",
            ));
        }
        Ok(i32::from(!damaged.is_empty()))
    }
}

impl EventsVerifyArgs {
    fn audits(&self, api: &dyn Api) -> Result<Vec<Audit>> {
        if !self.names.is_empty() {
            return self.names.iter().map(|name| api.sandbox_audit(&Name::parse(name)?)).collect();
        }
        let mut audits = Vec::new();
        for sandbox in api.sandbox_list()? {
            match api.sandbox_audit(&sandbox.name) {
                // It was removed while the others were looked at.
                Err(error) if error.kind() == Kind::NotFound => {}
                audit => audits.push(audit?),
            }
        }
        Ok(audits)
    }

    fn show(&self, audit: &Audit) {
        let Audit { name, events, to, unchained, .. } = audit;
        if self.head {
            match &audit.head {
                Some(head) => {
                    let chain = head.chain.as_ref().map(ToString::to_string).unwrap_or_default();
                    output::print(format!("{name}  {}  {chain}", head.number));
                }
                None => output::print(format!("{name}  {to}  -")),
            }
        } else {
            let range = audit.from.map_or_else(String::new, |from| format!(", {from} to {to}"));
            let state = match (audit.damage.is_empty(), unchained) {
                (false, _) => "damaged".to_owned(),
                (true, 0) => "whole".to_owned(),
                (true, all) if all == events => "has no chain: an older msb wrote it".to_owned(),
                (true, some) => format!("whole, the first {some} without a chain"),
            };
            let noun = if *events == 1 { "event" } else { "events" };
            output::print(format!("{name}  {state} ({events} {noun}{range})"));
        }
        for damage in &audit.damage {
            let text = format!("event {} {}", damage.number, damage.what);
            match self.head {
                true => output::note(format!("{name}: {text}")),
                false => output::print(format!("  {text}")),
            }
        }
    }
}

/// What comes, asked for again and again.
type More<T> = Box<dyn FnMut() -> Result<Vec<T>>>;

/// What has happened so far, and then what came since.
fn events(target: &Target, api: &Arc<dyn Api>, name: &Name) -> Result<More<Event>> {
    match target {
        Target::Local => {
            let mut events = api.sandbox_events(name)?;
            Ok(Box::new(move || events.more()))
        }
        Target::Remote(_) => {
            let (api, name) = (Arc::clone(api), name.clone());
            Ok(anew(move || api.sandbox_events(&name)?.more(), |event| event.number))
        }
    }
}

/// What was decided on the network so far, and then what came since.
fn net_events(target: &Target, api: &Arc<dyn Api>, name: &Name) -> Result<More<NetRecord>> {
    match target {
        Target::Local => {
            let mut lines = bare_engine()?.net_events(name)?;
            let mut begun = false;
            Ok(Box::new(move || match std::mem::replace(&mut begun, true) {
                false => lines.all(),
                true => lines.more(),
            }))
        }
        Target::Remote(_) => {
            let (api, name) = (Arc::clone(api), name.clone());
            Ok(anew(move || api.network_events(&name), NetRecord::clone))
        }
    }
}

/// Asks for everything each time and gives what comes after the last that was given, wherever it is
/// now: of a full log the older half goes. A sandbox that has gone meanwhile has nothing more to tell.
fn anew<T: 'static, K: PartialEq + 'static>(
    ask: impl Fn() -> Result<Vec<T>> + 'static,
    key: impl Fn(&T) -> K + 'static,
) -> More<T> {
    let (mut asked, mut last) = (false, None);
    Box::new(move || {
        let mut all = match ask() {
            Err(error) if asked && error.kind() == Kind::NotFound => return Ok(Vec::new()),
            all => all?,
        };
        asked = true;
        let given = all.iter().rposition(|one| last.as_ref() == Some(&key(one)));
        let news = all.split_off(given.map_or(0, |at| at + 1));
        if let Some(newest) = news.last() {
            last = Some(key(newest));
        }
        Ok(news)
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
