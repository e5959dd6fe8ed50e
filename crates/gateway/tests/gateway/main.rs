//! Tests of the gateway over its link, with servers on this machine.

#[cfg(test)]
mod dns;
#[cfg(test)]
mod guest;
#[cfg(test)]
mod named_network;
#[cfg(test)]
mod placeholders;
#[cfg(test)]
mod published_ports;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod servers;
#[cfg(test)]
mod tcp;
#[cfg(test)]
mod udp;
