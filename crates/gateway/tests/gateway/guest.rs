//! A guest made of smoltcp, in this process, on a real gateway.

use msb_gateway::{HostAddresses, HttpProxy, NetworkMember, SecretValue, Start, run};
use msb_spec::{
    Decision, Name, Network, PlannedSecret, Policy, PublishedPort, Rule, Secret, addresses,
};
use msb_sys::socket::NonblockingSocket;
use msb_wire::{
    FrameKind, FramedSocket, FromGateway, MAX_FROM_GATEWAY, NetEvent, NetTable, ToGateway, Verdict,
    encode,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr, IpListenEndpoint};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::JoinHandle;

/// The limit of every wait: nothing here takes that long.
const WAIT_LIMIT: std::time::Duration = std::time::Duration::from_secs(30);

/// The configuration that a gateway is started with.
pub(crate) struct Setup {
    pub(crate) network: Network,
    pub(crate) resolvers: Vec<SocketAddr>,
    pub(crate) joined: Option<NetworkMember>,
    pub(crate) proxy: Option<HttpProxy>,
}

impl Setup {
    pub(crate) fn new(rules: &[&str]) -> Self {
        let rules = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
        let network = Network {
            policy: Policy { rules, default: Decision::Deny },
            dns: Vec::new(),
            dns_timeout: None,
            dns_private: false,
            ports: Vec::new(),
            secrets: Vec::new(),
            bypass: Vec::new(),
            max_connections: 4096,
            gateway_memory: msb_spec::GATEWAY_MEMORY,
            egress_rate: None,
            join: None,
            trust_host_cas: false,
        };
        Self { network, resolvers: Vec::new(), joined: None, proxy: None }
    }

    pub(crate) fn publish(mut self, port: &str) -> Self {
        self.network.ports.push(PublishedPort::parse(port).unwrap());
        self
    }

    /// Adds a Secret with this placeholder.
    pub(crate) fn secret(mut self, secret: &str, placeholder: &str) -> Self {
        let secret = Secret::parse(secret).unwrap();
        let placeholder = placeholder.to_owned();
        self.network.secrets.push(PlannedSecret { secret, placeholder });
        self
    }

    pub(crate) fn resolver(mut self, server: SocketAddr) -> Self {
        self.resolvers.push(server);
        self
    }

    /// Joins the named network of that directory.
    pub(crate) fn join(mut self, directory: &Path, name: &str) -> Self {
        let directory = std::fs::File::open(directory).unwrap().into();
        self.joined = Some(NetworkMember { directory, name: Name::parse(name).unwrap() });
        self
    }

    pub(crate) fn start(self) -> Guest {
        let pair = |kind| {
            rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
        };
        let (link, theirs) = pair(SocketType::SEQPACKET);
        let (control, worker) = pair(SocketType::STREAM);
        let value = |_: &PlannedSecret| SecretValue::new(b"sk-the-value-itself".to_vec());
        let values = self.network.secrets.iter().map(value).collect();
        let gateway = std::thread::spawn(move || {
            run(Start {
                network: self.network,
                values,
                resolvers: self.resolvers,
                host_addresses: HostAddresses::listed([]),
                proxy: self.proxy,
                roots: Vec::new(),
                joined: self.joined,
                link: theirs,
                device: false,
                control: worker,
                confine: Box::new(|| Ok(())),
            })
        });
        rustix::io::ioctl_fionbio(&link, true).unwrap();
        let mut wire = TestLink { fd: link };
        let config = Config::new(HardwareAddress::Ip);
        let mut interface = Interface::new(config, &mut wire, Instant::now());
        interface.update_ip_addrs(|own| {
            own.push(IpCidr::new(addresses::GUEST.into(), addresses::BITS)).unwrap();
            own.push(IpCidr::new(addresses::GUEST6.into(), addresses::BITS6)).unwrap();
        });
        interface.routes_mut().add_default_ipv4_route(addresses::GATEWAY).unwrap();
        interface.routes_mut().add_default_ipv6_route(addresses::GATEWAY6).unwrap();
        let mut guest = Guest {
            wire,
            interface,
            sockets: SocketSet::new(Vec::new()),
            control: FramedSocket::new(control.into(), MAX_FROM_GATEWAY),
            answers: Vec::new(),
            events: Vec::new(),
            ports: Vec::new(),
            authority: None,
            next: 40000,
            gateway: Some(gateway),
        };
        let FromGateway::Ready { ports, authority } = guest.answer() else { panic!("not ready") };
        guest.ports = ports;
        guest.authority = authority;
        guest
    }
}

/// The guest, and the worker beside it.
pub(crate) struct Guest {
    wire: TestLink,
    interface: Interface,
    pub(crate) sockets: SocketSet<'static>,
    control: FramedSocket<NonblockingSocket>,
    answers: Vec<FromGateway>,
    pub(crate) events: Vec<NetEvent>,
    pub(crate) ports: Vec<PublishedPort>,
    pub(crate) authority: Option<String>,
    next: u16,
    gateway: Option<JoinHandle<i32>>,
}

