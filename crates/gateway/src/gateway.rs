//! The loop: one thread that waits for the sandbox, the host's sockets, the worker and the clock.

use crate::budget::Budget;
use crate::control::Control;
use crate::datagrams::Datagrams;
use crate::events::Events;
use crate::frames::{self, Inbound, LONGEST, Packet};
use crate::intercept::{Interceptor, Settings};
use crate::joined::Neighbours;
use crate::limits::Bucket;
use crate::link::{Link, Wire};
use crate::names::Names;
use crate::outside;
use crate::policy::{Judgement, Rules};
use crate::proxy::Proxy;
use crate::published::Door;
use crate::questions::Questions;
use crate::slots::Slots;
use crate::source::Source;
use crate::start::Start;
use crate::streams::{Shared, Streams};
use crate::timers::Timers;
use msb_spec::{Direction, DomainName, Error, Published, Result, Stage};
use msb_wire::{FlowKind, FromGateway, NetEvent, Verdict};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Frames that are read before what they changed is looked after: enough to spare calls, few
/// enough that an answer does not wait long.
const BATCH: usize = 32;

/// Everything that one sandbox's network is made of.
pub(crate) struct Gateway {
    pub(crate) epoll: OwnedFd,
    began: Instant,
    /// Microseconds since it began, as of the last time that it woke up.
    pub(crate) now: u64,
    pub(crate) link: Link,
    /// Whether it is waited for that the wire has room.
    watches_room: bool,
    pub(crate) control: Control,
    watches_worker: bool,
    pub(crate) events: Events,
    folding: bool,
    pub(crate) rules: Rules,
    pub(crate) names: Names,
    pub(crate) timers: Timers,
    pub(crate) bucket: Bucket,
    pub(crate) streams: Streams,
    pub(crate) datagrams: Datagrams,
    pub(crate) questions: Questions,
    pub(crate) doors: Slots<Door>,
    pub(crate) neighbours: Option<Neighbours>,
    pub(crate) interceptor: Option<Interceptor>,
    /// What an Interceptor is made of, where none was needed yet.
    settings: Option<Settings>,
    pub(crate) proxy: Option<Arc<Proxy>>,
    pub(crate) most: usize,
    /// For what is intercepted.
    pub(crate) budget: Budget,
    flows: u64,
    pub(crate) authority: bool,
    frame: Vec<u8>,
    /// Room for one datagram from outside.
    pub(crate) datagram: Vec<u8>,
    /// The port that the last one who came in seemed to come from.
    pub(crate) port: u16,
    /// What had been brought to the sandbox when it was paused; its worker is told of more.
    pub(crate) dozing: Option<u64>,
}

