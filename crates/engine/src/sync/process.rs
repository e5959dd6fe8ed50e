//! The life of a sync: how it comes to be a process of its own, and how it ends.
//!
//! One thread follows the source and may be stuck in a sandbox that is paused. The other waits for
//! what ends it: a signal, the end of the sandbox, or that of whoever waits for the first copy.

use super::board::Board;
use super::follower::Follower;
use super::registry::{self, Claim};
use super::{Observer, SYNC_ARGUMENT, SyncEnd, SyncEvent, SyncSpec};
use crate::files::{Links, through_a_link};
use crate::launch::Launcher;
use crate::sandboxes::Engine;
use crate::store::Home;
use msb_spec::{Error, Kind, Name, Result};
use msb_sys::signal::{SIGHUP, SIGINT, SIGTERM, Signals};
use msb_wire::Request;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

/// How a new process is told what to do. Paths are bytes.
#[derive(Debug, Serialize, Deserialize)]
struct Letter {
    home: Vec<u8>,
    source: Vec<u8>,
    sandbox: Name,
    target: Vec<u8>,
    excludes: Vec<String>,
    default_excludes: bool,
}

/// What it answers, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Sent { files: u64, bytes: u64 },
    Unsent(Error),
    Ready { id: String },
    Failed(Error),
}

/// A path, a target and patterns; far longer is no letter of ours.
const LETTER_LIMIT: u64 = 16 << 20;
/// Failures of the first copy that are told one by one; all are counted.
const TOLD: usize = 20;

/// Starts a process that is the sync, and waits for its first copy.
pub(crate) fn start(
    engine: &Engine,
    spec: &SyncSpec,
    links: Links,
    progress: &mut dyn FnMut(SyncEvent),
) -> Result<String> {
    let about = |error: io::Error| Error::host("cannot start a sync", error);
    let letter = Letter {
        home: engine.home().path().as_os_str().as_bytes().to_vec(),
        source: canonical(&spec.source, links)?.into_os_string().into_vec(),
        sandbox: spec.sandbox.clone(),
        target: spec.target.clone(),
        excludes: spec.excludes.clone(),
        default_excludes: spec.default_excludes,
    };
    let letter = serde_json::to_vec(&letter).expect("our own types always serialise");
    let (mut ours, theirs) = UnixStream::pair().map_err(about)?;
    let program = engine.program();
    let mut child = Command::new(&program)
        .arg0("msb")
        .arg(SYNC_ARGUMENT)
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Error::host(format!("cannot execute `{}`", program.display()), error))?;
    let sent =
        ours.write_all(&(letter.len() as u64).to_le_bytes()).and_then(|()| ours.write_all(&letter));
    // It forks at once and this one ends.
    child.wait().map_err(about)?;
    sent.map_err(about)?;
    for line in BufReader::new(ours).lines() {
        let answer = serde_json::from_str(&line.map_err(about)?);
        match answer.map_err(|error| about(io::Error::other(error)))? {
            Answer::Sent { files, bytes } => progress(SyncEvent::Sent { files, bytes }),
            Answer::Unsent(error) => progress(SyncEvent::Failed(error)),
            Answer::Ready { id } => return Ok(id),
            Answer::Failed(error) => return Err(error),
        }
    }
    Err(Error::new(Kind::State, "the sync ended before its first copy was made"))
}

/// Is the sync that whoever is on stdin asks for.
pub(crate) fn serve() -> i32 {
    let Ok((letter, caller)) = receive() else { return 125 };
    // So that nobody but init has to wait for it.
    match msb_sys::process::fork() {
        Ok(true) => msb_sys::process::leave(serve_apart(letter, caller)),
        Ok(false) => 0,
        Err(_) => 125,
    }
}

fn receive() -> io::Result<(Letter, UnixStream)> {
    let mut caller = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    let mut length = [0; 8];
    caller.read_exact(&mut length)?;
    let mut letter = Vec::new();
    let length = u64::from_le_bytes(length).min(LETTER_LIMIT);
    Read::by_ref(&mut caller).take(length).read_to_end(&mut letter)?;
    Ok((serde_json::from_slice(&letter)?, caller))
}