impl Guest {
    /// Polls guest and control socket until `is` returns true.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> bool) {
        let begin = std::time::Instant::now();
        loop {
            self.interface.poll(Instant::now(), &mut self.wire, &mut self.sockets);
            self.read_control();
            if is(self) {
                // Sends what was just written.
                self.interface.poll(Instant::now(), &mut self.wire, &mut self.sockets);
                return;
            }
            assert!(begin.elapsed() < WAIT_LIMIT, "waited in vain: {what}");
            let mut waited = [
                PollFd::new(&self.wire.fd, PollFlags::IN),
                PollFd::new(self.control.socket(), PollFlags::IN),
            ];
            let moment = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            rustix::event::poll(&mut waited, Some(&moment)).unwrap();
        }
    }

    fn read_control(&mut self) {
        let mut buffer = [0; 65536];
        while let Ok(Some(frame)) = self.control.read_frame(&mut buffer) {
            assert_eq!(frame.kind, FrameKind::Control);
            match frame.value().unwrap() {
                FromGateway::EventKind(event) => self.events.push(event),
                answer => self.answers.push(answer),
            }
        }
    }

    /// Polls this guest once, while another one is waited for.
    pub(crate) fn step(&mut self) {
        self.interface.poll(Instant::now(), &mut self.wire, &mut self.sockets);
        self.read_control();
    }

    fn answer(&mut self) -> FromGateway {
        self.until("an answer", |guest| !guest.answers.is_empty());
        self.answers.remove(0)
    }

    pub(crate) fn request(&mut self, message: &ToGateway) -> FromGateway {
        let bytes = encode(FrameKind::Control, message);
        assert_eq!(rustix::io::write(self.control.socket(), &bytes), Ok(bytes.len()));
        self.answer()
    }

    pub(crate) fn table(&mut self) -> NetTable {
        match self.request(&ToGateway::Table) {
            FromGateway::Table(table) => table,
            other => panic!("no table: {other:?}"),
        }
    }

    pub(crate) fn set_rules(&mut self, rules: &[&str]) {
        let rules = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
        let policy = Policy { rules, default: Decision::Deny };
        assert_eq!(self.request(&ToGateway::Policy(policy)), FromGateway::Done);
    }

    pub(crate) fn port(&mut self) -> u16 {
        self.next = if self.next == 65535 { 40000 } else { self.next + 1 };
        self.next
    }

    /// Starts to connect a TCP socket.
    pub(crate) fn dial(&mut self, to: SocketAddr) -> SocketHandle {
        let handle = self.listener();
        let port = self.port();
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(handle);
        socket.connect(self.interface.context(), to, port).unwrap();
        handle
    }

    /// Connects a TCP socket and waits until it is open.
    #[track_caller]
    pub(crate) fn connect(&mut self, to: SocketAddr) -> SocketHandle {
        let handle = self.dial(to);
        self.until("a connection", |guest| guest.tcp(handle).may_send());
        handle
    }

    /// Adds a TCP socket that is not connected.
    fn listener(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 1 << 18]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        self.sockets.add(socket)
    }

    /// Listens on a TCP port of the guest.
    pub(crate) fn listen(&mut self, port: u16) -> SocketHandle {
        let handle = self.listener();
        self.tcp(handle).listen(port).unwrap();
        handle
    }

    pub(crate) fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    #[track_caller]
    pub(crate) fn send(&mut self, handle: SocketHandle, bytes: &[u8]) {
        let mut at = 0;
        self.until("room to send", |guest| {
            at += guest.tcp(handle).send_slice(&bytes[at..]).unwrap();
            at == bytes.len()
        });
    }

    /// Reads `length` bytes.
    #[track_caller]
    pub(crate) fn receive(&mut self, handle: SocketHandle, length: usize) -> Vec<u8> {
        let mut all = vec![0; length];
        let mut at = 0;
        self.until("bytes", |guest| {
            at += guest.tcp(handle).recv_slice(&mut all[at..]).unwrap();
            at == length
        });
        all
    }

    /// Reads until the end of the stream.
    #[track_caller]
    pub(crate) fn receive_all(&mut self, handle: SocketHandle) -> Vec<u8> {
        let mut all = Vec::new();
        self.until("the end", |guest| {
            let mut buffer = [0; 65536];
            loop {
                match guest.tcp(handle).recv_slice(&mut buffer) {
                    Ok(0) => return false,
                    Ok(n) => all.extend_from_slice(&buffer[..n]),
                    Err(_) => return true,
                }
            }
        });
        all
    }

    #[track_caller]
    pub(crate) fn until_closed(&mut self, handle: SocketHandle) {
        self.until("the end of a stream", |guest| !guest.tcp(handle).is_active());
    }

    pub(crate) fn add_udp(&mut self) -> SocketHandle {
        let buffer =
            || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 1 << 17]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        let port = self.port();
        socket.bind(IpListenEndpoint::from(port)).unwrap();
        self.sockets.add(socket)
    }

    pub(crate) fn udp_socket(&mut self, handle: SocketHandle) -> &mut udp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Sends a datagram and waits for the answer.
    #[track_caller]
    pub(crate) fn exchange_udp(
        &mut self,
        handle: SocketHandle,
        to: SocketAddr,
        body: &[u8],
    ) -> Vec<u8> {
        self.udp_socket(handle).send_slice(body, to).unwrap();
        let mut answer = Vec::new();
        self.until("a datagram", |guest| match guest.udp_socket(handle).recv() {
            Ok((body, _)) => {
                answer = body.to_vec();
                true
            }
            Err(_) => false,
        });
        answer
    }

    /// Sends a raw packet.
    pub(crate) fn inject(&mut self, packet: &[u8]) {
        self.wire.write(packet.len(), |room| room.copy_from_slice(packet));
    }

    /// Waits for a raw packet, which smoltcp does not see.
    #[track_caller]
    pub(crate) fn catch(&mut self, mut is: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
        let begin = std::time::Instant::now();
        loop {
            if let Some(packet) = self.wire.read()
                && is(&packet)
            {
                return packet;
            }
            assert!(begin.elapsed() < WAIT_LIMIT, "waited in vain for a packet");
        }
    }

    /// The Verdicts so far.
    pub(crate) fn verdicts(&self) -> Vec<&Verdict> {
        let decided = self.events.iter().filter_map(|event| match event {
            NetEvent::Decided(verdict) => Some(verdict),
            _ => None,
        });
        decided.collect()
    }

    /// Waits for a Verdict.
    #[track_caller]
    pub(crate) fn verdict(&mut self, is: impl Fn(&Verdict) -> bool) -> Verdict {
        self.until("a verdict", |guest| guest.verdicts().into_iter().any(&is));
        self.verdicts().into_iter().find(|verdict| is(verdict)).unwrap().clone()
    }

    /// Closes the control socket, as the exit of the worker does; returns the exit status.
    pub(crate) fn end(mut self) -> i32 {
        rustix::net::shutdown(self.control.socket(), rustix::net::Shutdown::Both).unwrap();
        self.gateway.take().unwrap().join().unwrap()
    }
}

