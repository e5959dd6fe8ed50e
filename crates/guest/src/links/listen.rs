//! A listener inside the sandbox. A child process reports each accepted connection to the host, and
//! relays it over a connection that the host opens for it.
//!
//! The host's connections reach the guest, which passes them to the listener. So no descriptor of
//! the listener ever reaches the host: a compromised listener has only its own streams.

use super::relay::{HostFraming, relay};
use super::{LinkError, send_reply};
use msb_sys::socket;
use msb_wire::{LinkFailure, LinkReply, Target};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Listeners of a sandbox at a time.
const MAX_LISTENERS: usize = 64;
/// Relayed streams of a listener at a time.
const MAX_STREAMS: usize = 128;
/// Accepted connections that wait for the host.
const MAX_WAITING: usize = 64;
/// An accepted connection that the host has not taken after this is closed.
const ACCEPT_LIMIT: Duration = Duration::from_secs(10);
/// Backlog of the listening socket.
const BACKLOG: i32 = 64;
/// Stack of a relay thread, in bytes.
const STACK: usize = 128 << 10;

/// The guest's sockets to its listeners, by id.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    all: Vec<(u64, OwnedFd)>,
}

impl Listeners {
    /// Adds a listener. Returns the socket end for its process.
    pub(crate) fn add(&mut self, id: u64) -> Result<OwnedFd, LinkFailure> {
        self.remove_closed();
        if self.all.len() >= MAX_LISTENERS || self.all.iter().any(|(known, _)| *known == id) {
            return Err(LinkFailure::TooMany);
        }
        let (ours, theirs) = socket::pair().map_err(|_| LinkFailure::System)?;
        // The guest never blocks.
        rustix::io::ioctl_fionbio(&ours, true).map_err(|_| LinkFailure::System)?;
        self.all.push((id, ours));
        Ok(theirs)
    }

    /// Passes a connection of the host to a listener, for the accepted connection with this number.
    pub(crate) fn pass(&mut self, id: u64, number: u64, connection: &OwnedFd) -> bool {
        let listener = self.all.iter().find(|(known, _)| *known == id);
        listener.is_some_and(|(_, listener)| {
            let sent =
                socket::send_all(listener.as_fd(), &number.to_le_bytes(), &[connection.as_fd()]);
            sent.is_ok()
        })
    }

