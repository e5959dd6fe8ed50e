//! Network rules: which flows are allowed, by name or by address.

use crate::destination::{has_prefix4, has_prefix6};
use crate::{Destination, Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Decision of a rule about matching flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Flows that match are allowed.
    Allow,
    /// Flows that match are denied.
    Deny,
}

impl std::str::FromStr for Decision {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "allow" => Ok(Self::Allow),
            "deny" => Ok(Self::Deny),
            other => Err(Error::invalid(format!("neither `allow` nor `deny`: `{other}`"))),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}

/// Direction in which a flow is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The sandbox opens the flow.
    Egress,
    /// A peer outside opens it, through a published port.
    Ingress,
}

/// A domain name: lower case, without the trailing dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct DomainName(String);

impl DomainName {
    /// Parses letters, digits, `-` and `_` in labels of up to 63 bytes, 253 in all.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            let error = Error::invalid(format!("not a host name: `{}`", crate::shown(text)));
            match text.is_ascii() {
                true => error,
                false => error.hint("write international names in their `xn--` form"),
            }
        };
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let label = |label: &str| {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            (1..=63).contains(&label.len()) && label.bytes().all(known)
        };
        // A numeric last label is a malformed address, such as `1.2.3`.
        let last = name.rsplit('.').next().unwrap_or_default();
        let numeric = last.bytes().all(|byte| byte.is_ascii_digit());
        match name.len() <= 253 && name.split('.').all(label) && !numeric {
            true => Ok(Self(name)),
            false => Err(wrong()),
        }
    }

    /// The name as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a subdomain of `zone`; a name is none of itself.
    pub fn is_below(&self, zone: &Self) -> bool {
        self.0.strip_suffix(zone.as_str()).is_some_and(|rest| rest.ends_with('.'))
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A domain name, or all of its subdomains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum NamePattern {
    /// This name only: `example.com`.
    Exactly(DomainName),
    /// All subdomains, not the name itself: `*.example.com`.
    Below(DomainName),
}

impl NamePattern {
    /// Parses `example.com` or `*.example.com`.
    pub fn parse(text: &str) -> Result<Self> {
        match text.strip_prefix("*.") {
            Some(zone) => Ok(Self::Below(DomainName::parse(zone)?)),
            None => Ok(Self::Exactly(DomainName::parse(text)?)),
        }
    }

    /// Whether the pattern matches `name`.
    pub fn matches(&self, name: &DomainName) -> bool {
        match self {
            Self::Exactly(own) => own == name,
            Self::Below(zone) => name.is_below(zone),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(name) => name.fmt(f),
            Self::Below(zone) => write!(f, "*.{zone}"),
        }
    }
}

/// An IP address or a CIDR range: `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Range {
    /// The first address of the range.
    address: IpAddr,
    /// Length of the prefix in bits.
    bits: u8,
}

impl Range {
    /// Parses an address with or without `/BITS`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("not an address: `{}`", crate::shown(text)));
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let address: IpAddr = bare.unwrap_or(address).parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?,
        };
        Ok(Self { address, bits })
    }

    /// Whether a rule with this range matches an address. A deny rule matches if the address or one
    /// that it embeds is in the range. An allow rule matches an address that embeds others only if
    /// that is no accident: all embedded addresses are in the range, or the range is at least as
    /// long as the prefix that marks such addresses.
    pub fn covers(&self, decision: Decision, address: impl Into<Destination>) -> bool {
        let address = address.into();
        match (decision, address.prefix()) {
            (Decision::Deny, _) => address.readings().any(|one| self.contains(one)),
            (Decision::Allow, None) => self.contains(address.written()),
            (Decision::Allow, Some(bits)) => {
                address.embedded().all(|one| self.contains(one))
                    || (self.bits >= bits && self.contains(address.written()))
            }
        }
    }

    /// Whether it is a single address.
    pub fn is_single(&self) -> bool {
        self.bits == if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Whether it is all of IPv4 or all of IPv6.
    pub fn is_everything(&self) -> bool {
        self.canonical().1 == 0
    }

    /// Whether it is a range of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.canonical().0.is_ipv4()
    }

    /// Address and prefix length; a range of IPv4-mapped addresses as one of IPv4.
    fn canonical(&self) -> (IpAddr, u8) {
        match self.address.to_canonical() {
            four @ IpAddr::V4(_) if self.address.is_ipv6() && self.bits >= 96 => {
                (four, self.bits - 96)
            }
            _ => (self.address, self.bits),
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        match (self.canonical(), address.to_canonical()) {
            ((IpAddr::V4(own), bits), IpAddr::V4(other)) => has_prefix4(own, bits, other),
            ((IpAddr::V6(own), bits), IpAddr::V6(other)) => has_prefix6(own, bits, other),
            _ => false,
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.bits) {
            (address @ IpAddr::V4(_), 32) => address.fmt(f),
            (address @ IpAddr::V4(_), bits) => write!(f, "{address}/{bits}"),
            (address, 128) => write!(f, "[{address}]"),
            (address, bits) => write!(f, "[{address}]/{bits}"),
        }
    }
}

