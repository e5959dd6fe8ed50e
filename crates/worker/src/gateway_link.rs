//! The worker's end of the link to its gateway. The gateway parses packets of a hostile guest and
//! may be compromised, so its messages are untrusted.

use crate::log::{BoundedLog, now_ms};
use crate::usage_meter::UsageReport;
use crate::worker::Worker;
use msb_spec::{Error, Kind, Network, PublishedPort, Result, Stage, env, lookup, state};
use msb_sys::socket;
use msb_wire::record::WakeReason;
use msb_wire::{
    FrameKind, FramedSocket, FromGateway, MAX_FROM_GATEWAY, NetRecord, Reply, ToGateway, encode,
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Descriptors of a gateway process that is already running.
#[derive(Debug)]
pub struct GatewayFds {
    /// Stream socket for requests and replies.
    pub control: OwnedFd,
    /// On the `process` tier, where the TAP device is handed over; with a microVM, the socket for
    /// its packets.
    pub link: OwnedFd,
}

/// Only the gateway's own confinement has to be waited for.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// The gateway only has to close its sockets.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// The connection to a running gateway.
#[derive(Debug)]
pub(crate) struct GatewayLink {
    control: FramedSocket<UnixStream>,
    ready: bool,
    /// Whether the gateway itself has reported why it failed.
    failed: bool,
    pub(crate) authority: Option<String>,
    pub(crate) ports: Vec<PublishedPort>,
    log: BoundedLog,
    /// Clients that wait for a reply, in order; `None` is a request of the worker's own.
    waiting_clients: VecDeque<Option<u64>>,
}

impl GatewayLink {
    pub(crate) fn new(control: OwnedFd, directory: &Path) -> Result<Self> {
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&control, direction, Some(READY_LIMIT))
                .map_err(|error| Error::host("cannot set up the link to the gateway", error))?;
        }
        Ok(Self {
            control: FramedSocket::new(control.into(), MAX_FROM_GATEWAY),
            ready: false,
            failed: false,
            authority: None,
            ports: Vec::new(),
            log: BoundedLog::of_lines(directory, state::NETWORK),
            waiting_clients: VecDeque::new(),
        })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.control.socket().as_fd()
    }

    /// Waits until the gateway is ready, or returns why it is not.
    pub(crate) fn await_ready(&mut self) -> Result<()> {
        let not_started = || {
            Error::new(Kind::Protocol, "the gateway did not start")
                .hint("`msb doctor` tells what this host lacks; `--no-net` does without")
                .at(Stage::Network)
        };
        let mut buffer = [0; 4096];
        while !self.ready {
            match self.next().map_err(|error| not_started().cause(error))? {
                Some(FromGateway::Ready { ports, authority }) => {
                    self.ready = true;
                    self.ports = ports;
                    self.authority = authority;
                }
                Some(FromGateway::Failed(error)) => {
                    self.failed = true;
                    return Err(error.at(Stage::Network));
                }
                Some(_) => return Err(not_started()),
                None => {
                    if !self.receive(&mut buffer) {
                        return Err(not_started());
                    }
                }
            }
        }
        Ok(())
    }

    /// The gateway's own error, if it has failed.
    pub(crate) fn failure(&mut self) -> Option<Error> {
        let error = self.await_ready().err();
        error.filter(|_| self.failed)
    }

    /// Reads what has arrived; false when the gateway has closed the link.
    fn receive(&mut self, buffer: &mut [u8]) -> bool {
        match self.control.receive(buffer) {
            Ok(n) => n > 0,
            Err(error) => error.kind() == std::io::ErrorKind::Interrupted,
        }
    }

    /// Tells the gateway to end: it closes its ports, then the link.
    fn shutdown(&self) {
        let _ = self.control.socket().shutdown(std::net::Shutdown::Write);
    }

    /// Begins to close the link. The gateway of an ephemeral sandbox without ports is only asked for
    /// its events, because nothing waits for its end.
    pub(crate) fn begin_close(&self, ephemeral: bool) {
        match ephemeral && self.ports.is_empty() {
            true => self.request_flush(),
            false => self.shutdown(),
        }
    }

    /// Logs the last events, and closes the link.
    pub(crate) fn finish_close(self, ephemeral: bool) {
        match ephemeral && self.ports.is_empty() {
            true => self.log_flushed_events(),
            false => self.drain_and_close(),
        }
    }

    /// Requests an answer that comes after all events so far. It is quicker than to wait for the end
    /// of the gateway.
    fn request_flush(&self) {
        let frame = encode(FrameKind::Control, &ToGateway::Usage);
        let _ = socket::send_all(self.socket(), &frame, &[]);
    }

    /// Logs the events that precede the answer to [`GatewayLink::request_flush`].
    fn log_flushed_events(mut self) {
        let _ = set_socket_timeout(self.socket(), Timeout::Recv, Some(CLOSE_LIMIT));
        let until = Instant::now() + CLOSE_LIMIT;
        let mut answers = self.waiting_clients.len() + 1;
        let mut buffer = [0; 4096];
        // A hostile gateway would send events without end.
        while Instant::now() < until {
            while let Ok(Some(message)) = self.next() {
                match message {
                    FromGateway::EventKind(what) => {
                        self.log.line(&NetRecord { time: now_ms(), what });
                    }
                    FromGateway::WakeRequested => {}
                    _ => answers = answers.saturating_sub(1),
                }
            }
            if answers == 0 || !self.receive(&mut buffer) {
                return;
            }
        }
    }

    /// Logs the remaining events and waits until the gateway's ports are free again.
    fn drain_and_close(mut self) {
        let _ = set_socket_timeout(self.socket(), Timeout::Recv, Some(CLOSE_LIMIT));
        let mut buffer = [0; 4096];
        while self.receive(&mut buffer) {
            while let Ok(Some(message)) = self.next() {
                if let FromGateway::EventKind(what) = message {
                    self.log.line(&NetRecord { time: now_ms(), what });
                }
            }
        }
    }

    fn next(&mut self) -> Result<Option<FromGateway>> {
        let malformed =
            |error| Error::new(Kind::Protocol, "the gateway sent a malformed frame").cause(error);
        match self.control.next_frame().map_err(malformed)? {
            None => Ok(None),
            Some(frame) => frame.value().map(Some).map_err(malformed),
        }
    }
}

