//! Starts the sync process and waits for its end.
//!
//! One thread follows the source, and may block on a paused sandbox. The main thread waits for what
//! ends the sync: a signal, the end of the sandbox, or the end of the caller before the first copy
//! is complete.

use super::follower::Follower;
use super::registry::{self, SyncClaim};
use super::status_file::StatusFile;
use super::{Observer, SYNC_ARGUMENT, SyncEnd, SyncEvent, SyncSpec};
use crate::files::{SymlinkPolicy, symlink_in_path};
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

/// The request to a new sync process. Paths are bytes.
#[derive(Debug, Serialize, Deserialize)]
struct SyncRequest {
    home: Vec<u8>,
    source: Vec<u8>,
    sandbox: Name,
    target: Vec<u8>,
    excludes: Vec<String>,
    default_excludes: bool,
}

/// The replies of the sync process, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
enum SyncReply {
    Sent { files: u64, bytes: u64 },
    Unsent(Error),
    Ready { id: String },
    Failed(Error),
}

/// The most bytes of a request.
const REQUEST_LIMIT: u64 = 16 << 20;
/// The most failures of the first copy that are reported; all are counted.
const MAX_REPORTED: usize = 20;

/// Starts a sync process and waits for its first copy.
pub(crate) fn start(
    engine: &Engine,
    spec: &SyncSpec,
    links: SymlinkPolicy,
    progress: &mut dyn FnMut(SyncEvent),
) -> Result<String> {
    let about = |error: io::Error| Error::host("cannot start a sync", error);
    let request = SyncRequest {
        home: engine.home().path().as_os_str().as_bytes().to_vec(),
        source: canonical(&spec.source, links)?.into_os_string().into_vec(),
        sandbox: spec.sandbox.clone(),
        target: spec.target.clone(),
        excludes: spec.excludes.clone(),
        default_excludes: spec.default_excludes,
    };
    let request = serde_json::to_vec(&request).expect("our own types always serialise");
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
    let sent = ours
        .write_all(&(request.len() as u64).to_le_bytes())
        .and_then(|()| ours.write_all(&request));
    // It forks at once; the process that we started exits.
    child.wait().map_err(about)?;
    sent.map_err(about)?;
    for line in BufReader::new(ours).lines() {
        let answer = serde_json::from_str(&line.map_err(about)?);
        match answer.map_err(|error| about(io::Error::other(error)))? {
            SyncReply::Sent { files, bytes } => progress(SyncEvent::Sent { files, bytes }),
            SyncReply::Unsent(error) => progress(SyncEvent::Failed(error)),
            SyncReply::Ready { id } => return Ok(id),
            SyncReply::Failed(error) => return Err(error),
        }
    }
    Err(Error::new(Kind::State, "the sync ended before its first copy was made"))
}

/// Runs as the sync process that stdin requests.
pub(crate) fn serve() -> i32 {
    let Ok((request, caller)) = receive() else { return 125 };
    // Forked, so that init reaps it.
    match msb_sys::process::fork() {
        Ok(true) => msb_sys::process::leave(serve_detached(request, caller)),
        Ok(false) => 0,
        Err(_) => 125,
    }
}

fn receive() -> io::Result<(SyncRequest, UnixStream)> {
    let mut caller = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    let mut length = [0; 8];
    caller.read_exact(&mut length)?;
    let mut request = Vec::new();
    let length = u64::from_le_bytes(length).min(REQUEST_LIMIT);
    Read::by_ref(&mut caller).take(length).read_to_end(&mut request)?;
    Ok((serde_json::from_slice(&request)?, caller))
}

fn serve_detached(request: SyncRequest, mut caller: UnixStream) -> i32 {
    let SyncRequest { home, source, sandbox, target, excludes, default_excludes } = request;
    let (home, source) = (PathBuf::from(OsString::from_vec(home)), OsString::from_vec(source));
    let source = PathBuf::from(source);
    let spec = SyncSpec { source, sandbox, target, excludes, default_excludes };
    let served = detach().and_then(|()| {
        // The sync process starts no worker and executes nothing.
        let engine = Engine::at(Home::at(&home)?, Launcher::Execute(PathBuf::new()));
        let observer = report_to_caller(caller.try_clone().map_err(not_started)?);
        // The caller has resolved symlinks already.
        let life = RunningSync::begin(&engine, &spec, SymlinkPolicy::Refuse, observer)?;
        life.wait_for_end(Some(&caller), true)
    });
    match served {
        Ok(_) => 0,
        Err(error) => {
            answer(&mut caller, &SyncReply::Failed(error));
            125
        }
    }
}

/// Detaches from the terminal, the current directory and stdin of the caller.
fn detach() -> Result<()> {
    rustix::process::setsid().map_err(|error| not_started(error.into()))?;
    std::env::set_current_dir("/").map_err(not_started)?;
    let null = fs::File::options().read(true).write(true).open("/dev/null").map_err(not_started)?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| not_started(error.into()))
}

fn not_started(error: io::Error) -> Error {
    Error::host("cannot start a sync", error)
}

