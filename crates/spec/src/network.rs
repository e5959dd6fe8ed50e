//! The network of a sandbox: what was asked for, and what was decided.

use crate::{
    Bytes, Decision, Direction, Error, Group, Name, NamePattern, Policy, Result, Rule, Target,
    Traffic,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::PathBuf;

/// How far a sandbox reaches where no rule says otherwise. Metadata services are in none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// Nowhere: there is no network device.
    #[default]
    None,
    /// The internet.
    Public,
    /// The internet and private networks.
    Private,
    /// The internet, private networks and the machine itself.
    Host,
    /// Everybody.
    All,
}

impl Reach {
    const NAMES: [(&str, Self); 5] = [
        ("none", Self::None),
        ("public", Self::Public),
        ("private", Self::Private),
        ("host", Self::Host),
        ("all", Self::All),
    ];

    /// The rules that stand for it.
    fn rules(self) -> Vec<Rule> {
        let allow = |target| Rule {
            decision: Decision::Allow,
            direction: Direction::Egress,
            target,
            traffic: Traffic::Any,
        };
        let groups: &[Group] = match self {
            Self::None => &[],
            Self::Public => &[Group::Public],
            Self::Private => &[Group::Public, Group::Private],
            Self::Host => &[Group::Public, Group::Private, Group::Host],
            Self::All => return vec![no_metadata(), allow(Target::Any)],
        };
        groups.iter().map(|group| allow(Target::Group(*group))).collect()
    }
}

/// Nobody reaches credentials of the machine because something else was allowed.
fn no_metadata() -> Rule {
    Rule {
        decision: Decision::Deny,
        direction: Direction::Egress,
        target: Target::Group(Group::Metadata),
        traffic: Traffic::Any,
    }
}

impl std::str::FromStr for Reach {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, reach)| *reach).ok_or_else(|| {
            Error::invalid(format!("no such network: `{}`", crate::shown(text)))
                .hint("it is `public`, `private`, `host`, `all` or `none`")
        })
    }
}

/// TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A port of the host that leads to one of the sandbox: `[ADDRESS:]HOST:GUEST[/udp]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Published {
    /// The address of the host that it listens at.
    pub address: IpAddr,
    /// The port of the host; zero takes any that is free.
    pub host: u16,
    /// The port of the sandbox.
    pub guest: NonZeroU16,
    /// Of streams or datagrams.
    pub protocol: Protocol,
}

impl Published {
    /// Parses `8080:80`, `127.0.0.1:5353:53/udp`, `[::1]:80:80` or `80`, which is any free port.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("not a published port: `{}`", crate::shown(text)))
                .hint("write it as `8080:80`, `127.0.0.1:8080:80` or `5353:53/udp`")
        };
        let (ports, protocol) = match text.rsplit_once('/') {
            None | Some((_, "tcp")) => (text.trim_end_matches("/tcp"), Protocol::Tcp),
            Some((ports, "udp")) => (ports, Protocol::Udp),
            Some(_) => return Err(wrong()),
        };
        let (rest, guest) = ports.rsplit_once(':').unwrap_or(("", ports));
        let guest = guest.parse().map_err(|_| wrong())?;
        let (address, host) = match rest.rsplit_once(':') {
            Some((address, host)) => {
                let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                (bare.unwrap_or(address).parse().map_err(|_| wrong())?, host)
            }
            // A port that is open to the neighbours must be asked for.
            None => (IpAddr::V4(Ipv4Addr::LOCALHOST), rest),
        };
        let host = if host.is_empty() { 0 } else { host.parse().map_err(|_| wrong())? };
        Ok(Self { address, host, guest, protocol })
    }
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outside = SocketAddr::new(self.address, self.host);
        write!(f, "{outside}:{}", self.guest)?;
        match self.protocol {
            Protocol::Tcp => Ok(()),
            Protocol::Udp => f.write_str("/udp"),
        }
    }
}

/// Where the value of a Secret is read, each time the sandbox starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// A variable of msb's own environment.
    Variable(String),
    /// A file; a line break at its end does not count.
    File(PathBuf),
    /// What a shell command prints; a line break at its end does not count.
    Command(String),
    /// Given by the program that starts the sandbox, which has to give it again.
    Given,
}

