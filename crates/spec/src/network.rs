//! The network of a sandbox: as requested, and as decided.

use crate::{
    Bytes, Decision, Direction, Error, Group, Name, NamePattern, Policy, Result, Rule, Span,
    Target, Traffic,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::PathBuf;

/// Preset of reachable networks, for flows that no rule matches. No preset contains metadata
/// services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// No network: there is no network device.
    #[default]
    None,
    /// Addresses of the public internet.
    Public,
    /// The internet and private networks.
    Private,
    /// The internet, private networks and the host itself.
    Host,
    /// All addresses but metadata services.
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

    /// The name, as it is written in flags and files.
    pub fn as_str(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, reach)| *reach == self);
        found.map_or("none", |(name, _)| name)
    }

    /// Rules that this preset stands for.
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
            Self::All => return vec![deny_metadata(), allow(Target::Any)],
        };
        groups.iter().map(|group| allow(Target::Group(*group))).collect()
    }
}

/// A rule that denies metadata services: allowing other addresses must not expose credentials of
/// the host.
fn deny_metadata() -> Rule {
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
            Error::invalid(format!("no such network preset: `{}`", crate::shown(text)))
                .hint("it is `public`, `private`, `host`, `all` or `none`")
        })
    }
}

/// Transport protocol: TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Streams over TCP connections.
    Tcp,
    /// Datagrams over UDP sockets.
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

/// A published port of the host: `[ADDRESS:]HOST:GUEST[/udp]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Published"))]
#[serde(try_from = "String", into = "String")]
pub struct PublishedPort {
    /// Address of the host that it listens at.
    pub address: IpAddr,
    /// Port of the host; zero takes a free one.
    pub host: u16,
    /// Port that programs inside listen on.
    pub guest: NonZeroU16,
    /// Transport protocol of both ports.
    pub protocol: Protocol,
}

impl PublishedPort {
    /// Parses `8080:80`, `127.0.0.1:5353:53/udp`, `[::1]:80:80` or `80`, which takes a free port of
    /// the host.
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
            // Other interfaces than loopback must be requested.
            None => (IpAddr::V4(Ipv4Addr::LOCALHOST), rest),
        };
        let host = if host.is_empty() { 0 } else { host.parse().map_err(|_| wrong())? };
        Ok(Self { address, host, guest, protocol })
    }
}

impl fmt::Display for PublishedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outside = SocketAddr::new(self.address, self.host);
        write!(f, "{outside}:{}", self.guest)?;
        match self.protocol {
            Protocol::Tcp => Ok(()),
            Protocol::Udp => f.write_str("/udp"),
        }
    }
}

/// Source of the value of a Secret, read at each start of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// A variable of msb's own environment.
    Variable(String),
    /// A file; a line break at its end is ignored.
    File(PathBuf),
    /// Output of a shell command; a line break at its end is ignored.
    Command(String),
    /// Passed by the program that starts the sandbox, at each start.
    Given,
}

/// Part of a request in which a placeholder is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SecretPlace {
    /// `Authorization`, also inside `Basic`, and the usual headers of API keys.
    Header,
    /// The header named `Cookie`.
    Cookie,
    /// The query string, behind `?`.
    Query,
    /// The body of the request.
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
            other => {
                Err(Error::invalid(format!("no such part of a request: `{}`", crate::shown(other)))
                    .hint("it is `header`, `cookie`, `query` or `body`"))
            }
        }
    }
}

/// A Secret: the sandbox has a placeholder, and the gateway replaces it by the value in outgoing
/// requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// Variable inside that holds the placeholder.
    pub name: String,
    /// Source that the value is read from.
    pub source: SecretSource,
    /// Hosts that may get the value.
    pub hosts: Vec<NamePattern>,
    /// Parts of a request in which the placeholder is replaced; headers always are.
    #[serde(default)]
    pub places: BTreeSet<SecretPlace>,
    /// Whether requests to these hosts without the placeholder are refused.
    #[serde(default)]
    pub require: bool,
}

impl Secret {
    /// Parses `NAME@HOST[,HOST…]`: the value is in the variable of that name.
    pub fn parse(text: &str) -> Result<Self> {
        if text.contains('=') {
            return Err(value_on_command_line(text));
        }
        let (name, hosts) = text.rsplit_once('@').ok_or_else(|| invalid_secret(text))?;
        Self::of(text, name, hosts, SecretSource::Variable(name.to_owned()))
    }

    /// Parses `NAME=PATH@HOST[,HOST…]`: the value is in a file.
    pub fn parse_file(text: &str) -> Result<Self> {
        let (name, path, hosts) = Self::split(text)?;
        Self::of(text, name, hosts, SecretSource::File(PathBuf::from(path)))
    }