/// Sends events to the caller until the first copy is complete.
fn report_to_caller(caller: UnixStream) -> Observer {
    let mut caller = Some(caller);
    let mut reported = 0;
    Box::new(move |event| {
        let Some(stream) = &mut caller else { return };
        match event {
            SyncEvent::Sent { files, bytes } => answer(stream, &SyncReply::Sent { files, bytes }),
            SyncEvent::Failed(error) if reported < MAX_REPORTED => {
                reported += 1;
                answer(stream, &SyncReply::Unsent(error));
            }
            SyncEvent::Ready { id } => {
                answer(stream, &SyncReply::Ready { id });
                caller = None;
            }
            _ => {}
        }
    })
}

fn answer(caller: &mut UnixStream, answer: &SyncReply) {
    let mut line = serde_json::to_vec(answer).expect("our own types always serialise");
    line.push(b'\n');
    // A closed connection is noticed by the main thread.
    let _ = caller.write_all(&line);
}

/// Runs a sync in this process.
pub(crate) fn run_in_process(
    engine: &Engine,
    spec: &SyncSpec,
    observer: Observer,
) -> Result<SyncEnd> {
    RunningSync::begin(engine, spec, SymlinkPolicy::Follow, observer)?.wait_for_end(None, false)
}

/// A sync that is running in this process.
struct RunningSync {
    home: Home,
    claim: SyncClaim,
    status_file: Arc<StatusFile>,
    signals: Signals,
    /// Readable when the sandbox has ended.
    sandbox: UnixStream,
    name: Name,
    /// Readable when the follower thread has ended.
    over: UnixStream,
    thread: JoinHandle<Result<()>>,
    /// Readable when the first copy is complete.
    ready: UnixStream,
}

impl RunningSync {
    fn begin(
        engine: &Engine,
        spec: &SyncSpec,
        links: SymlinkPolicy,
        mut observer: Observer,
    ) -> Result<Self> {
        let source = canonical(&spec.source, links)?;
        let sandbox = engine.connect(&spec.sandbox, &Request::Wait)?.into_stream();
        // Blocked before the thread starts, so that it inherits the signal mask.
        let signals = Signals::collect(&[SIGTERM, SIGINT, SIGHUP]).map_err(not_started)?;
        let claim = registry::claim(engine.home(), spec, &source)?;
        let status_file = Arc::new(StatusFile::new(&claim.directory, registry::first_status()));
        let (over, thread_over) = UnixStream::pair().map_err(not_started)?;
        let (ready, tell_ready) = UnixStream::pair().map_err(not_started)?;
        let mut tell_ready = Some(tell_ready);
        let observer: Observer = Box::new(move |event| {
            // Before the caller is told: its end no longer stops the sync.
            if matches!(event, SyncEvent::Ready { .. })
                && let Some(mut ready) = tell_ready.take()
            {
                let _ = ready.write_all(b"r");
            }
            observer(event);
        });
        let follower =
            Follower::new(engine, spec, &source, (&claim.id, Arc::clone(&status_file)), observer)
                .inspect_err(|_| drop(registry::remove(engine.home(), &claim.id)))?;
        let thread = std::thread::Builder::new()
            .name("follower".to_owned())
            .spawn(move || {
                let _over = thread_over;
                follower.run()
            })
            .map_err(not_started)?;
        let (home, name) = (engine.home().clone(), spec.sandbox.clone());
        Ok(Self { home, claim, status_file, signals, sandbox, name, over, thread, ready })
    }

    /// Waits for the end. Before the first copy is complete, the end of the caller counts. With
    /// `keep` the reason is stored in the status file.
    fn wait_for_end(self, mut caller: Option<&UnixStream>, keep: bool) -> Result<SyncEnd> {
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
                    Err(_) => Err(Error::new(
                        Kind::State,
                        "the sync thread has panicked; this is a bug of msb",
                    )),
                };
            }
            if now_ready {
                // Closed without a byte, it means that the thread has ended.
                was_ready = (&self.ready).read(&mut [0]).is_ok_and(|n| n > 0);
                (ready, caller) = (None, None);
            } else if caller_left && !is_readable(&self.ready) {
                break Ok(SyncEnd::Stopped);
            }
        };
        match &end {
            Ok(SyncEnd::Reason(reason)) if keep && was_ready => self.status_file.end(reason),
            Err(error) if keep && was_ready => self.status_file.end(error.message()),
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

/// Whether the socket is readable now.
fn is_readable(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// The canonical path of the source. Fails if symlinks are refused and it had one.
fn canonical(source: &Path, links: SymlinkPolicy) -> Result<PathBuf> {
    let about = |error| Error::host(format!("cannot sync `{}`", source.display()), error);
    let path = fs::canonicalize(source).map_err(about)?;
    if links == SymlinkPolicy::Refuse && path != source {
        return Err(symlink_in_path(source));
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
    fn a_symlink_in_a_checked_source_is_refused() {
        let place = std::env::temp_dir().join(format!("msb-judged-{}", std::process::id()));
        fs::create_dir_all(place.join("real")).unwrap();
        let place = fs::canonicalize(place).unwrap();
        let (real, link) = (place.join("real"), place.join("link"));
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(canonical(&link, SymlinkPolicy::Follow).unwrap(), real);
        assert_eq!(canonical(&real, SymlinkPolicy::Refuse).unwrap(), real);
        assert_eq!(canonical(&link, SymlinkPolicy::Refuse).unwrap_err().kind(), Kind::Denied);
        fs::remove_dir_all(place).unwrap();
    }
}
