//! The worker's end of the link to its gateway, which reads what a hostile guest sends and may say
//! anything one day.

use crate::log::{Log, now_ms};
use crate::measuring::Counted;
use crate::worker::Worker;
use msb_spec::{Error, Kind, Network, Published, Result, Stage, state};
use msb_sys::socket;
use msb_wire::record::Woken;
use msb_wire::{
    Decoder, FrameKind, FromGateway, MAX_FROM_GATEWAY, NetRecord, Reply, ToGateway, encode,
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// The gateway of a sandbox: a process that has been started already.
#[derive(Debug)]
pub struct Gateway {
    /// Where it is spoken to.
    pub control: OwnedFd,
    /// Where the sandbox's packets go, or the device that they come from.
    pub link: OwnedFd,
}

/// It has nothing to wait for but its own jail.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// It has only to close its sockets.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// A gateway that is running.
#[derive(Debug)]
pub(crate) struct Outward {
    control: OwnedFd,
    decoder: Decoder,
    ready: bool,
    /// Whether it has said itself why it does not work.
    failed: bool,
    pub(crate) authority: Option<String>,
    pub(crate) ports: Vec<Published>,
    log: Log,
    /// Who waits for an answer, in order; nobody if the worker itself wants to know.
    asked: VecDeque<Option<u64>>,
}

impl Outward {
    pub(crate) fn new(control: OwnedFd, directory: &Path) -> Result<Self> {
        for way in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&control, way, Some(READY_LIMIT))
                .map_err(|error| Error::host("cannot speak to the gateway", error))?;
        }
        Ok(Self {
            control,
            decoder: Decoder::new(MAX_FROM_GATEWAY),
            ready: false,
            failed: false,
            authority: None,
            ports: Vec::new(),
            log: Log::of_lines(directory, state::NETWORK),
            asked: VecDeque::new(),
        })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Waits until it works, or tells why it does not.
    pub(crate) fn await_ready(&mut self) -> Result<()> {
        let gone = || {
            Error::new(Kind::Protocol, "the gateway did not start")
                .hint("`msb doctor` tells what this host lacks; `--no-net` does without")
                .at(Stage::Network)
        };
        let mut buffer = [0; 4096];
        while !self.ready {
            match self.next().map_err(|error| gone().cause(error))? {
                Some(FromGateway::Ready { ports, authority }) => {
                    self.ready = true;
                    self.ports = ports;
                    self.authority = authority;
                }
                Some(FromGateway::Failed(error)) => {
                    self.failed = true;
                    return Err(error.at(Stage::Network));
                }
                Some(_) => return Err(gone()),
                None => {
                    if !self.receive(&mut buffer) {
                        return Err(gone());
                    }
                }
            }
        }
        Ok(())
    }

    /// Why there is no sandbox, if that is because of the gateway.
    pub(crate) fn failure(&mut self) -> Option<Error> {
        let error = self.await_ready().err();
        error.filter(|_| self.failed)
    }

    /// Reads what has arrived; false when it has gone.
    fn receive(&mut self, buffer: &mut [u8]) -> bool {
        match rustix::io::read(&self.control, &mut *buffer) {
            Ok(0) => false,
            Ok(n) => {
                self.decoder.push(&buffer[..n]);
                true
            }
            Err(error) => error == rustix::io::Errno::INTR,
        }
    }

    /// Has it end: it closes its ports, then its side of this.
    pub(crate) fn dismiss(&self) {
        let _ = rustix::net::shutdown(&self.control, rustix::net::Shutdown::Write);
    }

    /// Hears what it still has to say and waits until its ports are free for the next one.
    pub(crate) fn see_off(mut self) {
        let _ = set_socket_timeout(&self.control, Timeout::Recv, Some(LEAVE_LIMIT));
        let mut buffer = [0; 4096];
        while self.receive(&mut buffer) {
            while let Ok(Some(said)) = self.next() {
                if let FromGateway::Happened(what) = said {
                    self.log.line(&NetRecord { time: now_ms(), what });
                }
            }
        }
    }

    fn next(&mut self) -> Result<Option<FromGateway>> {
        let malformed =
            |error| Error::new(Kind::Protocol, "the gateway sent nonsense").cause(error);
        match self.decoder.next_frame().map_err(malformed)? {
            None => Ok(None),
            Some(frame) => frame.value().map(Some).map_err(malformed),
        }
    }
}

