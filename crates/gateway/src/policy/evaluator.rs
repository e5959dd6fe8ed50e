//! Evaluates rules, for flows and for the requests inside them: the first rule that matches decides.
//!
//! A flow is decided before any byte of it is read, a request when its head is complete. They differ
//! in two things: an HTTP rule admits every flow that it could apply to, and its method and path
//! decide the request; whether a name may lead to an address is decided for the flow. It does no
//! I/O.

use crate::intercept::path_views::PathViews;
use crate::policy::address_class::AddressClass;
use msb_spec::{Decision, Direction, DomainName, Policy, Rule, Target, Traffic};

/// The protocol and port of a flow, as rules match them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowProtocol {
    /// TCP to this port.
    Tcp(u16),
    /// UDP to this port.
    Udp(u16),
    /// ICMP echo requests and replies.
    Echo,
}

/// What the first bytes of an allowed flow have to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameCheck {
    /// Nothing: its address is allowed, and no rule denies a name.
    None,
    /// Its address is allowed, but it must not show a name that a rule denies or has HTTP rules
    /// for.
    NotDenied,
    /// A name allowed it, and it has to show that name.
    Name,
    /// HTTP rules admitted it: its requests must be readable.
    Requests,
}

/// The decision for a flow, a DNS query or a request, and the rule that made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PolicyDecision {
    pub(crate) action: Decision,
    /// The rule as text, or the reason if no rule decided.
    pub(crate) rule: String,
    /// The name that the rule matched, if any.
    pub(crate) name: Option<DomainName>,
    pub(crate) name_check: NameCheck,
}

impl PolicyDecision {
    pub(crate) fn new(decision: Decision, rule: impl Into<String>) -> Self {
        Self { action: decision, rule: rule.into(), name: None, name_check: NameCheck::None }
    }

    /// A refusal for a reason other than a rule.
    pub(crate) fn refused(rule: impl Into<String>) -> Self {
        Self::new(Decision::Deny, rule)
    }

    pub(crate) fn allows(&self) -> bool {
        self.action == Decision::Allow
    }
}

/// What the rules are asked about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleQuery<'a> {
    pub(crate) flow: FlowProtocol,
    /// The names of the destination: those that resolved to its address, or the one that the flow
    /// has shown.
    pub(crate) names: &'a [DomainName],
    /// A request inside the flow; `None` for the flow itself.
    pub(crate) request: Option<RequestLine<'a>>,
}

/// Method and path of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestLine<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a PathViews,
}

/// The first rule that matches, and what it means for the flow or request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleMatch<'r, 'a> {
    /// `None` if no rule matches, so that the default decides.
    pub(crate) rule: Option<&'r Rule>,
    action: Decision,
    /// The name that the rule matched, or the first one.
    name: Option<&'a DomainName>,
}

impl RuleMatch<'_, '_> {
    /// The decision, with the rule as text.
    pub(crate) fn decision(&self) -> PolicyDecision {
        let rule = self.rule.map_or_else(|| "default".to_owned(), ToString::to_string);
        PolicyDecision { name: self.name.cloned(), ..PolicyDecision::new(self.action, rule) }
    }
}

/// Finds the first egress rule that matches; without one the default decides.
pub(crate) fn evaluate<'r, 'a>(
    policy: &'r Policy,
    class: &AddressClass,
    query: &RuleQuery<'a>,
) -> RuleMatch<'r, 'a> {
    let first = query.names.first();
    for rule in policy.rules.iter().filter(|rule| rule.direction == Direction::Egress) {
        if !covers(rule, query.flow) || !covers_request(rule, query.request) {
            continue;
        }
        // An HTTP rule admits the flow; its requests are decided later.
        let admits = query.request.is_none() && matches!(rule.traffic, Traffic::Http { .. });
        let action = if admits { Decision::Allow } else { rule.decision };
        let name = match &rule.target {
            Target::Name(pattern) => {
                let Some(name) = query.names.iter().find(|name| pattern.matches(name)) else {
                    continue;
                };
                // The address of a request was decided with its flow.
                let decides_address = query.request.is_none() && action == Decision::Allow;
                if decides_address && !may_resolve_to(policy, class, query.flow) {
                    continue;
                }
                Some(name)
            }
            target if class.is_matched_by(target, rule.decision) => first,
            _ => continue,
        };
        return RuleMatch { rule: Some(rule), action, name };
    }
    let closed = hides_name(query.flow) || class.is_metadata();
    let action = if closed { Decision::Deny } else { policy.default };
    RuleMatch { rule: None, action, name: first }
}

/// Whether a name may lead to this address. The DNS server of the name chooses the address, so a
/// name opens public addresses, and elsewhere only flows that are allowed without a name.
fn may_resolve_to(policy: &Policy, class: &AddressClass, flow: FlowProtocol) -> bool {
    let nameless = RuleQuery { flow, names: &[], request: None };
    class.is_public() || evaluate(policy, class, &nameless).action == Decision::Allow
}

/// Whether the traffic of a rule matches this flow.
pub(crate) fn covers(rule: &Rule, flow: FlowProtocol) -> bool {
    // A rule that denies without naming ports denies all of them.
    let all = rule.decision == Decision::Deny || !hides_name(flow);
    match (&rule.traffic, flow) {
        (Traffic::Any, _) => all,
        (Traffic::Tcp(ports), FlowProtocol::Tcp(port))
        | (Traffic::Udp(ports), FlowProtocol::Udp(port)) => {
            ports.contains(port) && (all || !ports.is_any())
        }
        (Traffic::Icmp, FlowProtocol::Echo) | (Traffic::Http { .. }, FlowProtocol::Tcp(_)) => true,
        _ => false,
    }
}

/// Whether an HTTP rule matches this request; other rules match every request. A rule that allows
/// has to match every view of the path, one that denies matches if one view does.
fn covers_request(rule: &Rule, request: Option<RequestLine<'_>>) -> bool {
    let (Traffic::Http { methods, path: prefix }, Some(request)) = (&rule.traffic, request) else {
        return true;
    };
    let RequestLine { method, path } = request;
    match rule.decision {
        Decision::Allow => {
            let method = methods.is_empty() || methods.iter().any(|own| own == method);
            method && path.all_start_with(prefix)
        }
        Decision::Deny => {
            let same = |own: &String| own.eq_ignore_ascii_case(method);
            (methods.is_empty() || methods.iter().any(same)) && path.any_starts_with(prefix)
        }
    }
}

/// Whether a flow hides its target's name: DNS to other servers and QUIC. A rule has to name their
/// port.
fn hides_name(flow: FlowProtocol) -> bool {
    matches!(flow, FlowProtocol::Tcp(53 | 853) | FlowProtocol::Udp(53 | 443 | 853))
}
