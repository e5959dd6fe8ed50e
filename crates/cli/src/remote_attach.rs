//! The streams of a command behind a server joined to ours, until it ends or we leave.
//!
//! What a server says can only be waited for by blocking, so each side has a thread: one hears the
//! command, one reads stdin, one waits for signals. The main thread writes.

use crate::local_attach::{self, AttachOptions, AttachResult, ClosedOutput};
use crate::terminal::{self, DetachKeys, Raw, TypedInput};
use msb_api::{Api, Exec, ExecEvent, ExecInput};
use msb_spec::{Error, Kind, Name, Result, Stdin};
use msb_sys::signal::{self, Signals};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::io::{IsTerminal, Write, stderr, stdin, stdout};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Signals that are the command's once it runs, and ours until then.
pub(crate) struct SignalForwarder(Arc<Mutex<Option<Arc<SignalTarget>>>>);

/// The command that signals are forwarded to.
struct SignalTarget {
    api: Arc<dyn Api>,
    name: Name,
    exec: u64,
    input: Arc<dyn ExecInput>,
    tty: bool,
}

impl SignalTarget {
    /// Beside the stream, where a command that does not read may hold everything up.
    fn signal(&self, number: i32) {
        if self.api.exec_signal(&self.name, self.exec, number).is_err() {
            // It has not begun yet, or is over.
            let _ = self.input.signal(number);
        }
    }

    fn resize(&self) {
        if self.tty {
            let _ = self.input.resize(terminal::size());
        }
    }

    /// Our reader has left: the command learns of it as it would without us.
    fn broken_pipe(&self) {
        self.signal(if self.tty { signal::SIGHUP } else { signal::SIGPIPE });
    }
}

/// What a thread reports to the main thread.
enum RemoteEvent {
    Did(ExecEvent),
    Failed(Error),
    /// We have asked to be let go.
    Leaving,
    /// Nothing comes any more.
    Over,
}

/// How long a server may take to detach us. Hanging up before that would end the command.
const LETTING_GO: Duration = Duration::from_secs(10);

/// Pieces of output that wait for a slow reader of ours, before the server has to.
const WAITING: usize = 16;

impl SignalForwarder {
    /// Collects signals from now on. To be called before there are other threads: the kernel gives
    /// a signal to any of them that does not block it.
    pub(crate) fn collect() -> Result<Self> {
        let about = |error| Error::host("cannot attend the command", error);
        let signals = local_attach::collect().map_err(about)?;
        let target = Arc::new(Mutex::new(None));
        let shared = Arc::clone(&target);
        thread::spawn(move || pass(&signals, &shared));
        Ok(Self(target))
    }

    fn are_for(&self, target: &Arc<SignalTarget>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(target));
    }
}

