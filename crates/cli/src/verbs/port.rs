//! `msb port`: ports of the host that lead into a running sandbox.

use crate::listing;
use crate::output::{self, Outcome};
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_spec::{Error, Kind, Name, PublishedPort};

/// Opens a port of the host until the sandbox stops.
#[derive(Debug, Parser)]
#[command(override_usage = "msb port add [OPTIONS] NAME PORT...")]
pub(crate) struct PortAddArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Port, as in `8080:80` or `127.0.0.1:5353:53/udp`; `80` takes any that is free
    #[arg(value_name = "[ADDRESS:]HOST:GUEST[/udp]", required = true)]
    ports: Vec<PublishedPort>,
}

impl TargetVerb for PortAddArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let name = Name::parse(&self.name)?;
        for port in &self.ports {
            output::result("port", api.port_publish(&name, port)?);
        }
        Ok(0)
    }
}

/// Closes a port of the host. Connections that are open stay.
#[derive(Debug, Parser)]
#[command(override_usage = "msb port rm NAME PORT...")]
pub(crate) struct PortRmArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Port of the host, or as `msb port ls` shows it
    #[arg(value_name = "PORT", required = true)]
    ports: Vec<String>,
}

impl TargetVerb for PortRmArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let name = Name::parse(&self.name)?;
        for text in &self.ports {
            let open = api.network_table(&name)?.ports;
            let meant: Vec<&PublishedPort> = open
                .iter()
                .filter(|port| match text.parse::<u16>() {
                    Ok(number) => port.host == number,
                    Err(_) => PublishedPort::parse(text).is_ok_and(|wanted| wanted == **port),
                })
                .collect();
            if meant.is_empty() {
                let message = format!("no such port of sandbox `{name}`: `{text}`");
                let error = Error::new(Kind::NotFound, message);
                return Err(error.hint(format!("`msb port ls {name}` lists them")).into());
            }
            for port in meant {
                api.port_withdraw(&name, port)?;
            }
        }
        Ok(0)
    }
}

/// Lists the ports of the host that lead into a sandbox.
#[derive(Debug, Parser)]
#[command(override_usage = "msb port ls [OPTIONS] NAME")]
pub(crate) struct PortLsArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for PortLsArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let ports = api.network_table(&Name::parse(&self.name)?)?.ports;
        if self.json {
            listing::json(&ports);
        } else {
            for port in &ports {
                output::print(port);
            }
        }
        Ok(0)
    }
}
