//! The most that a client of the server may ask for, as the operator has set it.
//!
//! Closed by default: a client's sandbox reaches the public internet and nothing of the server's own
//! network, and its ports are published on loopback. [`Authority`] is who asks. Only it makes a
//! [`WithinCeiling`], and whatever turns a Spec into a Plan, changes one or adds rules takes that
//! type, so that no way around the ceiling compiles.
//!
//! Refusals are for what was asked for by name. What is wide by nature (`allow@any`, a default of
//! `allow`, names) is held by rules that go before the client's own: the first match decides.

use crate::{
    Bytes, Cpus, DEFAULT_CONNECTIONS, Decision, Direction, Error, Group, Kind, Modify, NamePattern,
    NetworkSpec, Plan, Policy, Published, Reach, Resolver, Result, Rule, SpawnPolicy, Spec, Target,
    Traffic, addresses, is_public,
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

/// The most that clients of the server may ask for: `[server.ceiling]` of config.toml.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ceiling {
    /// How far sandboxes reach; `public`, or what is usual on this host, if it is not said.
    pub reach: Option<Reach>,
    /// Rules that may be asked for although `reach` does not cover them, written as clients write
    /// them.
    pub rules: Vec<Rule>,
    /// DNS servers that may be asked for although `reach` does not cover their address.
    pub dns: Vec<Resolver>,
    /// Addresses of the host, beside loopback, that ports are published on. `0.0.0.0` and `::` are
    /// all of their family.
    pub bind: Vec<IpAddr>,
    /// The lowest port of the host that is published.
    pub lowest_port: u16,
    /// Processors of a sandbox; as many as the host has if it is not said.
    pub cpus: Option<Cpus>,
    /// Memory of a sandbox; half of the host's if it is not said.
    pub memory: Option<Bytes>,
    /// Processes and threads of a sandbox.
    pub pids: u32,
    /// The writable layer of a sandbox; what is free on the host if it is not said.
    pub disk: Option<Bytes>,
    /// Sandboxes of a namespace, running or stopped.
    pub sandboxes: u32,
    /// Whether user namespaces may be made inside, which shows more of the kernel.
    pub allow_userns: bool,
}

/// Build tools and browsers do with this, see `Spec::with_defaults`.
const MOST_PIDS: u32 = 4096;
/// More than a team's agents start at once; each has a worker and a directory.
const MOST_SANDBOXES: u32 = 256;
/// Ports below are those of the host's own services.
const LOWEST_PORT: u16 = 1024;

impl Default for Ceiling {
    fn default() -> Self {
        Self {
            reach: None,
            rules: Vec::new(),
            dns: Vec::new(),
            bind: Vec::new(),
            lowest_port: LOWEST_PORT,
            cpus: None,
            memory: None,
            pids: MOST_PIDS,
            disk: None,
            sandboxes: MOST_SANDBOXES,
            allow_userns: false,
        }
    }
}

