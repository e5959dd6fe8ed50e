//! The handshake before a flow begins: CONNECT to the host's proxy for flows that are not
//! intercepted, or the hello to the gateway of another sandbox.

use crate::event_loop::Gateway;
use crate::host_socket;
use crate::named_network;
use crate::proxy::{ConnectReply, HttpProxy, parse_connect_reply};
use crate::slab::SlabKey;
use crate::tcp::flow::host_address;
use crate::tcp::flow_table::{FlowStage, TcpFlow};
use msb_spec::Direction;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::OwnedFd;
use zeroize::Zeroizing;

/// The longest head of a reply that is waited for, in bytes.
const MAX_REPLY_HEAD: usize = 16 << 10;

/// A handshake in progress: what is left to be sent, and how the reply is parsed.
#[derive(Debug)]
pub(crate) struct Tunnel {
    out: Zeroizing<Vec<u8>>,
    written: usize,
    /// Parses the reply received so far.
    read: fn(&[u8]) -> ConnectReply,
}

/// Parses the reply of another sandbox's gateway.
fn parse_peer_reply(reply: &[u8]) -> ConnectReply {
    match named_network::is_accepted(reply) {
        true => ConnectReply::Established(1),
        false => ConnectReply::Refused(None),
    }
}

impl Gateway {
    /// The proxy that a flow goes through, if any.
    pub(crate) fn proxy_for(&self, flow: &TcpFlow) -> Option<&HttpProxy> {
        let proxy = self.proxy.as_deref()?;
        let remote = flow.key.remote;
        let egress = flow.verdict.direction == Direction::Egress;
        let wanted = egress && self.rules.is_public(remote.ip());
        let name = flow.verdict.name.as_ref();
        (wanted && proxy.applies_to(name, host_address(remote))).then_some(proxy)
    }

    /// Starts to connect to the proxy; returns whether it is connected already. For a proxy with
    /// TLS the Interceptor makes the connection, and its failure closes the socket pair.
    pub(crate) fn connect_to_proxy(&mut self) -> Result<(OwnedFd, bool), Errno> {
        let proxy = self.proxy.clone().ok_or(Errno::HOSTUNREACH)?;
        if !proxy.tls {
            return host_socket::connect(*proxy.addresses.first().ok_or(Errno::HOSTUNREACH)?);
        }
        let (ours, theirs) = host_socket::pair()?;
        self.interceptor().ok_or(Errno::HOSTUNREACH)?.proxy_tls(theirs);
        Ok((ours, true))
    }

    /// Starts the handshake with a proxy or a peer; returns false if the flow needs none.
    pub(crate) fn begin_tunnel(&mut self, key: SlabKey) -> bool {
        let Some(flow) = self.tcp.flows.get(key) else { return false };
        if !matches!(flow.stage, FlowStage::Connecting(_)) {
            return false;
        }
        let remote = flow.key.remote;
        if let (Some(_), Some(own)) = (self.peer_sandbox(remote.ip()), &self.peers) {
            let out = Zeroizing::new(own.hello_message(true, remote.port()));
            return self.add_tunnel(key, Tunnel { out, written: 0, read: parse_peer_reply });
        }
        let Some(proxy) = self.proxy_for(flow) else { return false };
        let out = proxy.connect_request(flow.verdict.name.as_ref(), host_address(remote));
        self.add_tunnel(key, Tunnel { out, written: 0, read: parse_connect_reply })
    }

    fn add_tunnel(&mut self, key: SlabKey, tunnel: Tunnel) -> bool {
        let flow = self.tcp.flows.get_mut(key);
        flow.map(|flow| flow.tunnel = Some(tunnel)).is_some()
    }

    /// Sends the rest of the handshake and reads the reply.
    pub(crate) fn poll_tunnel(&mut self, key: SlabKey) {
        let Some(flow) = self.tcp.flows.get_mut(key) else { return };
        let (Some(tunnel), Some(host)) = (&mut flow.tunnel, &flow.host) else { return };
        while tunnel.written < tunnel.out.len() {
            match rustix::net::send(host, &tunnel.out[tunnel.written..], SendFlags::NOSIGNAL) {
                Ok(n) => tunnel.written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.on_connect_failed(key),
            }
        }
        // Peeked at, not consumed: what follows the reply is for the guest.
        let mut buffer = vec![0; MAX_REPLY_HEAD];
        let reply = match rustix::net::recv(host, &mut buffer[..], RecvFlags::PEEK) {
            Ok((0, _)) => ConnectReply::Refused(None),
            Ok((n, _)) => (tunnel.read)(&buffer[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => ConnectReply::Refused(None),
        };
        match reply {
            ConnectReply::Incomplete => {}
            ConnectReply::Refused(_) => self.on_connect_failed(key),
            ConnectReply::Established(length) => {
                let taken = rustix::net::recv(host, &mut buffer[..length], RecvFlags::empty());
                match taken {
                    Ok((n, _)) if n == length => self.on_upstream_ready(key),
                    _ => self.on_connect_failed(key),
                }
            }
        }
    }
}
