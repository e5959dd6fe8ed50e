//! Published ports of sandboxes. They are listed by the sandboxes themselves, so they survive the
//! server.

use super::SandboxMcpState;
use super::active::{ActiveSandbox, ListedSandbox};
use super::commands::ShellCommand;
use crate::dialect::ToolCall;
use msb_api::NetEvent;
use msb_spec::{Direction, Error, Kind, Name, Protocol, PublishedPort, Result};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;

/// Timeout in seconds for reading two files of `/proc`.
const LIMIT: f64 = 10.0;

#[derive(Debug, Deserialize)]
pub(super) struct ExposeArgs {
    port: i64,
    host_port: i64,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct UnexposeArgs {
    port: i64,
}

/// A port of the host that is forwarded to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortForward {
    pub(super) sandbox: Name,
    pub(super) port: PublishedPort,
}

impl std::fmt::Display for PortForward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "localhost:{} -> '{}':{}", self.port.host, self.sandbox, self.port.guest)
    }
}

impl SandboxMcpState {
    pub(super) fn expose(&self, call: &ToolCall, args: &ExposeArgs) -> Result<String> {
        let wrong = |port: i64| Error::invalid(format!("not a port: `{port}`"));
        let guest = u16::try_from(args.port).ok().and_then(NonZeroU16::new);
        let guest = guest.ok_or_else(|| wrong(args.port))?;
        let host = u16::try_from(args.host_port).map_err(|_| wrong(args.host_port))?;
        let handle = self.ensure_active(call, &args.sandbox)?;
        let found = self.listed(&handle)?;
        if found.parent.is_some() {
            return Ok("Error: port forwarding not permitted on child sandboxes".to_owned());
        }
        let forwards = self.forwards(&self.all()?);
        let wanted = if host == 0 { guest.get() } else { host };
        let taken = forwards.iter().find(|forward| forward.port.host == wanted);
        match taken {
            Some(taken) if host != 0 || taken.sandbox == handle.name => {
                let (sandbox, guest) = (&taken.sandbox, taken.port.guest);
                return Ok(format!(
                    "Error: localhost:{wanted} already forwarding to '{sandbox}':{guest}. \
                     Use unexpose({wanted}) first."
                ));
            }
            _ => {}
        }
        let opened = self.publish(&handle.name, wanted, guest, host == 0)?;
        let host = opened.host;
        let mut text = format!(
            "Forwarding localhost:{host} -> '{}':{guest}\n  URL:  http://localhost:{host}\n  \
             curl: curl http://localhost:{host}",
            handle.name
        );
        if !self.listens(call, &handle, guest) {
            text.push_str(&format!(
                "\n  Warning: port {guest} is not yet listening in the sandbox"
            ));
        }
        Ok(text)
    }

    /// Publishes a host port, or any free one if it is taken and `any` is set.
    fn publish(
        &self,
        name: &Name,
        host: u16,
        guest: NonZeroU16,
        any: bool,
    ) -> Result<PublishedPort> {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let port = |host| PublishedPort { address, host, guest, protocol: Protocol::Tcp };
        match self.api().port_publish(name, &port(host)) {
            Err(error) if any && error.kind() != Kind::State => {
                self.api().port_publish(name, &port(0))
            }
            opened => opened,
        }
    }

    /// Whether a process in the sandbox listens on a port, by its kernel's tables.
    fn listens(&self, call: &ToolCall, handle: &ActiveSandbox, port: NonZeroU16) -> bool {
        let command = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null";
        let output = self.run_quietly(call, handle, &ShellCommand::new(command, LIMIT));
        output.is_ok_and(|output| is_listened_to(&output.stdout, port.get()))
    }

    pub(super) fn unexpose(&self, args: &UnexposeArgs) -> Result<String> {
        let forwards = self.forwards(&self.all()?);
        let found = forwards.iter().find(|it| i64::from(it.port.host) == args.port);
        let Some(forward) = found else {
            let all: Vec<String> = forwards.iter().map(|it| it.port.host.to_string()).collect();
            let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
            return Ok(format!("Error: no forward on localhost:{}. Active: {all}", args.port));
        };
        let served = self.served(forward);
        self.api().port_withdraw(&forward.sandbox, &forward.port)?;
        Ok(format!("Stopped forwarding {forward} ({served} connections served)"))
    }

    /// Number of connections that a published port has accepted.
    fn served(&self, forward: &PortForward) -> usize {
        let guest = Some(forward.port.guest.get());
        let records = self.api().network_events(&forward.sandbox).unwrap_or_default();
        let came_in = |event: &NetEvent| match event {
            NetEvent::Decided(verdict) => {
                verdict.direction == Direction::Ingress && verdict.port == guest
            }
            _ => false,
        };
        records.iter().filter(|record| came_in(&record.what)).count()
    }

    /// The published ports of these sandboxes.
    pub(super) fn forwards(&self, all: &[ListedSandbox]) -> Vec<PortForward> {
        let of = |found: &ListedSandbox| {
            let sandbox = found.summary.name.clone();
            let table = match found.is_online {
                true => self.api().network_table(&sandbox).unwrap_or_default(),
                false => msb_api::NetTable::default(),
            };
            let ports = table.ports.into_iter();
            ports.map(move |port| PortForward { sandbox: sandbox.clone(), port })
        };
        all.iter().flat_map(of).collect()
    }
}

/// Searches `/proc/net/tcp`: the local address is the second field, and state 0A is LISTEN.
fn is_listened_to(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut full_text = line.split_whitespace().skip(1);
        let (local, state) = (full_text.next(), full_text.nth(1));
        local.is_some_and(|local| local.ends_with(&end)) && state == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_port_is_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
             0: 00000000:1F40 00000000:0000 0A 00000000:00000000\n\
             1: 0100007F:1F41 0100007F:1F40 01 00000000:00000000\n";
        assert!(is_listened_to(table, 8000));
        assert!(!is_listened_to(table, 8001));
        assert!(!is_listened_to("", 8000));
    }
}