impl Ceiling {
    /// Changes what a text names: `reach=private,bind=0.0.0.0,memory=4G`.
    pub fn with(mut self, text: &str) -> Result<Self> {
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let wrong =
                || Error::invalid(format!("not a part of a ceiling: `{}`", crate::shown(word)));
            let number = || value.parse::<u32>().map_err(|_| wrong());
            match (key, value) {
                ("reach", _) => self.reach = Some(value.parse()?),
                ("rule", _) => self.rules.push(Rule::parse(value)?),
                ("dns", _) => self.dns.push(Resolver::parse(value)?),
                ("bind", _) => self.bind.push(value.parse().map_err(|_| wrong())?),
                ("lowest-port", _) => self.lowest_port = value.parse().map_err(|_| wrong())?,
                ("cpus", _) => self.cpus = Some(Cpus::parse(value)?),
                ("memory", _) => self.memory = Some(Bytes::parse(value)?),
                ("pids", _) => self.pids = number()?,
                ("disk", _) => self.disk = Some(Bytes::parse(value)?),
                ("sandboxes", _) => self.sandboxes = number()?,
                ("userns", "") => self.allow_userns = true,
                _ => {
                    return Err(wrong().hint(
                        "it has `reach=`, `rule=`, `dns=`, `bind=`, `lowest-port=`, `cpus=`, \
                         `memory=`, `pids=`, `disk=`, `sandboxes=` and `userns`, with commas between",
                    ));
                }
            }
        }
        Ok(self)
    }

    /// How far sandboxes reach.
    pub fn reach(&self) -> Reach {
        self.reach.unwrap_or(Reach::Public)
    }

    /// The groups of addresses that no rule of a client opens.
    fn closed(&self) -> &'static [Group] {
        match self.reach() {
            Reach::None => {
                &[Group::Metadata, Group::Host, Group::Loopback, Group::Private, Group::Public]
            }
            Reach::Public => &[Group::Metadata, Group::Host, Group::Loopback, Group::Private],
            Reach::Private => &[Group::Metadata, Group::Host, Group::Loopback],
            Reach::Host | Reach::All => &[Group::Metadata],
        }
    }

    fn is_closed(&self, group: Option<Group>) -> bool {
        group.is_none_or(|group| self.closed().contains(&group))
    }

    fn denials(&self) -> impl Iterator<Item = Rule> {
        self.closed().iter().map(|group| Rule {
            decision: Decision::Deny,
            direction: Direction::Egress,
            target: Target::Group(*group),
            traffic: Traffic::Any,
        })
    }

    /// Whether a client may ask for a rule that stands behind the ceiling's own.
    fn check_rule(&self, rule: &Rule) -> Result<()> {
        if rule.decision == Decision::Deny || rule.direction == Direction::Ingress {
            return Ok(());
        }
        let above = match &rule.target {
            Target::Any => false,
            Target::Group(group) => self.is_closed(Some(*group)),
            Target::Range(range) => self.is_above(range.first()),
            Target::Name(NamePattern::Exactly(name)) => {
                addresses::HOST_NAMES.contains(&name.as_str())
                    && self.closed().contains(&Group::Host)
            }
            Target::Name(NamePattern::Below(_)) => false,
        };
        match above {
            true => Err(above_ceiling(&format!("the network rule `{rule}`"), "rule=")),
            false => Ok(()),
        }
    }

    /// Whether clients may not reach an address.
    fn is_above(&self, address: IpAddr) -> bool {
        let public = self.closed().contains(&Group::Private) && !is_public(address);
        public || self.is_closed(Group::of(address))
    }

    /// Rules of a client behind those of the ceiling. What the operator has listed goes first.
    fn rules(&self, rules: &[Rule]) -> Result<Vec<Rule>> {
        let listed = |rule: &Rule| self.rules.contains(rule);
        let first = rules.iter().rposition(listed).map_or(0, |last| last + 1);
        let (before, behind) = rules.split_at(first);
        if let Some(rule) =
            before.iter().find(|rule| rule.decision == Decision::Allow && !listed(rule))
        {
            return Err(Error::invalid(format!(
                "the network rule `{rule}` stands before one that is above the server's ceiling"
            ))
            .hint("put the rules first that the operator of the server has listed"));
        }
        behind.iter().try_for_each(|rule| self.check_rule(rule))?;
        // A client may have written one of them further down, where it would come too late.
        let denials: Vec<Rule> = self.denials().collect();
        let behind = behind.iter().filter(|rule| !denials.contains(rule));
        Ok(before.iter().chain(&denials).chain(behind).cloned().collect())
    }

    fn network(&self, mut network: NetworkSpec) -> Result<NetworkSpec> {
        let implied = if network.default.is_some() { Reach::None } else { Reach::Public };
        if rank(network.reach.unwrap_or(implied)) > rank(self.reach()) {
            return Err(above_ceiling("a network that reaches further", "reach="));
        }
        for resolver in &network.dns {
            if self.is_above(resolver.0.ip()) && !self.dns.contains(resolver) {
                return Err(above_ceiling(&format!("the DNS server `{resolver}`"), "dns="));
            }
        }
        network.ports.iter().try_for_each(|port| self.check_port(port))?;
        most("connections", network.max_connections, Some(DEFAULT_CONNECTIONS))?;
        // Without a network there is nothing to deny, and rules would be an error.
        let none = network.reach == Some(Reach::None) && network.default.is_none();
        if !none || !network.rules.is_empty() {
            network.rules = self.rules(&network.rules)?;
        }
        Ok(network)
    }

    fn check_port(&self, port: &Published) -> Result<()> {
        let address = port.address.to_canonical();
        let bound = |own: &IpAddr| {
            *own == address || (own.is_unspecified() && own.is_ipv4() == address.is_ipv4())
        };
        if !address.is_loopback() && !self.bind.iter().any(bound) {
            return Err(above_ceiling(&format!("a port at `{address}`"), "bind="));
        }
        match port.host != 0 && port.host < self.lowest_port {
            true => Err(above_ceiling(&format!("the port `{}`", port.host), "lowest-port=")),
            false => Ok(()),
        }
    }

    fn check_spawn(&self, policy: &SpawnPolicy) -> Result<()> {
        most("cpus", Some(policy.child_cpus), self.cpus)?;
        most("memory", Some(policy.child_memory), self.memory)?;
        most("sandboxes", Some(policy.max_concurrent), Some(self.sandboxes))
    }

    fn spec(&self, spec: &Spec) -> Result<Spec> {
        most("cpus", spec.cpus, self.cpus)?;
        most("memory", spec.memory, self.memory)?;
        most("pids", spec.pids, Some(self.pids))?;
        most("disk", spec.disk, self.disk)?;
        if spec.allow_userns && !self.allow_userns {
            return Err(above_ceiling("user namespaces inside", "userns"));
        }
        if let Some(policy) = &spec.spawn {
            self.check_spawn(policy)?;
        }
        let network = spec.network.clone().map(|network| self.network(network)).transpose()?;
        Ok(Spec { pids: spec.pids.or(Some(self.pids)), network, ..spec.clone() })
    }

    /// Whether a policy opens nothing that is closed: by the rules in front, or rule by rule.
    fn holds(&self, policy: &Policy) -> Result<()> {
        let opens = |rule: &Rule| {
            rule.decision == Decision::Allow
                && rule.direction == Direction::Egress
                && !self.rules.contains(rule)
        };
        let first = policy.rules.iter().position(opens).unwrap_or(policy.rules.len());
        if self.denials().all(|denial| policy.rules[..first].contains(&denial)) {
            return Ok(());
        }
        let wide = policy.rules.iter().find(|rule| opens(rule) && rule.target == Target::Any);
        if wide.is_some() || policy.default == Decision::Allow {
            return Err(above_ceiling("a network that reaches further", "reach="));
        }
        policy.rules[first..]
            .iter()
            .filter(|rule| opens(rule))
            .try_for_each(|rule| self.check_rule(rule))
    }

    fn plan(&self, plan: &Plan) -> Result<()> {
        most("cpus", plan.limits.cpus.map(|limit| limit.value), self.cpus)?;
        most("memory", plan.limits.memory.map(|limit| limit.value), self.memory)?;
        most("pids", plan.limits.pids.map(|limit| limit.value), Some(self.pids))?;
        if plan.security.allow_userns && !self.allow_userns {
            return Err(above_ceiling("user namespaces inside", "userns"));
        }
        if let Some(policy) = &plan.spawn {
            self.check_spawn(policy)?;
        }
        let Some(network) = &plan.network else { return Ok(()) };
        network.ports.iter().try_for_each(|port| self.check_port(port))?;
        for resolver in &network.dns {
            if self.is_above(resolver.0.ip()) && !self.dns.contains(resolver) {
                return Err(above_ceiling(&format!("the DNS server `{resolver}`"), "dns="));
            }
        }
        self.holds(&network.policy)
    }
}

