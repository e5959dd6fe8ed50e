//! Verdicts as people read them.

use crate::event_text::quoted;
use msb_spec::{Decision, Direction, Group, Rule, addresses, shown};
use msb_wire::{FlowKind, NetEvent, NetRecord, Verdict};
use std::net::IpAddr;

/// One line: the decision, the protocol, the peer, and the rule that decided.
pub(crate) fn verdict(verdict: &Verdict) -> String {
    let decision = match verdict.decision {
        Decision::Allow => "allow",
        Decision::Deny => "deny ",
    };
    let arrow = match verdict.direction {
        Direction::Egress => "",
        Direction::Ingress => "from ",
    };
    let request = verdict.request.as_deref().map(|text| format!(" {}", shown(text)));
    let secrets = match verdict.secrets.as_slice() {
        [] => String::new(),
        names => format!(", secrets {}", shown(&names.join(" "))),
    };
    let remedy = remedy(verdict).map(|flag| format!("; `{flag}` allows it"));
    format!(
        "{decision}  {:<4} {arrow}{}{}  by {}{secrets}{}",
        kind(verdict.kind),
        whom(verdict),
        request.unwrap_or_default(),
        shown(&verdict.rule),
        remedy.unwrap_or_default()
    )
}

/// The flag that allows a refused flow, as a shell takes it; none if no flag can.
pub(crate) fn remedy(verdict: &Verdict) -> Option<String> {
    if verdict.decision == Decision::Allow || !verdict.secrets.is_empty() {
        return None;
    }
    let rules = match verdict.direction {
        Direction::Ingress => vec![format!("allow:ingress@{}", bracketed(verdict.address?))],
        Direction::Egress => egress_rules(verdict)?,
    };
    // The name and the path come from the sandbox: what is no rule is not suggested.
    let rule = rules.into_iter().find(|rule| rule.len() <= RULE_LIMIT && Rule::parse(rule).is_ok());
    rule.map(|rule| format!("--net-rule {}", quoted(&rule)))
}

/// Longest rule that is suggested; a path may be longer than a line.
const RULE_LIMIT: usize = 300;

/// Rules that allow a flow of the sandbox, the narrowest first; none for refusals that no rule
/// lifts.
fn egress_rules(verdict: &Verdict) -> Option<Vec<String>> {
    let name = verdict.name.as_ref().map(ToString::to_string);
    let address = verdict.address.map(bracketed);
    let is_gateway = |address: IpAddr| {
        [IpAddr::V4(addresses::GATEWAY), IpAddr::V6(addresses::GATEWAY6)].contains(&address)
    };
    let peer = match verdict.rule.as_str() {
        "private answer" => "private".to_owned(),
        "no rule allows the host" => "host".to_owned(),
        // Only an address lifts the checks of names.
        "no server name in the TLS ClientHello"
        | "no valid Host header"
        | "not TLS"
        | "not HTTP"
        | "the name shown was not resolved to this address" => address?,
        rule if rule == "default" || Rule::parse(rule).is_ok() => match verdict.address {
            Some(address) if is_gateway(address) => "host".to_owned(),
            // A name alone reaches public addresses only.
            Some(other) if Group::of(other) != Some(Group::Public) => address?,
            _ => name.or(address)?,
        },
        _ => return None,
    };
    let mut rules = Vec::new();
    match (verdict.kind, verdict.port, &verdict.request) {
        (FlowKind::Http, _, Some(request)) => {
            let (method, path) = request.split_once(' ')?;
            rules.push(format!("allow@{peer}:http:{method}:{path}"));
        }
        (FlowKind::Tcp, Some(port), _) => rules.push(format!("allow@{peer}:tcp:{port}")),
        (FlowKind::Udp, Some(port), _) => rules.push(format!("allow@{peer}:udp:{port}")),
        (FlowKind::Icmp, ..) => rules.push(format!("allow@{peer}:icmp")),
        _ => {}
    }
    rules.push(format!("allow@{peer}"));
    Some(rules)
}

/// An address as rules have it.
fn bracketed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(four) => four.to_string(),
        IpAddr::V6(six) => format!("[{six}]"),
    }
}

/// Peers that are named in one line about refusals.
const PEERS: usize = 3;
/// Letters of a peer in that line.
const PEER_LETTERS: usize = 60;

/// One line about everything that was refused, with the flags that allow the first of it; none if
/// nothing was.
pub(crate) fn refusals(records: &[NetRecord]) -> Option<String> {
    let mut peers: Vec<String> = Vec::new();
    let mut flags: Vec<String> = Vec::new();
    for record in records {
        let NetEvent::Decided(verdict) = &record.what else { continue };
        if verdict.decision == Decision::Allow || verdict.direction == Direction::Ingress {
            continue;
        }
        let peer = verdict.name.as_ref().map(ToString::to_string);
        let peer = peer.or_else(|| verdict.address.map(|address| address.to_string()));
        let mut peer = shown(&peer.unwrap_or_default());
        if peer.chars().count() > PEER_LETTERS {
            peer = peer.chars().take(PEER_LETTERS).chain(['…']).collect();
        }
        if peers.contains(&peer) {
            continue;
        }
        peers.push(peer);
        if peers.len() <= PEERS {
            flags.extend(remedy(verdict).filter(|flag| !flags.contains(flag)));
        }
    }
    let more = peers.len().saturating_sub(PEERS);
    peers.truncate(PEERS);
    let mut text = match peers.split_last() {
        None => return None,
        Some((last, [])) => format!("refused {last}"),
        Some((last, rest)) if more == 0 => format!("refused {} and {last}", rest.join(", ")),
        Some(_) => format!("refused {} and {more} more", peers.join(", ")),
    };
    if !flags.is_empty() {
        text += &format!("; `{}` allows it", flags.join(" "));
    }
    Some(format!("the network policy {text}"))
}

