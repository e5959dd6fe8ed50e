//! A microVM as seen by its worker: its process, its console and the guest's vsock connections.

use crate::compromised;
use crate::ctl;
use crate::vm_layout::VmLayout;
use crate::vsock_conn::VsockConn;
use crate::vsock_relay::VsockRelay;
use msb_jail::JailedProcess;
use msb_spec::{Error, Plan, Result, Stage, env};
use msb_sys::socket;
use msb_vm::{Link, Order, Report};
use msb_wire::{Boot, BootNetwork, CTL_HELLO, FrameKind, ToMachine, encode};
use rustix::net::sockopt::Timeout;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of the console that are kept for error messages.
const CONSOLE_TAIL: usize = 8 << 10;
/// Lines of the console in an error message.
const LAST_LINES: usize = 8;
/// Text of a kernel panic on the console.
const PANIC: &str = "Kernel panic";
/// Messages on the link are a few bytes and arrive at once.
const LINK_LIMIT: Duration = Duration::from_secs(1);
/// Connections that have not sent the token yet. Only the guest knows it.
const MAX_UNAUTHENTICATED: usize = 32;
/// A connection sends the token at once.
const AUTH_LIMIT: Duration = Duration::from_secs(5);
/// A microVM that is not ready after this has failed. Emulated ones are slow.
pub(crate) const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// A request that waits for a spare vsock connection.
#[derive(Debug)]
pub(crate) enum PendingRequest {
    /// An Exec by its number, with the frame that starts it.
    Exec(u64, Vec<u8>),
    /// A client's file operation, with its first frame.
    Files(OwnedFd, Vec<u8>),
    /// A client's stream with its first frame. Its directions close independently.
    Stream(OwnedFd, Vec<u8>),
}

/// Use of a vsock connection.
#[derive(Debug)]
pub(crate) enum ConnAssignment {
    /// Carries this Exec from now on.
    Exec(u64, VsockConn),
    /// Relays a file operation or a stream.
    Files(VsockRelay),
    /// Relays a connection of `sandbox-ctl`.
    Ctl(VsockRelay),
}

/// Result of reading from the VMM's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VmEvent {
    /// Nothing for the caller to handle.
    Nothing,
    /// Reply to the last order: whether it succeeded.
    OrderDone(bool),
    /// The VMM process is gone.
    Closed,
}

/// A running microVM: its VMM process and its vsock connections.
#[derive(Debug)]
pub(crate) struct MicroVm {
    pub(crate) link: Link,
    pub(crate) console: Option<OwnedFd>,
    pub(crate) control: Option<VsockConn>,
    /// The first connection has been made. It is unique, so a later one is never the guest's
    /// control connection.
    connected: bool,
    pub(crate) unauthenticated: VecDeque<(VsockConn, Instant)>,
    spare_conns: VecDeque<VsockConn>,
    pending: VecDeque<PendingRequest>,
    /// Connections of `sandbox-ctl` inside.
    ctl: VecDeque<VsockConn>,
    /// Connection to the ctl process, if the sandbox has a spawn policy.
    ctl_process: Option<OwnedFd>,
    boot: Boot,
    tail: VecDeque<u8>,
    console_bytes: u64,
    pub(crate) ready: bool,
    /// Why the boot has failed.
    pub(crate) failed: Option<Error>,
    pub(crate) paused: bool,
}

