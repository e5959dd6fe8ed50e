//! Compares the policy with a reference implementation: random rules and random flows have to be
//! decided alike by both.
//!
//! The reference takes the class of each address from its table, compares prefixes as text of zeros
//! and ones, and shares only the parser with the code under test.

use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

const LISTS: usize = 4000;
const FLOWS: usize = 24;

/// A random generator with the same numbers in every run.
struct TestRandom(u64);

impl TestRandom {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn one<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

const HOST: [&str; 2] = ["203.0.113.9", "192.168.1.5"];

/// IPv4 addresses and their groups; `-` is unroutable.
const IPV4_ADDRESSES: &[(&str, &str)] = &[
    ("1.1.1.1", "public"),
    ("8.8.4.4", "public"),
    ("203.0.113.9", "public"),
    ("10.0.0.1", "private"),
    ("10.0.0.2", "private"),
    ("192.168.1.5", "private"),
    ("127.0.0.1", "loopback"),
    ("169.254.169.254", "metadata private"),
    ("169.254.9.9", "metadata private"),
    ("100.100.100.200", "metadata private"),
    ("168.63.129.16", "metadata public"),
    ("224.0.0.1", "-"),
    ("0.0.0.0", "-"),
    ("198.18.0.77", "-"),
];

const IPV6_ADDRESSES: &[(&str, &str)] = &[
    ("2606:4700::1", "public"),
    ("fd00::1", "private"),
    ("fe80::1", "private"),
    ("fd00:ec2::254", "metadata private"),
    ("::1", "loopback"),
    ("ff02::1", "-"),
    ("fd6d:7362::9", "-"),
];

/// An address with its class, as the reference sees it.
#[derive(Debug)]
struct TestAddress {
    /// The address as the guest writes it.
    sent: IpAddr,
    /// As `sent`, but an IPv4-mapped address is the IPv4 address.
    written: IpAddr,
    /// The embedded IPv4 address, and the length of the prefix of such addresses.
    inner: Option<(Ipv4Addr, usize)>,
    groups: &'static str,
    host: bool,
    gateway: bool,
}

fn random_address(random: &mut TestRandom) -> TestAddress {
    if random.below(8) == 0 {
        let written = random.one(&["198.18.0.1", "fd6d:7362::1"]).parse().unwrap();
        return TestAddress {
            sent: written,
            written,
            inner: None,
            groups: "",
            host: true,
            gateway: true,
        };
    }
    if random.below(3) == 0 {
        let (text, groups) = IPV6_ADDRESSES[random.below(IPV6_ADDRESSES.len())];
        let written = text.parse().unwrap();
        let host = groups == "loopback";
        return TestAddress { sent: written, written, inner: None, groups, host, gateway: false };
    }
    let (text, groups) = IPV4_ADDRESSES[random.below(IPV4_ADDRESSES.len())];
    let four: Ipv4Addr = text.parse().unwrap();
    let [a, b, c, d] = four.octets().map(u16::from);
    let (high, low) = (a << 8 | b, c << 8 | d);
    let six = |text: String| text.parse::<Ipv6Addr>().unwrap();
    let (written, bits) = match random.below(7) {
        0 => (six(format!("64:ff9b::{high:x}:{low:x}")), 96),
        1 => (six(format!("2002:{high:x}:{low:x}::7")), 16),
        // `::0.0.0.0` and `::0.0.0.1` are other addresses.
        2 if high != 0 => (six(format!("::{high:x}:{low:x}")), 96),
        3 => (six(format!("::ffff:0:{high:x}:{low:x}")), 96),
        4 => (six(format!("2606:4700::5efe:{high:x}:{low:x}")), 96),
        _ => (four.to_ipv6_mapped(), 0),
    };
    // Mapped addresses are the IPv4 address itself.
    let plain = bits == 0;
    let mapped = plain && random.below(2) == 0;
    let sent = if plain && !mapped { IpAddr::V4(four) } else { IpAddr::V6(written) };
    let written = if plain { IpAddr::V4(four) } else { sent };
    let host = HOST.contains(&text) || groups == "loopback";
    TestAddress {
        sent,
        written,
        inner: (!plain).then_some((four, bits)),
        groups,
        host,
        gateway: false,
    }
}

/// An address as zeros and ones, with its family before them.
fn digits(address: IpAddr) -> String {
    match address {
        IpAddr::V4(four) => format!("4{:032b}", four.to_bits()),
        IpAddr::V6(six) => format!("6{:0128b}", six.to_bits()),
    }
}

const NAMES: [&str; 3] = ["a.example", "b.example", "x.zone.example"];
const RANGES: &[&str] = &[
    "1.1.1.1",
    "1.0.0.0/8",
    "10.0.0.0/8",
    "10.0.0.1",
    "0.0.0.0/0",
    "169.254.0.0/16",
    "169.254.169.254",
    "127.0.0.0/8",
    "203.0.113.0/24",
    "192.168.1.5",
    "198.18.0.0/15",
    "::/0",
    "2000::/3",
    "2606:4700::/32",
    "fd00:ec2::254",
    "64:ff9b::/96",
    "2002::/16",
];
const TRAFFIC: &[&str] = &[
    "",
    "",
    "",
    ":tcp",
    ":tcp:80",
    ":tcp:8001-8002",
    ":tcp:53,443",
    ":udp",
    ":udp:443",
    ":udp:1-1000",
    ":icmp",
];

fn random_rule(random: &mut TestRandom) -> String {
    let decision = random.one(&["allow", "allow", "deny"]);
    let packet_counts = random.one(TRAFFIC);
    let target = match random.below(10) {
        0 => "any",
        1..=3 => random.one(&["public", "private", "host", "metadata", "loopback"]),
        4..=6 => random.one(RANGES),
        _ => {
            let name = random.one(&["a.example", "b.example", "*.zone.example", "*.example"]);
            let http = random.one(&[":http:GET:/", ":http:*:/v1", ":http:GET,POST:/admin"]);
            let packet_counts = if random.below(4) == 0 { http } else { packet_counts };
            return format!("{decision}@{name}{packet_counts}");
        }
    };
    // IPv6 needs brackets before a protocol.
    match target.split_once('/') {
        Some((six, bits)) if six.contains(':') => {
            format!("{decision}@[{six}]/{bits}{packet_counts}")
        }
        _ if target.contains(':') => format!("{decision}@[{target}]{packet_counts}"),
        _ => format!("{decision}@{target}{packet_counts}"),
    }
}

fn random_flow(random: &mut TestRandom) -> FlowProtocol {
    match random.below(6) {
        0 => FlowProtocol::Echo,
        1 | 2 => FlowProtocol::Udp([53, 443, 853, 7000][random.below(4)]),
        _ => FlowProtocol::Tcp([22, 53, 80, 443, 853, 8001, 8002][random.below(7)]),
    }
}

/// The parts of a rule's text.
struct RuleParts<'a> {
    allows: bool,
    target: &'a str,
    packet_counts: &'a str,
}

