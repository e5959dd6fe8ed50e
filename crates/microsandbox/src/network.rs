//! What a sandbox may connect to, its published ports, and Secrets, which never enter it.

use crate::builder::SandboxBuilder;
use crate::sandbox::Sandbox;
use msb_engine::SecretValue;
use msb_spec::{
    Error, Name, NamePattern, NetworkSpec, Policy, PublishedPort, Reach, Resolver, Result, Rule,
    Secret, SecretPlace, SecretSource,
};
use msb_wire::NetTable;
use std::collections::BTreeSet;

impl SandboxBuilder {
    /// How far it reaches. By default `MSB_NET`, or else the public internet.
    #[must_use]
    pub fn network(self, reach: Reach) -> Self {
        self.on_network(Ok(reach), |network, reach| network.reach = Some(reach))
    }

    /// A rule, as in `allow@example.com` or `deny@10.0.0.0/8:tcp:22`; the first that matches decides.
    #[must_use]
    pub fn rule(self, rule: &str) -> Self {
        self.on_network(Rule::parse(rule), |network, rule| network.rules.push(rule))
    }

    /// Reaches only what rules allow.
    #[must_use]
    pub fn deny_by_default(self) -> Self {
        let deny = Ok(msb_spec::Decision::Deny);
        self.on_network(deny, |network, deny| network.default = Some(deny))
    }

    /// A port of the host that leads inside, as in `8080:80` or `127.0.0.1:5353:53/udp`.
    #[must_use]
    pub fn publish(self, port: &str) -> Self {
        self.on_network(PublishedPort::parse(port), |network, port| network.ports.push(port))
    }

    /// A DNS server in place of the host's, as in `9.9.9.9` or `127.0.0.1:5353`.
    #[must_use]
    pub fn dns(self, server: &str) -> Self {
        self.on_network(Resolver::parse(server), |network, server| network.dns.push(server))
    }

    /// A value that only these hosts get: inside, the variable `name` holds a placeholder, which
    /// the gateway replaces on the way out. It is not stored: a caller that starts the sandbox again has
    /// to give it again.
    #[must_use]
    pub fn secret(mut self, name: &str, value: impl Into<Vec<u8>>, hosts: &[&str]) -> Self {
        let parsed = parsed(name, hosts, SecretSource::Given);
        self.given.push((name.to_owned(), SecretValue::new(value.into())));
        self.on_network(parsed, |network, secret| network.secrets.push(secret))
    }

    /// A Secret from a variable of this process, read at every start.
    #[must_use]
    pub fn secret_from_env(self, name: &str, hosts: &[&str]) -> Self {
        let parsed = parsed(name, hosts, SecretSource::Variable(name.to_owned()));
        self.on_network(parsed, |network, secret| network.secrets.push(secret))
    }

    /// Where else than in headers the secrets named so far are put in.
    #[must_use]
    pub fn secrets_in(self, place: SecretPlace) -> Self {
        self.on_network(Ok(place), |network, place| {
            for secret in &mut network.secrets {
                secret.places.insert(place);
            }
        })
    }

    /// A named network: sandboxes in it reach each other by name.
    #[must_use]
    pub fn join(self, network: &str) -> Self {
        self.on_network(Name::parse(network), |network, name| network.join = Some(name))
    }

    fn on_network<T>(self, parsed: Result<T>, set: impl FnOnce(&mut NetworkSpec, T)) -> Self {
        self.with(parsed, |spec, value| set(spec.network.get_or_insert_default(), value))
    }
}

fn parsed(name: &str, hosts: &[&str], source: SecretSource) -> Result<Secret, Error> {
    let hosts = hosts.iter().map(|host| NamePattern::parse(host)).collect::<Result<_>>()?;
    let places = BTreeSet::new();
    Ok(Secret { name: name.to_owned(), source, hosts, places, require: false })
}

impl Sandbox {
    /// The connections and ports that are open, and the rules in force.
    pub async fn net_table(&self) -> Result<NetTable> {
        self.worker.blocking(|engine, name| engine.net_table(name)).await
    }

    /// Puts rules before those in force, until it stops. Connections that they refuse are ended.
    pub async fn add_rules(&self, rules: &[&str]) -> Result<Policy> {
        let rules: Vec<Rule> = rules.iter().map(|rule| Rule::parse(rule)).collect::<Result<_>>()?;
        self.worker.blocking(move |engine, name| engine.add_rules(name, &rules)).await
    }

    /// Opens a port of the host until it stops; returns it with the number that it has.
    pub async fn publish(&self, port: &str) -> Result<PublishedPort> {
        let port = PublishedPort::parse(port)?;
        self.worker.blocking(move |engine, name| engine.publish(name, &port)).await
    }
}