impl MicroVm {
    /// Starts the VMM process in its jail.
    pub(crate) fn start(
        plan: &Plan,
        directory: &Path,
        frames: Option<BorrowedFd<'_>>,
        authority: Option<&str>,
    ) -> Result<(JailedProcess, Self)> {
        let broken = |error: std::io::Error| {
            Error::host("cannot prepare the microVM", error).at(Stage::Boot)
        };
        let mut layout = VmLayout::new(plan, directory)?;
        layout.vm.network = frames.is_some();
        layout.boot.network =
            frames.map(|_| BootNetwork { authority: authority.map(str::to_owned) });
        let (ours, theirs) = socket::pair().map_err(broken)?;
        // A compromised VMM may send a partial message, or not read.
        for direction in [Timeout::Recv, Timeout::Send] {
            rustix::net::sockopt::set_socket_timeout(&ours, direction, Some(LINK_LIMIT))
                .map_err(|error| broken(error.into()))?;
        }
        let ctl_process =
            layout.boot.ctl.then(|| ctl::connect(directory)).transpose().map_err(broken)?;
        let vm = layout.vm;
        let canary = std::env::var_os(env::TEST_COMPROMISED);
        let jailed = msb_jail::start_vmm(plan, &layout.mounts, theirs.as_fd(), move |link| {
            let link = Link::new(link);
            match canary {
                Some(canary) => link.fail(&compromised::report(&canary)),
                None => drop(msb_vm::enter(&vm, &link)),
            }
            125
        })?;
        let link = Link::new(ours);
        if let Some(frames) = frames {
            link.connect(frames).map_err(broken)?;
        }
        let vm = Self {
            link,
            console: None,
            control: None,
            connected: false,
            unauthenticated: VecDeque::new(),
            spare_conns: VecDeque::new(),
            pending: VecDeque::new(),
            ctl: VecDeque::new(),
            ctl_process,
            boot: layout.boot,
            tail: VecDeque::new(),
            console_bytes: 0,
            ready: false,
            failed: None,
            paused: false,
        };
        Ok((jailed, vm))
    }

    /// Reads one message from the VMM process.
    pub(crate) fn read_report(&mut self, now: Instant) -> VmEvent {
        match self.link.next() {
            None => return VmEvent::Closed,
            Some(Report::Console(fd)) => {
                let _ = rustix::io::ioctl_fionbio(&fd, true);
                self.console = Some(fd);
            }
            Some(Report::Connection(fd)) => self.on_connection(fd, now),
            Some(Report::Failed(reason)) => {
                let error = Error::unsupported("the microVM could not be started").cause(reason);
                self.failed = Some(error.at(Stage::Boot));
            }
            Some(Report::Paused) => {
                self.paused = true;
                return VmEvent::OrderDone(true);
            }
            Some(Report::Resumed) => {
                self.paused = false;
                return VmEvent::OrderDone(true);
            }
            Some(Report::Refused) => return VmEvent::OrderDone(false),
        }
        VmEvent::Nothing
    }

    /// The first connection is the guest's control connection, because nothing else runs inside
    /// yet.
    fn on_connection(&mut self, socket: OwnedFd, now: Instant) {
        let mut vsock = VsockConn::new(socket);
        if !self.connected {
            self.connected = true;
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.boot.time_ns = u64::try_from(time.as_nanos()).unwrap_or(0);
            vsock.send(&encode(FrameKind::Control, &self.boot));
            self.control = Some(vsock);
        } else if self.unauthenticated.len() < MAX_UNAUTHENTICATED {
            self.unauthenticated.push_back((vsock, now + AUTH_LIMIT));
        }
    }

    /// Reads the hello frame of a new connection: the token, `ctl`, or it is closed.
    pub(crate) fn authenticate(&mut self, index: usize, buffer: &mut [u8]) {
        let Some((vsock, _)) = self.unauthenticated.get_mut(index) else { return };
        let alive = vsock.receive(buffer);
        match vsock.next() {
            Ok(None) if alive => {}
            Ok(Some(frame))
                if frame.kind == FrameKind::Hello && frame.payload == self.boot.token =>
            {
                self.spare_conns.extend(self.unauthenticated.remove(index).map(|(vsock, _)| vsock));
            }
            Ok(Some(frame)) if frame.kind == FrameKind::Hello && frame.payload == CTL_HELLO => {
                self.ctl.extend(self.unauthenticated.remove(index).map(|(vsock, _)| vsock));
            }
            _ => drop(self.unauthenticated.remove(index)),
        }
    }

