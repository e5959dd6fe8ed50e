//! A gateway on a real TAP device. This program, started again in a network namespace, is the
//! sandbox. Without root it prints `SKIP:` and passes.
//!
//! `tap COMMAND…` runs a command there instead, for experiments.

use msb_gateway::{HostAddresses, Start, run};
use msb_spec::{Decision, Network, Policy, Rule, addresses};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The argument that makes the program the sandbox.
const INSIDE: &str = "--inside";
/// Bytes of a transfer, much more than all buffers.
const BULK: u64 = 256 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == INSIDE => return inside(rest),
        _ => {}
    }
    // Options that cargo passes to a test are ignored.
    let command: Vec<&String> =
        arguments.iter().skip_while(|argument| argument.starts_with('-')).collect();
    if !rustix::process::geteuid().is_root() {
        return say("SKIP: only root may make a device here");
    }
    let (sink, source, echo) =
        (TcpListener::bind(HERE)?, TcpListener::bind(HERE)?, UdpSocket::bind(HERE)?);
    let ports = [sink.local_addr()?, source.local_addr()?, echo.local_addr()?];
    std::thread::spawn(move || serve_sink(&sink));
    std::thread::spawn(move || serve_source(&source));
    std::thread::spawn(move || serve_echo(&echo));
    let (link, device) = msb_sys::socket::pair()?;
    let (worker, control) = msb_sys::socket::pair()?;
    let gateway = std::thread::spawn(move || run(start(link, control)));
    let mut sandbox = Command::new("unshare");
    sandbox.args(["--net", "--"]).arg(std::env::current_exe()?).arg(INSIDE);
    match command.is_empty() {
        true => sandbox.args(ports.map(|port| port.port().to_string())),
        false => sandbox.args(command),
    };
    let status = sandbox.stdin(Stdio::from(device)).status()?;
    drop(worker);
    let ended = gateway.join().map_err(|_| "the gateway panicked")?;
    match (status.success(), ended) {
        (true, 0) => Ok(()),
        _ => Err(format!("the sandbox ended with {status}, the gateway with {ended}").into()),
    }
}

const HERE: &str = "127.0.0.1:0";

#[expect(clippy::unnecessary_wraps, reason = "it is the last thing that main does")]
fn say(text: &str) -> Result<(), Box<dyn Error>> {
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(())
}

fn start(link: OwnedFd, control: OwnedFd) -> Start {
    let rules = Rule::parse("allow@host").into_iter().collect();
    Start {
        network: Network {
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
        },
        values: Vec::new(),
        resolvers: Vec::new(),
        host_addresses: HostAddresses::listed([]),
        proxy: None,
        roots: Vec::new(),
        joined: None,
        link,
        device: true,
        control,
        confine: Box::new(|| Ok(())),
    }
}

/// Reads until the end, then sends the number of bytes.
fn serve_sink(listener: &TcpListener) {
    for mut stream in listener.incoming().flatten() {
        let mut buffer = vec![0; 1 << 20];
        let mut total = 0u64;
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            total += n as u64;
        }
        let _ = stream.write_all(&total.to_be_bytes());
    }
}

/// Sends as many bytes as the client requests.
fn serve_source(listener: &TcpListener) {
    let buffer = vec![7; 1 << 20];
    for mut stream in listener.incoming().flatten() {
        let mut wanted = [0; 8];
        if stream.read_exact(&mut wanted).is_err() {
            continue;
        }
        let mut wanted = u64::from_be_bytes(wanted);
        while wanted > 0 {
            let n = wanted.min(buffer.len() as u64);
            if stream.write_all(&buffer[..n as usize]).is_err() {
                break;
            }
            wanted -= n;
        }
    }
}

fn serve_echo(socket: &UdpSocket) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok((n, peer)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(&buffer[..n], peer);
    }
}