/// Whether the guest needs the gateway's CA certificate, so the gateway must be ready first.
pub(crate) fn is_needed_before_guest(network: Option<&Network>) -> bool {
    network.is_some_and(Network::intercepts)
}

/// The CA certificates in PEM that the sandbox trusts besides those of its image: that of its
/// gateway, and with `--trust-host-cas` those of the host.
pub(crate) fn trusted_cas(
    network: Option<&Network>,
    gateway: Option<&str>,
) -> Result<Option<String>> {
    if !network.is_some_and(|network| network.trust_host_cas) {
        return Ok(gateway.map(str::to_owned));
    }
    let named = std::env::var_os(env::SSL_CERT_FILE).map(PathBuf::from);
    let mut places = named.into_iter().chain(lookup::CA_BUNDLES.map(PathBuf::from));
    let host = places.find_map(|place| std::fs::read_to_string(place).ok()).ok_or_else(|| {
        Error::new(Kind::NotFound, "no CA certificates found on this host")
            .hint("install `ca-certificates`, or have SSL_CERT_FILE name a file with them")
            .at(Stage::Network)
    })?;
    let host = host.trim_end();
    Ok(Some(format!("{host}\n{}", gateway.unwrap_or_default())))
}

impl Worker {
    /// Reads messages from the gateway.
    pub(crate) fn read_gateway(&mut self) {
        let Some(gateway) = &mut self.gateway else { return };
        let mut alive = gateway.receive(&mut self.buffer);
        let mut answers = Vec::new();
        let mut wake_requested = false;
        while alive {
            match gateway.next() {
                Ok(Some(FromGateway::EventKind(what))) => {
                    gateway.log.line(&NetRecord { time: now_ms(), what });
                }
                Ok(Some(FromGateway::WakeRequested)) => wake_requested = true,
                Ok(Some(answer)) => {
                    answers.extend(gateway.waiting_clients.pop_front().zip(Some(answer)))
                }
                Ok(None) => break,
                Err(_) => alive = false,
            }
        }
        for (id, answer) in answers {
            let Some(id) = id else {
                match answer {
                    FromGateway::Traffic { carried, brought } => {
                        self.on_packet_count(carried, brought);
                    }
                    FromGateway::Usage(net) => self.add_usage_report(UsageReport::Net(net)),
                    _ => {}
                }
                continue;
            };
            let reply = match answer {
                FromGateway::Refused(error) => Reply::Failed(error),
                answer => Reply::Network(answer),
            };
            self.answer(id, &reply);
        }
        if wake_requested {
            self.wake(WakeReason::Traffic);
        }
        if !alive {
            self.on_gateway_closed();
        }
    }

    /// Sends a request of the worker's own; false if there is no gateway.
    pub(crate) fn send_internal_request(&mut self, what: &ToGateway) -> bool {
        let Some(gateway) = &mut self.gateway else { return false };
        let frame = encode(FrameKind::Control, what);
        let sent = socket::send_all(gateway.socket(), &frame, &[]).is_ok();
        if sent {
            gateway.waiting_clients.push_back(None);
        }
        sent
    }

    /// The gateway is gone. The sandbox goes on without a network.
    fn on_gateway_closed(&mut self) {
        let waiting =
            self.gateway.take().map(|gateway| gateway.waiting_clients).unwrap_or_default();
        for id in waiting.into_iter().flatten() {
            self.answer(id, &Reply::Failed(gateway_gone_error()));
        }
        self.record(msb_wire::record::EventKind::Disconnected);
    }

    /// Requests the network counters; false if there is no gateway to answer.
    pub(crate) fn request_net_usage(&mut self) -> bool {
        let Some(gateway) = &mut self.gateway else { return false };
        let frame = encode(FrameKind::Control, &ToGateway::Usage);
        let sent = socket::send_all(gateway.socket(), &frame, &[]).is_ok();
        if sent {
            gateway.waiting_clients.push_back(None);
        }
        sent
    }

    /// Forwards a client's request to the gateway, which replies in order.
    pub(crate) fn forward_to_gateway(&mut self, id: u64, what: &ToGateway) {
        let Some(gateway) = &mut self.gateway else {
            let error = match self.plan.network {
                None => {
                    Error::new(Kind::State, format!("sandbox `{}` has no network", self.plan.name))
                        .hint("it was made with `--no-net`")
                }
                Some(_) => gateway_gone_error(),
            };
            return self.answer(id, &Reply::Failed(error));
        };
        let frame = encode(FrameKind::Control, what);
        match socket::send_all(gateway.socket(), &frame, &[]) {
            Ok(()) => gateway.waiting_clients.push_back(Some(id)),
            Err(_) => {
                self.on_gateway_closed();
                self.answer(id, &Reply::Failed(gateway_gone_error()));
            }
        }
    }
}

fn gateway_gone_error() -> Error {
    Error::new(Kind::State, "the gateway of this sandbox has ended")
        .hint("`msb restart` gives it a new one")
}
