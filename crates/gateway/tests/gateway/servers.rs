//! Servers on this machine, each in a thread of its own.

use msb_spec::addresses;
use simple_dns::rdata::{A, RData, TXT};
use simple_dns::{CLASS, Name, Packet, ResourceRecord};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};

/// The address that the guest uses for a port of this machine.
pub(crate) fn host(port: u16) -> SocketAddr {
    SocketAddr::from((addresses::GATEWAY, port))
}

/// A TCP server that runs `serve` for each connection; returns its port.
pub(crate) fn server(serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> u16 {
    server_at(Ipv4Addr::LOCALHOST.into(), serve)
}

pub(crate) fn server_at(
    address: IpAddr,
    serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static,
) -> u16 {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

/// A TCP echo server; returns its port.
pub(crate) fn echo() -> u16 {
    server(echo_on)
}

pub(crate) fn echo_on(mut stream: TcpStream) {
    let mut buffer = [0; 65536];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}

/// A server that answers each read as if it was an HTTP request; returns its port and all bytes
/// that it received.
pub(crate) fn listener(address: Ipv4Addr) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&heard);
    let port = server_at(address.into(), move |mut stream| {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            own.lock().unwrap().extend_from_slice(&buffer[..n]);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    });
    (port, heard)
}

/// A UDP echo server; returns its port.
pub(crate) fn datagram_echo() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok((n, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..n], peer);
        }
    });
    port
}

/// A DNS server: `a-b-c-d.any` has the address a.b.c.d, `long.any` has a text that fits no
/// datagram, `silent.any` gets no response, and names that start with `no` do not exist.
pub(crate) fn dns_server() -> SocketAddr {
    let (address, socket, listener) = bind_udp_and_tcp();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((n, peer)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = answer(&buffer[..n], true) {
                let _ = socket.send_to(&answer, peer);
            }
        }
    });
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut question).unwrap();
            let answer = answer(&question, false).unwrap();
            stream.write_all(&(answer.len() as u16).to_be_bytes()).unwrap();
            stream.write_all(&answer).unwrap();
        }
    });
    address
}

/// Binds a port that is free for both UDP and TCP: a free one of the first may be taken for the
/// other.
fn bind_udp_and_tcp() -> (SocketAddr, UdpSocket, TcpListener) {
    loop {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        match TcpListener::bind(address) {
            Ok(listener) => return (address, socket, listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => panic!("{address}: {error}"),
        }
    }
}

fn answer(question: &[u8], datagram: bool) -> Option<Vec<u8>> {
    let asked = Packet::parse(question).unwrap();
    let name = asked.questions[0].qname.to_string();
    let label = name.split('.').next().unwrap();
    let mut packet = Packet::new_reply(asked.id());
    packet.questions.clone_from(&asked.questions);
    let owner = Name::new_unchecked(&name).into_owned();
    let record = |data| ResourceRecord::new(owner.clone(), CLASS::IN, 300, data);
    match label {
        "silent" => return None,
        "long" if datagram => packet.set_flags(simple_dns::PacketFlag::TRUNCATION),
        "long" => {
            for _ in 0..20 {
                let text = "x".repeat(200);
                let text = TXT::new().with_string(&text).unwrap().into_owned();
                packet.answers.push(record(RData::TXT(text)));
            }
        }
        label if label.starts_with("no") => {
            *packet.rcode_mut() = simple_dns::RCODE::NameError;
        }
        label => {
            if let Ok(address) = label.replace('-', ".").parse::<Ipv4Addr>() {
                packet.answers.push(record(RData::A(A { address: address.to_bits() })));
            }
        }
    }
    Some(packet.build_bytes_vec_compressed().unwrap())
}