/// The sandbox: creates the device, sends its descriptor to the gateway, and uses it.
fn inside(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let tap = msb_sys::net::make_tap("eth0")?;
    msb_sys::net::raise_loopback()?;
    msb_sys::netlink::set_up(&msb_sys::netlink::Device {
        name: "eth0",
        link: addresses::GUEST_LINK,
        mtu: addresses::MTU,
        addresses: &[
            (IpAddr::V4(addresses::GUEST), addresses::BITS),
            (IpAddr::V6(addresses::GUEST6), addresses::BITS6),
        ],
        routers: &[IpAddr::V4(addresses::GATEWAY), IpAddr::V6(addresses::GATEWAY6)],
        router_link: addresses::GATEWAY_LINK,
    })?;
    let stdin = std::io::stdin();
    msb_sys::socket::send_all(stdin.as_fd(), b"T", &[tap.as_fd()])?;
    drop(tap);
    let ports: Result<Vec<u16>, _> = arguments.iter().map(|text| text.parse()).collect();
    let Ok([sink, source, echo]) = ports.as_deref() else {
        let mut command = Command::new(arguments.first().ok_or("no command")?);
        let status = command.args(&arguments[1..]).stdin(Stdio::null()).status()?;
        return if status.success() { Ok(()) } else { Err(status.to_string().into()) };
    };
    let host = |port: u16| SocketAddr::from((addresses::GATEWAY, port));
    upload(host(*sink))?;
    download(host(*source))?;
    open_many(host(*sink))?;
    exchange(host(*echo))?;
    refused()
}

fn rate(what: &str, bytes: u64, begin: Instant) -> Result<(), Box<dyn Error>> {
    let gigabits = bytes as f64 * 8.0 / 1e9 / begin.elapsed().as_secs_f64();
    say(&format!("{what}: {gigabits:.1} Gbit/s"))
}

fn upload(to: SocketAddr) -> Result<(), Box<dyn Error>> {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(to)?;
    let buffer = vec![1; 1 << 20];
    for _ in 0..BULK >> 20 {
        stream.write_all(&buffer)?;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut total = [0; 8];
    stream.read_exact(&mut total)?;
    assert_eq!(u64::from_be_bytes(total), BULK);
    rate("out", BULK, begin)
}

fn download(from: SocketAddr) -> Result<(), Box<dyn Error>> {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(from)?;
    stream.write_all(&BULK.to_be_bytes())?;
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    while let n @ 1.. = stream.read(&mut buffer)? {
        total += n as u64;
    }
    assert_eq!(total, BULK);
    rate("in", BULK, begin)
}

fn open_many(to: SocketAddr) -> Result<(), Box<dyn Error>> {
    const MANY: u32 = 500;
    let begin = Instant::now();
    for _ in 0..MANY {
        let mut stream = TcpStream::connect(to)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut total = [0; 8];
        stream.read_exact(&mut total)?;
    }
    say(&format!("connection: {:?}", begin.elapsed() / MANY))
}

/// The kernel verifies the checksums of the gateway's datagrams.
fn exchange(with: SocketAddr) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(with)?;
    for length in [1, 1000, 60_000] {
        let sent = vec![3; length];
        socket.send(&sent)?;
        let mut buffer = vec![0; 1 << 16];
        let n = socket.recv(&mut buffer)?;
        assert_eq!(buffer[..n], sent);
    }
    Ok(())
}

/// A refused connection fails at once, with the error that a RST or ICMP message causes.
fn refused() -> Result<(), Box<dyn Error>> {
    for to in ["10.0.0.1:80", "[2001:db8::1]:80"] {
        let error = TcpStream::connect(to).err().ok_or("a refused stream was opened")?;
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{to}");
    }
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("10.0.0.1:999")?;
    socket.send(b"x")?;
    let error = socket.recv(&mut [0]).err().ok_or("a refused datagram was answered")?;
    assert_eq!(error.kind(), std::io::ErrorKind::HostUnreachable);
    Ok(())
}