/// Group of addresses with the same scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// The internet: all addresses in no other group.
    Public,
    /// Private and shared networks, and the local link.
    Private,
    /// The host of the sandbox, by any of its addresses.
    Host,
    /// Metadata services of clouds, which serve credentials.
    Metadata,
    /// Loopback addresses of IPv4 and IPv6.
    Loopback,
}

impl Group {
    const ALL: [(&str, Self); 5] = [
        ("public", Self::Public),
        ("private", Self::Private),
        ("host", Self::Host),
        ("metadata", Self::Metadata),
        ("loopback", Self::Loopback),
    ];

    /// Group of an address, see [`Destination::group`].
    pub fn of(address: impl Into<Destination>) -> Option<Self> {
        address.into().group()
    }
}

/// The peers that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// All peers: `any` or `*` in rules.
    Any,
    /// Peers that a domain name resolves to.
    Name(NamePattern),
    /// Peers by their IP address.
    Range(Range),
    /// Peers by their address group.
    Group(Group),
}

impl Target {
    fn parse(text: &str) -> Result<Self> {
        if matches!(text, "any" | "*") {
            return Ok(Self::Any);
        }
        if let Some((_, group)) = Group::ALL.iter().find(|(name, _)| *name == text) {
            return Ok(Self::Group(*group));
        }
        if let Ok(range) = Range::parse(text) {
            return Ok(Self::Range(range));
        }
        NamePattern::parse(text).map(Self::Name)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Name(name) => name.fmt(f),
            Self::Range(range) => range.fmt(f),
            Self::Group(group) => {
                let name = Group::ALL.iter().find(|(_, other)| other == group);
                f.write_str(name.map_or("", |(name, _)| name))
            }
        }
    }
}

/// Port ranges, from and to. An empty list means all ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ports(Vec<(u16, u16)>);

impl Ports {
    fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("not ports: `{}`", crate::shown(text)))
                .hint("write them as `443`, `80,443` or `8000-8999`")
        };
        let ports = text.split(',').map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            (1 <= from && from <= to).then_some((from, to))
        });
        ports.collect::<Option<_>>().map(Self).ok_or_else(wrong)
    }

    /// Whether all ports match, because none was named.
    pub fn is_any(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `port` is in a range.
    pub fn contains(&self, port: u16) -> bool {
        self.is_any() || self.0.iter().any(|(from, to)| (*from..=*to).contains(&port))
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (from, to)) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match from == to {
                true => from.fmt(f)?,
                false => write!(f, "{from}-{to}")?,
            }
        }
        Ok(())
    }
}

/// Protocol and ports that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    /// TCP, UDP and ICMP echo. DNS to other servers and QUIC hide the name of the peer: they need a
    /// rule that names UDP and the port, or TCP and port 53 or 853.
    Any,
    /// TCP connections to these ports.
    Tcp(Ports),
    /// UDP datagrams to these ports.
    Udp(Ports),
    /// ICMP echo requests and replies.
    Icmp,
    /// HTTP requests; the gateway intercepts TLS for them.
    Http {
        /// Methods in capitals; empty means all.
        methods: Vec<String>,
        /// Prefix that the path begins with.
        path: String,
    },
}