struct TestLink {
    fd: OwnedFd,
}

const HEADERS_LEN: usize = 26;

impl TestLink {
    fn read(&mut self) -> Option<Vec<u8>> {
        let mut frame = vec![0; HEADERS_LEN + 1501];
        loop {
            let n = rustix::io::read(&self.fd, &mut frame[..]).ok().filter(|n| *n > HEADERS_LEN)?;
            assert!(n <= HEADERS_LEN + 1500, "no larger than the device takes");
            if frame[24..26] == [8, 6] {
                continue;
            }
            frame.truncate(n);
            frame.drain(..HEADERS_LEN);
            return Some(frame);
        }
    }

    fn write<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut frame = vec![0; HEADERS_LEN + length];
        frame[12..18].copy_from_slice(&addresses::GATEWAY_LINK);
        frame[18..24].copy_from_slice(&addresses::GUEST_LINK);
        let result = fill(&mut frame[HEADERS_LEN..]);
        let kind = if frame[HEADERS_LEN] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
        frame[24..26].copy_from_slice(&kind);
        while let Err(error) = rustix::io::write(&self.fd, &frame) {
            assert_eq!(error, rustix::io::Errno::AGAIN);
            let mut waited = [PollFd::new(&self.fd, PollFlags::OUT)];
            rustix::event::poll(&mut waited, None).unwrap();
        }
        result
    }
}

struct RxFrame(Vec<u8>);
struct TxFrame<'a>(&'a mut TestLink);

impl Device for TestLink {
    type RxToken<'a> = RxFrame;
    type TxToken<'a> = TxFrame<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        Some((RxFrame(self.read()?), TxFrame(self)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Self::TxToken<'_>> {
        Some(TxFrame(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        // VMs send larger packets than they receive.
        capabilities.max_transmission_unit = 65520;
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }
}

impl RxToken for RxFrame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

impl TxToken for TxFrame<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        self.0.write(length, fill)
    }
}

impl Guest {
    /// Connects again, with a socket that was used before.
    #[track_caller]
    pub(crate) fn redial(&mut self, handle: SocketHandle, to: SocketAddr, port: u16) {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(handle);
        socket.abort();
        socket.connect(self.interface.context(), to, port).unwrap();
        self.until("a connection", |guest| guest.tcp(handle).may_send());
    }
}