fn serve_apart(letter: Letter, mut caller: UnixStream) -> i32 {
    let Letter { home, source, sandbox, target, excludes, default_excludes } = letter;
    let (home, source) = (PathBuf::from(OsString::from_vec(home)), OsString::from_vec(source));
    let source = PathBuf::from(source);
    let spec = SyncSpec { source, sandbox, target, excludes, default_excludes };
    let served = detach().and_then(|()| {
        // It starts no worker, and never executes anything again.
        let engine = Engine::at(Home::at(&home)?, Launcher::Execute(PathBuf::new()));
        let observer = telling(caller.try_clone().map_err(not_started)?);
        // Whoever started us has followed its links.
        let life = Life::begin(&engine, &spec, Links::Refused, observer)?;
        life.last(Some(&caller), true)
    });
    match served {
        Ok(_) => 0,
        Err(error) => {
            answer(&mut caller, &Answer::Failed(error));
            125
        }
    }
}

/// Leaves the terminal, the directory and the streams of whoever started it.
fn detach() -> Result<()> {
    rustix::process::setsid().map_err(|error| not_started(error.into()))?;
    std::env::set_current_dir("/").map_err(not_started)?;
    let null = fs::File::options().read(true).write(true).open("/dev/null").map_err(not_started)?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| not_started(error.into()))
}

fn not_started(error: io::Error) -> Error {
    Error::host("cannot start a sync", error)
}

/// Passes on to the caller what it wants to know, until it has heard that all is ready.
fn telling(caller: UnixStream) -> Observer {
    let mut caller = Some(caller);
    let mut told = 0;
    Box::new(move |event| {
        let Some(stream) = &mut caller else { return };
        match event {
            SyncEvent::Sent { files, bytes } => answer(stream, &Answer::Sent { files, bytes }),
            SyncEvent::Failed(error) if told < TOLD => {
                told += 1;
                answer(stream, &Answer::Unsent(error));
            }
            SyncEvent::Ready { id } => {
                answer(stream, &Answer::Ready { id });
                caller = None;
            }
            _ => {}
        }
    })
}

fn answer(caller: &mut UnixStream, answer: &Answer) {
    let mut line = serde_json::to_vec(answer).expect("our own types always serialise");
    line.push(b'\n');
    // One that has gone is noticed by whoever waits for it.
    let _ = caller.write_all(&line);
}

/// Is a sync in this very process.
pub(crate) fn stay(engine: &Engine, spec: &SyncSpec, observer: Observer) -> Result<SyncEnd> {
    Life::begin(engine, spec, Links::Followed, observer)?.last(None, false)
}

/// A sync that goes on.
struct Life {
    home: Home,
    claim: Claim,
    board: Arc<Board>,
    signals: Signals,
    /// Readable when the sandbox is over.
    sandbox: UnixStream,
    name: Name,
    /// Readable when the thread is.
    over: UnixStream,
    thread: JoinHandle<Result<()>>,
    /// Readable when the first copy is made.
    ready: UnixStream,
}

impl Life {
    fn begin(
        engine: &Engine,
        spec: &SyncSpec,
        links: Links,
        mut observer: Observer,
    ) -> Result<Self> {
        let source = canonical(&spec.source, links)?;
        let sandbox = engine.connect(&spec.sandbox, &Request::Wait)?.into_stream();
        // Before there is another thread: it must not be the one that a signal ends.
        let signals = Signals::collect(&[SIGTERM, SIGINT, SIGHUP]).map_err(not_started)?;
        let claim = registry::claim(engine.home(), spec, &source)?;
        let board = Arc::new(Board::new(&claim.directory, registry::first_status()));
        let (over, thread_over) = UnixStream::pair().map_err(not_started)?;
        let (ready, tell_ready) = UnixStream::pair().map_err(not_started)?;
        let mut tell_ready = Some(tell_ready);
        let observer: Observer = Box::new(move |event| {
            // Before the caller hears of it: its end means nothing any more.
            if matches!(event, SyncEvent::Ready { .. })
                && let Some(mut ready) = tell_ready.take()
            {
                let _ = ready.write_all(b"r");
            }
            observer(event);
        });
        let follower =
            Follower::new(engine, spec, &source, (&claim.id, Arc::clone(&board)), observer)
                .inspect_err(|_| drop(registry::remove(engine.home(), &claim.id)))?;
        let thread = std::thread::Builder::new()
            .name("follower".to_owned())
            .spawn(move || {
                let _over = thread_over;
                follower.run()
            })
            .map_err(not_started)?;
        let (home, name) = (engine.home().clone(), spec.sandbox.clone());
        Ok(Self { home, claim, board, signals, sandbox, name, over, thread, ready })
    }