/// One line for people.
impl std::fmt::Display for Ceiling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reach = match self.reach() {
            Reach::None => "none",
            Reach::Public => "public",
            Reach::Private => "private",
            Reach::Host => "host",
            Reach::All => "all",
        };
        write!(f, "reach {reach}, {} sandboxes, {} pids", self.sandboxes, self.pids)?;
        if let Some(cpus) = self.cpus {
            write!(f, ", {cpus} cpus")?;
        }
        if let Some(memory) = self.memory {
            write!(f, ", {memory} of memory")?;
        }
        if let Some(disk) = self.disk {
            write!(f, ", {disk} of disk")?;
        }
        for rule in &self.rules {
            write!(f, ", {rule}")?;
        }
        for dns in &self.dns {
            write!(f, ", DNS at {dns}")?;
        }
        for address in &self.bind {
            write!(f, ", ports at {address}")?;
        }
        f.write_str(if self.allow_userns { ", user namespaces" } else { "" })
    }
}

/// How far a reach goes, to compare two.
fn rank(reach: Reach) -> u8 {
    match reach {
        Reach::None => 0,
        Reach::Public => 1,
        Reach::Private => 2,
        Reach::Host => 3,
        Reach::All => 4,
    }
}

fn most<T: PartialOrd + std::fmt::Display>(
    what: &str,
    asked: Option<T>,
    limit: Option<T>,
) -> Result<()> {
    match (asked, limit) {
        (Some(asked), Some(limit)) if asked > limit => {
            Err(above_ceiling(&format!("`{asked}` for {what}"), &format!("{what}=")))
        }
        _ => Ok(()),
    }
}