/// A rule: `allow|deny[:egress|ingress]@TARGET[:PROTOCOL[:PORTS]]`, or for HTTP
/// `…@NAME:http[:METHODS[:PATH]]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    /// Decision about flows that it matches.
    pub decision: Decision,
    /// Direction in which they are opened.
    pub direction: Direction,
    /// Peers that the flows are with.
    pub target: Target,
    /// Protocol and ports of the flows.
    pub traffic: Traffic,
}

impl Rule {
    /// Parses a rule; fails with the reason as a cause.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid(format!("not a network rule: `{}`", crate::shown(text))).cause(why).hint(
                "write it as `allow@example.com`, `deny@10.0.0.0/8:tcp:22` or \
                 `allow@api.example.com:http:GET:/v1/`",
            )
        };
        let (head, rest) = text.split_once('@').ok_or_else(|| wrong("it has no `@`"))?;
        let (decision, direction) = head.split_once(':').unwrap_or((head, "egress"));
        let decision =
            decision.parse().map_err(|_| wrong("it begins with neither `allow` nor `deny`"))?;
        let direction = match direction {
            "egress" => Direction::Egress,
            "ingress" => Direction::Ingress,
            _ => return Err(wrong("its direction is neither `egress` nor `ingress`")),
        };
        let (target, traffic) = split_target(rest);
        let target = Target::parse(target).map_err(|error| wrong(error.message()))?;
        let traffic = parse_traffic(traffic).map_err(|error| wrong(error.message()))?;
        if matches!(traffic, Traffic::Http { .. }) {
            if !matches!(target, Target::Name(_)) {
                return Err(wrong("an HTTP rule needs a domain name"));
            }
            if direction == Direction::Ingress {
                return Err(wrong("an HTTP rule cannot be `ingress`"));
            }
        }
        if direction == Direction::Ingress && matches!(target, Target::Name(_)) {
            return Err(wrong("an `ingress` rule matches addresses, not names"));
        }
        Ok(Self { decision, direction, target, traffic })
    }
}

/// Splits at the first colon that is not part of an IPv6 address.
fn split_target(rest: &str) -> (&str, &str) {
    if Range::parse(rest).is_ok() {
        return (rest, "");
    }
    let from = match rest.starts_with('[') {
        true => rest.find(']').unwrap_or(0),
        false => 0,
    };
    match rest[from..].find(':') {
        Some(colon) => (&rest[..from + colon], &rest[from + colon + 1..]),
        None => (rest, ""),
    }
}

fn parse_traffic(text: &str) -> Result<Traffic> {
    let (protocol, rest) = text.split_once(':').unwrap_or((text, ""));
    let ports = || if rest.is_empty() { Ok(Ports::default()) } else { Ports::parse(rest) };
    match protocol {
        "" | "any" if rest.is_empty() => Ok(Traffic::Any),
        "tcp" => Ok(Traffic::Tcp(ports()?)),
        "udp" => Ok(Traffic::Udp(ports()?)),
        "icmp" if rest.is_empty() => Ok(Traffic::Icmp),
        "http" => {
            let (methods, path) = rest.split_once(':').unwrap_or((rest, "/"));
            let every = methods.is_empty() || methods == "*";
            let methods: Vec<String> = match every {
                true => Vec::new(),
                false => methods.split(',').map(str::to_ascii_uppercase).collect(),
            };
            let word =
                |word: &String| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase());
            let plain = |byte: u8| byte.is_ascii_graphic() && !b"?#%\\".contains(&byte);
            if !methods.iter().all(word) {
                return Err(Error::invalid("its methods are not words of letters"));
            }
            if !path.starts_with('/') || !path.bytes().all(plain) || path.contains("/.") {
                return Err(Error::invalid(
                    "its path is no plain prefix: it starts with `/` and has no `?`, `#`, `%`, `\\` or `/.`",
                ));
            }
            Ok(Traffic::Http { methods, path: path.to_owned() })
        }
        _ => Err(Error::invalid("its protocol is not `tcp`, `udp`, `icmp` or `http`")),
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.decision.fmt(f)?;
        if self.direction == Direction::Ingress {
            f.write_str(":ingress")?;
        }
        write!(f, "@{}", self.target)?;
        let mut port = |name: &str, ports: &Ports| match ports.is_any() {
            true => write!(f, ":{name}"),
            false => write!(f, ":{name}:{ports}"),
        };
        match &self.traffic {
            Traffic::Any => Ok(()),
            Traffic::Tcp(ports) => port("tcp", ports),
            Traffic::Udp(ports) => port("udp", ports),
            Traffic::Icmp => f.write_str(":icmp"),
            Traffic::Http { methods, path } if methods.is_empty() => write!(f, ":http:*:{path}"),
            Traffic::Http { methods, path } => write!(f, ":http:{}:{path}", methods.join(",")),
        }
    }
}

