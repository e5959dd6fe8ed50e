//! Names without the C library, whose ways would load modules of the image: addresses as they are
//! written, /etc/hosts, then whom /etc/resolv.conf names, which is the gateway of the sandbox.

use msb_spec::DomainName;
use msb_wire::LinkFailure;
use rustix::rand::{GetRandomFlags, getrandom};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Files larger than this are not lists of names.
const FILE_LIMIT: usize = 1 << 20;
/// Most addresses that are tried for one name.
const MOST: usize = 8;
/// As many as the C library asks.
const MOST_SERVERS: usize = 3;
/// Before a question is asked again.
const PATIENCE: Duration = Duration::from_secs(2);
/// For both kinds of addresses together.
const LIMIT: Duration = Duration::from_secs(8);
const PORT: u16 = 53;

const A: u16 = 1;
const AAAA: u16 = 28;

/// The addresses of a host, in the order in which they are to be tried.
pub(super) fn addresses(host: &str) -> Result<Vec<IpAddr>, LinkFailure> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = bare.parse() {
        return Ok(vec![address]);
    }
    let name = DomainName::parse(host).map_err(|_| LinkFailure::Invalid)?;
    let file = |path| msb_sys::files::read_ordinary(path, FILE_LIMIT).unwrap_or_default();
    let listed = listed(&name, &String::from_utf8_lossy(&file("/etc/hosts")));
    if !listed.is_empty() {
        return Ok(listed);
    }
    // Whatever the image's files say.
    if name.as_str() == "localhost" || name.as_str().ends_with(".localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let servers = servers(&String::from_utf8_lossy(&file("/etc/resolv.conf")));
    asked(&name, &servers)
}

/// What /etc/hosts says.
fn listed(name: &DomainName, hosts: &str) -> Vec<IpAddr> {
    let lines = hosts.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name.as_str())).then_some(address)
    });
    lines.take(MOST).collect()
}

fn servers(conf: &str) -> Vec<SocketAddr> {
    let lines = conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let parsed = lines.filter_map(|rest| rest.split_whitespace().next()?.parse().ok());
    parsed.map(|address: IpAddr| SocketAddr::new(address, PORT)).take(MOST_SERVERS).collect()
}

/// Asks for both kinds of addresses.
fn asked(name: &DomainName, servers: &[SocketAddr]) -> Result<Vec<IpAddr>, LinkFailure> {
    let until = Instant::now() + LIMIT;
    let mut found = Vec::new();
    let mut why = LinkFailure::Name;
    for kind in [A, AAAA] {
        match ask(name, kind, servers, until) {
            Ok(more) => found.extend(more),
            // What the first was refused for says more than what the second was.
            Err(failure) if kind == A => why = failure,
            Err(_) => {}
        }
    }
    found.truncate(MOST);
    if found.is_empty() { Err(why) } else { Ok(found) }
}

fn ask(
    name: &DomainName,
    kind: u16,
    servers: &[SocketAddr],
    until: Instant,
) -> Result<Vec<IpAddr>, LinkFailure> {
    let mut why = LinkFailure::Name;
    // Twice each, as others do.
    for server in servers.iter().chain(servers) {
        let left = until.saturating_duration_since(Instant::now()).min(PATIENCE);
        if left.is_zero() {
            return Err(LinkFailure::Timeout);
        }
        match ask_one(name, kind, *server, left) {
            Ok(Ok(addresses)) => return Ok(addresses),
            Ok(Err(failure)) => return Err(failure),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                why = LinkFailure::Timeout;
            }
            Err(_) => {}
        }
    }
    Err(why)
}

fn ask_one(
    name: &DomainName,
    kind: u16,
    server: SocketAddr,
    limit: Duration,
) -> std::io::Result<Result<Vec<IpAddr>, LinkFailure>> {
    let any = match server {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any)?;
    // From now on only the server is heard.
    socket.connect(server)?;
    let mut id = [0; 2];
    getrandom(&mut id, GetRandomFlags::empty())?;
    socket.send(&question(name, kind, id))?;
    let until = Instant::now() + limit;
    let mut buffer = [0; 1500];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let n = socket.recv(&mut buffer)?;
        if let Some(answer) = answer(&buffer[..n], id, kind) {
            return Ok(answer);
        }
        if left.is_zero() {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
    }
}