fn above_ceiling(what: &str, key: &str) -> Error {
    Error::new(Kind::Denied, format!("above the ceiling for clients of this server: {what}")).hint(
        format!("the operator of the server can raise it: `--ceiling {key}…`, or config.toml"),
    )
}

/// Who asks for something about sandboxes.
#[derive(Debug, Clone, Default)]
pub enum Authority {
    /// The user of this state directory: no ceiling.
    #[default]
    Operator,
    /// A client of the server.
    Client(Arc<Ceiling>),
}

impl Authority {
    fn ceiling(&self) -> Option<&Ceiling> {
        match self {
            Self::Operator => None,
            Self::Client(ceiling) => Some(ceiling),
        }
    }

    /// A sandbox to be made.
    pub fn spec(&self, spec: &Spec) -> Result<WithinCeiling<Spec>> {
        let admitted = match self.ceiling() {
            Some(ceiling) => ceiling.spec(spec)?,
            None => spec.clone(),
        };
        Ok(WithinCeiling { admitted, authority: self.clone() })
    }

    /// Changes of one.
    pub fn modify<'a>(&self, modify: &'a Modify) -> Result<WithinCeiling<&'a Modify>> {
        if let Some(ceiling) = self.ceiling() {
            most("cpus", modify.cpus, ceiling.cpus)?;
            most("memory", modify.memory, ceiling.memory)?;
            most("pids", modify.pids, Some(ceiling.pids))?;
        }
        Ok(WithinCeiling { admitted: modify, authority: self.clone() })
    }

    /// Rules that go before those of a running sandbox.
    pub fn rules<'a>(&self, rules: &'a [Rule]) -> Result<WithinCeiling<&'a [Rule]>> {
        if let Some(ceiling) = self.ceiling() {
            for rule in rules.iter().filter(|rule| !ceiling.rules.contains(rule)) {
                ceiling.check_rule(rule)?;
                // In front of the ceiling's own, so that it would open everything.
                if (&rule.target, rule.decision) == (&Target::Any, Decision::Allow)
                    && rule.direction == Direction::Egress
                {
                    return Err(above_ceiling(&format!("the network rule `{rule}`"), "rule="));
                }
                if let (Target::Range(range), Decision::Allow) = (&rule.target, rule.decision)
                    && !range.is_one()
                    && rule.direction == Direction::Egress
                {
                    return Err(above_ceiling(&format!("the network rule `{rule}`"), "rule=")
                        .hint("name single addresses, or make the sandbox with this rule"));
                }
            }
        }
        Ok(WithinCeiling { admitted: rules, authority: self.clone() })
    }

    /// A port of the host that leads to a running sandbox.
    pub fn port<'a>(&self, port: &'a Published) -> Result<WithinCeiling<&'a Published>> {
        if let Some(ceiling) = self.ceiling() {
            ceiling.check_port(port)?;
        }
        Ok(WithinCeiling { admitted: port, authority: self.clone() })
    }

    /// What was decided for a sandbox that another one is made like.
    pub fn plan<'a>(&self, plan: &'a Plan) -> Result<WithinCeiling<&'a Plan>> {
        if let Some(ceiling) = self.ceiling() {
            ceiling.plan(plan)?;
        }
        Ok(WithinCeiling { admitted: plan, authority: self.clone() })
    }

    /// How many sandboxes a namespace may have.
    pub fn most_sandboxes(&self) -> Option<u32> {
        self.ceiling().map(|ceiling| ceiling.sandboxes)
    }
}