    /// Waits for the end. Until the first copy is made, the end of the caller is one. The reason
    /// is kept for whoever asks later, unless it was told here.
    fn last(self, mut caller: Option<&UnixStream>, keep: bool) -> Result<SyncEnd> {
        let (mut ready, mut was_ready) = (Some(&self.ready), false);
        let end = loop {
            let mut fds = vec![self.signals.fd().as_fd(), self.sandbox.as_fd(), self.over.as_fd()];
            fds.extend(ready.map(AsFd::as_fd));
            fds.extend(caller.map(AsFd::as_fd));
            let mut fds: Vec<PollFd<'_>> =
                fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => break Err(Error::host("cannot wait", io::Error::from(error))),
            }
            let is_due = |number: usize| fds.get(number).is_some_and(|fd| !fd.revents().is_empty());
            let (signal, sandbox, over) = (is_due(0), is_due(1), is_due(2));
            let (now_ready, caller_left) = (ready.is_some() && is_due(3), is_due(4));
            if signal && self.signals.take().is_some() {
                break Ok(SyncEnd::Stopped);
            }
            if sandbox {
                break Ok(SyncEnd::Reason(format!("sandbox `{}` stopped", self.name)));
            }
            if over {
                break match self.thread.join() {
                    Ok(Ok(())) => Ok(SyncEnd::Reason("the source was moved or removed".to_owned())),
                    Ok(Err(error)) => Err(error),
                    Err(_) => Err(Error::new(Kind::State, "the sync has failed, by a bug of msb")),
                };
            }
            if now_ready {
                // Without a word it only means that the thread ends.
                was_ready = (&self.ready).read(&mut [0]).is_ok_and(|n| n > 0);
                (ready, caller) = (None, None);
            } else if caller_left && !is_readable(&self.ready) {
                break Ok(SyncEnd::Stopped);
            }
        };
        match &end {
            Ok(SyncEnd::Reason(reason)) if keep && was_ready => self.board.end(reason),
            Err(error) if keep && was_ready => self.board.end(error.message()),
            _ => drop(registry::remove(&self.home, &self.claim.id)),
        }
        match end {
            Ok(SyncEnd::Reason(reason)) if keep && !was_ready => {
                Err(Error::new(Kind::State, "the first copy was not made").cause(reason))
            }
            end => end,
        }
    }
}

/// Whether something can be read at once.
fn is_readable(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// The source as it is called whatever the current directory is.
fn canonical(source: &Path, links: Links) -> Result<PathBuf> {
    let about = |error| Error::host(format!("cannot sync `{}`", source.display()), error);
    let path = fs::canonicalize(source).map_err(about)?;
    if links == Links::Refused && path != source {
        return Err(through_a_link(source));
    }
    if !fs::metadata(&path).map_err(about)?.is_dir() {
        return Err(Error::invalid(format!("not a directory: `{}`", source.display()))
            .hint("`msb cp` copies a file"));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_was_judged_leads_nowhere_else() {
        let place = std::env::temp_dir().join(format!("msb-judged-{}", std::process::id()));
        fs::create_dir_all(place.join("real")).unwrap();
        let place = fs::canonicalize(place).unwrap();
        let (real, link) = (place.join("real"), place.join("link"));
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(canonical(&link, Links::Followed).unwrap(), real);
        assert_eq!(canonical(&real, Links::Refused).unwrap(), real);
        assert_eq!(canonical(&link, Links::Refused).unwrap_err().kind(), Kind::Denied);
        fs::remove_dir_all(place).unwrap();
    }
}