/// Hands signals on for as long as the process lives.
fn pass(signals: &Signals, target: &Mutex<Option<Arc<SignalTarget>>>) {
    let mut asked_to_end = 0;
    loop {
        let mut waits = [PollFd::new(signals.fd(), PollFlags::IN)];
        match rustix::event::poll(&mut waits, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        while let Some(number) = signals.take() {
            let target = target.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match (target, number) {
                (Some(target), signal::SIGWINCH) => target.resize(),
                (None, signal::SIGWINCH) => {}
                (Some(target), number) => {
                    asked_to_end += 1;
                    // The third signal kills: the command ignored two.
                    let number = if asked_to_end >= 3 { signal::SIGKILL } else { number };
                    target.signal(number);
                }
                // There is no command yet, so this process ends.
                (None, number) => msb_sys::process::leave(128 + number),
            }
        }
    }
}

/// Joins our streams to a command's.
pub(crate) fn attach(
    (api, name): (&Arc<dyn Api>, &Name),
    exec: Box<dyn Exec>,
    part: AttachOptions,
    calls: &SignalForwarder,
) -> Result<AttachResult> {
    let (id, input) = (exec.id(), exec.input());
    if part.leave_at_once {
        return Ok(AttachResult::Detached { exec: id });
    }
    let keys = if part.tty { Some(DetachKeys::configured()?) } else { None };
    // A command may have a terminal where we have none.
    let raw = part.tty && stdin().is_terminal();
    let _raw = if raw { Some(Raw::enter()?) } else { None };
    let (api, name, tty) = (Arc::clone(api), name.clone(), part.tty);
    let target = Arc::new(SignalTarget { api, name, exec: id, input: Arc::clone(&input), tty });
    calls.are_for(&target);
    // It may have changed since the command was planned.
    target.resize();
    let (tell, heard) = sync_channel(WAITING);
    if part.stdin == Stdin::Streamed {
        let tell = tell.clone();
        thread::spawn(move || read_stdin(&*input, keys, &tell));
    }
    thread::spawn(move || hear(exec, &tell));
    let mut leaving = None;
    let mut closed = false;
    loop {
        let what = match leaving {
            None => heard.recv().unwrap_or(RemoteEvent::Over),
            Some(since) => heard
                .recv_timeout(LETTING_GO.saturating_sub(Instant::elapsed(&since)))
                .unwrap_or_else(|_| RemoteEvent::Failed(kept())),
        };
        let written = match what {
            RemoteEvent::Did(ExecEvent::Stdout(bytes)) => {
                let mut out = stdout().lock();
                out.write_all(&bytes).and_then(|()| out.flush())
            }
            RemoteEvent::Did(ExecEvent::Stderr(bytes)) => stderr().lock().write_all(&bytes),
            RemoteEvent::Did(ExecEvent::Exited(exit)) => return Ok(AttachResult::Exited(exit)),
            RemoteEvent::Failed(error) => return Err(error),
            RemoteEvent::Leaving => {
                leaving = Some(Instant::now());
                Ok(())
            }
            RemoteEvent::Over if leaving.is_some() => {
                return Ok(AttachResult::Detached { exec: id });
            }
            RemoteEvent::Over => {
                let message = "the server went away before the command ended";
                return Err(Error::new(Kind::Protocol, message));
            }
        };
        // Once is enough: what comes after its end would disturb the last words.
        if written.is_err() && !std::mem::replace(&mut closed, true) {
            match part.closed_output {
                ClosedOutput::ClosePipe => target.broken_pipe(),
                ClosedOutput::Detach => {
                    leaving = Some(Instant::now());
                    target.input.detach()?;
                }
            }
        }
    }
}

fn kept() -> Error {
    Error::new(Kind::Timeout, "the server did not let go of the command")
        .hint("it may have ended with the connection; `msb ps --execs` tells")
}

fn hear(mut exec: Box<dyn Exec>, tell: &SyncSender<RemoteEvent>) {
    loop {
        let (heard, over) = match exec.next() {
            Ok(Some(event)) => {
                let over = matches!(event, ExecEvent::Exited(_));
                (RemoteEvent::Did(event), over)
            }
            Ok(None) => (RemoteEvent::Over, true),
            Err(error) => (RemoteEvent::Failed(error), true),
        };
        if tell.send(heard).is_err() || over {
            return;
        }
    }
}

fn read_stdin(input: &dyn ExecInput, mut keys: Option<DetachKeys>, tell: &SyncSender<RemoteEvent>) {
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let n = match rustix::io::read(stdin(), &mut *buffer) {
            Ok(n) => n,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                // Our stdin is non-blocking: its other holders may have set that.
                let input = stdin();
                let mut waits = [PollFd::new(&input, PollFlags::IN)];
                let _ = rustix::event::poll(&mut waits, None);
                continue;
            }
            // A stdin that cannot be read has ended.
            Err(_) => 0,
        };
        let (bytes, leaving) = match &mut keys {
            Some(keys) if n > 0 => match keys.filter(&buffer[..n]) {
                TypedInput::Send(bytes) => (bytes, false),
                TypedInput::SendAndDetach(bytes) => (bytes, true),
            },
            _ => (buffer[..n].to_vec(), false),
        };
        let written = match (n, bytes.is_empty()) {
            (0, _) => input.close(),
            (_, false) => input.write(&bytes),
            (_, true) => Ok(()),
        };
        if leaving {
            // First, so that what comes of it is understood.
            let _ = tell.send(RemoteEvent::Leaving);
            if let Err(error) = written.and_then(|()| input.detach()) {
                let _ = tell.send(RemoteEvent::Failed(error));
            }
            return;
        }
        // Its last words may still be there to hear.
        if n == 0 || written.is_err() {
            return;
        }
    }
}
