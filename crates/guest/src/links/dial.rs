//! Connects from inside to a listening socket. The connection uses the sandbox's own network, so
//! its policy applies.

use super::{LinkError, resolver};
use msb_wire::{LinkFailure, Target};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Timeout for all addresses of a name together.
const DIAL_LIMIT: Duration = Duration::from_secs(20);
/// Delay before a Unix socket with a full backlog is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(20);

pub(super) fn dial(to: &Target) -> Result<OwnedFd, LinkError> {
    let until = Instant::now() + DIAL_LIMIT;
    match to {
        Target::Tcp { port: 0, .. } => Err(LinkError::new(LinkFailure::Invalid)),
        Target::Tcp { host, port } => {
            let addresses = resolver::resolve(host).map_err(LinkError::new)?;
            let mut why = LinkError::new(LinkFailure::Name);
            for address in addresses {
                match connect(SocketAddr::new(address, *port), until) {
                    Ok(socket) => return Ok(socket),
                    Err(errno) => why = errno.into(),
                }
            }
            Err(why)
        }
        Target::Unix { path } => {
            if path.is_empty() || path.contains(&0) {
                return Err(LinkError::new(LinkFailure::Invalid));
            }
            Ok(connect_unix(path, until)?)
        }
    }
}

/// Classifies an errno of the kernel.
impl From<Errno> for LinkError {
    fn from(errno: Errno) -> Self {
        let failure = match errno {
            Errno::CONNREFUSED | Errno::NOENT | Errno::CONNRESET => LinkFailure::Refused,
            Errno::ACCESS | Errno::PERM => LinkFailure::Denied,
            Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::NETDOWN | Errno::ADDRNOTAVAIL => {
                LinkFailure::Unreachable
            }
            Errno::TIMEDOUT => LinkFailure::Timeout,
            Errno::ADDRINUSE => LinkFailure::InUse,
            Errno::NAMETOOLONG | Errno::INVAL => LinkFailure::Invalid,
            _ => LinkFailure::System,
        };
        Self { failure, errno: errno.raw_os_error() }
    }
}

fn connect(to: SocketAddr, until: Instant) -> rustix::io::Result<OwnedFd> {
    let family = match to.ip() {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &to) {
        Err(Errno::INPROGRESS) => {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok();
            let mut waits = [PollFd::new(&socket, PollFlags::OUT)];
            // No signal is handled here, so poll is not interrupted.
            if poll(&mut waits, left.as_ref())? == 0 {
                return Err(Errno::TIMEDOUT);
            }
            rustix::net::sockopt::socket_error(&socket)??;
        }
        done => done?,
    }
    // Interactive bytes are sent at once.
    let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
    Ok(socket)
}

fn connect_unix(path: &[u8], until: Instant) -> rustix::io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = AddressFamily::UNIX;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    loop {
        match rustix::net::connect(&socket, &address) {
            // The listener's backlog is full.
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(RETRY_DELAY),
            Err(Errno::AGAIN) => return Err(Errno::TIMEDOUT),
            done => return done.map(|()| socket),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixListener;

    fn failure(to: &Target) -> LinkFailure {
        dial(to).unwrap_err().failure
    }

    #[test]
    fn dial_connects_or_reports_the_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let tcp = |host: &str, port| Target::Tcp { host: host.to_owned(), port };
        for host in ["127.0.0.1", "localhost"] {
            dial(&tcp(host, port)).unwrap();
        }
        drop(listener);
        assert_eq!(failure(&tcp("127.0.0.1", port)), LinkFailure::Refused);
        assert_eq!(failure(&tcp("127.0.0.1", 0)), LinkFailure::Invalid);
        assert_eq!(failure(&tcp("no name", 80)), LinkFailure::Invalid);
    }

    #[test]
    fn unix_sockets_are_dialled_by_path() {
        let path = std::env::temp_dir().join(format!("msb-dial-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let unix = |path: &[u8]| Target::Unix { path: path.to_vec() };
        dial(&unix(path.as_os_str().as_bytes())).unwrap();
        drop(listener);
        assert_eq!(failure(&unix(path.as_os_str().as_bytes())), LinkFailure::Refused);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(failure(&unix(path.as_os_str().as_bytes())), LinkFailure::Refused);
        for wrong in [&b""[..], b"a\0b", &[b'x'; 200]] {
            assert_eq!(failure(&unix(wrong)), LinkFailure::Invalid);
        }
    }
}
