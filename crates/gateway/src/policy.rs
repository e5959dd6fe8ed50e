//! Decides what may pass: flows, questions for names, answers to them, and who comes in.
//!
//! No clock, and nothing asked but which addresses are the host's own. The names that an address was given for come
//! from `names`; an address without such a name is judged as an address alone.

use crate::host_addresses::HostAddresses;
use crate::intercept::patterns::Patterns;
use crate::interest::Interest;
use crate::place::Place;
use crate::sniff::Sniffed;
use crate::watching::Watching;
use msb_spec::{
    Decision, Destination, Direction, DomainName, Group, NamePattern, PlannedSecret, Policy, Rule,
    Target, Traffic, addresses,
};
use std::net::IpAddr;
use std::sync::Arc;

/// What a flow is, as far as rules can tell flows apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// A stream to this port.
    Tcp(u16),
    /// Datagrams to this port.
    Udp(u16),
    /// Echoes.
    Echo,
}

/// What a flow that may pass has to show first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Nothing: its address was allowed, and no name is refused.
    None,
    /// Its address was allowed; it is looked at because it could be for a name that is refused,
    /// or one whose requests are ruled.
    Harmless,
    /// It was allowed for a name, and has to show that name.
    Name,
    /// It was let in because its requests are ruled one by one: they must be readable.
    Requests,
}

/// What was decided for a flow, and by which rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) decision: Decision,
    /// The rule as it is written, or why no rule was asked.
    pub(crate) rule: String,
    /// The name that the rule matched.
    pub(crate) name: Option<DomainName>,
    pub(crate) proof: Proof,
}

impl Judgement {
    fn new(decision: Decision, rule: impl Into<String>) -> Self {
        Self { decision, rule: rule.into(), name: None, proof: Proof::None }
    }

    /// A refusal that no rule made.
    pub(crate) fn refused(rule: impl Into<String>) -> Self {
        Self::new(Decision::Deny, rule)
    }

    pub(crate) fn allows(&self) -> bool {
        self.decision == Decision::Allow
    }
}

/// What becomes of a flow whose first bytes were looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It goes on as it is, for this name if it showed one.
    Pass(Option<DomainName>),
    /// It is looked into, for this name.
    Intercept(DomainName),
    /// It is ended.
    Refuse(Judgement),
}

/// The rules in force and what they are read together with.
#[derive(Debug)]
pub(crate) struct Rules {
    policy: Policy,
    host: HostAddresses,
    secrets: Vec<PlannedSecret>,
    /// What stands for the Secrets, by their number.
    placeholders: Arc<Patterns>,
    bypass: Vec<NamePattern>,
    interest: Interest,
    /// Whether what passes by its address is looked at.
    looks: bool,
}

impl Rules {
    pub(crate) fn new(
        policy: Policy,
        host: HostAddresses,
        secrets: Vec<PlannedSecret>,
        bypass: Vec<NamePattern>,
    ) -> Self {
        let interest = Interest::default();
        let texts = secrets.iter().map(|planned| planned.placeholder.as_bytes());
        let placeholders = Arc::new(Patterns::of(texts.enumerate()));
        let mut rules =
            Self { policy, host, secrets, placeholders, bypass, interest, looks: false };
        rules.read();
        rules
    }

    /// Decides by other rules from now on.
    pub(crate) fn replace(&mut self, policy: Policy) {
        self.policy = policy;
        self.read();
    }

