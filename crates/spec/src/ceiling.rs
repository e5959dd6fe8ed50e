//! The ceiling: the most that clients of the server may request, set by the operator.
//!
//! Closed by default: a client's sandbox reaches the public internet and nothing of the server's
//! own network, and its ports are published on loopback. Only [`Authority`] creates a
//! [`WithinCeiling`], and each function that turns a Spec into a Plan, changes one or adds rules
//! takes that type. So code that bypasses the ceiling does not compile.
//!
//! Requests that name something above the ceiling are refused. Wide requests (`allow@any`, a
//! default of `allow`, domain names) are limited by deny rules that precede the client's own: the
//! first match decides.

use crate::{
    Bytes, Cpus, DEFAULT_CONNECTIONS, Decision, Direction, Error, Group, Kind, Modify, NamePattern,
    NetworkSpec, Plan, Policy, PublishedPort, Reach, Resolver, Result, Rule, SpawnPolicy, Spec,
    Target, Traffic, addresses, is_public,
};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

/// The most that clients of the server may request: `[server.ceiling]` of config.toml.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ceiling {
    /// Widest network of sandboxes; default: that of the host's configuration, else `public`.
    pub reach: Option<Reach>,
    /// Rules that clients may request although `reach` does not cover them, written exactly like
    /// this.
    pub rules: Vec<Rule>,
    /// DNS servers that clients may request although `reach` does not cover their address.
    pub dns: Vec<Resolver>,
    /// Host addresses besides loopback on which ports may be published. `0.0.0.0` and `::` stand
    /// for all addresses of their family.
    pub bind: Vec<IpAddr>,
    /// Lowest port of the host that may be published; default 1024.
    pub lowest_port: u16,
    /// CPUs of a sandbox; default: all of the host.
    pub cpus: Option<Cpus>,
    /// Memory of a sandbox; default: half of the host.
    pub memory: Option<Bytes>,
    /// Processes and threads of a sandbox; default 4096.
    pub pids: u32,
    /// Size of the writable layer of a sandbox; default: the free space of the host.
    pub disk: Option<Bytes>,
    /// Sandboxes of a namespace, running or stopped; default 256.
    pub sandboxes: u32,
    /// Whether user namespaces may be created inside, which exposes more of the kernel.
    pub allow_userns: bool,
}

/// Enough for build tools and browsers, see `Spec::with_defaults`.
const MAX_PIDS: u32 = 4096;
/// More than the agents of a team start at once; each has a worker and a directory.
const MAX_SANDBOXES: u32 = 256;
/// Ports below are reserved for the host's own services.
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
            pids: MAX_PIDS,
            disk: None,
            sandboxes: MAX_SANDBOXES,
            allow_userns: false,
        }
    }
}

