//! The policy decisions: flows, DNS queries, addresses in DNS answers, and ingress.
//!
//! It has no clock. The only question to the kernel is which addresses are the host's own. The
//! names of an address come from `dns::cache`; an address without a name is decided by its address
//! alone.

use crate::host_addresses::HostAddresses;
use crate::policy::address_class::AddressClass;
pub(crate) use crate::policy::evaluator::{FlowProtocol, NameCheck, PolicyDecision};
use crate::policy::evaluator::{RuleQuery, covers, evaluate};
use crate::policy::intercept_set::InterceptSet;
use crate::secrets::patterns::PatternSet;
use crate::secrets::placeholder_scan::PlaceholderScan;
use crate::tcp::sniff::SniffResult;
use msb_spec::{
    Decision, Destination, Direction, DomainName, Group, NamePattern, PlannedSecret, Policy, Rule,
    Target, Traffic, addresses,
};
use std::net::IpAddr;
use std::sync::Arc;

/// What to do with a TCP flow after its first bytes were sniffed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamAction {
    /// Copies it unchanged, with the name that it showed.
    Pass(Option<DomainName>),
    /// Intercepts it, for this name.
    Intercept(DomainName),
    /// Closes it, with this refusal.
    Refuse(PolicyDecision),
}

/// The current rules, and what is needed to apply them.
#[derive(Debug)]
pub(crate) struct Rules {
    policy: Policy,
    host: HostAddresses,
    secrets: Vec<PlannedSecret>,
    /// The placeholders of Secrets, by the index of the Secret.
    placeholders: Arc<PatternSet>,
    bypass: Vec<NamePattern>,
    intercept_set: InterceptSet,
    /// Whether flows that are allowed by their address are sniffed too.
    inspects_allowed: bool,
}

impl Rules {
    pub(crate) fn new(
        policy: Policy,
        host: HostAddresses,
        secrets: Vec<PlannedSecret>,
        bypass: Vec<NamePattern>,
    ) -> Self {
        let intercept_set = InterceptSet::default();
        let texts = secrets.iter().map(|planned| planned.placeholder.as_bytes());
        let placeholders = Arc::new(PatternSet::encoded(texts.enumerate()));
        let mut rules = Self {
            policy,
            host,
            secrets,
            placeholders,
            bypass,
            intercept_set,
            inspects_allowed: false,
        };
        rules.recompute();
        rules
    }

    /// Replaces the rules for all later decisions.
    pub(crate) fn replace(&mut self, policy: Policy) {
        self.policy = policy;
        self.recompute();
    }

