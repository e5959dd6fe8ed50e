//! The rules against a reference that was written for clarity: random lists of rules and random
//! flows have to be decided alike by both.
//!
//! The reference knows what each address of its table leads to because the table says so, compares
//! prefixes as text of zeros and ones, and shares no code with what it checks but the parser.

use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

const LISTS: usize = 4000;
const FLOWS: usize = 24;

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
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

/// IPv4 addresses and what is there; `-` is nothing.
const FOURS: &[(&str, &str)] = &[
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

const SIXES: &[(&str, &str)] = &[
    ("2606:4700::1", "public"),
    ("fd00::1", "private"),
    ("fe80::1", "private"),
    ("fd00:ec2::254", "metadata private"),
    ("::1", "loopback"),
    ("ff02::1", "-"),
    ("fd6d:7362::9", "-"),
];

/// An address with all that the reference knows of it.
#[derive(Debug)]
struct Known {
    /// As the sandbox writes it.
    sent: IpAddr,
    /// The same, but an IPv4-mapped address is the IPv4 address.
    written: IpAddr,
    /// What it leads to, if that is another address, and the bits of the prefix of such addresses.
    inner: Option<(Ipv4Addr, usize)>,
    groups: &'static str,
    host: bool,
    gateway: bool,
}

fn random_address(random: &mut Random) -> Known {
    if random.below(8) == 0 {
        let written = random.one(&["198.18.0.1", "fd6d:7362::1"]).parse().unwrap();
        return Known {
            sent: written,
            written,
            inner: None,
            groups: "",
            host: true,
            gateway: true,
        };
    }
    if random.below(3) == 0 {
        let (text, groups) = SIXES[random.below(SIXES.len())];
        let written = text.parse().unwrap();
        let host = groups == "loopback";
        return Known { sent: written, written, inner: None, groups, host, gateway: false };
    }
    let (text, groups) = FOURS[random.below(FOURS.len())];
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
    Known { sent, written, inner: (!plain).then_some((four, bits)), groups, host, gateway: false }
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

fn random_rule(random: &mut Random) -> String {
    let decision = random.one(&["allow", "allow", "deny"]);
    let traffic = random.one(TRAFFIC);
    let target = match random.below(10) {
        0 => "any",
        1..=3 => random.one(&["public", "private", "host", "metadata", "loopback"]),
        4..=6 => random.one(RANGES),
        _ => {
            let name = random.one(&["a.example", "b.example", "*.zone.example", "*.example"]);
            let traffic = if random.below(4) == 0 { ":http:GET:/" } else { traffic };
            return format!("{decision}@{name}{traffic}");
        }
    };
    // IPv6 needs brackets before a protocol.
    match target.split_once('/') {
        Some((six, bits)) if six.contains(':') => format!("{decision}@[{six}]/{bits}{traffic}"),
        _ if target.contains(':') => format!("{decision}@[{target}]{traffic}"),
        _ => format!("{decision}@{target}{traffic}"),
    }
}

fn random_flow(random: &mut Random) -> Flow {
    match random.below(6) {
        0 => Flow::Echo,
        1 | 2 => Flow::Udp([53, 443, 853, 7000][random.below(4)]),
        _ => Flow::Tcp([22, 53, 80, 443, 853, 8001, 8002][random.below(7)]),
    }
}

/// A rule, taken apart by its text.
struct Parts<'a> {
    allows: bool,
    target: &'a str,
    traffic: &'a str,
}

fn parts(rule: &str) -> Parts<'_> {
    let (decision, rest) = rule.split_once('@').unwrap();
    let end = rest.find(']').unwrap_or(0);
    let colon = rest[end..].find(':').map_or(rest.len(), |colon| end + colon);
    let (target, traffic) = rest.split_at(colon);
    Parts { allows: decision == "allow", target, traffic: traffic.trim_start_matches(':') }
}

fn is_hidden_flow(flow: Flow) -> bool {
    [Flow::Tcp(53), Flow::Tcp(853), Flow::Udp(53), Flow::Udp(443), Flow::Udp(853)].contains(&flow)
}