pub(crate) fn kind(kind: FlowKind) -> &'static str {
    match kind {
        FlowKind::Tcp => "tcp",
        FlowKind::Udp => "udp",
        FlowKind::Icmp => "icmp",
        FlowKind::Dns => "dns",
        FlowKind::Http => "http",
    }
}

/// The name, the address and the port, as far as they are known.
pub(crate) fn whom(verdict: &Verdict) -> String {
    let name = verdict.name.as_ref().map(ToString::to_string);
    let address = verdict.address.map(|address| address.to_string());
    let place = match (name, address) {
        (Some(name), Some(address)) => format!("{name} ({address})"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "?".to_owned(),
    };
    match verdict.port {
        Some(port) => format!("{place} port {port}"),
        None => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::DomainName;

    fn denied(kind: FlowKind, name: Option<&str>, address: Option<&str>, rule: &str) -> Verdict {
        Verdict {
            flow: 1,
            decision: Decision::Deny,
            direction: Direction::Egress,
            kind,
            name: name.map(|name| DomainName::parse(name).unwrap()),
            address: address.map(|address| address.parse().unwrap()),
            port: (kind != FlowKind::Dns && kind != FlowKind::Icmp).then_some(443),
            rule: rule.to_owned(),
            request: None,
            secrets: Vec::new(),
        }
    }

    #[test]
    fn a_refusal_names_the_flag_that_allows_it() {
        use FlowKind::{Dns, Http, Icmp, Tcp, Udp};
        let (name, public, private) = (Some("a.example"), Some("93.184.215.14"), Some("10.0.0.7"));
        let cases = [
            (denied(Dns, name, None, "default"), Some("allow@a.example")),
            (denied(Dns, name, None, "private answer"), Some("allow@private")),
            (denied(Dns, Some("host"), None, "no rule allows the host"), Some("allow@host")),
            (denied(Tcp, name, public, "default"), Some("allow@a.example:tcp:443")),
            (denied(Tcp, None, public, "deny@any"), Some("allow@93.184.215.14:tcp:443")),
            (denied(Tcp, name, private, "default"), Some("allow@10.0.0.7:tcp:443")),
            (denied(Udp, None, Some("198.18.0.1"), "default"), Some("allow@host:udp:443")),
            (denied(Icmp, None, Some("2001:4860:4860::8888"), "default"), None),
            (denied(Tcp, name, public, "not TLS"), Some("allow@93.184.215.14:tcp:443")),
            (denied(Tcp, name, public, "unroutable address"), None),
            (denied(Tcp, name, public, "the gateway's memory is used up"), None),
        ];
        for (verdict, rule) in cases {
            let expected = match rule {
                Some(rule) => Some(format!("--net-rule {rule}")),
                // Brackets are for the shell, too.
                None if verdict.kind == Icmp => {
                    Some("--net-rule 'allow@[2001:4860:4860::8888]:icmp'".to_owned())
                }
                None => None,
            };
            assert_eq!(remedy(&verdict), expected, "{verdict:?}");
        }
        let request = |text: &str| {
            let verdict = denied(Http, name, public, "default");
            remedy(&Verdict { request: Some(text.to_owned()), ..verdict }).unwrap()
        };
        assert_eq!(request("POST /v1/x"), "--net-rule allow@a.example:http:POST:/v1/x");
        assert_eq!(request("GET /'; rm -rf /"), "--net-rule allow@a.example");
        assert_eq!(request(&format!("GET /{}", "x".repeat(500))), "--net-rule allow@a.example");
        let secret = Verdict { secrets: vec!["KEY".to_owned()], ..denied(Tcp, name, public, "x") };
        assert_eq!(remedy(&secret), None);
    }

    #[test]
    fn one_line_tells_what_was_refused_and_is_bounded() {
        let record = |verdict| NetRecord { time: 0, what: NetEvent::Decided(verdict) };
        let dns = |name: &str| record(denied(FlowKind::Dns, Some(name), None, "default"));
        assert_eq!(refusals(&[]), None);
        assert_eq!(
            refusals(&[dns("a.example"), dns("a.example")]).unwrap(),
            "the network policy refused a.example; `--net-rule allow@a.example` allows it"
        );
        assert_eq!(
            refusals(&[dns("a.example"), dns("b.example")]).unwrap(),
            "the network policy refused a.example and b.example; \
             `--net-rule allow@a.example --net-rule allow@b.example` allows it"
        );
        let many: Vec<NetRecord> = (0..500).map(|number| dns(&format!("n{number}.x"))).collect();
        let text = refusals(&many).unwrap();
        assert!(text.contains("n0.x, n1.x, n2.x and 497 more; `--net-rule allow@n0.x "), "{text}");
        let label = "l".repeat(60);
        let long = format!("{label}.{label}.{label}.example");
        let text = refusals(&[dns(&long)]).unwrap();
        assert!(text.contains(&format!("refused {label}…;")), "{text}");
        let unroutable = denied(FlowKind::Tcp, None, Some("255.255.255.255"), "unroutable address");
        assert_eq!(
            refusals(&[record(unroutable)]).unwrap(),
            "the network policy refused 255.255.255.255"
        );
    }
}