impl Ceiling {
    /// Applies `KEY=VALUE` pairs: `reach=private,bind=0.0.0.0,memory=4G`.
    pub fn with(mut self, text: &str) -> Result<Self> {
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let invalid =
                || Error::invalid(format!("not a ceiling setting: `{}`", crate::shown(word)));
            let number = || value.parse::<u32>().map_err(|_| invalid());
            match (key, value) {
                ("reach", _) => self.reach = Some(value.parse()?),
                ("rule", _) => self.rules.push(Rule::parse(value)?),
                ("dns", _) => self.dns.push(Resolver::parse(value)?),
                ("bind", _) => self.bind.push(value.parse().map_err(|_| invalid())?),
                ("lowest-port", _) => self.lowest_port = value.parse().map_err(|_| invalid())?,
                ("cpus", _) => self.cpus = Some(Cpus::parse(value)?),
                ("memory", _) => self.memory = Some(Bytes::parse_size(value)?),
                ("pids", _) => self.pids = number()?,
                ("disk", _) => self.disk = Some(Bytes::parse_size(value)?),
                ("sandboxes", _) => self.sandboxes = number()?,
                ("userns", "") => self.allow_userns = true,
                _ => {
                    return Err(invalid().hint(
                        "it has `reach=`, `rule=`, `dns=`, `bind=`, `lowest-port=`, `cpus=`, \
                         `memory=`, `pids=`, `disk=`, `sandboxes=` and `userns`, with commas between",
                    ));
                }
            }
        }
        Ok(self)
    }

    /// Widest network of sandboxes. Default `public`.
    pub fn reach(&self) -> Reach {
        self.reach.unwrap_or(Reach::Public)
    }

    /// Address groups that no rule of a client can open.
    fn denied_groups(&self) -> &'static [Group] {
        match self.reach() {
            Reach::None => {
                &[Group::Metadata, Group::Host, Group::Loopback, Group::Private, Group::Public]
            }
            Reach::Public => &[Group::Metadata, Group::Host, Group::Loopback, Group::Private],
            Reach::Private => &[Group::Metadata, Group::Host, Group::Loopback],
            Reach::Host | Reach::All => &[Group::Metadata],
        }
    }

    fn is_denied(&self, group: Option<Group>) -> bool {
        group.is_none_or(|group| self.denied_groups().contains(&group))
    }

    fn deny_rules(&self) -> impl Iterator<Item = Rule> {
        self.denied_groups().iter().map(|group| Rule {
            decision: Decision::Deny,
            direction: Direction::Egress,
            target: Target::Group(*group),
            traffic: Traffic::Any,
        })
    }

    /// Checks a client's rule that follows the deny rules of the ceiling.
    fn check_rule(&self, rule: &Rule) -> Result<()> {
        if rule.decision == Decision::Deny || rule.direction == Direction::Ingress {
            return Ok(());
        }
        let above = match &rule.target {
            Target::Any => false,
            Target::Group(group) => self.is_denied(Some(*group)),
            Target::Range(range) => self.is_address_denied(range.first()),
            Target::Name(NamePattern::Exactly(name)) => {
                addresses::HOST_NAMES.contains(&name.as_str())
                    && self.denied_groups().contains(&Group::Host)
            }
            Target::Name(NamePattern::Below(_)) => false,
        };
        match above {
            true => Err(ceiling_error(&format!("the network rule `{rule}`"), "rule=")),
            false => Ok(()),
        }
    }

    /// Whether clients may not reach an address.
    fn is_address_denied(&self, address: IpAddr) -> bool {
        let public = self.denied_groups().contains(&Group::Private) && !is_public(address);
        public || self.is_denied(Group::of(address))
    }

    /// Puts the deny rules of the ceiling before the client's rules. Rules that the operator has
    /// listed stay before both.
    fn restrict_rules(&self, rules: &[Rule]) -> Result<Vec<Rule>> {
        let listed = |rule: &Rule| self.rules.contains(rule);
        let first = rules.iter().rposition(listed).map_or(0, |last| last + 1);
        let (before, behind) = rules.split_at(first);
        if let Some(rule) =
            before.iter().find(|rule| rule.decision == Decision::Allow && !listed(rule))
        {
            return Err(Error::invalid(format!(
                "the network rule `{rule}` precedes a rule that exceeds the ceiling of the server"
            ))
            .hint("put the rules that the operator has listed first"));
        }
        behind.iter().try_for_each(|rule| self.check_rule(rule))?;
        // The client may have the same deny rule further down, where it would come too late.
        let denials: Vec<Rule> = self.deny_rules().collect();
        let behind = behind.iter().filter(|rule| !denials.contains(rule));
        Ok(before.iter().chain(&denials).chain(behind).cloned().collect())
    }

    fn restrict_network(&self, mut network: NetworkSpec) -> Result<NetworkSpec> {
        let implied = if network.default.is_some() { Reach::None } else { Reach::Public };
        if rank(network.reach.unwrap_or(implied)) > rank(self.reach()) {
            return Err(ceiling_error("a wider network", "reach="));
        }
        for resolver in &network.dns {
            if self.is_address_denied(resolver.0.ip()) && !self.dns.contains(resolver) {
                return Err(ceiling_error(&format!("the DNS server `{resolver}`"), "dns="));
            }
        }
        network.ports.iter().try_for_each(|port| self.check_port(port))?;
        check_limit("connections", network.max_connections, Some(DEFAULT_CONNECTIONS))?;
        // Without a network there is nothing to deny, and rules would be an error.
        let none = network.reach == Some(Reach::None) && network.default.is_none();
        if !none || !network.rules.is_empty() {
            network.rules = self.restrict_rules(&network.rules)?;
        }
        Ok(network)
    }

    fn check_port(&self, port: &PublishedPort) -> Result<()> {
        let address = port.address.to_canonical();
        let bound = |own: &IpAddr| {
            *own == address || (own.is_unspecified() && own.is_ipv4() == address.is_ipv4())
        };
        if !address.is_loopback() && !self.bind.iter().any(bound) {
            return Err(ceiling_error(&format!("a port at `{address}`"), "bind="));
        }
        match port.host != 0 && port.host < self.lowest_port {
            true => Err(ceiling_error(&format!("the port `{}`", port.host), "lowest-port=")),
            false => Ok(()),
        }
    }

    fn check_spawn(&self, policy: &SpawnPolicy) -> Result<()> {
        check_limit("cpus", Some(policy.child_cpus), self.cpus)?;
        check_limit("memory", Some(policy.child_memory), self.memory)?;
        check_limit("sandboxes", Some(policy.max_concurrent), Some(self.sandboxes))
    }

    fn restrict_spec(&self, spec: &Spec) -> Result<Spec> {
        check_limit("cpus", spec.cpus, self.cpus)?;
        check_limit("memory", spec.memory, self.memory)?;
        check_limit("pids", spec.pids, Some(self.pids))?;
        check_limit("disk", spec.disk, self.disk)?;
        if spec.allow_userns && !self.allow_userns {
            return Err(ceiling_error("user namespaces inside", "userns"));
        }
        if let Some(policy) = &spec.spawn {
            self.check_spawn(policy)?;
        }
        let network =
            spec.network.clone().map(|network| self.restrict_network(network)).transpose()?;
        Ok(Spec { pids: spec.pids.or(Some(self.pids)), network, ..spec.clone() })
    }

    /// Checks that a policy opens no denied group: by its leading deny rules, or rule by rule.
    fn check_policy(&self, policy: &Policy) -> Result<()> {
        let opens = |rule: &Rule| {
            rule.decision == Decision::Allow
                && rule.direction == Direction::Egress
                && !self.rules.contains(rule)
        };
        let first = policy.rules.iter().position(opens).unwrap_or(policy.rules.len());
        if self.deny_rules().all(|denial| policy.rules[..first].contains(&denial)) {
            return Ok(());
        }
        let wide = policy.rules.iter().find(|rule| opens(rule) && rule.target == Target::Any);
        if wide.is_some() || policy.default == Decision::Allow {
            return Err(ceiling_error("a wider network", "reach="));
        }
        policy.rules[first..]
            .iter()
            .filter(|rule| opens(rule))
            .try_for_each(|rule| self.check_rule(rule))
    }

    fn check_plan(&self, plan: &Plan) -> Result<()> {
        check_limit("cpus", plan.limits.cpus.map(|limit| limit.value), self.cpus)?;
        check_limit("memory", plan.limits.memory.map(|limit| limit.value), self.memory)?;
        check_limit("pids", plan.limits.pids.map(|limit| limit.value), Some(self.pids))?;
        if plan.security.allow_userns && !self.allow_userns {
            return Err(ceiling_error("user namespaces inside", "userns"));
        }
        if let Some(policy) = &plan.spawn {
            self.check_spawn(policy)?;
        }
        let Some(network) = &plan.network else { return Ok(()) };
        network.ports.iter().try_for_each(|port| self.check_port(port))?;
        for resolver in &network.dns {
            if self.is_address_denied(resolver.0.ip()) && !self.dns.contains(resolver) {
                return Err(ceiling_error(&format!("the DNS server `{resolver}`"), "dns="));
            }
        }
        self.check_policy(&network.policy)
    }
}