    /// Parses `NAME=COMMAND@HOST[,HOST…]`: a command prints the value.
    pub fn parse_command(text: &str) -> Result<Self> {
        let (name, command, hosts) = Self::split(text)?;
        Self::of(text, name, hosts, SecretSource::Command(command.to_owned()))
    }

    fn split(text: &str) -> Result<(&str, &str, &str)> {
        let (rest, hosts) = text.rsplit_once('@').ok_or_else(|| invalid_secret(text))?;
        let (name, source) = rest.split_once('=').ok_or_else(|| invalid_secret(text))?;
        match source.is_empty() {
            true => Err(invalid_secret(text)),
            false => Ok((name, source, hosts)),
        }
    }

    fn of(text: &str, name: &str, hosts: &str, source: SecretSource) -> Result<Self> {
        let hosts: Result<_> = hosts.split(',').map(NamePattern::parse).collect();
        let secret = Self {
            name: name.to_owned(),
            source,
            hosts: hosts.map_err(|error| invalid_secret(text).cause(error.message()))?,
            places: BTreeSet::new(),
            require: false,
        };
        secret.check()?;
        Ok(secret)
    }

    /// Checks the name and that there are hosts.
    pub fn check(&self) -> Result<()> {
        crate::spec::check_env_name(&self.name)?;
        match self.hosts.is_empty() {
            true => Err(Error::invalid(format!("the secret `{}` has no hosts", self.name))
                .hint("name the hosts it is for, as in `TOKEN@api.example.com`")),
            false => Ok(()),
        }
    }
}

/// The error for `NAME=VALUE@HOST`. The value is not repeated.
fn value_on_command_line(text: &str) -> Error {
    let name = crate::shown(text.split(['@', '=']).next().unwrap_or_default());
    let host = text.rsplit_once('@').map(|(_, host)| host);
    let host = host.filter(|host| !host.contains('=') && NamePattern::parse(host).is_ok());
    let host = host.unwrap_or("HOST");
    Error::invalid(format!("the value of a secret is not given on the command line: `{name}`"))
        .hint(format!("export {name}, then `--secret {name}@{host}`"))
}

fn invalid_secret(text: &str) -> Error {
    // The text may contain the value itself, by mistake: only its name is repeated.
    let name = text.split(['@', '=']).next().unwrap_or_default();
    Error::invalid(format!("not a secret: `{}`", crate::shown(name)))
        .hint("write it as `NAME@api.example.com`; the value is read from the variable NAME")
}

/// The network of a sandbox as requested.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSpec {
    /// Preset of reachable networks; `public` if neither this nor `default` is set.
    pub reach: Option<Reach>,
    /// Rules before those of `reach`; the first match decides.
    pub rules: Vec<Rule>,
    /// Decision for flows that no rule matches, in place of `reach`.
    pub default: Option<Decision>,
    /// DNS servers, in place of the host's.
    pub dns: Vec<Resolver>,
    /// Time that a DNS server has to answer before the next is asked; default 2 s.
    pub dns_timeout: Option<Span>,
    /// Whether DNS answers keep private addresses. Rules decide about connections to them.
    pub dns_private: bool,
    /// Ports of the host that are published.
    pub ports: Vec<PublishedPort>,
    /// Secrets, of which only placeholders are inside.
    pub secrets: Vec<Secret>,
    /// Domain names that are never intercepted, and so get no secret.
    pub bypass: Vec<NamePattern>,
    /// Limit of concurrent flows; default 4096.
    pub max_connections: Option<u32>,
    /// Limit of outgoing bytes per second.
    pub egress_rate: Option<Bytes>,
    /// Named network that the sandbox joins; its members reach each other.
    pub join: Option<Name>,
    /// Whether programs inside trust the CA certificates that the host trusts.
    pub trust_host_cas: bool,
}

/// Limit of concurrent flows: enough for any build, and it stops a flood.
pub const DEFAULT_CONNECTIONS: u32 = 4096;

/// Memory limit of a gateway with [`DEFAULT_CONNECTIONS`] flows.
pub const GATEWAY_MEMORY: Bytes = Bytes::mib(512);

/// Memory limit of a gateway with this many concurrent flows.
pub fn gateway_memory(max_connections: u32) -> Bytes {
    // Twice the smallest buffers of a flow, in both directions.
    let more = u64::from(max_connections.saturating_sub(DEFAULT_CONNECTIONS)) * (64 << 10);
    Bytes(GATEWAY_MEMORY.0 + more)
}

fn default_gateway_memory() -> Bytes {
    GATEWAY_MEMORY
}

impl NetworkSpec {
    /// Whether the sandbox has a network at all.
    pub fn is_wanted(&self) -> bool {
        self.reach != Some(Reach::None)
    }