/// Something that was asked for and does not exceed what its asker may have.
#[derive(Debug, Clone)]
pub struct WithinCeiling<T> {
    admitted: T,
    authority: Authority,
}

impl<T> WithinCeiling<T> {
    /// Whether the operator has asked for it.
    pub fn is_operators(&self) -> bool {
        matches!(self.authority, Authority::Operator)
    }

    /// The most memory that its asker may have, where none was asked for.
    pub fn most_memory(&self) -> Option<Bytes> {
        self.authority.ceiling().and_then(|ceiling| ceiling.memory)
    }

    /// The largest writable layer, the same.
    pub fn most_disk(&self) -> Option<Bytes> {
        self.authority.ceiling().and_then(|ceiling| ceiling.disk)
    }

    /// The most processors, the same.
    pub fn most_cpus(&self) -> Option<Cpus> {
        self.authority.ceiling().and_then(|ceiling| ceiling.cpus)
    }
}

impl<T> Deref for WithinCeiling<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Authority {
        Authority::Client(Arc::new(Ceiling::default().with(text).unwrap()))
    }

    fn with(network: NetworkSpec) -> Spec {
        Spec { network: Some(network), ..Spec::default() }
    }

    fn with_rule(rule: &str) -> Spec {
        with(NetworkSpec { rules: vec![Rule::parse(rule).unwrap()], ..NetworkSpec::default() })
    }

    fn with_port(port: &str) -> Spec {
        let ports = vec![Published::parse(port).unwrap()];
        with(NetworkSpec { ports, ..NetworkSpec::default() })
    }

    fn with_dns(address: &str) -> Spec {
        let dns = vec![Resolver::parse(address).unwrap()];
        with(NetworkSpec { dns, ..NetworkSpec::default() })
    }

    /// What is asked for, the least ceiling that allows it, and one that does not.
    #[test]
    fn what_is_above_the_ceiling_is_refused() {
        let reach = |reach| with(NetworkSpec { reach: Some(reach), ..NetworkSpec::default() });
        let (memory, cpus) = (Some(Bytes::mib(512)), Some(Cpus::whole(2)));
        let table: &[(Spec, &str, &str)] = &[
            (reach(Reach::Public), "", "reach=none"),
            (reach(Reach::Private), "reach=private", ""),
            (reach(Reach::Host), "reach=host", "reach=private"),
            (reach(Reach::All), "reach=all", "reach=host"),
            (with_rule("allow@host"), "reach=host", "reach=private"),
            (with_rule("allow@host.msb.internal"), "reach=host", "reach=private"),
            (with_rule("allow@private:tcp:5432"), "reach=private", ""),
            (with_rule("allow@loopback"), "reach=host", "reach=private"),
            (with_rule("allow@metadata"), "rule=allow@metadata", "reach=all"),
            (with_rule("allow@169.254.169.254"), "rule=allow@169.254.169.254", "reach=all"),
            (with_rule("allow@10.0.0.5:tcp:8001"), "rule=allow@10.0.0.5:tcp:8001", ""),
            (with_rule("allow@10.0.0.5:tcp:8002"), "reach=private", "rule=allow@10.0.0.5:tcp:8001"),
            (with_rule("allow@[::ffff:10.0.0.5]"), "reach=private", ""),
            (with_rule("allow@[64:ff9b::a00:5]"), "reach=private", ""),
            (with_rule("allow@127.0.0.1"), "reach=host", "reach=private"),
            (with_rule("allow@0.0.0.0/0"), "rule=allow@0.0.0.0/0", "reach=all"),
            (with_rule("allow@1.1.1.1"), "", "reach=none"),
            (with_port("0.0.0.0:8080:80"), "bind=0.0.0.0", "bind=10.0.0.1"),
            (with_port("10.0.0.1:8080:80"), "bind=10.0.0.1", "bind=::"),
            (with_port("[::]:8080:80"), "bind=::", "bind=0.0.0.0"),
            (with_port("127.0.0.1:80:80"), "lowest-port=80", ""),
            (with_dns("10.0.0.2"), "dns=10.0.0.2", "dns=10.0.0.3"),
            (with_dns("127.0.0.1:5353"), "dns=127.0.0.1:5353", "dns=127.0.0.1"),
            (with_dns("10.0.0.2"), "reach=private", ""),
            (Spec { allow_userns: true, ..Spec::default() }, "userns", ""),
            (Spec { memory, ..Spec::default() }, "memory=512M", "memory=511M"),
            (Spec { cpus, ..Spec::default() }, "cpus=2", "cpus=1.5"),
            (Spec { pids: Some(5000), ..Spec::default() }, "pids=5000", ""),
            (Spec { disk: memory, ..Spec::default() }, "disk=512M", "disk=1M"),
        ];
        for (spec, allowing, refusing) in table {
            let admitted = client(allowing).spec(spec);
            assert!(admitted.is_ok(), "{allowing}: {spec:?}: {admitted:?}");
            let refused = client(refusing).spec(spec).map_err(|error| error.kind());
            assert!(matches!(refused, Err(Kind::Denied)), "{refusing}: {spec:?}");
            assert!(Authority::Operator.spec(spec).is_ok());
        }
    }

    #[test]
    fn loopback_ports_and_public_dns_need_no_word_of_the_operator() {
        for spec in [
            with_port("8080:80"),
            with_port("127.0.0.9:0:80"),
            with_port("[::1]:8080:80"),
            with_dns("9.9.9.9"),
            with_rule("allow@example.com"),
            with_rule("deny@10.0.0.0/8"),
            with_rule("allow@any:tcp:443"),
        ] {
            client("").spec(&spec).unwrap();
        }
    }

    /// Whatever a client asks for, what is closed is denied before anything is allowed.
    #[test]
    fn the_rules_of_the_ceiling_go_first() {
        let default = Some(Decision::Allow);
        let late = ["allow@any", "deny@private", "deny@host", "deny@loopback", "deny@metadata"];
        let rules = late.iter().map(|text| Rule::parse(text).unwrap()).collect();
        for spec in [
            with(NetworkSpec { rules, ..NetworkSpec::default() }),
            with_rule("allow@any"),
            with_rule("allow@evil.example"),
            with(NetworkSpec { default, ..NetworkSpec::default() }),
        ] {
            let admitted = client("").spec(&spec).unwrap();
            let policy = admitted.network.as_ref().unwrap().policy();
            let first: Vec<String> = policy.rules.iter().take(4).map(ToString::to_string).collect();
            assert_eq!(first, ["deny@metadata", "deny@host", "deny@loopback", "deny@private"]);
            // What is made of a Plan again stays as it is.
            let again = NetworkSpec { rules: policy.rules, default, ..NetworkSpec::default() };
            client("").spec(&with(again)).unwrap();
        }
        let listed = "rule=allow@10.0.0.5:tcp:8001";
        let admitted = client(listed).spec(&with_rule("allow@10.0.0.5:tcp:8001")).unwrap();
        let rules = &admitted.network.as_ref().unwrap().rules;
        assert_eq!(rules[0].to_string(), "allow@10.0.0.5:tcp:8001");
        assert_eq!(rules.len(), 5);
    }

    #[test]
    fn rules_of_a_running_sandbox_open_nothing_wide() {
        let rule = |text: &str| vec![Rule::parse(text).unwrap()];
        for text in
            ["allow@any", "allow@any:tcp:443", "allow@host", "allow@1.0.0.0/8", "allow@0.0.0.0/0"]
        {
            assert!(client("").rules(&rule(text)).is_err(), "{text}");
            assert!(client(&format!("rule={text}")).rules(&rule(text)).is_ok(), "{text}");
            assert!(Authority::Operator.rules(&rule(text)).is_ok(), "{text}");
        }
        for text in ["allow@example.com", "allow@1.1.1.1:tcp:443", "deny@any", "allow@public"] {
            assert!(client("").rules(&rule(text)).is_ok(), "{text}");
        }
    }
}
