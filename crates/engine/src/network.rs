//! The Operations on the network of a sandbox: flows, rules, published ports, events.

use crate::sandboxes::Engine;
use msb_spec::{Decision, Error, Family, Kind, Name, Policy, PublishedPort, Result, Rule, state};
use msb_wire::record::Event;
use msb_wire::{FromGateway, NetRecord, NetTable, Reply, Request, ToGateway};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a reply of the gateway is waited for. Milliseconds are usual.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

impl Engine {
    /// The open flows, the published ports and the rules in force.
    pub fn net_table(&self, name: &Name) -> Result<NetTable> {
        match self.ask_gateway(name, ToGateway::Table)? {
            FromGateway::Table(table) => Ok(table),
            other => Err(unexpected(&other)),
        }
    }

    /// Adds rules before the present ones, until the sandbox stops. Flows that they deny are
    /// closed.
    pub fn add_rules(&self, name: &Name, rules: &[Rule]) -> Result<Policy> {
        let rules: &[Rule] = *self.authority.rules(rules)?;
        let allows = rules.iter().any(|rule| rule.decision == Decision::Allow);
        if let Some(family) = self.home().plan(name)?.family.filter(|_| allows) {
            let Family { parent, .. } = family;
            return Err(Error::new(
                Kind::Denied,
                format!("sandbox `{name}` is a child, and the policy of `{parent}` decides its network access"),
            )
            .hint("children of a sandbox created with `--spawn net=parent` have its network access"));
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

    /// Publishes a port on the host; returns it with its actual number.
    pub fn publish(&self, name: &Name, port: &PublishedPort) -> Result<PublishedPort> {
        let port: &PublishedPort = *self.authority.port(port)?;
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

    /// Stops publishing a port on the host.
    pub fn withdraw(&self, name: &Name, port: &PublishedPort) -> Result<()> {
        match self.ask_gateway(name, ToGateway::Withdraw(port.clone()))? {
            FromGateway::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether the sandbox may reach the host over TCP at this port, or at every port, and the rule
    /// that decides.
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

    /// The verdicts of its flows, as a list that can be followed.
    pub fn net_events(&self, name: &Name) -> Result<Lines<NetRecord>> {
        self.lines(name, state::NETWORK)
    }

    /// The events of a sandbox, as a list that can be followed.
    pub fn events(&self, name: &Name) -> Result<Lines<Event>> {
        self.lines(name, state::EVENTS)
    }

    fn lines<T: DeserializeOwned>(&self, name: &Name, file: &str) -> Result<Lines<T>> {
        // A missing sandbox is an error, not an empty list.
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

/// A bounded file of JSON lines that may grow while it is read.
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

    /// Creates the file, and opens it for reading: its entries can be read even when it is removed.
    pub(crate) fn create(directory: &Path, name: &str) -> Option<Self> {
        let mut lines = Self::new(directory, name);
        let opened = File::options().read(true).append(true).create(true).open(&lines.path);
        lines.file = Some(opened.ok()?);
        Some(lines)
    }

    /// All entries so far, from the rotated file first.
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

    /// The entries since the last call.
    pub fn more(&mut self) -> Result<Vec<T>> {
        let mut lines = Vec::new();
        let current = std::fs::metadata(&self.path).ok().map(|meta| meta.ino());
        let ours = self.file.as_ref().and_then(|file| file.metadata().ok()).map(|meta| meta.ino());
        if self.file.is_some() && current != ours {
            // The file was rotated: read the rest of the old one first.
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
        // A line that cannot be parsed was truncated when its writer was killed.
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