fn parts(rule: &str) -> RuleParts<'_> {
    let (decision, rest) = rule.split_once('@').unwrap();
    let end = rest.find(']').unwrap_or(0);
    let colon = rest[end..].find(':').map_or(rest.len(), |colon| end + colon);
    let (target, packet_counts) = rest.split_at(colon);
    RuleParts {
        allows: decision == "allow",
        target,
        packet_counts: packet_counts.trim_start_matches(':'),
    }
}

fn is_hidden_flow(flow: FlowProtocol) -> bool {
    [
        FlowProtocol::Tcp(53),
        FlowProtocol::Tcp(853),
        FlowProtocol::Udp(53),
        FlowProtocol::Udp(443),
        FlowProtocol::Udp(853),
    ]
    .contains(&flow)
}

fn speaks_of(rule: &RuleParts<'_>, flow: FlowProtocol) -> bool {
    let (protocol, ports) = rule.packet_counts.split_once(':').unwrap_or((rule.packet_counts, ""));
    let (own, port) = match flow {
        FlowProtocol::Tcp(port) => ("tcp", port),
        FlowProtocol::Udp(port) => ("udp", port),
        FlowProtocol::Echo => ("icmp", 0),
    };
    if protocol == "http" {
        return own == "tcp";
    }
    if protocol != own && !protocol.is_empty() {
        return false;
    }
    if ports.is_empty() {
        return !rule.allows || !is_hidden_flow(flow);
    }
    ports.split(',').any(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        (from.parse().unwrap()..=to.parse().unwrap()).contains(&port)
    })
}

