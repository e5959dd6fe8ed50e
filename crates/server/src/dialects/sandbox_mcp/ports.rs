//! Ports of sandboxes at ports of this host. Which there are is asked of each sandbox, so that they outlive
//! the server like the sandbox does.

use super::Surface;
use super::commands::Ask;
use super::live::{Found, Live};
use crate::dialect::Call;
use msb_api::NetEvent;
use msb_spec::{Direction, Error, Kind, Name, Protocol, Published, Result};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;

/// Long enough to read two files.
const LIMIT: f64 = 10.0;

#[derive(Debug, Deserialize)]
pub(super) struct Expose {
    port: i64,
    host_port: i64,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Unexpose {
    port: i64,
}

/// A port of this host that leads to one of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Forward {
    pub(super) sandbox: Name,
    pub(super) port: Published,
}

impl std::fmt::Display for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "localhost:{} -> '{}':{}", self.port.host, self.sandbox, self.port.guest)
    }
}

impl Surface {
    pub(super) fn expose(&self, call: &Call, asked: &Expose) -> Result<String> {
        let wrong = |port: i64| Error::invalid(format!("not a port: `{port}`"));
        let guest = u16::try_from(asked.port).ok().and_then(NonZeroU16::new);
        let guest = guest.ok_or_else(|| wrong(asked.port))?;
        let host = u16::try_from(asked.host_port).map_err(|_| wrong(asked.host_port))?;
        let live = self.used(call, &asked.sandbox)?;
        let found = self.of(&live)?;
        if found.parent.is_some() {
            return Ok("Error: port forwarding not permitted on child sandboxes".to_owned());
        }
        let forwards = self.forwards(&self.all()?);
        let wanted = if host == 0 { guest.get() } else { host };
        let taken = forwards.iter().find(|forward| forward.port.host == wanted);
        match taken {
            Some(taken) if host != 0 || taken.sandbox == live.name => {
                let (sandbox, guest) = (&taken.sandbox, taken.port.guest);
                return Ok(format!(
                    "Error: localhost:{wanted} already forwarding to '{sandbox}':{guest}. \
                     Use unexpose({wanted}) first."
                ));
            }
            _ => {}
        }
        let opened = self.publish(&live.name, wanted, guest, host == 0)?;
        let host = opened.host;
        let mut text = format!(
            "Forwarding localhost:{host} -> '{}':{guest}\n  URL:  http://localhost:{host}\n  \
             curl: curl http://localhost:{host}",
            live.name
        );
        if !self.listens(call, &live, guest) {
            text.push_str(&format!(
                "\n  Warning: port {guest} is not yet listening in the sandbox"
            ));
        }
        Ok(text)
    }

    /// Opens a port of the host, or any other if that is taken and none was asked for.
    fn publish(&self, name: &Name, host: u16, guest: NonZeroU16, any: bool) -> Result<Published> {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let port = |host| Published { address, host, guest, protocol: Protocol::Tcp };
        match self.api().port_publish(name, &port(host)) {
            Err(error) if any && error.kind() != Kind::State => {
                self.api().port_publish(name, &port(0))
            }
            opened => opened,
        }
    }

    /// Whether something in a sandbox listens at a port, as its kernel has it.
    fn listens(&self, call: &Call, live: &Live, port: NonZeroU16) -> bool {
        let command = "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null";
        let output = self.run_quietly(call, live, &Ask::new(command, LIMIT));
        output.is_ok_and(|output| is_listened_to(&output.stdout, port.get()))
    }

    pub(super) fn unexpose(&self, asked: &Unexpose) -> Result<String> {
        let forwards = self.forwards(&self.all()?);
        let found = forwards.iter().find(|it| i64::from(it.port.host) == asked.port);
        let Some(forward) = found else {
            let all: Vec<String> = forwards.iter().map(|it| it.port.host.to_string()).collect();
            let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
            return Ok(format!("Error: no forward on localhost:{}. Active: {all}", asked.port));
        };
        let served = self.served(forward);
        self.api().port_withdraw(&forward.sandbox, &forward.port)?;
        Ok(format!("Stopped forwarding {forward} ({served} connections served)"))
    }

    /// How often somebody came in at the port of a sandbox.
    fn served(&self, forward: &Forward) -> usize {
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

    /// The ports that lead into these sandboxes.
    pub(super) fn forwards(&self, all: &[Found]) -> Vec<Forward> {
        let of = |found: &Found| {
            let sandbox = found.summary.name.clone();
            let table = match found.is_online {
                true => self.api().network_table(&sandbox).unwrap_or_default(),
                false => msb_api::NetTable::default(),
            };
            let ports = table.ports.into_iter();
            ports.map(move |port| Forward { sandbox: sandbox.clone(), port })
        };
        all.iter().flat_map(of).collect()
    }
}

/// Reads `/proc/net/tcp`: the local address is the second word, and state 0A is listening.
fn is_listened_to(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
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