    fn has_settings(&self) -> bool {
        !self.rules.is_empty()
            || self.default.is_some()
            || !self.ports.is_empty()
            || !self.secrets.is_empty()
            || self.join.is_some()
    }

    /// Sets the reach to the host's default, unless the Spec has network settings.
    pub fn or_usual(mut self, usual: Option<&str>) -> Result<Self> {
        if self.reach.is_none() && !self.has_settings() {
            self.reach = usual.map(str::parse).transpose()?;
        }
        Ok(self)
    }

    /// Checks the settings against each other.
    pub fn validate(&self) -> Result<()> {
        self.secrets.iter().try_for_each(Secret::check)?;
        if !self.is_wanted() && (self.has_settings() || self.trust_host_cas) {
            return Err(Error::invalid("a sandbox without a network has no use for network rules")
                .hint(
                    "leave out `--no-net`, or leave out rules, ports, secrets, `--join` and \
                     `--trust-host-cas`",
                ));
        }
        let mut names = BTreeSet::new();
        for secret in &self.secrets {
            if !names.insert(&secret.name) {
                return Err(Error::invalid(format!("two secrets named `{}`", secret.name)));
            }
        }
        if self.dns_timeout.is_some_and(|limit| limit.0.is_zero()) {
            return Err(Error::invalid("a DNS server needs time to answer")
                .hint("set `dns_timeout` to at least `1ms`"));
        }
        Ok(())
    }

    /// The first secret with a host that is not intercepted (bypass), so that it gets a placeholder
    /// in place of the value.
    pub fn bypassed_secret(&self) -> Option<(&Secret, &NamePattern)> {
        self.secrets.iter().find_map(|secret| {
            let host = secret.hosts.iter().find(|host| self.bypass.contains(host))?;
            Some((secret, host))
        })
    }

    /// All rules: the requested ones, then those of the reach.
    pub fn policy(&self) -> Policy {
        let reach = match (self.reach, self.default) {
            (Some(reach), _) => reach,
            (None, Some(_)) => Reach::None,
            (None, None) => Reach::Public,
        };
        let mut rules = self.rules.clone();
        // Hosts that may get a secret can be reached.
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
        // Rules taken from a Plan contain it already.
        if default == Decision::Allow && !rules.contains(&deny_metadata()) {
            rules.push(deny_metadata());
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
    /// Parses an address with or without a port; default 53.
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

/// A Secret together with its placeholder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedSecret {
    /// The Secret as it was requested.
    pub secret: Secret,
    /// Text that stands for the value inside.
    pub placeholder: String,
}

/// The network of a sandbox as decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Rules that decide about flows.
    pub policy: Policy,
    /// DNS servers; if empty, those of the host at each start.
    pub dns: Vec<Resolver>,
    /// Time that a DNS server has to answer; `None` is the gateway's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_timeout: Option<Span>,
    /// Whether DNS answers keep private addresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dns_private: bool,
    /// Ports of the host that are published.
    pub ports: Vec<PublishedPort>,
    /// Secrets, of which only placeholders are inside.
    pub secrets: Vec<PlannedSecret>,
    /// Domain names that are never intercepted.
    pub bypass: Vec<NamePattern>,
    /// Limit of flows at one time.
    pub max_connections: u32,
    /// Memory limit of its gateway, enforced by the kernel; flows that need more are refused.
    #[serde(default = "default_gateway_memory")]
    pub gateway_memory: Bytes,
    /// Limit of outgoing bytes per second.
    pub egress_rate: Option<u64>,
    /// Named network that the sandbox joins; its members reach each other.
    pub join: Option<Name>,
    /// Whether programs inside trust the CA certificates that the host trusts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust_host_cas: bool,
}

impl Network {
    /// Whether TLS is intercepted, so that the sandbox needs a CA certificate.
    pub fn intercepts(&self) -> bool {
        !self.secrets.is_empty() || self.policy.names_with_http_rules().next().is_some()
    }
}

written_as_text!(PublishedPort, Resolver);

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
            let published = PublishedPort::parse(text).unwrap();
            assert_eq!(published.to_string(), same);
            assert_eq!(PublishedPort::parse(same).unwrap(), published);
        }
        for text in ["", "a:80", "80:0", "80:99999", "80:80/icmp", "1.2.3:80:80"] {
            assert!(PublishedPort::parse(text).is_err(), "{text}");
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
    fn explicit_rules_come_before_those_of_the_reach() {
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
            ports: vec![PublishedPort::parse("80:80").unwrap()],
            ..NetworkSpec::default()
        };
        assert!(spec.validate().is_err());
        let trusting = NetworkSpec { ports: Vec::new(), trust_host_cas: true, ..spec };
        assert!(trusting.validate().is_err());
        assert!(NetworkSpec { trust_host_cas: false, ..trusting }.validate().is_ok());
    }
}
