//! The TCP flows: each has a socket of smoltcp's for the sandbox's end and one of the host's for
//! the other, and bytes go from the buffer of one straight into the other.
//!
//! A packet touches its own flow and no other. Nothing is allocated for it.

use crate::limits::Bucket;
use crate::link::{Link, Port, Wire, capabilities};
use crate::policy::Proof;
use crate::slots::{Key, Slots};
use crate::source::Source;
use crate::timers::Timers;
use crate::tunnel::Tunnel;
use crate::watching::Watching;
use msb_spec::{DomainName, addresses};
use msb_wire::Verdict;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// How much is on its way in each direction, at most, and how many flows have that much. With
/// `DEFAULT_CONNECTIONS` flows that is a quarter of `GATEWAY_MEMORY`.
pub(crate) const BUFFERS: [(usize, usize); 3] =
    [(1 << 19, 32), (1 << 17, 128), (1 << 13, usize::MAX)];
/// Sockets of each size that are kept for the next flows. Making the buffers of one costs more
/// than all else that a short flow does.
const KEPT: usize = 32;

/// The two ends of a flow, as the sandbox sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    pub(crate) guest: u16,
    pub(crate) remote: SocketAddr,
}

/// How far a flow has come.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Somebody outside is connected to; with what the sandbox asked, unless it was accepted.
    Connecting(Option<Box<[u8]>>),
    /// Accepted; whom to connect to is seen from the first bytes.
    Reading,
    /// Connected; the first bytes have to be seen before they leave.
    Proving,
    /// Bytes go both ways.
    Open,
    /// The sandbox is connected to, for somebody outside.
    Reaching,
    /// Questions for names.
    Names {
        /// Those without an answer yet.
        open: u32,
    },
    /// It was told why it is refused; nothing more is read.
    Refused,
}

/// A TCP flow.
pub(crate) struct Stream {
    pub(crate) ends: Ends,
    pub(crate) verdict: Verdict,
    /// Whether the verdict was told, and not left out.
    pub(crate) told: Option<bool>,
    pub(crate) tied: Vec<DomainName>,
    pub(crate) proof: Proof,
    pub(crate) stage: Stage,
    /// The sandbox's end.
    end: Option<End>,
    /// The other end.
    pub(crate) host: Option<OwnedFd>,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The host's end has an end of file or an error to read.
    pub(crate) hung_up: bool,
    /// The sandbox said its last, and the host knows.
    guest_done: bool,
    /// The host said its last.
    host_done: bool,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) since: u64,
    /// Since when its first bytes are held because it is not clear what they are.
    pub(crate) held_since: Option<u64>,
    /// Whether who came in is told that the sandbox has accepted.
    pub(crate) greets: bool,
    /// What is said to whoever is on the way, before the flow begins.
    pub(crate) tunnel: Option<Tunnel>,
    /// Searches what leaves.
    pub(crate) watching: Option<Box<Watching>>,
    queued: bool,
    stalled: bool,
    held: bool,
    /// When it is woken next.
    alarm: u64,
    was: State,
}

struct End {
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    /// Which of the sizes its buffers have.
    size: usize,
}

impl End {
    fn new(size: usize, wire: Wire) -> Self {
        let (bytes, _) = BUFFERS[size];
        // Whole segments, so that a ring that is used up segment by segment never cuts one in two.
        // The smallest hold less than one; then what is sent is cut to fit.
        let buffer = |mtu: usize| {
            let segments = (bytes / (mtu - 40)).max(1) * (mtu - 40);
            SocketBuffer::new(vec![0; segments.min(bytes)])
        };
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let socket = Socket::new(buffer(wire.largest_taken()), buffer(wire.mtu()));
        let handle = sockets.add(socket);
        Self { sockets, handle, size }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }
}

/// What came of moving bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Fine,
    /// The egress rate holds them.
    Held,
    /// The host's end is broken.
    Broken,
}

impl Stream {
    pub(crate) fn new(ends: Ends, verdict: Verdict, stage: Stage, now: u64) -> Self {
        Self {
            ends,
            verdict,
            told: None,
            tied: Vec::new(),
            proof: Proof::None,
            stage,
            end: None,
            host: None,
            readable: false,
            writable: false,
            hung_up: false,
            guest_done: false,
            host_done: false,
            sent: 0,
            received: 0,
            since: now,
            held_since: None,
            greets: false,
            tunnel: None,
            watching: None,
            queued: false,
            stalled: false,
            held: false,
            alarm: u64::MAX,
            was: State::Listen,
        }
    }

