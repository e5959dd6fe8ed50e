//! Plans the network of a sandbox: expands rules, makes placeholders for Secrets.

use crate::host::random;
use msb_spec::encoding::hex;
use msb_spec::{
    DEFAULT_CONNECTIONS, Error, Network, PlannedSecret, Result, SecretPlace, SecretSource, Spec,
    addresses, env, gateway_memory,
};

/// The planned network; `None` if the Spec has none.
pub(super) fn network(spec: &Spec) -> Result<Option<Network>> {
    let Some(asked) = spec.network.as_ref().filter(|network| network.is_wanted()) else {
        return Ok(None);
    };
    let secret = |secret: &msb_spec::Secret| {
        let mut secret = secret.clone();
        secret.places.insert(SecretPlace::Header);
        if let SecretSource::File(path) = &mut secret.source {
            let about = |error| Error::host(format!("cannot find `{}`", path.display()), error);
            *path = std::path::absolute(&*path).map_err(about)?;
        }
        Ok(PlannedSecret { secret, placeholder: placeholder() })
    };
    let max_connections = asked.max_connections.unwrap_or(DEFAULT_CONNECTIONS);
    Ok(Some(Network {
        policy: asked.policy(),
        dns: asked.dns.clone(),
        dns_timeout: asked.dns_timeout,
        dns_private: asked.dns_private,
        ports: asked.ports.clone(),
        secrets: asked.secrets.iter().map(secret).collect::<Result<_>>()?,
        bypass: asked.bypass.clone(),
        max_connections,
        gateway_memory: gateway_memory(max_connections),
        egress_rate: asked.egress_rate.map(|rate| rate.0),
        join: asked.join.clone(),
        trust_host_cas: asked.trust_host_cas,
    }))
}

/// The environment variables of the network: placeholders of Secrets, paths of CA certificates.
pub(crate) fn environment(network: &Network) -> Vec<(String, String)> {
    let secrets = network.secrets.iter();
    let mut variables: Vec<(String, String)> =
        secrets.map(|one| (one.secret.name.clone(), one.placeholder.clone())).collect();
    if network.intercepts() || network.trust_host_cas {
        let trust = |name: &str| (name.to_owned(), addresses::TRUSTED.to_owned());
        variables.extend(env::TRUST.map(trust));
    }
    variables
}

/// A random placeholder, so that it never appears in a request by accident.
fn placeholder() -> String {
    let digits = hex(random::<16>());
    format!("msb-secret-{digits}")
}
