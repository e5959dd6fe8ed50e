//! The Operations on a sandbox's network: what was decided, what is open, and changing it.

use crate::sandboxes::Engine;
use msb_spec::{Decision, Error, Family, Kind, Name, Policy, Published, Result, Rule, state};
use msb_wire::record::Event;
use msb_wire::{FromGateway, NetRecord, NetTable, Reply, Request, ToGateway};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A gateway answers at once, or not at all.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

impl Engine {
    /// The flows and ports that are open, and the rules in force.
    pub fn net_table(&self, name: &Name) -> Result<NetTable> {
        match self.ask_gateway(name, ToGateway::Table)? {
            FromGateway::Table(table) => Ok(table),
            other => Err(unexpected(&other)),
        }
    }

    /// Puts rules before those in force, for as long as the sandbox runs. Flows that they refuse
    /// are ended.
    pub fn add_rules(&self, name: &Name, rules: &[Rule]) -> Result<Policy> {
        let rules: &[Rule] = *self.authority.rules(rules)?;
        let allows = rules.iter().any(|rule| rule.decision == Decision::Allow);
        if let Some(family) = self.home().plan(name)?.family.filter(|_| allows) {
            let Family { parent, .. } = family;
            return Err(Error::new(
                Kind::Denied,
                format!("sandbox `{name}` is a child, and the policy of `{parent}` decides whom it reaches"),
            )
            .hint("children of a sandbox that was made with `--spawn net=parent` reach whom it does"));
        }
        let table = self.net_table(name)?;
        let present = table.policy.unwrap_or(Policy { rules: Vec::new(), default: Decision::Deny });
        let mut policy = Policy { rules: rules.to_vec(), ..present };
        policy.rules.extend(present.rules.into_iter().filter(|rule| !rules.contains(rule)));
        match self.ask_gateway(name, ToGateway::Policy(policy.clone()))? {
            FromGateway::Done => Ok(policy),
            other => Err(unexpected(&other)),
        }
    }

    /// Opens a port of the host; returns it with the number that it has.
    pub fn publish(&self, name: &Name, port: &Published) -> Result<Published> {
        let port: &Published = *self.authority.port(port)?;
        if let Some(family) = self.home().plan(name)?.family.filter(|family| !family.ports) {
            let Family { parent, .. } = family;
            return Err(Error::new(
                Kind::Denied,
                format!("ports of children of `{parent}` are not published: `{name}`"),
            )
            .hint(
                "children of a sandbox that was made with `--spawn ports` may have published ports",
            ));
        }
        match self.ask_gateway(name, ToGateway::Publish(port.clone()))? {
            FromGateway::Opened(port) => Ok(port),
            other => Err(unexpected(&other)),
        }
    }

    /// Closes a port of the host.
    pub fn withdraw(&self, name: &Name, port: &Published) -> Result<()> {
        match self.ask_gateway(name, ToGateway::Withdraw(port.clone()))? {
            FromGateway::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether it may reach this machine over TCP, at this port or at every one, and by which rule.
    pub(crate) fn reaches_host(&self, name: &Name, port: Option<u16>) -> Result<(bool, String)> {
        match self.ask_gateway(name, ToGateway::Host { port })? {
            FromGateway::Host { decision, rule } => Ok((decision == Decision::Allow, rule)),
            other => Err(unexpected(&other)),
        }
    }

    fn ask_gateway(&self, name: &Name, what: ToGateway) -> Result<FromGateway> {
        let mut connection = self.connect(name, &Request::Network(what))?;
        match connection.reply_within(ANSWER_LIMIT)? {
            Reply::Network(answer) => Ok(answer),
            other => Err(Error::new(Kind::Protocol, format!("the worker answered {other:?}"))),
        }
    }

    /// What was decided for its flows, and goes on being told as it happens.
    pub fn net_events(&self, name: &Name) -> Result<Lines<NetRecord>> {
        self.lines(name, state::NETWORK)
    }

    /// What has happened to it, and goes on being told as it happens.
    pub fn events(&self, name: &Name) -> Result<Lines<Event>> {
        self.lines(name, state::EVENTS)
    }

    fn lines<T: DeserializeOwned>(&self, name: &Name, file: &str) -> Result<Lines<T>> {
        // A sandbox that is not there has no list, not an empty one.
        if !self.home().has(name) {
            return Err(Error::new(Kind::NotFound, format!("no sandbox `{name}`"))
                .hint("`msb ls` lists the sandboxes there are"));
        }
        Ok(Lines::new(&self.home().directory(name), file))
    }
}

fn unexpected(answer: &FromGateway) -> Error {
    Error::new(Kind::Protocol, format!("the gateway answered {answer:?}"))
}

/// A list of JSON lines that is bounded and may go on growing.
#[derive(Debug)]
pub struct Lines<T> {
    path: PathBuf,
    file: Option<File>,
    pending: Vec<u8>,
    what: PhantomData<T>,
}

impl<T: DeserializeOwned> Lines<T> {
    fn new(directory: &Path, name: &str) -> Self {
        Self { path: directory.join(name), file: None, pending: Vec::new(), what: PhantomData }
    }

    /// Everything so far, the older file first.
    pub fn all(&mut self) -> Result<Vec<T>> {
        let mut older = self.path.clone().into_os_string();
        older.push(state::ROTATED);
        self.file = open(Path::new(&older))?;
        let mut lines = self.read_on()?;
        self.file = None;
        self.pending.clear();
        lines.extend(self.more()?);
        Ok(lines)
    }

    /// What came since the last call.
    pub fn more(&mut self) -> Result<Vec<T>> {
        let mut lines = Vec::new();
        let current = std::fs::metadata(&self.path).ok().map(|meta| meta.ino());
        let ours = self.file.as_ref().and_then(|file| file.metadata().ok()).map(|meta| meta.ino());
        if self.file.is_some() && current != ours {
            // A new one was begun: what was added before that is still in the old file.
            lines = self.read_on()?;
            self.file = None;
            self.pending.clear();
        }
        if self.file.is_none() {
            self.file = open(&self.path)?;
        }
        lines.extend(self.read_on()?);
        Ok(lines)
    }

    fn read_on(&mut self) -> Result<Vec<T>> {
        let Some(file) = &mut self.file else { return Ok(Vec::new()) };
        file.read_to_end(&mut self.pending).map_err(failed)?;
        let whole = self.pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines = self.pending[..whole].split(|byte| *byte == b'\n');
        // One that cannot be read was cut short by the death of its writer.
        let read = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        self.pending.drain(..whole);
        Ok(read)
    }
}

fn failed(error: io::Error) -> Error {
    Error::host("cannot read the list", error)
}

fn open(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}