    /// The sandbox's end, once there is one.
    pub(crate) fn socket(&mut self) -> Option<&mut Socket<'static>> {
        self.end.as_mut().map(End::socket)
    }

    /// Whether the sandbox said that nothing more comes.
    pub(crate) fn has_ended(&mut self) -> bool {
        let orderly = is_orderly(self.was);
        self.socket().is_some_and(|socket| match socket.state() {
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait => true,
            State::Closed => orderly,
            _ => false,
        })
    }

    /// Moves what can be moved between the two ends.
    fn splice(&mut self, bucket: &mut Bucket, now: u64) -> Moved {
        let held = match self.stage {
            Stage::Open => self.send_out(bucket, now),
            _ => Moved::Fine,
        };
        if held == Moved::Broken {
            return held;
        }
        match self.bring_in() {
            Moved::Broken => Moved::Broken,
            _ => held,
        }
    }

    fn send_out(&mut self, bucket: &mut Bucket, now: u64) -> Moved {
        let ended = self.has_ended();
        let (Some(end), Some(host)) = (&mut self.end, &self.host) else { return Moved::Fine };
        let socket = end.socket();
        while self.writable && socket.recv_queue() > 0 {
            let most = bucket.allowance(socket.recv_queue(), now);
            if most == 0 {
                return Moved::Held;
            }
            let mut whole = true;
            let wrote = socket.recv(|bytes| {
                let bytes = &bytes[..bytes.len().min(most)];
                if let Some(watching) = &mut self.watching
                    && !watching.lets_pass(bytes)
                {
                    // Whoever looks after the flow sees it and ends it.
                    return (0, Err(Errno::AGAIN));
                }
                match rustix::net::send(host, bytes, SendFlags::NOSIGNAL) {
                    Ok(n) => {
                        whole = n == bytes.len();
                        (n, Ok(n))
                    }
                    Err(error) => (0, Err(error)),
                }
            });
            match wrote {
                Ok(Ok(n)) => {
                    bucket.take(n);
                    self.sent += n as u64;
                    if let Some(watching) = &mut self.watching {
                        watching.left(n);
                    }
                    // The kernel tells when there is room again.
                    self.writable = whole;
                }
                Ok(Err(Errno::AGAIN)) => self.writable = false,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(_)) | Err(_) => return Moved::Broken,
            }
        }
        if ended && !self.guest_done && socket.recv_queue() == 0 {
            self.guest_done = true;
            // It may be gone already, which reading will show.
            let _ = rustix::net::shutdown(host, Shutdown::Write);
        }
        Moved::Fine
    }

    fn bring_in(&mut self) -> Moved {
        let (Some(end), Some(host)) = (&mut self.end, &self.host) else { return Moved::Fine };
        let socket = end.socket();
        while self.readable && !self.host_done && socket.can_send() {
            let mut whole = true;
            let read = socket.send(|room| match rustix::io::read(host, &mut *room) {
                Ok(n) => {
                    whole = n == room.len();
                    (n, Ok(n))
                }
                Err(error) => (0, Err(error)),
            });
            match read {
                Ok(Ok(0)) => {
                    self.host_done = true;
                    socket.close();
                }
                Ok(Ok(n)) => {
                    self.received += n as u64;
                    // Less than there was room for is all there is, but for an end that was
                    // announced together with it.
                    self.readable = whole || self.hung_up;
                }
                Ok(Err(Errno::AGAIN)) => self.readable = false,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(_)) | Err(_) => return Moved::Broken,
            }
        }
        Moved::Fine
    }

    /// Whether both ends are done with it, and how.
    fn ending(&mut self) -> Option<Ending> {
        let (was, guest_done, open) =
            (self.was, self.guest_done, self.host.is_some() && !self.guest_done);
        let socket = self.socket()?;
        let drained = socket.recv_queue() == 0 && (guest_done || !open);
        match socket.state() {
            State::TimeWait if drained => Some(Ending::Orderly),
            State::Closed if is_orderly(was) => drained.then_some(Ending::Orderly),
            // A reset turns a stream that was just accepted back into one that listens.
            State::Closed | State::Listen => Some(Ending::Reset),
            _ => None,
        }
    }
}

/// How a flow ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Both said their last.
    Orderly,
    /// One of them broke it off.
    Reset,
}

/// Whether a socket that was in this state and is closed now was closed by both.
fn is_orderly(was: State) -> bool {
    matches!(was, State::LastAck | State::Closing | State::TimeWait)
}