    fn read(&mut self) {
        self.interest = Interest::of(&self.policy, &self.secrets, &self.bypass);
        let refuses =
            |rule: &Rule| rule.decision == Decision::Deny && matches!(rule.target, Target::Name(_));
        self.looks = self.egress().any(refuses)
            || self.policy.names_with_http_rules().next().is_some()
            || !self.secrets.is_empty();
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    fn egress(&self) -> impl Iterator<Item = &Rule> {
        self.policy.rules.iter().filter(|rule| rule.direction == Direction::Egress)
    }

    /// None for addresses that lead to no host, whatever the rules say.
    fn place(&self, address: IpAddr) -> Option<Place> {
        Place::of(address, |address| self.host.contains(address))
    }

    /// Decides a flow out of the sandbox. `tied` are the names that the address was given for.
    pub(crate) fn judge(&self, flow: Flow, address: IpAddr, tied: &[DomainName]) -> Judgement {
        let Some(place) = self.place(address) else {
            return Judgement::refused("no such address");
        };
        for rule in self.egress() {
            if !covers(rule, flow) {
                continue;
            }
            let Some(name) = self.matches(rule, flow, &place, tied) else { continue };
            let http = matches!(rule.traffic, Traffic::Http { .. });
            let decision = if http { Decision::Allow } else { rule.decision };
            let proof = match (flow, &rule.target) {
                (Flow::Udp(_) | Flow::Echo, _) => Proof::None,
                _ if http => Proof::Requests,
                (_, Target::Name(_)) => Proof::Name,
                _ if self.looks => Proof::Harmless,
                _ => Proof::None,
            };
            let name = name.or_else(|| tied.first()).cloned();
            return Judgement { decision, rule: rule.to_string(), name, proof };
        }
        let decision = self.default_for(flow, &place);
        let looked = self.looks && matches!(flow, Flow::Tcp(_));
        let proof = if looked { Proof::Harmless } else { Proof::None };
        Judgement { decision, rule: "default".to_owned(), name: tied.first().cloned(), proof }
    }

    /// What becomes of a flow that no rule is about.
    fn default_for(&self, flow: Flow, place: &Place) -> Decision {
        match self.policy.default {
            Decision::Allow if !is_hidden(flow) && !place.is_metadata() => Decision::Allow,
            _ => Decision::Deny,
        }
    }

    /// Decides a flow to a sandbox of the same named network: joining allows it, and rules for its
    /// name may say otherwise.
    pub(crate) fn judge_neighbour(&self, flow: Flow, name: &DomainName) -> Judgement {
        let meant = |rule: &&Rule| {
            let named = matches!(&rule.target, Target::Name(pattern) if pattern.matches(name));
            named && covers(rule, flow)
        };
        let mut judgement = match self.egress().find(meant) {
            Some(rule) => Judgement::new(rule.decision, rule.to_string()),
            None => Judgement::new(Decision::Allow, "--join"),
        };
        judgement.name = Some(name.clone());
        judgement
    }

    /// Whether the rule is about this place; with the name that it matched, if it was a name.
    fn matches<'a>(
        &self,
        rule: &Rule,
        flow: Flow,
        place: &Place,
        tied: &'a [DomainName],
    ) -> Option<Option<&'a DomainName>> {
        match &rule.target {
            Target::Name(pattern) => {
                let name = tied.iter().find(|name| pattern.matches(name))?;
                // A rule for requests lets the flow in, whatever becomes of the requests.
                let http = matches!(rule.traffic, Traffic::Http { .. });
                let refuses = rule.decision == Decision::Deny && !http;
                (refuses || self.is_for_names(flow, place)).then_some(Some(name))
            }
            target => place.is_covered(target, rule.decision).then_some(None),
        }
    }

    /// Whether a name may lead to this place. The DNS server of the name chooses the address, so
    /// a name opens public addresses, and elsewhere only flows that are allowed without any name.
    fn is_for_names(&self, flow: Flow, place: &Place) -> bool {
        place.is_public() || self.allows_without_name(flow, place)
    }

    /// Whether rules for addresses allow this very flow.
    fn allows_without_name(&self, flow: Flow, place: &Place) -> bool {
        let meant =
            |rule: &&Rule| covers(rule, flow) && place.is_covered(&rule.target, rule.decision);
        let decision = self.egress().find(meant).map(|rule| rule.decision);
        decision.unwrap_or_else(|| self.default_for(flow, place)) == Decision::Allow
    }

    /// Whether some flow to this place is allowed, whatever its name.
    fn is_allowed_by_address(&self, place: &Place) -> bool {
        for rule in self.egress() {
            let allows = rule.decision == Decision::Allow;
            if !place.is_covered(&rule.target, rule.decision) {
                continue;
            }
            if allows || rule.traffic == Traffic::Any {
                return allows;
            }
        }
        self.policy.default == Decision::Allow && !place.is_metadata()
    }

    /// Whether the sandbox may reach the machine that it runs on, so that it has a name for it.
    pub(crate) fn reaches_host(&self) -> bool {
        let place = self.place(IpAddr::V4(addresses::GATEWAY));
        place.is_some_and(|place| self.is_allowed_by_address(&place))
    }

    /// Decides whether streams may lead to the machine that the sandbox runs on: to this port, or
    /// to whichever.
    pub(crate) fn judge_host(&self, port: Option<u16>) -> Judgement {
        let gateway = IpAddr::V4(addresses::GATEWAY);
        if let Some(port) = port {
            return self.judge(Flow::Tcp(port), gateway, &[]);
        }
        let Some(place) = self.place(gateway) else {
            return Judgement::refused("no such address");
        };
        for rule in self.egress() {
            let allows = rule.decision == Decision::Allow;
            let whole = match &rule.traffic {
                Traffic::Any => true,
                Traffic::Tcp(ports) => ports.is_any(),
                Traffic::Udp(_) | Traffic::Icmp | Traffic::Http { .. } => continue,
            };
            // What refuses one port does not leave whichever; what allows some does not allow it.
            if place.is_covered(&rule.target, rule.decision) && (whole || !allows) {
                return Judgement::new(rule.decision, rule.to_string());
            }
        }
        Judgement::new(self.policy.default, "default")
    }

    /// Whether a stream must show whom it is for, though an address is what allowed it: a rule
    /// about a name or about requests stands before the one that did, and could say otherwise.
    pub(crate) fn must_show(&self, flow: Flow, address: IpAddr, proof: Proof) -> bool {
        match (proof, self.place(address)) {
            (Proof::Name | Proof::Requests, _) => true,
            (Proof::None, _) | (_, None) => false,
            (Proof::Harmless, Some(place)) => {
                for rule in self.egress().filter(|rule| covers(rule, flow)) {
                    let allows = rule.decision == Decision::Allow;
                    let requests = matches!(rule.traffic, Traffic::Http { .. });
                    match &rule.target {
                        Target::Name(_) if !allows || requests => return true,
                        Target::Name(_) => {}
                        target if place.is_covered(target, rule.decision) => return false,
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

    /// Whether an address is the host's own.
    pub(crate) fn is_host(&self, address: IpAddr) -> bool {
        self.place(address).is_some_and(|place| place.is_host())
    }

    /// Whether an address is one of the internet, and not the host's own.
    pub(crate) fn is_public(&self, address: IpAddr) -> bool {
        let place = self.place(address);
        place.is_some_and(|place| place.is_public())
    }

    /// Whether a flow has to be accepted and read before anybody is connected to: one of its
    /// names may have to be looked into.
    pub(crate) fn reads_first(&self, flow: Flow, address: IpAddr, tied: &[DomainName]) -> bool {
        // Elsewhere servers may speak first, and would never be heard.
        if !matches!(flow, Flow::Tcp(80 | 443)) {
            return false;
        }
        tied.iter().any(|name| {
            (self.interest.must_intercept(name) || flow == Flow::Tcp(80))
                && self.judge(flow, address, std::slice::from_ref(name)).allows()
        })
    }

    /// Decides what becomes of an admitted stream by its first bytes.
    pub(crate) fn look(
        &self,
        port: u16,
        address: IpAddr,
        tied: &[DomainName],
        proof: Proof,
        sniffed: &Sniffed,
    ) -> Seen {
        let strict = matches!(proof, Proof::Name | Proof::Requests);
        let shows = self.must_show(Flow::Tcp(port), address, proof);
        let refuse = |why: &str| Seen::Refuse(Judgement::refused(why));
        let name = match sniffed {
            Sniffed::Tls { name: Some(name) } | Sniffed::Http { host: Some(name) } => name,
            Sniffed::Tls { .. } if shows => return refuse("no server name was shown"),
            Sniffed::Http { .. } if shows => return refuse("no host was named"),
            _ if shows && port == 443 => return refuse("not TLS"),
            _ if shows && port == 80 => return refuse("not HTTP"),
            _ if proof == Proof::Requests => return refuse("not HTTP"),
            _ => return Seen::Pass(tied.first().cloned()),
        };
        if strict && !tied.contains(name) {
            let mut refused = Judgement::refused("the name shown is not the one asked for");
            refused.name = Some(name.clone());
            return Seen::Refuse(refused);
        }
        let names = if strict { vec![] } else { tied.to_vec() };
        let names = [&[name.clone()][..], &names].concat();
        let judgement = self.judge(Flow::Tcp(port), address, &names);
        if !judgement.allows() {
            return Seen::Refuse(Judgement { name: Some(name.clone()), ..judgement });
        }
        // A request shows its name, and the next one on the same stream may show another: where
        // names decide, each has to be read.
        let each = shows && matches!(sniffed, Sniffed::Http { .. });
        match self.interest.must_intercept(name) || (each && !self.is_bypassed(name)) {
            true => Seen::Intercept(name.clone()),
            false => Seen::Pass(Some(name.clone())),
        }
    }

    /// The search that a stream which passes goes through: a plain request must not carry a
    /// placeholder to anybody.
    pub(crate) fn watching(
        &self,
        sniffed: &Sniffed,
        name: Option<&DomainName>,
    ) -> Option<Box<Watching>> {
        let plain = matches!(sniffed, Sniffed::Http { .. });
        let watched = plain && !self.placeholders.is_empty();
        let watched = watched && !name.is_some_and(|name| self.is_bypassed(name));
        watched.then(|| Box::new(Watching::new(Arc::clone(&self.placeholders))))
    }

    /// The name of a Secret by its number.
    pub(crate) fn secret(&self, of: usize) -> Option<&str> {
        self.secrets.get(of).map(|planned| planned.secret.name.as_str())
    }

    /// Decides whether a DNS query for this name may leave: a rule has to allow the name, or public
    /// addresses without any name. A query carries data to the zone's own servers, so neither an
    /// address nor a private network opens it.
    pub(crate) fn judge_question(&self, name: &DomainName) -> Judgement {
        let judged = |decision, rule: String| {
            let name = Some(name.clone());
            Judgement { decision, rule, name, proof: Proof::None }
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
                return judged(rule.decision, rule.to_string());
            }
            let public = PublicFlows::of(rule);
            match rule.decision {
                Decision::Allow if left.meets(public) => {
                    return judged(Decision::Allow, rule.to_string());
                }
                Decision::Allow => {}
                Decision::Deny => left = left.without(public),
            }
        }
        let default = match left.meets(PublicFlows::ALL) {
            true => self.policy.default,
            false => Decision::Deny,
        };
        judged(default, "default".to_owned())
    }

    /// Whether the sandbox may learn this address from an answer to a DNS query.
    pub(crate) fn may_answer(&self, address: IpAddr) -> bool {
        let Some(place) = self.place(address) else { return false };
        place.is_public() || (!place.is_gateway() && self.is_allowed_by_address(&place))
    }

    /// Decides who may come in through a published port.
    pub(crate) fn judge_peer(&self, flow: Flow, peer: IpAddr) -> Judgement {
        let peer = Destination::of(peer);
        let own = |address| self.host.contains(address);
        let host = peer.is_in(Group::Loopback) || peer.readings().any(own);
        let ingress = self.policy.rules.iter().filter(|rule| rule.direction == Direction::Ingress);
        for rule in ingress {
            let meant = match &rule.target {
                Target::Any => true,
                Target::Name(_) => false,
                Target::Range(range) => range.covers(rule.decision, peer),
                Target::Group(Group::Host) => host,
                Target::Group(group) => peer.is_in(*group),
            };
            let spoken = match (&rule.traffic, flow) {
                (Traffic::Any, _) => true,
                (Traffic::Tcp(ports), Flow::Tcp(port)) | (Traffic::Udp(ports), Flow::Udp(port)) => {
                    ports.contains(port)
                }
                _ => false,
            };
            if meant && spoken {
                return Judgement::new(rule.decision, rule.to_string());
            }
        }
        Judgement::new(Decision::Allow, "published")
    }
}

/// Flows to public addresses, one bit for each protocol over IPv4 and one over IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PublicFlows(u8);

impl PublicFlows {
    const ALL: Self = Self(0b11_11_11);
    const IPV4: u8 = 0b01_01_01;

    /// What of them a rule is about. One that allows counts if some of them are its own, one that
    /// refuses if all of them are.
    fn of(rule: &Rule) -> Self {
        let allows = rule.decision == Decision::Allow;
        let families = match &rule.target {
            Target::Any | Target::Group(Group::Public) => Self::ALL.0,
            // All of a family: whether that is to be refused. Allowed, it is a list of addresses.
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

/// Whether the rule speaks of what this flow carries.
fn covers(rule: &Rule, flow: Flow) -> bool {
    // What refuses without naming ports refuses all of them.
    let all = rule.decision == Decision::Deny || !is_hidden(flow);
    match (&rule.traffic, flow) {
        (Traffic::Any, _) => all,
        (Traffic::Tcp(ports), Flow::Tcp(port)) | (Traffic::Udp(ports), Flow::Udp(port)) => {
            ports.contains(port) && (all || !ports.is_any())
        }
        (Traffic::Icmp, Flow::Echo) | (Traffic::Http { .. }, Flow::Tcp(_)) => true,
        _ => false,
    }
}

/// DNS to other servers and QUIC do not show whom they are for: they must be named.
fn is_hidden(flow: Flow) -> bool {
    matches!(flow, Flow::Tcp(53 | 853) | Flow::Udp(53 | 443 | 853))
}

#[cfg(test)]
#[path = "policy_reference_tests.rs"]
mod reference_tests;
#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
