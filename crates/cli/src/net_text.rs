//! Verdicts as people read them.

use msb_spec::{Decision, Direction, shown};
use msb_wire::{FlowKind, Verdict};

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
    format!(
        "{decision}  {:<4} {arrow}{}{}  by {}{secrets}",
        kind(verdict.kind),
        whom(verdict),
        request.unwrap_or_default(),
        shown(&verdict.rule)
    )
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
