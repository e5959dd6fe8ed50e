//! Network policy, ports and secrets of a new sandbox.

use super::Microsandbox;
use super::create::SandboxRequest;
use super::envelope::ToolFailure;
use crate::dialect::ToolCall;
use msb_spec::{
    NamePattern, NetworkSpec, Protocol, PublishedPort, Reach, Resolver, Rule, Secret, SecretSource,
    Span, env,
};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::time::Duration;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NetworkParams {
    disabled: bool,
    ports: Vec<PortParams>,
    max_connections: Option<u64>,
    trust_host_cas: bool,
    ipv4_pool: Option<String>,
    ipv6_pool: Option<String>,
    dns: DnsParams,
    tls: TlsParams,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PortParams {
    host_port: u16,
    guest_port: NonZeroU16,
    bind_address: Option<String>,
    protocol: Option<Protocol>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DnsParams {
    allow_rebind: bool,
    nameservers: Vec<String>,
    query_timeout_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TlsParams {
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
pub(super) struct SecretParams {
    env_var: String,
    value: Option<String>,
    value_env: Option<String>,
    allowed_host: String,
}

impl PortParams {
    pub(super) fn published(&self) -> Result<PublishedPort, ToolFailure> {
        let address = match &self.bind_address {
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(text) => text
                .parse()
                .map_err(|_| ToolFailure::new(format!("bindAddress is not an address: {text}")))?,
        };
        let protocol = self.protocol.unwrap_or(Protocol::Tcp);
        Ok(PublishedPort { address, host: self.host_port, guest: self.guest_port, protocol })
    }
}

impl NetworkParams {
    /// Refuses options that the gateway does not support.
    fn check(&self) -> Result<(), ToolFailure> {
        let fixed = "the gateway assigns its own addresses; leave it out";
        let looks = "TLS is intercepted only for the hosts of secrets, on any port; leave it out";
        let authority = "each sandbox has its own CA, which it trusts; leave it out";
        let upstream = "upstream certificates are verified with the CA certificates of this host; leave it out";
        let tls = &self.tls;
        let cannot = [
            ("network.ipv4Pool", self.ipv4_pool.is_some(), fixed),
            ("network.ipv6Pool", self.ipv6_pool.is_some(), fixed),
            ("network.tls.ports", tls.ports.is_some(), looks),
            ("network.tls.caCertPath", tls.ca_cert_path.is_some(), authority),
            ("network.tls.caKeyPath", tls.ca_key_path.is_some(), authority),
            ("network.tls.upstreamCaCertPaths", !tls.upstream_ca_cert_paths.is_empty(), upstream),
        ];
        match cannot.iter().find(|(_, params, _)| *params) {
            Some((what, _, hint)) => {
                Err(ToolFailure::unsupported(format!("{what} cannot be configured"), hint))
            }
            None => Ok(()),
        }
    }

    fn apply(&self, network: &mut NetworkSpec) -> Result<(), ToolFailure> {
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
        let timeout = self.dns.query_timeout_ms.map(|ms| Span(Duration::from_millis(ms)));
        network.dns_timeout = timeout.or(network.dns_timeout);
        network.dns_private |= self.dns.allow_rebind;
        for name in &self.tls.bypass_domains {
            network.bypass.push(NamePattern::parse(name)?);
        }
        // Without a network there is nothing to trust a certificate for.
        network.trust_host_cas |= self.trust_host_cas || self.tls.trust_host_cas;
        network.trust_host_cas &= network.is_wanted();
        if self.tls.block_quic {
            network.rules.insert(0, Rule::parse("deny@any:udp:443")?);
        }
        Ok(())
    }
}

impl Microsandbox {
    pub(super) fn network(
        &self,
        request: &mut SandboxRequest,
        params: Option<&NetworkParams>,
        secrets: &[SecretParams],
        call: &ToolCall,
    ) -> Result<(), ToolFailure> {
        if params.is_none() && secrets.is_empty() {
            return Ok(());
        }
        let mut network = request.spec.network.take().unwrap_or_default();
        if let Some(params) = params {
            params.check()?;
            params.apply(&mut network)?;
        }
        for secret in secrets {
            network.secrets.push(self.secret(request, secret, call)?);
        }
        if let Some((secret, host)) = network.bypassed_secret() {
            request.warnings.push(format!(
                "{host} is in bypassDomains, so it gets the placeholder of the secret {} and not \
                 the value",
                secret.name
            ));
        }
        request.spec.network = Some(network);
        Ok(())
    }

    fn secret(
        &self,
        request: &mut SandboxRequest,
        params: &SecretParams,
        call: &ToolCall,
    ) -> Result<Secret, ToolFailure> {
        let missing = || ToolFailure::new(format!("missing secret value for {}", params.env_var));
        let host = NamePattern::parse(&params.allowed_host)?;
        let source = match (&params.value, &params.value_env) {
            (Some(value), _) => {
                request.secrets.push((params.env_var.clone(), value.clone().into_bytes()));
                SecretSource::Given
            }
            (None, Some(variable)) => {
                // On a server with keys, its environment does not belong to the caller.
                if call.caller.key.is_some() && !self.settings.dangerous {
                    let text =
                        "secrets of the server's own environment are disabled on this server";
                    let hint =
                        format!("give the value itself, or set {}=1", env::MCP_ENABLE_DANGEROUS);
                    return Err(ToolFailure::dangerous(text).detail("hint", hint));
                }
                // Checked before the value: the error must not reveal whether another variable is
                // set.
                let Some(source) = self.settings.granted(variable, &host) else {
                    let text = format!("the variable {variable} is not allowed for {host}");
                    let hint = "give the value itself; the operator of the server allows a variable \
                                with `--secret-env NAME@HOST`";
                    return Err(ToolFailure::dangerous(text).detail("hint", hint));
                };
                if std::env::var_os(variable).is_none() {
                    return Err(missing());
                }
                source
            }
            (None, None) => return Err(missing()),
        };
        let secret = Secret {
            name: params.env_var.clone(),
            source,
            hosts: vec![host],
            places: BTreeSet::new(),
            require: false,
        };
        secret.check()?;
        Ok(secret)
    }
}