/// All TCP flows.
pub(crate) struct Streams {
    pub(crate) flows: Slots<Stream>,
    index: HashMap<Ends, Key>,
    interface: Interface,
    /// Sockets for the next flows, and how many are in use, by size.
    kept: [Vec<End>; BUFFERS.len()],
    used: [usize; BUFFERS.len()],
    wire: Wire,
    /// Flows that something happened to since they were last looked after.
    queue: Vec<Key>,
    /// Flows that wait for room on the wire.
    stalled: Vec<Key>,
    /// Flows that wait for the egress rate.
    held: Vec<Key>,
}

/// What the flows share while they are looked after.
pub(crate) struct Shared<'a> {
    pub(crate) link: &'a mut Link,
    pub(crate) bucket: &'a mut Bucket,
    pub(crate) timers: &'a mut Timers,
    pub(crate) now: u64,
}

impl Streams {
    pub(crate) fn new(seed: u64, wire: Wire) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut Nowhere(wire), Instant::ZERO);
        interface.update_ip_addrs(|own| {
            // Room for two is what smoltcp is built with.
            let _ = own.push(IpCidr::new(addresses::GATEWAY.into(), addresses::BITS));
            let _ = own.push(IpCidr::new(addresses::GATEWAY6.into(), addresses::BITS6));
        });
        // Every address that the sandbox speaks to is ours to answer for.
        interface.set_any_ip(true);
        Self {
            flows: Slots::default(),
            index: HashMap::new(),
            interface,
            kept: Default::default(),
            used: [0; BUFFERS.len()],
            wire,
            queue: Vec::new(),
            stalled: Vec::new(),
            held: Vec::new(),
        }
    }

    pub(crate) fn find(&self, ends: &Ends) -> Option<Key> {
        self.index.get(ends).copied()
    }

    pub(crate) fn insert(&mut self, stream: Stream) -> Key {
        let ends = stream.ends;
        let key = self.flows.insert(stream);
        self.index.insert(ends, key);
        key
    }

    /// Forgets a flow; its socket serves the next one.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Stream> {
        let mut stream = self.flows.remove(key)?;
        self.index.remove(&stream.ends);
        if let Some(mut end) = stream.end.take() {
            self.used[end.size] -= 1;
            let kept = &mut self.kept[end.size];
            if kept.len() < KEPT {
                end.socket().abort();
                kept.push(end);
            }
        }
        Some(stream)
    }

    fn prepare(&mut self, key: Key) -> Option<(&mut Interface, &mut Stream, SocketHandle)> {
        let stream = self.flows.get_mut(key)?;
        let room = self.used.iter().zip(BUFFERS).position(|(used, (_, most))| *used < most);
        let size = room.unwrap_or(BUFFERS.len() - 1);
        self.used[size] += 1;
        let end = self.kept[size].pop().unwrap_or_else(|| End::new(size, self.wire));
        let end = stream.end.insert(end);
        let handle = end.handle;
        let socket = end.socket();
        // What both ends do already: the kernels hold back small packets where they want to.
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_timeout(None);
        Some((&mut self.interface, stream, handle))
    }

    /// Accepts what the sandbox asked with `syn`.
    pub(crate) fn accept(&mut self, key: Key, syn: &[u8], shared: &mut Shared<'_>) {
        let Some((_, stream, _)) = self.prepare(key) else { return };
        let remote = stream.ends.remote;
        if let Some(socket) = stream.socket() {
            socket.listen(remote).expect("a socket that was aborted listens to any port but zero");
        }
        self.ingest(key, syn, shared);
    }

    /// Connects to the sandbox.
    pub(crate) fn reach(&mut self, key: Key, limit: u64) -> bool {
        let Some((interface, stream, handle)) = self.prepare(key) else { return false };
        let (ends, end) = (stream.ends, stream.end.as_mut());
        let Some(socket) = end.map(|end| end.sockets.get_mut::<Socket<'_>>(handle)) else {
            return false;
        };
        let guest = match ends.remote {
            SocketAddr::V4(_) => SocketAddr::from((addresses::GUEST, ends.guest)),
            SocketAddr::V6(_) => SocketAddr::from((addresses::GUEST6, ends.guest)),
        };
        socket.set_timeout(Some(smoltcp::time::Duration::from_micros(limit)));
        stream.was = State::SynSent;
        socket.connect(interface.context(), guest, ends.remote).is_ok()
    }

    /// Gives a packet of the sandbox to its flow.
    pub(crate) fn ingest(&mut self, key: Key, packet: &[u8], shared: &mut Shared<'_>) {
        let Some(stream) = self.flows.get_mut(key) else { return };
        if let Some(end) = &mut stream.end {
            let mut port = Port { link: shared.link, packet: Some(packet) };
            let now = Instant::from_micros(shared.now as i64);
            self.interface.poll_ingress_single(now, &mut port, &mut end.sockets);
        }
        self.queue(key);
    }

    /// Has a flow looked after before the gateway sleeps.
    pub(crate) fn queue(&mut self, key: Key) {
        if let Some(stream) = self.flows.get_mut(key)
            && !stream.queued
        {
            stream.queued = true;
            self.queue.push(key);
        }
    }

    pub(crate) fn next(&mut self) -> Option<Key> {
        let key = self.queue.pop()?;
        if let Some(stream) = self.flows.get_mut(key) {
            stream.queued = false;
        }
        Some(key)
    }

    /// There is room on the wire again.
    pub(crate) fn resume_stalled(&mut self) {
        for key in std::mem::take(&mut self.stalled) {
            if let Some(stream) = self.flows.get_mut(key) {
                stream.stalled = false;
            }
            self.queue(key);
        }
    }

    /// The egress rate allows more.
    pub(crate) fn resume_held(&mut self) {
        for key in std::mem::take(&mut self.held) {
            if let Some(stream) = self.flows.get_mut(key) {
                stream.held = false;
            }
            self.queue(key);
        }
    }

    /// Its alarm went off.
    pub(crate) fn wake(&mut self, key: Key) {
        if let Some(stream) = self.flows.get_mut(key) {
            stream.alarm = u64::MAX;
        }
        self.queue(key);
    }

    /// Breaks a flow off.
    pub(crate) fn abort(&mut self, key: Key) {
        if let Some(stream) = self.flows.get_mut(key) {
            if let Some(socket) = stream.socket() {
                socket.abort();
            }
            stream.was = State::Established;
        }
        self.queue(key);
    }

    /// Moves bytes, sends packets and sets the alarm of a flow; tells if it has ended.
    pub(crate) fn tend(&mut self, key: Key, shared: &mut Shared<'_>) -> Option<Ending> {
        let stream = self.flows.get_mut(key)?;
        let moved = match stream.stage {
            Stage::Open | Stage::Proving => stream.splice(shared.bucket, shared.now),
            _ => Moved::Fine,
        };
        let end = stream.end.as_mut()?;
        match moved {
            Moved::Fine => {}
            Moved::Broken => end.socket().abort(),
            Moved::Held => {
                if self.held.is_empty() {
                    shared.timers.set(shared.bucket.again(shared.now), Source::Rate);
                }
                if !stream.held {
                    stream.held = true;
                    self.held.push(key);
                }
            }
        }
        let now = Instant::from_micros(shared.now as i64);
        let mut port = Port { link: shared.link, packet: None };
        let sent = |interface: &mut Interface, port: &mut Port<'_>, end: &mut End| {
            interface.poll_egress(now, port, &mut end.sockets) == PollResult::SocketStateChanged
        };
        while sent(&mut self.interface, &mut port, end) {}
        let ending = match moved {
            // Its reset has been sent, or there is no room for it and the next packet gets one.
            Moved::Broken => Some(Ending::Reset),
            _ => stream.ending(),
        };
        if ending.is_some() {
            return ending;
        }
        let end = stream.end.as_mut()?;
        stream.was = end.socket().state();
        if shared.link.is_blocked() {
            if !stream.stalled {
                stream.stalled = true;
                self.stalled.push(key);
            }
            return None;
        }
        if let Some(at) = self.interface.poll_at(now, &end.sockets) {
            // What is due at once and was not sent waits for something else than the time.
            let at = u64::try_from(at.total_micros()).unwrap_or(0).max(shared.now + 1000);
            if at < stream.alarm {
                stream.alarm = at;
                shared.timers.set(at, Source::Tcp(key));
            }
        }
        None
    }
}

impl Stream {
    /// Ends the host's side as the sandbox's side was ended.
    pub(crate) fn close(self, ending: Ending) {
        if let (Ending::Reset, Some(host)) = (ending, &self.host) {
            // Closed without a farewell, so that the peer sees a reset and no end of file.
            let _ = rustix::net::sockopt::set_socket_linger(
                host.as_fd(),
                Some(std::time::Duration::ZERO),
            );
        }
    }
}

/// Tells smoltcp what the wire is like before there is one.
struct Nowhere(Wire);

impl smoltcp::phy::Device for Nowhere {
    type RxToken<'a> = crate::link::Taken<'a>;
    type TxToken<'a> = crate::link::Room<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Self::TxToken<'_>> {
        None
    }

    fn capabilities(&self) -> smoltcp::phy::DeviceCapabilities {
        capabilities(self.0)
    }
}
