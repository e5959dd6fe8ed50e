//! Whoever is on the way of a flow and has to be told whom it is for: the host's proxy, for flows
//! that are not looked into, or the gateway of another sandbox.

use crate::gateway::Gateway;
use crate::joined;
use crate::opening::outer;
use crate::outside;
use crate::proxy::{Answer, Proxy, answer};
use crate::slots::Key;
use crate::streams::{Stage, Stream};
use msb_spec::Direction;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::OwnedFd;
use zeroize::Zeroizing;

/// The longest head of an answer that is waited for.
const LONGEST: usize = 16 << 10;

/// What is left to be said.
#[derive(Debug)]
pub(crate) struct Tunnel {
    out: Zeroizing<Vec<u8>>,
    written: usize,
    /// How the answer is read.
    read: fn(&[u8]) -> Answer,
}

/// Reads the answer of another sandbox's gateway.
fn answer_of_neighbour(heard: &[u8]) -> Answer {
    match joined::is_accepted(heard) {
        true => Answer::Joined(1),
        false => Answer::Refused(None),
    }
}

impl Gateway {
    /// The proxy that a flow goes through.
    pub(crate) fn proxy_for(&self, stream: &Stream) -> Option<&Proxy> {
        let proxy = self.proxy.as_deref()?;
        let remote = stream.ends.remote;
        let egress = stream.verdict.direction == Direction::Egress;
        let wanted = egress && self.rules.is_public(remote.ip());
        let name = stream.verdict.name.as_ref();
        (wanted && proxy.is_for(name, outer(remote))).then_some(proxy)
    }

    /// Begins to connect to the proxy; whether it is connected already. One that speaks TLS is
    /// reached through whoever can, and its failure is an end of the stream.
    pub(crate) fn connect_to_proxy(&mut self) -> Result<(OwnedFd, bool), Errno> {
        let proxy = self.proxy.clone().ok_or(Errno::HOSTUNREACH)?;
        if !proxy.tls {
            return outside::connect(*proxy.addresses.first().ok_or(Errno::HOSTUNREACH)?);
        }
        let (ours, theirs) = outside::pair()?;
        self.interceptor().ok_or(Errno::HOSTUNREACH)?.secure(theirs);
        Ok((ours, true))
    }

    /// Has whoever is on the way asked for whom a flow is for; false if nobody is.
    pub(crate) fn begin_tunnel(&mut self, key: Key) -> bool {
        let Some(stream) = self.streams.flows.get(key) else { return false };
        if !matches!(stream.stage, Stage::Connecting(_)) {
            return false;
        }
        let remote = stream.ends.remote;
        if let (Some(_), Some(own)) = (self.neighbour(remote.ip()), &self.neighbours) {
            let out = Zeroizing::new(own.hello(true, remote.port()));
            return self.add_tunnel(key, Tunnel { out, written: 0, read: answer_of_neighbour });
        }
        let Some(proxy) = self.proxy_for(stream) else { return false };
        let out = proxy.connect_request(stream.verdict.name.as_ref(), outer(remote));
        self.add_tunnel(key, Tunnel { out, written: 0, read: answer })
    }

    fn add_tunnel(&mut self, key: Key, tunnel: Tunnel) -> bool {
        let stream = self.streams.flows.get_mut(key);
        stream.map(|stream| stream.tunnel = Some(tunnel)).is_some()
    }

    /// Goes on with what is said and heard.
    pub(crate) fn dig(&mut self, key: Key) {
        let Some(stream) = self.streams.flows.get_mut(key) else { return };
        let (Some(tunnel), Some(host)) = (&mut stream.tunnel, &stream.host) else { return };
        while tunnel.written < tunnel.out.len() {
            match rustix::net::send(host, &tunnel.out[tunnel.written..], SendFlags::NOSIGNAL) {
                Ok(n) => tunnel.written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.fail(key),
            }
        }
        // Looked at and left there: what comes behind the answer is for the sandbox.
        let mut buffer = vec![0; LONGEST];
        let heard = match rustix::net::recv(host, &mut buffer[..], RecvFlags::PEEK) {
            Ok((0, _)) => Answer::Refused(None),
            Ok((n, _)) => (tunnel.read)(&buffer[..n]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => Answer::Refused(None),
        };
        match heard {
            Answer::More => {}
            Answer::Refused(_) => self.fail(key),
            Answer::Joined(length) => {
                let taken = rustix::net::recv(host, &mut buffer[..length], RecvFlags::empty());
                match taken {
                    Ok((n, _)) if n == length => self.joined(key),
                    _ => self.fail(key),
                }
            }
        }
    }
}