    /// Removes listeners that have exited.
    fn remove_closed(&mut self) {
        self.all.retain(|(_, listener)| {
            let mut wait = [PollFd::new(listener, PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut wait, Some(&now)).is_ok_and(|count| count == 0)
        });
    }
}

/// Listens and reports accepted connections, until the host closes its connection.
pub(super) fn listen(
    host: BorrowedFd<'_>,
    accepts: BorrowedFd<'_>,
    framing: HostFraming,
    at: &Target,
) {
    let (listener, at, _bound) = match bind(at) {
        Ok(bound) => bound,
        Err(LinkError { failure, errno }) => {
            return send_reply(host, &LinkReply::Failed { failure, errno });
        }
    };
    send_reply(host, &LinkReply::Listening { at });
    let mut waiting = BTreeMap::new();
    let mut next = 0;
    let streams = Arc::new(());
    loop {
        let room = waiting.len() < MAX_WAITING && Arc::strong_count(&streams) <= MAX_STREAMS;
        let wanted = if room { PollFlags::IN } else { PollFlags::empty() };
        let mut waits = [
            PollFd::from_borrowed_fd(host, PollFlags::IN),
            PollFd::from_borrowed_fd(accepts, PollFlags::IN),
            PollFd::new(&listener, wanted),
        ];
        // Wakes up to expire waiting connections, and to notice streams that have ended.
        let idle = waiting.is_empty() && room;
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut waits, (!idle).then_some(&second)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let [closed, ordered, connected] = waits.map(|wait| !wait.revents().is_empty());
        // The host sends nothing here; readable means closed.
        if closed {
            return;
        }
        if ordered {
            let mut number = [0; 8];
            let mut fds = Vec::new();
            match socket::receive(accepts, &mut number, &mut fds) {
                Ok(8) => {}
                // The guest is gone.
                _ => return,
            }
            if let Some(connection) = fds.pop() {
                let stream = waiting.remove(&u64::from_le_bytes(number)).map(|(stream, _)| stream);
                relay_accepted(connection, stream, framing, Arc::clone(&streams));
            }
        }
        if connected && let Some((stream, from)) = accept(&listener) {
            let (host_name, port) = from.map_or((String::new(), 0), |from| {
                (from.ip().to_canonical().to_string(), from.port())
            });
            waiting.insert(next, (stream, Instant::now() + ACCEPT_LIMIT));
            send_reply(host, &LinkReply::Accepted { number: next, host: host_name, port });
            next += 1;
        }
        let now = Instant::now();
        waiting.retain(|_, (_, limit)| *limit > now);
    }
}

/// Relays an accepted connection to the host's, in a thread.
fn relay_accepted(
    connection: OwnedFd,
    stream: Option<OwnedFd>,
    framing: HostFraming,
    counted: Arc<()>,
) {
    let task = move || {
        let _counted = counted;
        let host = connection.as_fd();
        match stream {
            Some(stream) => {
                send_reply(host, &LinkReply::Open);
                let _ = relay(host, framing, stream.as_fd());
            }
            None => {
                send_reply(host, &LinkReply::Failed { failure: LinkFailure::Gone, errno: 0 });
            }
        }
        super::wait_closed(host, framing);
    };
    // Without a thread, the client sees its connection close.
    let _ = std::thread::Builder::new().stack_size(STACK).spawn(task);
}

fn accept(listener: &OwnedFd) -> Option<(OwnedFd, Option<SocketAddr>)> {
    let flags = SocketFlags::CLOEXEC;
    let (stream, from) = rustix::net::acceptfrom_with(listener, flags).ok()?;
    Some((stream, from.and_then(|from| SocketAddr::try_from(from).ok())))
}

/// The socket file of a Unix listener, removed on drop.
struct SocketFile {
    path: PathBuf,
    made: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may have been replaced meanwhile.
        if inode(&self.path) == Some(self.made) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &std::path::Path) -> Option<(u64, u64)> {
    rustix::fs::lstat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn bind(at: &Target) -> Result<(OwnedFd, Target, Option<SocketFile>), LinkError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = SocketType::STREAM;
    match at {
        Target::Tcp { host, port } => {
            let address = bind_address(host).ok_or(LinkError::new(LinkFailure::Invalid))?;
            let family = match address {
                IpAddr::V4(_) => AddressFamily::INET,
                IpAddr::V6(_) => AddressFamily::INET6,
            };
            let socket = rustix::net::socket_with(family, stream, flags, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, &SocketAddr::new(address, *port))?;
            rustix::net::listen(&socket, BACKLOG)?;
            let bound: SocketAddrAny = rustix::net::getsockname(&socket)?;
            let port = SocketAddr::try_from(bound).map_or(*port, |bound| bound.port());
            Ok((socket, Target::Tcp { host: host.clone(), port }, None))
        }
        Target::Unix { path } => {
            if path.is_empty() || path.contains(&0) {
                return Err(LinkError::new(LinkFailure::Invalid));
            }
            let socket = rustix::net::socket_with(AddressFamily::UNIX, stream, flags, None)?;
            let address = SocketAddrUnix::new(path.as_slice())?;
            // The file gets the mode of the socket: for the user only, as in OpenSSH.
            rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
            rustix::net::bind(&socket, &address)?;
            let path_made = crate::files::as_path(path).to_owned();
            let made = inode(&path_made);
            let bound = made.map(|made| SocketFile { path: path_made, made });
            rustix::net::listen(&socket, BACKLOG)?;
            Ok((socket, at.clone(), bound))
        }
    }
}

/// The address of a listen host as SSH clients send it; none for other names.
fn bind_address(host: &str) -> Option<IpAddr> {
    match host {
        "" | "*" => Some(Ipv4Addr::UNSPECIFIED.into()),
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        address => address.trim_start_matches('[').trim_end_matches(']').parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_wire::{FrameKind, FramedSocket};
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixStream;
    use std::thread;

    fn next(stream: &mut UnixStream) -> Option<LinkReply> {
        let frame = FramedSocket::new(stream, 1000).read_frame_only(&mut [0; 64]).unwrap()?;
        assert_eq!(frame.kind, FrameKind::Link);
        Some(frame.value().unwrap())
    }

    /// Starts a listener. Returns the host's connection and the guest's listeners.
    fn listening(at: Target) -> (UnixStream, Listeners, thread::JoinHandle<()>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut listeners = Listeners::default();
        let accepts = listeners.add(7).unwrap();
        let served = thread::spawn(move || {
            listen(theirs.as_fd(), accepts.as_fd(), HostFraming::Plain, &at);
        });
        (ours, listeners, served)
    }

    #[test]
    fn accepted_connections_are_relayed_to_the_host() {
        let at = Target::Tcp { host: "localhost".to_owned(), port: 0 };
        let (mut host, mut listeners, served) = listening(at);
        let Some(LinkReply::Listening { at: Target::Tcp { host: name, port } }) = next(&mut host)
        else {
            panic!("nobody listens");
        };
        assert_eq!(name, "localhost");
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let accepted = next(&mut host);
        let from = client.local_addr().unwrap().port();
        let expected = LinkReply::Accepted { number: 0, host: "127.0.0.1".to_owned(), port: from };
        assert_eq!(accepted, Some(expected));
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert!(!listeners.pass(8, 0, &theirs.try_clone().unwrap().into()));
        assert!(listeners.pass(7, 0, &theirs.into()));
        assert_eq!(next(&mut ours), Some(LinkReply::Open));
        client.write_all(b"from inside").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut received = String::new();
        ours.read_to_string(&mut received).unwrap();
        assert_eq!(received, "from inside");
        // No connection has this number any more.
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert!(listeners.pass(7, 0, &theirs.into()));
        let gone = LinkReply::Failed { failure: LinkFailure::Gone, errno: 0 };
        assert_eq!(next(&mut ours), Some(gone));
        drop(host);
        served.join().unwrap();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        listeners.remove_closed();
        assert!(listeners.all.is_empty());
    }

    #[test]
    fn socket_files_are_private_and_removed_with_the_listener() {
        use std::os::unix::fs::PermissionsExt;
        let place = std::env::temp_dir().join(format!("msb-listen-{}", std::process::id()));
        let _ = std::fs::remove_file(&place);
        let at = Target::Unix { path: place.as_os_str().as_bytes().to_vec() };
        let (mut host, _listeners, served) = listening(at.clone());
        assert_eq!(next(&mut host), Some(LinkReply::Listening { at: at.clone() }));
        let mode = std::fs::metadata(&place).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (mut second, _others, refused) = listening(at);
        let Some(LinkReply::Failed { failure, .. }) = next(&mut second) else {
            panic!("two listen")
        };
        assert_eq!(failure, LinkFailure::InUse);
        refused.join().unwrap();
        drop(host);
        served.join().unwrap();
        assert!(!place.exists());
    }

    #[test]
    fn listeners_are_limited() {
        let mut listeners = Listeners::default();
        let kept: Vec<_> = (0..MAX_LISTENERS as u64).map(|id| listeners.add(id).unwrap()).collect();
        assert_eq!(listeners.add(1000).unwrap_err(), LinkFailure::TooMany);
        drop(kept);
        let _kept = listeners.add(1000).unwrap();
        assert_eq!(listeners.add(1000).unwrap_err(), LinkFailure::TooMany);
    }

    #[test]
    fn listen_names_other_than_addresses_are_refused() {
        for wrong in ["example.com", "1.2.3", "::1::"] {
            let at = Target::Tcp { host: wrong.to_owned(), port: 0 };
            assert_eq!(bind(&at).map(drop).unwrap_err().failure, LinkFailure::Invalid);
        }
    }
}