/// Where in a request a placeholder is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SecretPlace {
    /// `Authorization`, also inside `Basic`, and the usual headers of API keys.
    Header,
    /// `Cookie`.
    Cookie,
    /// What stands behind `?`.
    Query,
    /// The body.
    Body,
}

impl std::str::FromStr for SecretPlace {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "header" => Ok(Self::Header),
            "cookie" => Ok(Self::Cookie),
            "query" => Ok(Self::Query),
            "body" => Ok(Self::Body),
            other => Err(Error::invalid(format!("no such place: `{}`", crate::shown(other)))
                .hint("it is `header`, `cookie`, `query` or `body`")),
        }
    }
}

/// A Secret: the sandbox holds a placeholder, the gateway puts the value in on the way out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// The variable inside that holds the placeholder.
    pub name: String,
    /// Where the value comes from.
    pub source: SecretSource,
    /// Who may get it.
    pub hosts: Vec<NamePattern>,
    /// Where it is put in; a header is always such a place.
    #[serde(default)]
    pub places: BTreeSet<SecretPlace>,
    /// Whether requests to those hosts without the placeholder are refused.
    #[serde(default)]
    pub require: bool,
}

impl Secret {
    /// Parses `NAME@HOST[,HOST…]`: the value is in the variable of that name.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, hosts) = text.rsplit_once('@').ok_or_else(|| wrong_secret(text))?;
        Self::of(text, name, hosts, SecretSource::Variable(name.to_owned()))
    }

    /// Parses `NAME=PATH@HOST[,HOST…]`.
    pub fn parse_file(text: &str) -> Result<Self> {
        let (name, path, hosts) = Self::split(text)?;
        Self::of(text, name, hosts, SecretSource::File(PathBuf::from(path)))
    }

    /// Parses `NAME=COMMAND@HOST[,HOST…]`.
    pub fn parse_command(text: &str) -> Result<Self> {
        let (name, command, hosts) = Self::split(text)?;
        Self::of(text, name, hosts, SecretSource::Command(command.to_owned()))
    }

    fn split(text: &str) -> Result<(&str, &str, &str)> {
        let (rest, hosts) = text.rsplit_once('@').ok_or_else(|| wrong_secret(text))?;
        let (name, source) = rest.split_once('=').ok_or_else(|| wrong_secret(text))?;
        match source.is_empty() {
            true => Err(wrong_secret(text)),
            false => Ok((name, source, hosts)),
        }
    }

    fn of(text: &str, name: &str, hosts: &str, source: SecretSource) -> Result<Self> {
        let hosts: Result<_> = hosts.split(',').map(NamePattern::parse).collect();
        let secret = Self {
            name: name.to_owned(),
            source,
            hosts: hosts.map_err(|error| wrong_secret(text).cause(error.message()))?,
            places: BTreeSet::new(),
            require: false,
        };
        secret.check()?;
        Ok(secret)
    }

    /// Checks what was read from a file.
    pub fn check(&self) -> Result<()> {
        crate::spec::check_env_name(&self.name)?;
        match self.hosts.is_empty() {
            true => Err(Error::invalid(format!("nobody may get the secret `{}`", self.name))
                .hint("name the hosts it is for, as in `TOKEN@api.example.com`")),
            false => Ok(()),
        }
    }
}

fn wrong_secret(text: &str) -> Error {
    // What was typed may hold the value itself, by mistake: only its name is repeated.
    let name = text.split(['@', '=']).next().unwrap_or_default();
    Error::invalid(format!("not a secret: `{}`", crate::shown(name)))
        .hint("write it as `NAME@api.example.com`; the value is read from the variable NAME")
}

