//! A DNS resolver without the C library, which would load NSS modules of the image. It tries
//! literal addresses, /etc/hosts, then the name servers of /etc/resolv.conf, normally the gateway.

use msb_spec::DomainName;
use msb_wire::LinkFailure;
use rustix::rand::{GetRandomFlags, getrandom};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Bytes of /etc/hosts and /etc/resolv.conf that are read at most.
const FILE_LIMIT: usize = 1 << 20;
/// Addresses that are tried for one name.
const MAX_ADDRESSES: usize = 8;
/// Name servers that are used, as in the C library.
const MAX_SERVERS: usize = 3;
/// Timeout before a query is repeated.
const RETRY_LIMIT: Duration = Duration::from_secs(2);
/// Timeout for the A and AAAA queries together.
const QUERY_LIMIT: Duration = Duration::from_secs(8);
const PORT: u16 = 53;

const A: u16 = 1;
const AAAA: u16 = 28;

/// Addresses of a host, in the order in which to try them.
pub(super) fn resolve(host: &str) -> Result<Vec<IpAddr>, LinkFailure> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = bare.parse() {
        return Ok(vec![address]);
    }
    let name = DomainName::parse(host).map_err(|_| LinkFailure::Invalid)?;
    let file = |path| msb_sys::files::read_ordinary(path, FILE_LIMIT).unwrap_or_default();
    let in_hosts_file = in_hosts_file(&name, &String::from_utf8_lossy(&file("/etc/hosts")));
    if !in_hosts_file.is_empty() {
        return Ok(in_hosts_file);
    }
    // Independent of the image's files.
    if name.as_str() == "localhost" || name.as_str().ends_with(".localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let name_servers = name_servers(&String::from_utf8_lossy(&file("/etc/resolv.conf")));
    query_servers(&name, &name_servers)
}

/// Addresses of a name in /etc/hosts.
fn in_hosts_file(name: &DomainName, hosts: &str) -> Vec<IpAddr> {
    let lines = hosts.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name.as_str())).then_some(address)
    });
    lines.take(MAX_ADDRESSES).collect()
}

fn name_servers(conf: &str) -> Vec<SocketAddr> {
    let lines = conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let parsed = lines.filter_map(|rest| rest.split_whitespace().next()?.parse().ok());
    parsed.map(|address: IpAddr| SocketAddr::new(address, PORT)).take(MAX_SERVERS).collect()
}

/// Queries A and AAAA records.
fn query_servers(
    name: &DomainName,
    name_servers: &[SocketAddr],
) -> Result<Vec<IpAddr>, LinkFailure> {
    let until = Instant::now() + QUERY_LIMIT;
    let mut found = Vec::new();
    let mut why = LinkFailure::Name;
    for record in [A, AAAA] {
        match query(name, record, name_servers, until) {
            Ok(more) => found.extend(more),
            // The error of the A query is more useful than that of AAAA.
            Err(failure) if record == A => why = failure,
            Err(_) => {}
        }
    }
    found.truncate(MAX_ADDRESSES);
    if found.is_empty() { Err(why) } else { Ok(found) }
}