/// One line for the log of the server.
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

/// Order of reaches from narrow to wide.
fn rank(reach: Reach) -> u8 {
    match reach {
        Reach::None => 0,
        Reach::Public => 1,
        Reach::Private => 2,
        Reach::Host => 3,
        Reach::All => 4,
    }
}

fn check_limit<T: PartialOrd + std::fmt::Display>(
    what: &str,
    requested: Option<T>,
    limit: Option<T>,
) -> Result<()> {
    match (requested, limit) {
        (Some(requested), Some(limit)) if requested > limit => {
            Err(ceiling_error(&format!("`{requested}` for {what}"), &format!("{what}=")))
        }
        _ => Ok(()),
    }
}

fn ceiling_error(what: &str, key: &str) -> Error {
    Error::new(Kind::Denied, format!("exceeds the ceiling for clients of this server: {what}"))
        .hint(format!(
            "the operator of the server can raise it: `--ceiling {key}…`, or config.toml"
        ))
}

/// Limits that apply to a request: those of the operator or of a client.
#[derive(Debug, Clone, Default)]
pub enum Authority {
    /// The user that owns the state directory: no ceiling.
    #[default]
    Operator,
    /// A client of the server, with its ceiling.
    Client(Arc<Ceiling>),
}

impl Authority {
    fn ceiling(&self) -> Option<&Ceiling> {
        match self {
            Self::Operator => None,
            Self::Client(ceiling) => Some(ceiling),
        }
    }

    /// Checks and restricts a Spec. Fails if it exceeds the ceiling.
    pub fn spec(&self, spec: &Spec) -> Result<WithinCeiling<Spec>> {
        let value = match self.ceiling() {
            Some(ceiling) => ceiling.restrict_spec(spec)?,
            None => spec.clone(),
        };
        Ok(WithinCeiling { value, authority: self.clone() })
    }