fn is_about_address(rule: &RuleParts<'_>, to: &TestAddress) -> bool {
    let metadata = to.groups.contains("metadata");
    let wide = rule.allows && metadata;
    match rule.target {
        "any" => !wide,
        "host" => to.host && !wide,
        "metadata" => metadata && !(rule.allows && to.host),
        "loopback" => to.groups == "loopback" || (to.gateway && !rule.allows),
        group @ ("public" | "private") => match rule.allows {
            true => to.groups == group && !to.host,
            // Addresses with an embedded IPv4 address are all public IPv6 addresses here.
            false if group == "public" && to.inner.is_some() => true,
            false => to.groups.split(' ').any(|own| own == group),
        },
        range => {
            let text = range.replace(['[', ']'], "");
            let (begin, bits) = text.split_once('/').unwrap_or((&text, ""));
            let begin = digits(begin.parse().unwrap());
            let bits = if bits.is_empty() { begin.len() - 1 } else { bits.parse().unwrap() };
            let holds = |address| digits(address).starts_with(&begin[..1 + bits]);
            let inner = to.inner.is_some_and(|(four, _)| holds(IpAddr::V4(four)));
            match rule.allows {
                false if to.gateway => {
                    let loopback = ["127.0.0.1", "::1"].map(|text| text.parse().unwrap());
                    holds(to.written) || loopback.into_iter().any(holds)
                }
                false => holds(to.written) || inner,
                true if to.gateway || (metadata && range.contains('/')) => false,
                true => match to.inner {
                    None => holds(to.written),
                    Some((_, prefix)) => inner || (bits >= prefix && holds(to.written)),
                },
            }
        }
    }
}

fn is_name(target: &str) -> bool {
    target.ends_with(".example")
}

fn matches_name(target: &str, name: &str) -> bool {
    match target.strip_prefix('*') {
        Some(ending) => name.ends_with(ending),
        None => target == name,
    }
}

/// Whether the reference allows a flow.
fn reference(
    rules: &[String],
    default: bool,
    flow: FlowProtocol,
    to: &TestAddress,
    resolved_names: &[&str],
) -> bool {
    if to.groups == "-" {
        return false;
    }
    for rule in rules.iter().map(|rule| parts(rule)) {
        if !speaks_of(&rule, flow) {
            continue;
        }
        if !is_name(rule.target) {
            if is_about_address(&rule, to) {
                return rule.allows;
            }
            continue;
        }
        if !resolved_names.iter().any(|name| matches_name(rule.target, name)) {
            continue;
        }
        if !rule.allows && !rule.packet_counts.starts_with("http") {
            return false;
        }
        // The name opens public addresses; others must be allowed without it.
        let nameless: Vec<String> =
            rules.iter().filter(|rule| !is_name(parts(rule).target)).cloned().collect();
        let public = to.groups == "public" && !to.host;
        if public || reference(&nameless, default, flow, to, &[]) {
            return true;
        }
    }
    default && !is_hidden_flow(flow) && !to.groups.contains("metadata")
}

fn rules_of(rules: &[String], default: bool) -> Rules {
    let rules = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
    let default = if default { Decision::Allow } else { Decision::Deny };
    let host = HostAddresses::listed(HOST.map(|text| text.parse().unwrap()));
    Rules::new(Policy { rules, default }, host, Vec::new(), Vec::new())
}