/// Serves one sandbox until its worker is gone; returns the exit status of the process.
pub(crate) fn run(start: Start) -> i32 {
    let Start { network, values, resolvers, host_addresses, proxy, roots, link, .. } = start;
    let Ok(mut control) = Control::new(start.control) else { return 1 };
    let proxy = proxy.map(Arc::new);
    let budget = Budget::new(network.gateway_memory.0);
    let mut settings = Some(Settings {
        policy: network.policy.clone(),
        secrets: network.secrets.iter().cloned().zip(values).collect(),
        proxy: proxy.clone(),
        roots,
        budget: budget.clone(),
    });
    allow_sockets();
    let ready = open_doors(&network.ports).and_then(|doors| {
        let neighbours = start.joined.as_ref().map(Neighbours::join).transpose()?;
        (start.confine)()?;
        let interceptor = match settings.take_if(|_| network.intercepts()) {
            Some(settings) => Some(Interceptor::start(settings)?),
            None => None,
        };
        Ok((doors, neighbours, interceptor))
    });
    let (doors, neighbours, interceptor) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            control.send(&FromGateway::Failed(error));
            control.flush();
            return 1;
        }
    };
    let ports = doors.iter().map(|door| door.published.clone()).collect();
    let (interceptor, authority) = interceptor.unzip();
    let trusted = authority.is_some();
    let authority = authority.map(|authority| authority.pem);
    let mut ready = Some(FromGateway::Ready { ports, authority });
    // The sandbox has to trust it before it has a device; otherwise the device comes first, so that
    // one that cannot be used is a failure to start.
    if let Some(ready) = ready.take_if(|_| trusted) {
        control.send(&ready);
        control.flush();
    }
    let link = match start.device {
        true => wait_for_device(&link, &control),
        false => Ok(link),
    };
    let wire = if start.device { Wire::Tap } else { Wire::Machine };
    let link = match link.and_then(|link| Link::new(link, wire)) {
        Ok(link) => link,
        // Whoever was to make the device has failed, and says why.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return 0,
        Err(error) => {
            let failed = Error::host("cannot take the network device", error);
            control.send(&FromGateway::Failed(failed.at(Stage::Network)));
            control.flush();
            return 1;
        }
    };
    if let Some(ready) = ready {
        control.send(&ready);
        control.flush();
    }
    let rules = Rules::new(network.policy, host_addresses, network.secrets, network.bypass);
    let Ok(epoll) = epoll::create(epoll::CreateFlags::CLOEXEC) else { return 1 };
    let mut gateway = Gateway {
        epoll,
        began: Instant::now(),
        now: 0,
        link,
        watches_room: false,
        control,
        watches_worker: false,
        events: Events::default(),
        folding: false,
        rules,
        names: Names::default(),
        timers: Timers::default(),
        bucket: Bucket::new(network.egress_rate),
        streams: Streams::new(outside::random(), wire),
        datagrams: Datagrams::default(),
        questions: Questions::new(resolvers),
        doors: Slots::default(),
        neighbours,
        interceptor,
        settings,
        proxy,
        most: network.max_connections as usize,
        budget,
        flows: 0,
        authority: trusted,
        frame: vec![0; LONGEST],
        datagram: vec![0; 1 << 16],
        port: 0,
        dozing: None,
    };
    for door in doors {
        gateway.add_door(door);
    }
    let served = gateway.serve();
    gateway.leave();
    i32::from(served.is_err())
}

/// Each flow has a socket; the usual limit is for programs with few.
fn allow_sockets() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.or(limit.current);
    // Refused, fewer flows can be open, and each is told so.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn open_doors(ports: &[Published]) -> Result<Vec<Door>> {
    ports.iter().map(Door::open).collect()
}