    /// Checks a change of a sandbox. Fails if it exceeds the ceiling.
    pub fn modify<'a>(&self, modify: &'a Modify) -> Result<WithinCeiling<&'a Modify>> {
        if let Some(ceiling) = self.ceiling() {
            check_limit("cpus", modify.cpus, ceiling.cpus)?;
            check_limit("memory", modify.memory, ceiling.memory)?;
            check_limit("pids", modify.pids, Some(ceiling.pids))?;
        }
        Ok(WithinCeiling { value: modify, authority: self.clone() })
    }

    /// Checks rules that precede those of a running sandbox.
    pub fn rules<'a>(&self, rules: &'a [Rule]) -> Result<WithinCeiling<&'a [Rule]>> {
        if let Some(ceiling) = self.ceiling() {
            for rule in rules.iter().filter(|rule| !ceiling.rules.contains(rule)) {
                ceiling.check_rule(rule)?;
                // It would precede the deny rules of the ceiling and open everything.
                if (&rule.target, rule.decision) == (&Target::Any, Decision::Allow)
                    && rule.direction == Direction::Egress
                {
                    return Err(ceiling_error(&format!("the network rule `{rule}`"), "rule="));
                }
                if let (Target::Range(range), Decision::Allow) = (&rule.target, rule.decision)
                    && !range.is_one()
                    && rule.direction == Direction::Egress
                {
                    return Err(ceiling_error(&format!("the network rule `{rule}`"), "rule=")
                        .hint("name single addresses, or create the sandbox with this rule"));
                }
            }
        }
        Ok(WithinCeiling { value: rules, authority: self.clone() })
    }

    /// Checks a published port of a running sandbox.
    pub fn port<'a>(&self, port: &'a PublishedPort) -> Result<WithinCeiling<&'a PublishedPort>> {
        if let Some(ceiling) = self.ceiling() {
            ceiling.check_port(port)?;
        }
        Ok(WithinCeiling { value: port, authority: self.clone() })
    }

    /// Checks the Plan of a sandbox that is cloned.
    pub fn plan<'a>(&self, plan: &'a Plan) -> Result<WithinCeiling<&'a Plan>> {
        if let Some(ceiling) = self.ceiling() {
            ceiling.check_plan(plan)?;
        }
        Ok(WithinCeiling { value: plan, authority: self.clone() })
    }

    /// Limit of sandboxes in a namespace; `None` for the operator.
    pub fn most_sandboxes(&self) -> Option<u32> {
        self.ceiling().map(|ceiling| ceiling.sandboxes)
    }
}

/// A request that was checked against the ceiling of its caller.
#[derive(Debug, Clone)]
pub struct WithinCeiling<T> {
    value: T,
    authority: Authority,
}

impl<T> WithinCeiling<T> {
    /// Whether the operator has made the request.
    pub fn is_operators(&self) -> bool {
        matches!(self.authority, Authority::Operator)
    }

    /// Memory limit of the caller, for requests that name none.
    pub fn most_memory(&self) -> Option<Bytes> {
        self.authority.ceiling().and_then(|ceiling| ceiling.memory)
    }

    /// Limit of the writable layer, for requests that name none.
    pub fn most_disk(&self) -> Option<Bytes> {
        self.authority.ceiling().and_then(|ceiling| ceiling.disk)
    }

    /// CPU limit of the caller, for requests that name none.
    pub fn most_cpus(&self) -> Option<Cpus> {
        self.authority.ceiling().and_then(|ceiling| ceiling.cpus)
    }
}

impl<T> Deref for WithinCeiling<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
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
        let ports = vec![PublishedPort::parse(port).unwrap()];
        with(NetworkSpec { ports, ..NetworkSpec::default() })
    }

    fn with_dns(address: &str) -> Spec {
        let dns = vec![Resolver::parse(address).unwrap()];
        with(NetworkSpec { dns, ..NetworkSpec::default() })
    }

    /// Spec, a ceiling that allows it, and one that refuses it.
    #[test]
    fn requests_above_the_ceiling_are_refused() {
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
            let value = client(allowing).spec(spec);
            assert!(value.is_ok(), "{allowing}: {spec:?}: {value:?}");
            let refused = client(refusing).spec(spec).map_err(|error| error.kind());
            assert!(matches!(refused, Err(Kind::Denied)), "{refusing}: {spec:?}");
            assert!(Authority::Operator.spec(spec).is_ok());
        }
    }

    #[test]
    fn loopback_ports_and_public_dns_are_allowed_by_default() {
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

    /// Denied groups are denied before anything is allowed, for each request of a client.
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
            let value = client("").spec(&spec).unwrap();
            let policy = value.network.as_ref().unwrap().policy();
            let first: Vec<String> = policy.rules.iter().take(4).map(ToString::to_string).collect();
            assert_eq!(first, ["deny@metadata", "deny@host", "deny@loopback", "deny@private"]);
            // The rules of a Plan pass the ceiling unchanged.
            let again = NetworkSpec { rules: policy.rules, default, ..NetworkSpec::default() };
            client("").spec(&with(again)).unwrap();
        }
        let listed = "rule=allow@10.0.0.5:tcp:8001";
        let value = client(listed).spec(&with_rule("allow@10.0.0.5:tcp:8001")).unwrap();
        let rules = &value.network.as_ref().unwrap().rules;
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