fn random_list(random: &mut TestRandom) -> (Vec<String>, bool) {
    let length = 1 + random.below(6);
    ((0..length).map(|_| random_rule(random)).collect(), random.below(5) == 0)
}

#[test]
fn flows_are_decided_as_the_reference_decides_them() {
    let mut random = TestRandom(20);
    let (mut allowed, mut refused) = (0, 0);
    for _ in 0..LISTS {
        let (list, default) = random_list(&mut random);
        let rules = rules_of(&list, default);
        for _ in 0..FLOWS {
            let (flow, to) = (random_flow(&mut random), random_address(&mut random));
            let resolved_names: Vec<&str> =
                NAMES.into_iter().filter(|_| random.below(3) == 0).collect();
            let names: Vec<_> =
                resolved_names.iter().map(|name| DomainName::parse(name).unwrap()).collect();
            let decision = rules.decide(flow, to.sent, &names);
            let wanted = reference(&list, default, flow, &to, &resolved_names);
            let about =
                || format!("{list:?} {default} {flow:?} {to:?} {resolved_names:?}: {decision:?}");
            assert_eq!(decision.allows(), wanted, "{}", about());
            if wanted { allowed += 1 } else { refused += 1 }
        }
    }
    // Both outcomes occur often enough for the test to mean something.
    assert!(allowed > LISTS && refused > LISTS, "{allowed} {refused}");
}

/// Flows of every kind that the rules distinguish.
fn flows() -> impl Iterator<Item = FlowProtocol> {
    let ports = [9, 22, 53, 80, 443, 853, 7000, 8001, 8002];
    let both =
        ports.into_iter().flat_map(|port| [FlowProtocol::Tcp(port), FlowProtocol::Udp(port)]);
    both.chain([FlowProtocol::Echo])
}

/// A query leaves only for a name that a rule allows, or where public addresses that no rule lists
/// can be reached without a name. An answer leads only where some flow may go.
#[test]
fn queries_leave_only_for_names_and_for_the_internet() {
    let mut random = TestRandom(13);
    let unlisted = [("93.184.216.34", "public"), ("4000::5", "public")].map(|(text, groups)| {
        let written = text.parse().unwrap();
        TestAddress { sent: written, written, inner: None, groups, host: false, gateway: false }
    });
    let (mut left, mut kept) = (0, 0);
    for _ in 0..LISTS {
        let (list, default) = random_list(&mut random);
        let rules = rules_of(&list, default);
        let name = random.one(&NAMES);
        let query = rules.decide_dns_query(&DomainName::parse(name).unwrap()).allows();
        // Without ranges that allow, and without rules that deny a single port.
        let wide: Vec<String> = list
            .iter()
            .filter(|rule| {
                let rule = parts(rule);
                let listed =
                    rule.target.contains(['/', ':']) || rule.target.parse::<IpAddr>().is_ok();
                let one_port =
                    rule.packet_counts.contains(':') && !rule.packet_counts.starts_with("http");
                if rule.allows { !listed } else { !one_port }
            })
            .cloned()
            .collect();
        let named = list.iter().map(|rule| parts(rule));
        let mut named = named.filter(|rule| rule.allows && is_name(rule.target));
        let named = named.any(|rule| matches_name(rule.target, name));
        let internet =
            flows().any(|flow| unlisted.iter().any(|to| reference(&wide, default, flow, to, &[])));
        assert!(!query || named || internet, "{list:?} {default} {name}");
        if query {
            left += 1
        } else {
            kept += 1
        }
        let to = random_address(&mut random);
        if rules.allows_answer(to.sent, false) {
            let public = to.groups == "public" && !to.host;
            let all: Vec<String> = list
                .iter()
                .filter(|rule| parts(rule).allows || parts(rule).packet_counts.is_empty())
                .cloned()
                .collect();
            let open = flows().any(|flow| reference(&all, default, flow, &to, &[]));
            assert!(!to.gateway && (public || open), "{list:?} {default} {to:?}");
        }
    }
    assert!(left > LISTS / 10 && kept > LISTS / 10, "{left} {kept}");
}