fn question(name: &DomainName, kind: u16, id: [u8; 2]) -> Vec<u8> {
    // Recursion is desired; one question.
    let mut packet = [&id[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in name.as_str().split('.') {
        packet.push(u8::try_from(label.len()).expect("a label of a DomainName is short"));
        packet.extend_from_slice(label.as_bytes());
    }
    packet.push(0);
    packet.extend_from_slice(&kind.to_be_bytes());
    packet.extend_from_slice(&[0, 1]);
    packet
}

/// What was answered; none if it is an answer to something else, or none at all.
fn answer(packet: &[u8], id: [u8; 2], kind: u16) -> Option<Result<Vec<IpAddr>, LinkFailure>> {
    const ANSWER: u8 = 0x80;
    const REFUSED: u8 = 5;
    let number = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    if packet.get(..2)? != id || packet.get(2)? & ANSWER == 0 {
        return None;
    }
    match packet.get(3)? & 0xf {
        0 => {}
        REFUSED => return Some(Err(LinkFailure::Denied)),
        _ => return Some(Err(LinkFailure::Name)),
    }
    let (questions, answers) = (number(4)?, number(6)?);
    let mut at = 12;
    for _ in 0..questions {
        at = skip_name(packet, at)? + 4;
    }
    let mut found = Vec::new();
    for _ in 0..answers {
        // What is cut short is taken as far as it goes.
        let Some(start) = skip_name(packet, at) else { break };
        let (Some(told), Some(length)) = (number(start), number(start + 8)) else { break };
        let end = start + 10 + usize::from(length);
        let Some(data) = packet.get(start + 10..end) else { break };
        at = end;
        if told == kind && found.len() < MOST {
            if let Ok(four) = <[u8; 4]>::try_from(data) {
                found.push(IpAddr::from(four));
            } else if let Ok(six) = <[u8; 16]>::try_from(data) {
                found.push(IpAddr::from(six));
            }
        }
    }
    Some(if found.is_empty() { Err(LinkFailure::Name) } else { Ok(found) })
}

/// Where a name ends. What it points at is not followed, so there is no loop to run into.
fn skip_name(packet: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *packet.get(at)? {
            0 => return Some(at + 1),
            0xc0.. => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DomainName {
        DomainName::parse(text).unwrap()
    }

    #[test]
    fn addresses_and_localhost_are_nobodys_to_answer() {
        assert_eq!(addresses("10.0.0.1"), Ok(vec![IpAddr::from([10, 0, 0, 1])]));
        assert_eq!(addresses("[::1]"), Ok(vec![Ipv6Addr::LOCALHOST.into()]));
        assert!(addresses("localhost").unwrap()[0].is_loopback());
        for wrong in ["", "a b", "x..y", "a\0b"] {
            assert_eq!(addresses(wrong), Err(LinkFailure::Invalid), "{wrong:?}");
        }
    }

    #[test]
    fn files_are_read_as_others_do() {
        let hosts = "# no\n127.0.0.1 localhost\n10.1.2.3\tdb.example db # 10.9.9.9 db\nbad db\n";
        assert_eq!(listed(&name("DB"), hosts), [IpAddr::from([10, 1, 2, 3])]);
        assert!(listed(&name("other"), hosts).is_empty());
        let conf = "search x\nnameserver 198.18.0.1\nnameserver fe80::1%eth0\n nameserver ::1\n";
        assert_eq!(servers(conf), ["198.18.0.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()]);
    }

    /// An answer with a pointer as its name.
    fn answered(code: u8, records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut packet = question(&name("a.example"), A, [1, 2]);
        packet[2..4].copy_from_slice(&[0x81, code]);
        packet[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        for (kind, data) in records {
            packet.extend_from_slice(&[0xc0, 12]);
            packet.extend_from_slice(&kind.to_be_bytes());
            packet.extend_from_slice(&[0, 1, 0, 0, 0, 9]);
            packet.extend_from_slice(&(data.len() as u16).to_be_bytes());
            packet.extend_from_slice(data);
        }
        packet
    }

    #[test]
    fn answers_are_taken_and_refusals_told_apart() {
        let records: [(u16, &[u8]); 3] = [(5, b"\x01x\0"), (A, &[1, 2, 3, 4]), (AAAA, &[0; 16])];
        let packet = answered(0, &records);
        let four = Some(Ok(vec![IpAddr::from([1, 2, 3, 4])]));
        assert_eq!(answer(&packet, [1, 2], A), four);
        assert_eq!(answer(&packet, [9, 9], A), None);
        assert_eq!(answer(&answered(3, &[]), [1, 2], A), Some(Err(LinkFailure::Name)));
        assert_eq!(answer(&answered(5, &[]), [1, 2], A), Some(Err(LinkFailure::Denied)));
        assert_eq!(answer(&answered(0, &[]), [1, 2], A), Some(Err(LinkFailure::Name)));
        // Cut anywhere, and changed anywhere.
        for end in 0..packet.len() {
            let _ = answer(&packet[..end], [1, 2], A);
            let mut changed = packet.clone();
            changed[end] ^= 0xff;
            let _ = answer(&changed, [1, 2], A);
        }
    }
}