/// The network of a sandbox as asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSpec {
    /// How far it reaches.
    pub reach: Option<Reach>,
    /// Exceptions, the first that matches decides.
    pub rules: Vec<Rule>,
    /// What becomes of flows that no rule is about, in place of `reach`.
    pub default: Option<Decision>,
    /// Whom to ask for names, in place of the host's resolvers.
    pub dns: Vec<Resolver>,
    /// Ports of the host that lead inside.
    pub ports: Vec<Published>,
    /// Values that never come inside.
    pub secrets: Vec<Secret>,
    /// Names that are never looked into.
    pub bypass: Vec<NamePattern>,
    /// Flows at a time.
    pub max_connections: Option<u32>,
    /// Bytes a second that may go out.
    pub egress_rate: Option<Bytes>,
    /// The named network whose sandboxes reach each other.
    pub join: Option<Name>,
}

/// Enough for any build; a flood stops here.
pub const DEFAULT_CONNECTIONS: u32 = 4096;

/// The memory that a gateway has for that many flows.
pub const GATEWAY_MEMORY: Bytes = Bytes::mib(512);

/// The memory that a gateway needs for this many flows at a time.
pub fn gateway_memory(max_connections: u32) -> Bytes {
    // Twice the smallest buffers of a flow, in both directions.
    let more = u64::from(max_connections.saturating_sub(DEFAULT_CONNECTIONS)) * (64 << 10);
    Bytes(GATEWAY_MEMORY.0 + more)
}

fn default_gateway_memory() -> Bytes {
    GATEWAY_MEMORY
}

impl NetworkSpec {
    /// Whether there is a network at all.
    pub fn is_wanted(&self) -> bool {
        self.reach != Some(Reach::None)
    }

    fn asks_for_something(&self) -> bool {
        !self.rules.is_empty()
            || self.default.is_some()
            || !self.ports.is_empty()
            || !self.secrets.is_empty()
            || self.join.is_some()
    }

    /// Reaches as far as is usual here, unless something was said about it.
    pub fn or_usual(mut self, usual: Option<&str>) -> Result<Self> {
        if self.reach.is_none() && !self.asks_for_something() {
            self.reach = usual.map(str::parse).transpose()?;
        }
        Ok(self)
    }

    /// Checks what no single field can check.
    pub fn validate(&self) -> Result<()> {
        self.secrets.iter().try_for_each(Secret::check)?;
        if !self.is_wanted() && self.asks_for_something() {
            return Err(Error::invalid("a sandbox without a network has no use for network rules")
                .hint("leave out `--no-net`, or leave out rules, ports, secrets and `--join`"));
        }
        let mut names = BTreeSet::new();
        for secret in &self.secrets {
            if !names.insert(&secret.name) {
                return Err(Error::invalid(format!("two secrets named `{}`", secret.name)));
            }
            let hides = |name: &NamePattern| self.bypass.contains(name);
            if let Some(host) = secret.hosts.iter().find(|host| hides(host)) {
                return Err(Error::invalid(format!(
                    "`{host}` is never looked into, and is to get the secret `{}`",
                    secret.name
                )));
            }
        }
        Ok(())
    }

    /// The rules in full: what was asked for, then what the reach stands for.
    pub fn policy(&self) -> Policy {
        let reach = match (self.reach, self.default) {
            (Some(reach), _) => reach,
            (None, Some(_)) => Reach::None,
            (None, None) => Reach::Public,
        };
        let mut rules = self.rules.clone();
        // Whoever may get a secret can be reached.
        for name in self.secrets.iter().flat_map(|secret| &secret.hosts) {
            rules.push(Rule {
                decision: Decision::Allow,
                direction: Direction::Egress,
                target: Target::Name(name.clone()),
                traffic: Traffic::Any,
            });
        }
        rules.extend(reach.rules());
        let default = self.default.unwrap_or(Decision::Deny);
        // Rules of a Plan that are asked for again have it.
        if default == Decision::Allow && !rules.contains(&no_metadata()) {
            rules.push(no_metadata());
        }
        Policy { rules, default }
    }
}

/// A DNS server: `ADDRESS` or `ADDRESS:PORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Resolver(pub SocketAddr);

impl Resolver {
    /// Parses an address with or without a port.
    pub fn parse(text: &str) -> Result<Self> {
        let alone = text.parse().map(|address: IpAddr| SocketAddr::new(address, 53));
        alone.or_else(|_| text.parse()).map(Self).map_err(|_| {
            Error::invalid(format!("not the address of a DNS server: `{}`", crate::shown(text)))
                .hint("write it as `9.9.9.9` or `127.0.0.1:5353`")
        })
    }
}