fn speaks_of(rule: &Parts<'_>, flow: Flow) -> bool {
    let (protocol, ports) = rule.traffic.split_once(':').unwrap_or((rule.traffic, ""));
    let (own, port) = match flow {
        Flow::Tcp(port) => ("tcp", port),
        Flow::Udp(port) => ("udp", port),
        Flow::Echo => ("icmp", 0),
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

fn is_about_address(rule: &Parts<'_>, to: &Known) -> bool {
    let metadata = to.groups.contains("metadata");
    let wide = rule.allows && metadata;
    match rule.target {
        "any" => !wide,
        "host" => to.host && !wide,
        "metadata" => metadata && !(rule.allows && to.host),
        "loopback" => to.groups == "loopback" || (to.gateway && !rule.allows),
        group @ ("public" | "private") => match rule.allows {
            true => to.groups == group && !to.host,
            // Those that lead elsewhere are all written as addresses of the internet here.
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

/// Whether a flow may leave.
fn reference(rules: &[String], default: bool, flow: Flow, to: &Known, tied: &[&str]) -> bool {
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
        if !tied.iter().any(|name| matches_name(rule.target, name)) {
            continue;
        }
        if !rule.allows && !rule.traffic.starts_with("http") {
            return false;
        }
        // The name opens the internet; all else has to be open without it.
        let nameless: Vec<String> =
            rules.iter().filter(|rule| !is_name(parts(rule).target)).cloned().collect();
        let public = to.groups == "public" && !to.host;
        if public || reference(&nameless, default, flow, to, &[]) {
            return true;
        }
    }
    default && !is_hidden_flow(flow) && !to.groups.contains("metadata")
}

fn made(rules: &[String], default: bool) -> Rules {
    let rules = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
    let default = if default { Decision::Allow } else { Decision::Deny };
    let host = HostAddresses::listed(HOST.map(|text| text.parse().unwrap()));
    Rules::new(Policy { rules, default }, host, Vec::new(), Vec::new())
}

fn random_list(random: &mut Random) -> (Vec<String>, bool) {
    let length = 1 + random.below(6);
    ((0..length).map(|_| random_rule(random)).collect(), random.below(5) == 0)
}

#[test]
fn flows_are_decided_as_the_reference_decides_them() {
    let mut random = Random(20);
    let (mut allowed, mut refused) = (0, 0);
    for _ in 0..LISTS {
        let (list, default) = random_list(&mut random);
        let rules = made(&list, default);
        for _ in 0..FLOWS {
            let (flow, to) = (random_flow(&mut random), random_address(&mut random));
            let tied: Vec<&str> = NAMES.into_iter().filter(|_| random.below(3) == 0).collect();
            let names: Vec<_> = tied.iter().map(|name| DomainName::parse(name).unwrap()).collect();
            let judgement = rules.judge(flow, to.sent, &names);
            let wanted = reference(&list, default, flow, &to, &tied);
            let about = || format!("{list:?} {default} {flow:?} {to:?} {tied:?}: {judgement:?}");
            assert_eq!(judgement.allows(), wanted, "{}", about());
            if wanted { allowed += 1 } else { refused += 1 }
        }
    }
    // Both are tried often enough to mean something.
    assert!(allowed > LISTS && refused > LISTS, "{allowed} {refused}");
}

/// Flows of every kind that the lists can tell apart.
fn flows() -> impl Iterator<Item = Flow> {
    let ports = [9, 22, 53, 80, 443, 853, 7000, 8001, 8002];
    let both = ports.into_iter().flat_map(|port| [Flow::Tcp(port), Flow::Udp(port)]);
    both.chain([Flow::Echo])
}

/// A query leaves only for a name that a rule allows, or where public addresses that no rule lists
/// can be reached without a name. An answer leads only where some flow may go.
#[test]
fn queries_leave_only_for_names_and_for_the_internet() {
    let mut random = Random(13);
    let unlisted = [("93.184.216.34", "public"), ("4000::5", "public")].map(|(text, groups)| {
        let written = text.parse().unwrap();
        Known { sent: written, written, inner: None, groups, host: false, gateway: false }
    });
    let (mut left, mut kept) = (0, 0);
    for _ in 0..LISTS {
        let (list, default) = random_list(&mut random);
        let rules = made(&list, default);
        let name = random.one(&NAMES);
        let query = rules.judge_question(&DomainName::parse(name).unwrap()).allows();
        // Without lists of addresses, and as if no single port were refused.
        let wide: Vec<String> = list
            .iter()
            .filter(|rule| {
                let rule = parts(rule);
                let listed =
                    rule.target.contains(['/', ':']) || rule.target.parse::<IpAddr>().is_ok();
                let one_port = rule.traffic.contains(':') && !rule.traffic.starts_with("http");
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
        if rules.may_answer(to.sent) {
            let public = to.groups == "public" && !to.host;
            let all: Vec<String> = list
                .iter()
                .filter(|rule| parts(rule).allows || parts(rule).traffic.is_empty())
                .cloned()
                .collect();
            let open = flows().any(|flow| reference(&all, default, flow, &to, &[]));
            assert!(!to.gateway && (public || open), "{list:?} {default} {to:?}");
        }
    }
    assert!(left > LISTS / 10 && kept > LISTS / 10, "{left} {kept}");
}