    fn recompute(&mut self) {
        self.intercept_set = InterceptSet::new(&self.policy, &self.secrets, &self.bypass);
        let refuses =
            |rule: &Rule| rule.decision == Decision::Deny && matches!(rule.target, Target::Name(_));
        self.inspects_allowed = self.egress().any(refuses)
            || self.policy.names_with_http_rules().next().is_some()
            || !self.secrets.is_empty();
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    fn egress(&self) -> impl Iterator<Item = &Rule> {
        self.policy.rules.iter().filter(|rule| rule.direction == Direction::Egress)
    }

    /// The class of an address; `None` for addresses that reach no host.
    fn address_class(&self, address: IpAddr) -> Option<AddressClass> {
        AddressClass::of(address, |address| self.host.contains(address))
    }

    /// Decides a flow out of the sandbox. `resolved_names` are the names that resolved to the
    /// address.
    pub(crate) fn decide(
        &self,
        flow: FlowProtocol,
        address: IpAddr,
        resolved_names: &[DomainName],
    ) -> PolicyDecision {
        let Some(class) = self.address_class(address) else {
            return PolicyDecision::refused("unroutable address");
        };
        let query = RuleQuery { flow, names: resolved_names, request: None };
        let matched = evaluate(&self.policy, &class, &query);
        let name_check = match (flow, matched.rule) {
            (FlowProtocol::Udp(_) | FlowProtocol::Echo, _) => NameCheck::None,
            (_, Some(Rule { traffic: Traffic::Http { .. }, .. })) => NameCheck::Requests,
            (_, Some(Rule { target: Target::Name(_), .. })) => NameCheck::Name,
            _ if self.inspects_allowed => NameCheck::NotDenied,
            _ => NameCheck::None,
        };
        PolicyDecision { name_check, ..matched.decision() }
    }

    /// Decides a flow to a sandbox of the same named network. It is allowed unless a rule for its
    /// name says otherwise.
    pub(crate) fn decide_peer_sandbox(
        &self,
        flow: FlowProtocol,
        name: &DomainName,
    ) -> PolicyDecision {
        let matches_target = |rule: &&Rule| {
            let named = matches!(&rule.target, Target::Name(pattern) if pattern.matches(name));
            named && covers(rule, flow)
        };
        let mut decision = match self.egress().find(matches_target) {
            Some(rule) => PolicyDecision::new(rule.decision, rule.to_string()),
            None => PolicyDecision::new(Decision::Allow, "--join"),
        };
        decision.name = Some(name.clone());
        decision
    }

    /// Whether any flow to this address is allowed, whatever its name.
    fn is_allowed_by_address(&self, class: &AddressClass) -> bool {
        for rule in self.egress() {
            let allows = rule.decision == Decision::Allow;
            if !class.is_matched_by(&rule.target, rule.decision) {
                continue;
            }
            if allows || rule.traffic == Traffic::Any {
                return allows;
            }
        }
        self.policy.default == Decision::Allow && !class.is_metadata()
    }

    /// Whether the sandbox may reach the host, so that the host's names resolve.
    pub(crate) fn reaches_host(&self) -> bool {
        let class = self.address_class(IpAddr::V4(addresses::GATEWAY));
        class.is_some_and(|class| self.is_allowed_by_address(&class))
    }

    /// Decides TCP to the host: to one port, or to every port if `port` is `None`.
    pub(crate) fn decide_host(&self, port: Option<u16>) -> PolicyDecision {
        let gateway = IpAddr::V4(addresses::GATEWAY);
        if let Some(port) = port {
            return self.decide(FlowProtocol::Tcp(port), gateway, &[]);
        }
        let Some(class) = self.address_class(gateway) else {
            return PolicyDecision::refused("unroutable address");
        };
        for rule in self.egress() {
            let allows = rule.decision == Decision::Allow;
            let whole = match &rule.traffic {
                Traffic::Any => true,
                Traffic::Tcp(ports) => ports.is_any(),
                Traffic::Udp(_) | Traffic::Icmp | Traffic::Http { .. } => continue,
            };
            // A rule that denies one port denies "every port"; one that allows some ports does not
            // allow it.
            if class.is_matched_by(&rule.target, rule.decision) && (whole || !allows) {
                return PolicyDecision::new(rule.decision, rule.to_string());
            }
        }
        PolicyDecision::new(self.policy.default, "default")
    }

    /// Whether a TCP flow must show its name although its address is allowed: an earlier rule
    /// denies a name or has HTTP rules, and could apply.
    pub(crate) fn must_show_name(
        &self,
        flow: FlowProtocol,
        address: IpAddr,
        name_check: NameCheck,
    ) -> bool {
        match (name_check, self.address_class(address)) {
            (NameCheck::Name | NameCheck::Requests, _) => true,
            (NameCheck::None, _) | (_, None) => false,
            (NameCheck::NotDenied, Some(class)) => {
                for rule in self.egress().filter(|rule| covers(rule, flow)) {
                    let allows = rule.decision == Decision::Allow;
                    let requests = matches!(rule.traffic, Traffic::Http { .. });
                    match &rule.target {
                        Target::Name(_) if !allows || requests => return true,
                        Target::Name(_) => {}
                        target if class.is_matched_by(target, rule.decision) => return false,
                        _ => {}
                    }
                }
                false
            }
        }
    }

    fn is_bypassed(&self, name: &DomainName) -> bool {
        self.bypass.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether an address belongs to the host itself.
    pub(crate) fn is_host(&self, address: IpAddr) -> bool {
        self.address_class(address).is_some_and(|class| class.is_host())
    }

    /// Whether an address is public and not the host's own.
    pub(crate) fn is_public(&self, address: IpAddr) -> bool {
        let class = self.address_class(address);
        class.is_some_and(|class| class.is_public())
    }

    /// Whether the guest has to be accepted and read before a server is connected, because one of
    /// the names may be intercepted.
    pub(crate) fn must_read_first(
        &self,
        flow: FlowProtocol,
        address: IpAddr,
        resolved_names: &[DomainName],
    ) -> bool {
        // On other ports the server may send first, and the guest would wait for it.
        if !matches!(flow, FlowProtocol::Tcp(80 | 443)) {
            return false;
        }
        resolved_names.iter().any(|name| {
            (self.intercept_set.must_intercept(name) || flow == FlowProtocol::Tcp(80))
                && self.decide(flow, address, std::slice::from_ref(name)).allows()
        })
    }

    /// Decides what to do with an admitted TCP flow by its first bytes.
    pub(crate) fn classify(
        &self,
        port: u16,
        address: IpAddr,
        resolved_names: &[DomainName],
        name_check: NameCheck,
        sniffed: &SniffResult,
    ) -> StreamAction {
        let strict = matches!(name_check, NameCheck::Name | NameCheck::Requests);
        let must_show = self.must_show_name(FlowProtocol::Tcp(port), address, name_check);
        let refuse = |why: &str| StreamAction::Refuse(PolicyDecision::refused(why));
        let name = match sniffed {
            SniffResult::Tls { name: Some(name) } | SniffResult::Http { host: Some(name) } => name,
            SniffResult::Tls { .. } if must_show => {
                return refuse("no server name in the TLS ClientHello");
            }
            SniffResult::Http { .. } if must_show => return refuse("no valid Host header"),
            _ if must_show && port == 443 => return refuse("not TLS"),
            _ if must_show && port == 80 => return refuse("not HTTP"),
            _ if name_check == NameCheck::Requests => return refuse("not HTTP"),
            _ => return StreamAction::Pass(resolved_names.first().cloned()),
        };
        if strict && !resolved_names.contains(name) {
            let mut refused =
                PolicyDecision::refused("the name shown was not resolved to this address");
            refused.name = Some(name.clone());
            return StreamAction::Refuse(refused);
        }
        let names = if strict { vec![] } else { resolved_names.to_vec() };
        let names = [&[name.clone()][..], &names].concat();
        let decision = self.decide(FlowProtocol::Tcp(port), address, &names);
        if !decision.allows() {
            return StreamAction::Refuse(PolicyDecision { name: Some(name.clone()), ..decision });
        }
        // The next request on the same connection may name another host: where names decide, each
        // request is read.
        let each = must_show && matches!(sniffed, SniffResult::Http { .. });
        match self.intercept_set.must_intercept(name) || (each && !self.is_bypassed(name)) {
            true => StreamAction::Intercept(name.clone()),
            false => StreamAction::Pass(Some(name.clone())),
        }
    }

    /// The placeholder search for a plain HTTP flow that is not intercepted; `None` if it needs
    /// none.
    pub(crate) fn placeholder_scan(
        &self,
        sniffed: &SniffResult,
        name: Option<&DomainName>,
    ) -> Option<Box<PlaceholderScan>> {
        let plain = matches!(sniffed, SniffResult::Http { .. });
        let scanned = plain && !self.placeholders.is_empty();
        let scanned = scanned && !name.is_some_and(|name| self.is_bypassed(name));
        scanned.then(|| Box::new(PlaceholderScan::new(Arc::clone(&self.placeholders))))
    }

    /// The name of a Secret by its index.
    pub(crate) fn secret_name(&self, index: usize) -> Option<&str> {
        self.secrets.get(index).map(|planned| planned.secret.name.as_str())
    }

    /// Decides whether a DNS query for this name may leave: a rule has to allow the name, or public
    /// addresses without any name. A query carries data to the zone's own servers, so neither an
    /// address nor a private network opens it.
    pub(crate) fn decide_dns_query(&self, name: &DomainName) -> PolicyDecision {
        let dns_decision = |decision, rule: String| {
            let name = Some(name.clone());
            PolicyDecision { action: decision, rule, name, name_check: NameCheck::None }
        };
        let mut left = PublicFlows::ALL;
        for rule in self.egress() {
            let allows = rule.decision == Decision::Allow;
            let named = match &rule.target {
                Target::Name(pattern) => pattern.matches(name),
                Target::Any => !allows,
                Target::Range(_) | Target::Group(_) => false,
            };
            if named && (allows || rule.traffic == Traffic::Any) {
                return dns_decision(rule.decision, rule.to_string());
            }
            let public = PublicFlows::of(rule);
            match rule.decision {
                Decision::Allow if left.meets(public) => {
                    return dns_decision(Decision::Allow, rule.to_string());
                }
                Decision::Allow => {}
                Decision::Deny => left = left.without(public),
            }
        }
        let default = match left.meets(PublicFlows::ALL) {
            true => self.policy.default,
            false => Decision::Deny,
        };
        dns_decision(default, "default".to_owned())
    }

    /// Whether the sandbox may learn this address from an answer to a DNS query. `keeps_private`
    /// shows private addresses too; whether a flow reaches them is decided as ever.
    pub(crate) fn allows_answer(&self, address: IpAddr, keeps_private: bool) -> bool {
        let Some(class) = self.address_class(address) else { return false };
        class.is_public()
            || (!class.is_gateway() && (keeps_private || self.is_allowed_by_address(&class)))
    }

    /// Decides an incoming flow of a published port or a peer. It is allowed unless an ingress rule
    /// says otherwise.
    pub(crate) fn decide_ingress(&self, flow: FlowProtocol, peer: IpAddr) -> PolicyDecision {
        let peer = Destination::of(peer);
        let own = |address| self.host.contains(address);
        let host = peer.is_in(Group::Loopback) || peer.readings().any(own);
        let ingress = self.policy.rules.iter().filter(|rule| rule.direction == Direction::Ingress);
        for rule in ingress {
            let matches_target = match &rule.target {
                Target::Any => true,
                Target::Name(_) => false,
                Target::Range(range) => range.covers(rule.decision, peer),
                Target::Group(Group::Host) => host,
                Target::Group(group) => peer.is_in(*group),
            };
            let spoken = match (&rule.traffic, flow) {
                (Traffic::Any, _) => true,
                (Traffic::Tcp(ports), FlowProtocol::Tcp(port))
                | (Traffic::Udp(ports), FlowProtocol::Udp(port)) => ports.contains(port),
                _ => false,
            };
            if matches_target && spoken {
                return PolicyDecision::new(rule.decision, rule.to_string());
            }
        }
        PolicyDecision::new(Decision::Allow, "published")
    }
}

/// Flows to public addresses, with one bit for each protocol over IPv4 and one over IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PublicFlows(u8);

impl PublicFlows {
    const ALL: Self = Self(0b11_11_11);
    const IPV4: u8 = 0b01_01_01;

    /// The flows that a rule covers. A rule that allows counts if it covers some of a protocol, one
    /// that denies only if it covers all of it.
    fn of(rule: &Rule) -> Self {
        let allows = rule.decision == Decision::Allow;
        let families = match &rule.target {
            Target::Any | Target::Group(Group::Public) => Self::ALL.0,
            // A range that covers a whole address family counts if it denies. If it allows, it is a
            // list of addresses.
            Target::Range(range) if range.is_everything() && !allows => match range.is_ipv4() {
                true => Self::IPV4,
                false => !Self::IPV4,
            },
            Target::Range(_) | Target::Group(_) | Target::Name(_) => 0,
        };
        let protocols = match &rule.traffic {
            Traffic::Any => Self::ALL.0,
            Traffic::Tcp(ports) if allows || ports.is_any() => 0b00_00_11,
            Traffic::Udp(ports) if allows || ports.is_any() => 0b00_11_00,
            Traffic::Icmp => 0b11_00_00,
            Traffic::Tcp(_) | Traffic::Udp(_) | Traffic::Http { .. } => 0,
        };
        Self(families & protocols)
    }

    fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod reference_tests;
#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