/// Whether the sandbox cannot be put together before its gateway has said what it is.
pub(crate) fn comes_first(network: Option<&Network>) -> bool {
    network.is_some_and(Network::intercepts)
}

impl Worker {
    /// Takes what the gateway has said.
    pub(crate) fn hear_gateway(&mut self) {
        let Some(outward) = &mut self.outward else { return };
        let mut alive = outward.receive(&mut self.buffer);
        let mut answers = Vec::new();
        let mut knocked = false;
        while alive {
            match outward.next() {
                Ok(Some(FromGateway::Happened(what))) => {
                    outward.log.line(&NetRecord { time: now_ms(), what });
                }
                Ok(Some(FromGateway::Knock)) => knocked = true,
                Ok(Some(answer)) => answers.extend(outward.asked.pop_front().zip(Some(answer))),
                Ok(None) => break,
                Err(_) => alive = false,
            }
        }
        for (id, answer) in answers {
            let Some(id) = id else {
                match answer {
                    FromGateway::Traffic { carried, brought } => {
                        self.heard_traffic(carried, brought);
                    }
                    FromGateway::Usage(net) => self.counted(Counted::Net(net)),
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
        if knocked {
            self.wake(Woken::Traffic);
        }
        if !alive {
            self.lose_gateway();
        }
    }

    /// Asks the gateway something for ourselves; false if there is none.
    pub(crate) fn ask_gateway_itself(&mut self, what: &ToGateway) -> bool {
        let Some(outward) = &mut self.outward else { return false };
        let frame = encode(FrameKind::Control, what);
        let sent = socket::send_all(outward.control.as_fd(), &frame, &[]).is_ok();
        if sent {
            outward.asked.push_back(None);
        }
        sent
    }

    /// Without its gateway a sandbox has no way out, and goes on without one.
    fn lose_gateway(&mut self) {
        let waiting = self.outward.take().map(|outward| outward.asked).unwrap_or_default();
        for id in waiting.into_iter().flatten() {
            self.answer(id, &Reply::Failed(no_gateway()));
        }
        self.record(msb_wire::record::Happened::Disconnected);
    }

    /// Asks the gateway how much went through; whether it will answer.
    pub(crate) fn ask_traffic(&mut self) -> bool {
        let Some(outward) = &mut self.outward else { return false };
        let frame = encode(FrameKind::Control, &ToGateway::Usage);
        let sent = socket::send_all(outward.control.as_fd(), &frame, &[]).is_ok();
        if sent {
            outward.asked.push_back(None);
        }
        sent
    }

    /// Passes a client's wish on to the gateway, which answers in order.
    pub(crate) fn ask_gateway(&mut self, id: u64, what: &ToGateway) {
        let Some(outward) = &mut self.outward else {
            let error = match self.plan.network {
                None => {
                    Error::new(Kind::State, format!("sandbox `{}` has no network", self.plan.name))
                        .hint("it was made with `--no-net`")
                }
                Some(_) => no_gateway(),
            };
            return self.answer(id, &Reply::Failed(error));
        };
        let frame = encode(FrameKind::Control, what);
        match socket::send_all(outward.control.as_fd(), &frame, &[]) {
            Ok(()) => outward.asked.push_back(Some(id)),
            Err(_) => {
                self.lose_gateway();
                self.answer(id, &Reply::Failed(no_gateway()));
            }
        }
    }
}

fn no_gateway() -> Error {
    Error::new(Kind::State, "the gateway of this sandbox has ended")
        .hint("`msb restart` gives it a new one")
}