impl fmt::Display for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.port() {
            53 => self.0.ip().fmt(f),
            _ => self.0.fmt(f),
        }
    }
}

/// A Secret and what stands for it inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedSecret {
    /// What was asked for.
    pub secret: Secret,
    /// What the sandbox sees.
    pub placeholder: String,
}

/// The network of a sandbox as decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The rules.
    pub policy: Policy,
    /// Whom to ask for names; the host's resolvers at the time of the start, if empty.
    pub dns: Vec<Resolver>,
    /// Ports of the host that lead inside.
    pub ports: Vec<Published>,
    /// Values that never come inside.
    pub secrets: Vec<PlannedSecret>,
    /// Names that are never looked into.
    pub bypass: Vec<NamePattern>,
    /// Flows at a time.
    pub max_connections: u32,
    /// The memory that its gateway may have: the kernel gives it no more, and flows that need more
    /// are refused.
    #[serde(default = "default_gateway_memory")]
    pub gateway_memory: Bytes,
    /// Bytes a second that may go out.
    pub egress_rate: Option<u64>,
    /// The named network whose sandboxes reach each other.
    pub join: Option<Name>,
}

impl Network {
    /// Whether anything has to be looked into, so that the sandbox needs a certificate authority.
    pub fn intercepts(&self) -> bool {
        !self.secrets.is_empty() || self.policy.names_with_http_rules().next().is_some()
    }
}

written_as_text!(Published, Resolver);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_they_are_read() {
        for (text, same) in [
            ("8080:80", "127.0.0.1:8080:80"),
            ("80", "127.0.0.1:0:80"),
            ("0.0.0.0:8080:80/tcp", "0.0.0.0:8080:80"),
            ("127.0.0.1:5353:53/udp", "127.0.0.1:5353:53/udp"),
            ("[::1]:80:81", "[::1]:80:81"),
        ] {
            let published = Published::parse(text).unwrap();
            assert_eq!(published.to_string(), same);
            assert_eq!(Published::parse(same).unwrap(), published);
        }
        for text in ["", "a:80", "80:0", "80:99999", "80:80/icmp", "1.2.3:80:80"] {
            assert!(Published::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_secret_that_is_wrong_is_not_repeated() {
        let error = Secret::parse_file("KEY=sk-12345").unwrap_err();
        assert!(!error.to_string().contains("12345"), "{error}");
        let secret = Secret::parse("KEY@a.example.com,*.example.org").unwrap();
        assert_eq!(secret.hosts.len(), 2);
        assert_eq!(secret.source, SecretSource::Variable("KEY".to_owned()));
        let secret = Secret::parse_command("KEY=pass show user@work@a.example.com").unwrap();
        assert_eq!(secret.source, SecretSource::Command("pass show user@work".to_owned()));
    }

    #[test]
    fn what_was_asked_for_comes_before_what_is_usual() {
        let spec = NetworkSpec {
            rules: vec![Rule::parse("deny@example.com").unwrap()],
            ..NetworkSpec::default()
        };
        let texts = |policy: &Policy| -> Vec<String> {
            policy.rules.iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(&spec.policy()), ["deny@example.com", "allow@public"]);
        let closed = NetworkSpec { default: Some(Decision::Deny), ..spec.clone() };
        assert_eq!(texts(&closed.policy()), ["deny@example.com"]);
        let open = NetworkSpec { default: Some(Decision::Allow), ..spec };
        assert_eq!(texts(&open.policy()), ["deny@example.com", "deny@metadata"]);
        let all = NetworkSpec { reach: Some(Reach::All), ..NetworkSpec::default() };
        assert_eq!(texts(&all.policy()), ["deny@metadata", "allow@any"]);
    }

    #[test]
    fn rules_without_a_network_are_refused() {
        let spec = NetworkSpec {
            reach: Some(Reach::None),
            ports: vec![Published::parse("80:80").unwrap()],
            ..NetworkSpec::default()
        };
        assert!(spec.validate().is_err());
    }
}