/// Waits for the device and, meanwhile, for the worker's end.
fn wait_for_device(link: &OwnedFd, control: &Control) -> io::Result<OwnedFd> {
    loop {
        let mut waited = [PollFd::new(link, PollFlags::IN), PollFd::new(control, PollFlags::RDHUP)];
        match rustix::event::poll(&mut waited, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if !waited[0].revents().is_empty() {
            return Link::receive_device(link);
        }
        if !waited[1].revents().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

impl Gateway {
    pub(crate) fn watch(&self, fd: impl AsFd, source: Source, flags: EventFlags) -> bool {
        epoll::add(&self.epoll, fd, EventData::new_u64(source.to_bits()), flags).is_ok()
    }

    fn serve(&mut self) -> io::Result<()> {
        self.watch_neighbours();
        self.watch(&self.link, Source::Link, EventFlags::IN);
        self.watch(&self.control, Source::Control, EventFlags::IN);
        if let Some(interceptor) = &self.interceptor {
            self.watch(interceptor.wake(), Source::Interceptor, EventFlags::IN);
        }
        let mut events = Vec::with_capacity(256);
        loop {
            let timeout = self.timers.next().map(|at| {
                let wait = at.saturating_sub(self.now);
                Timespec {
                    tv_sec: (wait / 1_000_000) as i64,
                    tv_nsec: (wait % 1_000_000 * 1000) as i64,
                }
            });
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                other => drop(other?),
            }
            self.now = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
            for event in events.drain(..) {
                let (data, flags) = (event.data.u64(), event.flags);
                if let Some(source) = Source::from_bits(data)
                    && !self.on_event(source, flags)
                {
                    return Ok(());
                }
            }
            while let Some(source) = self.timers.due(self.now) {
                self.on_timer(source);
            }
            self.settle();
        }
    }

    /// Frees the ports first, which the next gateway may be waiting for; then tells how much the
    /// flows had carried.
    fn leave(&mut self) {
        self.doors = Slots::default();
        self.close_flows();
        if let Some(skipped) = self.events.skipped() {
            self.control.send(&FromGateway::Happened(skipped));
        }
        self.control.flush();
    }

    /// Looks after all that changed, then asks to be told of what could not be done.
    fn settle(&mut self) {
        while let Some(key) = self.streams.next() {
            self.tend(key);
        }
        if self.link.is_blocked() != self.watches_room {
            self.watches_room = !self.watches_room;
            let room = if self.watches_room { EventFlags::OUT } else { EventFlags::empty() };
            let data = EventData::new_u64(Source::Link.to_bits());
            let _ = epoll::modify(&self.epoll, &self.link, data, EventFlags::IN | room);
        }
        if let Some(due) = self.events.due()
            && !self.folding
        {
            self.folding = true;
            self.timers.set(due, Source::Events);
        }
        if self.dozing.is_some_and(|brought| brought != self.link.traffic().1) {
            self.dozing = None;
            self.control.send(&FromGateway::Knock);
        }
        let waits = self.control.flush();
        if waits != self.watches_worker {
            self.watches_worker = waits;
            let room = if waits { EventFlags::OUT } else { EventFlags::empty() };
            let data = EventData::new_u64(Source::Control.to_bits());
            let _ = epoll::modify(&self.epoll, &self.control, data, EventFlags::IN | room);
        }
    }

    /// Whether there is a reason to go on.
    fn on_event(&mut self, source: Source, flags: EventFlags) -> bool {
        match source {
            Source::Link => {
                if self.watches_room && self.link.flush() {
                    self.streams.resume_stalled();
                }
                return self.read_link();
            }
            Source::Control => match self.control.read() {
                Ok(asked) => asked.into_iter().for_each(|asked| self.obey(asked)),
                Err(_) => return false,
            },
            Source::Interceptor => self.relay_verdicts(),
            Source::Published(key) => self.on_door(key),
            Source::Tcp(key) => self.on_stream(key, flags),
            Source::Datagrams(key) => self.on_datagrams(key),
            Source::Question(key) => self.on_answer(key),
            Source::Joined => self.on_joined(),
            Source::Visitor(key) => self.on_visitor(key),
            Source::Events | Source::Rate => {}
        }
        true
    }

    fn on_timer(&mut self, source: Source) {
        match source {
            Source::Tcp(key) => self.streams.wake(key),
            Source::Datagrams(key) => self.expire_datagrams(key),
            Source::Question(key) => self.give_up_on_server(key),
            Source::Visitor(key) => self.expire_visitor(key),
            Source::Published(key) => self.watch_door(key),
            Source::Rate => self.streams.resume_held(),
            Source::Events => {
                self.folding = false;
                if let Some(skipped) = self.events.skipped() {
                    self.control.send(&FromGateway::Happened(skipped));
                }
            }
            _ => {}
        }
    }

    /// Reads what the sandbox sent; false if it will never send again.
    fn read_link(&mut self) -> bool {
        let mut frame = std::mem::take(&mut self.frame);
        let mut alive = true;
        for _ in 0..BATCH {
            match self.link.read(&mut frame) {
                Ok(Some(length)) => self.on_frame(&frame[..length]),
                Ok(None) => break,
                Err(_) => {
                    alive = false;
                    break;
                }
            }
        }
        self.frame = frame;
        alive
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.link.learn(frame);
        match frames::read(frame) {
            None => {}
            Some(Inbound::Asked(reply)) => self.link.answer(&reply),
            Some(Inbound::Packet(packet)) => {
                self.link.took();
                self.on_packet(&packet);
            }
        }
    }

    fn on_packet(&mut self, packet: &Packet<'_>) {
        match packet.protocol {
            frames::TCP => self.on_segment(packet),
            frames::UDP => self.on_datagram(packet),
            frames::ICMP | frames::ICMP6 => self.on_echo(packet),
            _ => {}
        }
    }

    /// The flows share these while one of them is looked after.
    pub(crate) fn shared(&mut self) -> (&mut Streams, Shared<'_>) {
        let shared = Shared {
            link: &mut self.link,
            bucket: &mut self.bucket,
            timers: &mut self.timers,
            now: self.now,
        };
        (&mut self.streams, shared)
    }

    /// Milliseconds since it began.
    pub(crate) fn millis(&self) -> u64 {
        self.now / 1000
    }

    /// Whether no other flow may be opened. Datagrams have no end that could be seen: the flow of
    /// them that was silent longest makes room.
    pub(crate) fn is_full(&mut self) -> bool {
        if self.streams.flows.len() + self.datagrams.len() < self.most {
            return false;
        }
        let silent = self.datagrams.longest_silent(self.now);
        silent.map(|key| self.end_exchange(key)).is_none()
    }

    /// A verdict with the number of a new flow.
    pub(crate) fn verdict(
        &mut self,
        kind: FlowKind,
        direction: Direction,
        judgement: &Judgement,
        address: Option<IpAddr>,
        port: Option<u16>,
    ) -> Verdict {
        self.flows += 1;
        Verdict {
            flow: self.flows,
            decision: judgement.decision,
            direction,
            kind,
            name: judgement.name.clone(),
            address,
            port,
            rule: judgement.rule.clone(),
            request: None,
            secrets: Vec::new(),
        }
    }

    /// Has something recorded; false if it was left out.
    pub(crate) fn tell(&mut self, event: NetEvent) -> bool {
        if !self.control.has_room() {
            self.events.skip();
            return false;
        }
        let told = self.events.admit(&event, self.now);
        if told {
            self.control.send(&FromGateway::Happened(event));
        }
        told
    }

    /// Has the end of an allowed flow recorded, if its begin was.
    pub(crate) fn tell_end(&mut self, flow: u64, told: bool, sent: u64, received: u64) {
        match told {
            true => {
                self.tell(NetEvent::Ended { flow, sent, received });
            }
            false => self.events.skip(),
        }
    }

    /// Whoever looks into flows, started now if that was not needed before. One that was not
    /// started with the sandbox has no authority that those inside trust, and reads plain requests.
    pub(crate) fn interceptor(&mut self) -> Option<&Interceptor> {
        if let Some(settings) = self.settings.take() {
            let settings = Settings { policy: self.rules.policy().clone(), ..settings };
            let interceptor = Interceptor::start_plain(settings).ok()?;
            self.watch(interceptor.wake(), Source::Interceptor, EventFlags::IN);
            self.interceptor = Some(interceptor);
        }
        self.interceptor.as_ref()
    }

    /// Whether flows in TLS can be looked into.
    pub(crate) fn has_authority(&self) -> bool {
        self.authority
    }

    fn relay_verdicts(&mut self) {
        while let Some(event) = self.interceptor.as_ref().and_then(Interceptor::next) {
            self.tell(event);
        }
    }

    /// The names that an address was given for.
    pub(crate) fn tied(&self, address: IpAddr) -> Vec<DomainName> {
        self.names.of(address, self.millis())
    }
}

/// What a worker is told that asked for something that the host does not give.
pub(crate) fn cannot(what: &str, error: rustix::io::Errno) -> Error {
    Error::host(what.to_owned(), io::Error::from(error))
}
