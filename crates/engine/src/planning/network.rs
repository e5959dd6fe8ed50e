//! The network of a sandbox: rules in full, placeholders, and whether this host has a device for it.

use crate::host::random;
use msb_spec::{
    DEFAULT_CONNECTIONS, Error, Isolation, Network, PlannedSecret, Result, SecretPlace,
    SecretSource, Spec, Stage, addresses, env, gateway_memory,
};

/// Decides on the network; none if none was asked for.
pub(super) fn network(spec: &Spec, isolation: Isolation) -> Result<Option<Network>> {
    let Some(asked) = spec.network.as_ref().filter(|network| network.is_wanted()) else {
        return Ok(None);
    };
    if isolation == Isolation::Process {
        device().map_err(|error| error.at(Stage::Network))?;
    }
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
        ports: asked.ports.clone(),
        secrets: asked.secrets.iter().map(secret).collect::<Result<_>>()?,
        bypass: asked.bypass.clone(),
        max_connections,
        gateway_memory: gateway_memory(max_connections),
        egress_rate: asked.egress_rate.map(|rate| rate.0),
        join: asked.join.clone(),
    }))
}

/// What every Exec is told of its network.
pub(crate) fn environment(network: &Network) -> Vec<(String, String)> {
    let secrets = network.secrets.iter();
    let mut variables: Vec<(String, String)> =
        secrets.map(|one| (one.secret.name.clone(), one.placeholder.clone())).collect();
    if network.intercepts() {
        let trust = |name: &str| (name.to_owned(), addresses::TRUSTED.to_owned());
        variables.extend(env::TRUST.map(trust));
    }
    variables
}

/// Nobody guesses it, so that it is never found in a request by accident.
fn placeholder() -> String {
    let digits: String = random::<16>().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("msb-secret-{digits}")
}

/// Whether a network device can be made; without, there is no network.
pub(crate) fn device() -> Result<()> {
    const TUN: &str = "/dev/net/tun";
    let opened = std::fs::File::options().read(true).write(true).open(TUN);
    opened.map(drop).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                "`chmod 666 /dev/net/tun` as root lets every user make devices in networks of their own, as \
                 most distributions do; `--no-net` does without"
            }
            _ => {
                "`modprobe tun` as root makes the device; a container needs `--device /dev/net/tun`; \
                 `--no-net` does without"
            }
        };
        Error::unsupported(format!("a network needs `{TUN}`")).cause(error).hint(hint)
    })
}
