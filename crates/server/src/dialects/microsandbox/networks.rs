//! Whom a sandbox reaches, and the values that only some of them see.

use super::Microsandbox;
use super::create::Wanted;
use super::envelope::Failure;
use crate::dialect::Call;
use msb_spec::{
    Error, GuestPath, NamePattern, NetworkSpec, Patch, Protocol, Published, Reach, Resolver, Rule,
    Secret, SecretSource, env,
};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::path::Path;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NetworkAsked {
    disabled: bool,
    ports: Vec<PortAsked>,
    max_connections: Option<u64>,
    trust_host_cas: bool,
    ipv4_pool: Option<String>,
    ipv6_pool: Option<String>,
    dns: Dns,
    tls: Tls,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PortAsked {
    host_port: u16,
    guest_port: NonZeroU16,
    bind_address: Option<String>,
    protocol: Option<Protocol>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Dns {
    allow_rebind: Option<bool>,
    nameservers: Vec<String>,
    query_timeout_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Tls {
    ports: Option<Vec<u16>>,
    bypass_domains: Vec<String>,
    block_quic: bool,
    ca_cert_path: Option<String>,
    ca_key_path: Option<String>,
    upstream_ca_cert_paths: Vec<String>,
    trust_host_cas: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SecretAsked {
    env_var: String,
    value: Option<String>,
    value_env: Option<String>,
    allowed_host: String,
}

impl PortAsked {
    pub(super) fn published(&self) -> Result<Published, Failure> {
        let address = match &self.bind_address {
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(text) => text
                .parse()
                .map_err(|_| Failure::new(format!("bindAddress is not an address: {text}")))?,
        };
        let protocol = self.protocol.unwrap_or(Protocol::Tcp);
        Ok(Published { address, host: self.host_port, guest: self.guest_port, protocol })
    }
}

impl NetworkAsked {
    /// What our gateway does otherwise, and cannot be told.
    fn check(&self) -> Result<(), Failure> {
        let fixed = "the gateway of each sandbox has addresses of its own; leave it out";
        let slow = "names are given up after a time of our own; leave it out";
        let rebind =
            "add a name's private address with a network reach of `private`, by msb itself";
        let looks = "TLS is looked into only for the hosts of secrets, on any port; leave it out";
        let authority = "each sandbox has an authority of its own, which it trusts; leave it out";
        let upstream = "upstream certificates are checked with those of this host; leave it out";
        let tls = &self.tls;
        let cannot = [
            ("network.ipv4Pool", self.ipv4_pool.is_some(), fixed),
            ("network.ipv6Pool", self.ipv6_pool.is_some(), fixed),
            ("network.dns.queryTimeoutMs", self.dns.query_timeout_ms.is_some(), slow),
            ("network.dns.allowRebind", self.dns.allow_rebind == Some(true), rebind),
            ("network.tls.ports", tls.ports.is_some(), looks),
            ("network.tls.caCertPath", tls.ca_cert_path.is_some(), authority),
            ("network.tls.caKeyPath", tls.ca_key_path.is_some(), authority),
            ("network.tls.upstreamCaCertPaths", !tls.upstream_ca_cert_paths.is_empty(), upstream),
        ];
        match cannot.iter().find(|(_, asked, _)| *asked) {
            Some((what, _, hint)) => {
                Err(Failure::unsupported(format!("{what} is not for this server to decide"), hint))
            }
            None => Ok(()),
        }
    }

    fn apply(&self, network: &mut NetworkSpec) -> Result<(), Failure> {
        if self.disabled {
            network.reach = Some(Reach::None);
        }
        for port in &self.ports {
            network.ports.push(port.published()?);
        }
        if let Some(most) = self.max_connections {
            network.max_connections = Some(u32::try_from(most).unwrap_or(u32::MAX));
        }
        for server in &self.dns.nameservers {
            network.dns.push(Resolver::parse(server)?);
        }
        for name in &self.tls.bypass_domains {
            network.bypass.push(NamePattern::parse(name)?);
        }
        if self.tls.block_quic {
            network.rules.insert(0, Rule::parse("deny@any:udp:443")?);
        }
        Ok(())
    }
}

impl Microsandbox {
    pub(super) fn network(
        &self,
        wanted: &mut Wanted,
        asked: Option<&NetworkAsked>,
        secrets: &[SecretAsked],
        call: &Call,
    ) -> Result<(), Failure> {
        if asked.is_none() && secrets.is_empty() {
            return Ok(());
        }
        let mut network = wanted.spec.network.take().unwrap_or_default();
        if let Some(asked) = asked {
            asked.check()?;
            asked.apply(&mut network)?;
        }
        for secret in secrets {
            network.secrets.push(self.secret(wanted, secret, call)?);
        }
        let looks = !network.secrets.is_empty();
        wanted.spec.network = Some(network);
        if asked.is_some_and(|it| it.trust_host_cas || it.tls.trust_host_cas) {
            trust_host(wanted, looks)?;
        }
        Ok(())
    }

    fn secret(
        &self,
        wanted: &mut Wanted,
        asked: &SecretAsked,
        call: &Call,
    ) -> Result<Secret, Failure> {
        let missing = || Failure::new(format!("missing secret value for {}", asked.env_var));
        let host = NamePattern::parse(&asked.allowed_host)?;
        let source = match (&asked.value, &asked.value_env) {
            (Some(value), _) => {
                wanted.secrets.push((asked.env_var.clone(), value.clone().into_bytes()));
                SecretSource::Given
            }
            (None, Some(variable)) => {
                // On a server of many, its variables are not those of the caller.
                if call.who.key.is_some() && !self.settings.dangerous {
                    let text =
                        "secrets of the server's own environment are disabled on this server";
                    let hint =
                        format!("give the value itself, or set {}=1", env::MCP_ENABLE_DANGEROUS);
                    return Err(Failure::dangerous(text).detail("hint", hint));
                }
                // Listed first: whether any other variable is set is not told either.
                let Some(source) = self.settings.granted(variable, &host) else {
                    let text = format!("the variable {variable} is not allowed for {host}");
                    let hint = "give the value itself; the operator of the server allows a variable \
                                with `--secret-env NAME@HOST`";
                    return Err(Failure::dangerous(text).detail("hint", hint));
                };
                if std::env::var_os(variable).is_none() {
                    return Err(missing());
                }
                source
            }
            (None, None) => return Err(missing()),
        };
        let secret = Secret {
            name: asked.env_var.clone(),
            source,
            hosts: vec![host],
            places: BTreeSet::new(),
            require: false,
        };
        secret.check()?;
        Ok(secret)
    }
}

/// Where Linux systems keep the certificates that they trust.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Where they are shown inside.
const INSIDE: &str = "/.msb/host-certificates.pem";

/// Lets commands trust whom the host trusts.
fn trust_host(wanted: &mut Wanted, looks: bool) -> Result<(), Failure> {
    if looks {
        // Its gateway stands for everybody, and has checked them with the host's certificates.
        return Ok(());
    }
    let Some(bundle) = BUNDLES.iter().map(Path::new).find(|path| path.is_file()) else {
        return Err(Failure::new("this host has no certificates to trust"));
    };
    let content = std::fs::read_to_string(bundle)
        .map_err(|error| Error::host(format!("cannot read `{}`", bundle.display()), error))?;
    let path = GuestPath::parse(INSIDE)?;
    wanted.spec.patches.push(Patch::Text { path, content, mode: None });
    for variable in env::TRUST {
        wanted.spec.env.entry(variable.to_owned()).or_insert_with(|| INSIDE.to_owned());
    }
    Ok(())
}