    /// Closes connections that did not authenticate in time.
    pub(crate) fn close_expired(&mut self, now: Instant) {
        self.unauthenticated.retain(|(_, limit)| now < *limit);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.unauthenticated.iter().map(|(_, limit)| *limit).min()
    }

    pub(crate) fn enqueue(&mut self, pending: PendingRequest) {
        self.pending.push_back(pending);
    }

    /// Matches a pending request with a spare connection, or a `ctl` connection with the ctl
    /// process.
    pub(crate) fn next_assignment(&mut self) -> Option<ConnAssignment> {
        while let Some(vsock) = self.ctl.pop_front() {
            if let Some(relay) = self.join_ctl(vsock) {
                return Some(ConnAssignment::Ctl(relay));
            }
        }
        while !self.pending.is_empty() {
            let mut vsock = self.spare_conns.pop_front()?;
            match self.pending.pop_front()? {
                PendingRequest::Exec(id, frames) => {
                    vsock.send(&frames);
                    return Some(ConnAssignment::Exec(id, vsock));
                }
                PendingRequest::Files(client, frame) => {
                    vsock.send(&frame);
                    let relay = vsock.into_socket().map(|guest| VsockRelay::new(client, guest));
                    if let Some(Ok(relay)) = relay {
                        return Some(ConnAssignment::Files(relay));
                    }
                }
                PendingRequest::Stream(client, frame) => {
                    vsock.send(&frame);
                    let relay = vsock.into_socket().map(|guest| VsockRelay::framed(client, guest));
                    if let Some(Ok(relay)) = relay {
                        return Some(ConnAssignment::Files(relay));
                    }
                }
            }
        }
        None
    }

    /// Joins a connection of `sandbox-ctl` with the ctl process. Drops it if that has no room.
    fn join_ctl(&self, mut vsock: VsockConn) -> Option<VsockRelay> {
        let outside = ctl::open(self.ctl_process.as_ref()?.as_fd()).ok()?;
        vsock.send(b"+");
        VsockRelay::new(outside, vsock.into_socket()?).ok()
    }

    /// Sends a message on the guest's control connection.
    pub(crate) fn send_control(&mut self, what: &ToMachine) {
        if let Some(control) = &mut self.control {
            control.send(&encode(FrameKind::Control, what));
        }
    }

    pub(crate) fn order(&self, order: Order) -> Result<()> {
        self.link.order(order).map_err(|error| Error::host("the VMM does not answer", error))
    }

    /// Keeps the last [`CONSOLE_TAIL`] bytes of the console.
    pub(crate) fn remember_console(&mut self, bytes: &[u8]) {
        self.console_bytes += bytes.len() as u64;
        self.tail.extend(&bytes[bytes.len().saturating_sub(CONSOLE_TAIL)..]);
        let excess = self.tail.len().saturating_sub(CONSOLE_TAIL);
        self.tail.drain(..excess);
    }

    /// Bytes read from the console so far.
    pub(crate) fn console_bytes(&self) -> u64 {
        self.console_bytes
    }

    /// Whether the console shows a kernel panic.
    pub(crate) fn panicked(&mut self) -> bool {
        let text = String::from_utf8_lossy(self.tail.make_contiguous());
        text.contains(PANIC)
    }

    /// The panic message, then the last lines of the console, without control characters.
    pub(crate) fn last_lines(&mut self) -> Vec<String> {
        let text = String::from_utf8_lossy(self.tail.make_contiguous()).into_owned();
        let printable = |line: &str| -> String {
            line.chars().filter(|letter| !letter.is_control()).take(200).collect()
        };
        let lines: Vec<String> =
            text.lines().map(printable).filter(|line| !line.is_empty()).collect();
        let first = lines.len().saturating_sub(LAST_LINES);
        let reason = lines[..first].iter().rev().find(|line| line.contains(PANIC));
        reason.into_iter().chain(&lines[first..]).cloned().collect()
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.link.socket()
    }
}