fn query(
    name: &DomainName,
    record: u16,
    name_servers: &[SocketAddr],
    until: Instant,
) -> Result<Vec<IpAddr>, LinkFailure> {
    let mut why = LinkFailure::Name;
    // Each server is tried twice, as usual.
    for server in name_servers.iter().chain(name_servers) {
        let left = until.saturating_duration_since(Instant::now()).min(RETRY_LIMIT);
        if left.is_zero() {
            return Err(LinkFailure::Timeout);
        }
        match query_server(name, record, *server, left) {
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

fn query_server(
    name: &DomainName,
    record: u16,
    server: SocketAddr,
    limit: Duration,
) -> std::io::Result<Result<Vec<IpAddr>, LinkFailure>> {
    let any = match server {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any)?;
    // Packets of other senders are dropped from now on.
    socket.connect(server)?;
    let mut id = [0; 2];
    getrandom(&mut id, GetRandomFlags::empty())?;
    socket.send(&encode_query(name, record, id))?;
    let until = Instant::now() + limit;
    let mut buffer = [0; 1500];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let n = socket.recv(&mut buffer)?;
        if let Some(answer) = parse_answer(&buffer[..n], id, record) {
            return Ok(answer);
        }
        if left.is_zero() {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
    }
}

fn encode_query(name: &DomainName, record: u16, id: [u8; 2]) -> Vec<u8> {
    // Recursion desired; one question.
    let mut packet = [&id[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in name.as_str().split('.') {
        packet.push(u8::try_from(label.len()).expect("a label of a DomainName is short"));
        packet.extend_from_slice(label.as_bytes());
    }
    packet.push(0);
    packet.extend_from_slice(&record.to_be_bytes());
    packet.extend_from_slice(&[0, 1]);
    packet
}

/// Parses a response; none if it belongs to another query or is malformed.
fn parse_answer(
    packet: &[u8],
    id: [u8; 2],
    record: u16,
) -> Option<Result<Vec<IpAddr>, LinkFailure>> {
    const RESPONSE: u8 = 0x80;
    const REFUSED: u8 = 5;
    let number = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    if packet.get(..2)? != id || packet.get(2)? & RESPONSE == 0 {
        return None;
    }
    match packet.get(3)? & 0xf {
        0 => {}
        REFUSED => return Some(Err(LinkFailure::Denied)),
        _ => return Some(Err(LinkFailure::Name)),
    }
    let (question_count, answer_count) = (number(4)?, number(6)?);
    let mut at = 12;
    for _ in 0..question_count {
        at = skip_name(packet, at)? + 4;
    }
    let mut found = Vec::new();
    for _ in 0..answer_count {
        // A truncated response is used as far as it goes.
        let Some(start) = skip_name(packet, at) else { break };
        let (Some(record_type), Some(length)) = (number(start), number(start + 8)) else { break };
        let end = start + 10 + usize::from(length);
        let Some(data) = packet.get(start + 10..end) else { break };
        at = end;
        if record_type == record && found.len() < MAX_ADDRESSES {
            if let Ok(four) = <[u8; 4]>::try_from(data) {
                found.push(IpAddr::from(four));
            } else if let Ok(six) = <[u8; 16]>::try_from(data) {
                found.push(IpAddr::from(six));
            }
        }
    }
    Some(if found.is_empty() { Err(LinkFailure::Name) } else { Ok(found) })
}

/// The offset after a name. Pointers are not followed, so there are no loops.
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
    fn addresses_and_localhost_need_no_query() {
        assert_eq!(resolve("10.0.0.1"), Ok(vec![IpAddr::from([10, 0, 0, 1])]));
        assert_eq!(resolve("[::1]"), Ok(vec![Ipv6Addr::LOCALHOST.into()]));
        assert!(resolve("localhost").unwrap()[0].is_loopback());
        for wrong in ["", "a b", "x..y", "a\0b"] {
            assert_eq!(resolve(wrong), Err(LinkFailure::Invalid), "{wrong:?}");
        }
    }

    #[test]
    fn hosts_and_resolv_conf_are_parsed() {
        let hosts = "# no\n127.0.0.1 localhost\n10.1.2.3\tdb.example db # 10.9.9.9 db\nbad db\n";
        assert_eq!(in_hosts_file(&name("DB"), hosts), [IpAddr::from([10, 1, 2, 3])]);
        assert!(in_hosts_file(&name("other"), hosts).is_empty());
        let conf = "search x\nnameserver 198.18.0.1\nnameserver fe80::1%eth0\n nameserver ::1\n";
        assert_eq!(
            name_servers(conf),
            ["198.18.0.1:53".parse().unwrap(), "[::1]:53".parse().unwrap()]
        );
    }

    /// A response with a compression pointer as name.
    fn answered(code: u8, records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut packet = encode_query(&name("a.example"), A, [1, 2]);
        packet[2..4].copy_from_slice(&[0x81, code]);
        packet[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        for (record, data) in records {
            packet.extend_from_slice(&[0xc0, 12]);
            packet.extend_from_slice(&record.to_be_bytes());
            packet.extend_from_slice(&[0, 1, 0, 0, 0, 9]);
            packet.extend_from_slice(&(data.len() as u16).to_be_bytes());
            packet.extend_from_slice(data);
        }
        packet
    }

    #[test]
    fn answers_and_refusals_are_parsed() {
        let records: [(u16, &[u8]); 3] = [(5, b"\x01x\0"), (A, &[1, 2, 3, 4]), (AAAA, &[0; 16])];
        let packet = answered(0, &records);
        let four = Some(Ok(vec![IpAddr::from([1, 2, 3, 4])]));
        assert_eq!(parse_answer(&packet, [1, 2], A), four);
        assert_eq!(parse_answer(&packet, [9, 9], A), None);
        assert_eq!(parse_answer(&answered(3, &[]), [1, 2], A), Some(Err(LinkFailure::Name)));
        assert_eq!(parse_answer(&answered(5, &[]), [1, 2], A), Some(Err(LinkFailure::Denied)));
        assert_eq!(parse_answer(&answered(0, &[]), [1, 2], A), Some(Err(LinkFailure::Name)));
        // Truncated and corrupted at every offset.
        for end in 0..packet.len() {
            let _ = parse_answer(&packet[..end], [1, 2], A);
            let mut changed = packet.clone();
            changed[end] ^= 0xff;
            let _ = parse_answer(&changed, [1, 2], A);
        }
    }
}