/// The rules of a sandbox. The first match decides; without one, `default` does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Policy {
    /// Rules in order of precedence.
    pub rules: Vec<Rule>,
    /// Decision if no rule matches.
    pub default: Decision,
}

impl Policy {
    /// Names with HTTP rules, which are intercepted.
    pub fn names_with_http_rules(&self) -> impl Iterator<Item = &NamePattern> {
        self.rules.iter().filter_map(|rule| match (&rule.traffic, &rule.target) {
            (Traffic::Http { .. }, Target::Name(name)) => Some(name),
            _ => None,
        })
    }

    /// Whether some rule matches by domain name.
    pub fn decides_by_name(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.target, Target::Name(_)))
    }
}

impl Range {
    /// The first address of the range.
    pub fn first(&self) -> IpAddr {
        self.address
    }

    /// Whether it is a single address.
    pub fn is_one(&self) -> bool {
        self.bits == if self.address.is_ipv4() { 32 } else { 128 }
    }
}

written_as_text!(DomainName, NamePattern, Range, Rule);

/// Addresses of the network between a sandbox and its gateway: the same in all sandboxes.
pub mod addresses {
    use super::{Ipv4Addr, Ipv6Addr};

    /// IPv4 address of the gateway: the only DNS server, and the host where that is allowed.
    pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
    /// IPv4 address of the sandbox.
    pub const GUEST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
    /// Prefix length of this IPv4 network.
    pub const BITS: u8 = 24;
    /// IPv6 address of the gateway.
    pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd6d, 0x7362, 0, 0, 0, 0, 0, 1);
    /// IPv6 address of the sandbox.
    pub const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd6d, 0x7362, 0, 0, 0, 0, 0, 2);
    /// Prefix length of this IPv6 network.
    pub const BITS6: u8 = 64;
    /// First address that stands for a peer in a named network.
    pub const JOINED: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
    /// MAC address of the gateway.
    pub const GATEWAY_LINK: [u8; 6] = [0x02, 0x6d, 0x73, 0x62, 0, 1];
    /// MAC address of the sandbox.
    pub const GUEST_LINK: [u8; 6] = [0x02, 0x6d, 0x73, 0x62, 0, 2];
    /// MTU in bytes: no packet travels over a real wire.
    pub const MTU: u16 = 65520;
    /// Name of the network device.
    pub const DEVICE: &str = "eth0";
    /// File of trusted CA certificates in a sandbox with TLS interception.
    pub const TRUSTED: &str = "/.msb/trusted.pem";
    /// Names of the host inside a sandbox.
    pub const HOST_NAMES: [&str; 2] = ["host.msb.internal", "host.microsandbox.internal"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_as_they_are_read() {
        for text in [
            "allow@example.com",
            "allow@*.example.org:tcp:443",
            "deny:ingress@10.0.0.0/8:tcp:22",
            "allow@[2001:db8::]/32:udp:53,1000-2000",
            "deny@[fe80::1]",
            "allow@any:icmp",
            "allow@public",
            "allow@api.example.com:http:GET,HEAD:/v1/",
            "deny@api.example.com:http:*:/admin",
        ] {
            assert_eq!(Rule::parse(text).unwrap().to_string(), text);
        }
        let bare = Rule::parse("deny@fe80::1/10").unwrap();
        assert_eq!(bare.to_string(), "deny@[fe80::1]/10");
    }

    #[test]
    fn what_is_not_a_rule_is_refused() {
        for text in [
            "",
            "allow",
            "allow@",
            "perhaps@example.com",
            "allow:sideways@example.com",
            "allow@exa mple.com",
            "allow@example.com:sctp",
            "allow@example.com:tcp:0",
            "allow@example.com:tcp:9-1",
            "allow@example.com:icmp:1",
            "allow@10.0.0.0/33",
            "allow@1.2.3",
            "allow@public:http:GET:/",
            "allow@example.com:http:GET:v1",
            "allow@example.com:http:GET:/v1/../x",
            "allow@example.com:http:G T:/",
            "allow:ingress@example.com",
            "allow@b\u{fc}cher.de",
        ] {
            assert!(Rule::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_star_is_below_and_not_the_name_itself() {
        let pattern = NamePattern::parse("*.example.org").unwrap();
        let name = |text: &str| DomainName::parse(text).unwrap();
        assert!(pattern.matches(&name("a.example.org")));
        assert!(pattern.matches(&name("A.B.Example.Org.")));
        assert!(!pattern.matches(&name("example.org")));
        assert!(!pattern.matches(&name("badexample.org")));
    }

    #[test]
    fn every_way_of_writing_an_address_has_the_same_group() {
        let of = |text: &str| Group::of(text.parse::<IpAddr>().unwrap());
        for text in
            ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "::10.1.2.3", "2002:a01:203::1"]
        {
            assert_eq!(of(text), Some(Group::Private), "{text}");
        }
        for text in ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254"] {
            assert_eq!(of(text), Some(Group::Metadata), "{text}");
        }
        for text in ["127.0.0.1", "::1", "::ffff:127.9.9.9"] {
            assert_eq!(of(text), Some(Group::Loopback), "{text}");
        }
        for text in ["224.0.0.1", "255.255.255.255", "ff02::1", "::", "0.0.0.0"] {
            assert_eq!(of(text), None, "{text}");
        }
        for text in ["1.1.1.1", "2606:4700::1111", "172.32.0.1"] {
            assert_eq!(of(text), Some(Group::Public), "{text}");
        }
    }

    #[test]
    fn ranges_hold_what_begins_like_them() {
        for decision in [Decision::Allow, Decision::Deny] {
            let covers = |range: &str, address: &str| {
                let address: IpAddr = address.parse().unwrap();
                Range::parse(range).unwrap().covers(decision, address)
            };
            assert!(covers("10.0.0.0/8", "10.255.0.1"));
            assert!(covers("10.0.0.0/8", "::ffff:10.0.0.1"));
            assert!(covers("::ffff:10.0.0.0/104", "10.255.0.1"));
            assert!(!covers("::ffff:10.0.0.0/64", "11.0.0.1"));
            assert!(!covers("10.0.0.0/8", "11.0.0.1"));
            assert!(covers("0.0.0.0/0", "1.2.3.4"));
            assert!(covers("::/0", "2001:db8::1"));
            assert!(!covers("::/0", "1.2.3.4"));
            assert!(covers("fe80::/10", "fe80::5"));
        }
    }

    #[test]
    fn a_range_refuses_every_form_and_allows_what_it_names() {
        for (range, address, allows, refuses) in [
            ("10.0.0.0/8", "64:ff9b::10.0.0.1", true, true),
            ("10.0.0.0/8", "64:ff9b:1::10.0.0.1", true, true),
            ("10.0.0.0/8", "2002:a00:1::5", true, true),
            ("10.0.0.0/8", "64:ff9b::11.0.0.1", false, false),
            // A local NAT64 address with two readings, one of them in the range.
            ("10.0.0.0/8", "64:ff9b:1:a00:0:100:b00:1", false, true),
            // `::/0` is not meant to reach private IPv4 addresses.
            ("::/0", "64:ff9b::10.0.0.1", false, true),
            ("64:ff9b::/96", "64:ff9b::10.0.0.1", true, true),
            ("64:ff9b::/96", "10.0.0.1", false, false),
            ("2000::/3", "2002:a00:1::5", false, true),
            ("2002::/16", "2002:a00:1::5", true, true),
        ] {
            let (range, to): (_, IpAddr) = (Range::parse(range).unwrap(), address.parse().unwrap());
            assert_eq!(range.covers(Decision::Allow, to), allows, "allow {range} {address}");
            assert_eq!(range.covers(Decision::Deny, to), refuses, "deny {range} {address}");
        }
    }
}
