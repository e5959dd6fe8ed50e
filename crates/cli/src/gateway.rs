//! Starts the gateway of a sandbox, beside its worker.

use msb_engine::SecretValue as Value;
use msb_gateway::{HostConfig, NetworkMember, SecretValue, Start};
use msb_spec::{Error, Isolation, Network, Plan, Result, Stage};
use msb_sys::{process, socket};
use msb_wire::{FrameKind, FromGateway, encode};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Forks the gateway that a Plan asks for. The values of its Secrets are wiped here; only it has
/// them then.
pub(crate) fn start(
    plan: &Plan,
    directory: &Path,
    secrets: Vec<Value>,
) -> Result<Option<msb_worker::GatewayFds>> {
    let Some(network) = &plan.network else { return Ok(None) };
    let failed =
        |error: std::io::Error| Error::host("cannot start the gateway", error).at(Stage::Network);
    let (control, their_control) = socket::pair().map_err(failed)?;
    let device = plan.isolation == Isolation::Process;
    let (link, their_link) =
        if device { socket::pair() } else { socket::packet_pair() }.map_err(failed)?;
    if process::fork().map_err(failed)? {
        drop((control, link));
        process::leave(serve(plan, network, directory, secrets, their_control, their_link));
    }
    Ok(Some(msb_worker::GatewayFds { control, link }))
}

/// The gateway's own process.
fn serve(
    plan: &Plan,
    network: &Network,
    directory: &Path,
    secrets: Vec<Value>,
    control: OwnedFd,
    link: OwnedFd,
) -> i32 {
    process::set_name(c"msb-gateway");
    msb_log::adopt();
    let prepared = || -> Result<(HostConfig, Option<NetworkMember>)> {
        let failed = |error: std::io::Error| Error::host("cannot prepare the gateway", error);
        // It ends with its worker, whatever becomes of that.
        let kill = rustix::process::Signal::KILL;
        rustix::process::set_parent_process_death_signal(Some(kill))
            .map_err(|error| failed(error.into()))?;
        // Ctrl-C at the caller's terminal is for the command.
        let _ = rustix::process::setsid();
        let kept = [control.as_fd(), link.as_fd()].into_iter().chain(msb_log::descriptor());
        process::close_others(&kept.collect::<Vec<_>>()).map_err(failed)?;
        let host_config = HostConfig::find(network)?;
        // The values of variables are in there.
        process::wipe_cmdline_and_env().map_err(failed)?;
        Ok((host_config, joined(plan, network, directory)?))
    };
    let (host_config, joined) = match prepared() {
        Ok(prepared) => prepared,
        Err(error) => {
            let told = encode(FrameKind::Control, &FromGateway::Failed(error.at(Stage::Network)));
            let _ = socket::send_all(control.as_fd(), &told, &[]);
            return 125;
        }
    };
    let values = secrets.into_iter().map(|mut value| SecretValue::new(std::mem::take(&mut *value)));
    msb_gateway::run(Start {
        network: network.clone(),
        values: values.collect(),
        resolvers: host_config.resolvers,
        host_addresses: host_config.host_addresses,
        proxy: host_config.proxy,
        roots: host_config.roots,
        joined,
        link,
        device: plan.isolation == Isolation::Process,
        control,
        confine: Box::new({
            let memory = network.gateway_memory;
            move || msb_jail::confine_gateway(memory)
        }),
    })
}

/// The directory of the named network or of its family's, made by the first that joins it.
fn joined(plan: &Plan, network: &Network, directory: &Path) -> Result<Option<NetworkMember>> {
    let family = plan.family_network().map(|family| family.directory());
    let Some(join) = network.join.as_ref().map(ToString::to_string).or(family) else {
        return Ok(None);
    };
    let home = directory.parent().and_then(Path::parent).unwrap_or(directory);
    let place = home.join("networks").join(&join);
    let about = |error| Error::host(format!("cannot join the network `{join}`"), error);
    std::fs::create_dir_all(&place).map_err(about)?;
    let opened = std::fs::File::open(&place).map_err(about)?;
    // Where sockets are looked up later, when there are no other files any more.
    std::env::set_current_dir(&place).map_err(about)?;
    Ok(Some(NetworkMember { directory: opened.into(), name: plan.name.clone() }))
}
