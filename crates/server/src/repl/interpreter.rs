//! The thread that owns one interpreter.

use super::frames::{self, DriverFrame, FrameDecoder};
use super::{CodeEnd, CodeResult, InterruptReason, Language, OutputLines, OutputStream};
use crate::cancel::Cancel;
use msb_api::{Api, CodeEvent, Exec, ExecEvent, ExecInput};
use msb_spec::{CallOrigin, Error, Exit, Kind, Name, Result};
use msb_sys::signal::{SIGINT as INTERRUPT, SIGKILL as KILL};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

/// Messages in the channel of an owner; a driver that writes faster waits.
const CHANNEL_SIZE: usize = 64;
/// Most calls that wait for one interpreter.
const MOST_WAITING: usize = 256;
/// Time to start: enough for a large interpreter from a cold cache and a slow disk.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time between the interrupt and the kill.
const GRACE: Duration = Duration::from_secs(3);
/// How often the interrupt is repeated: an interpreter that is about to start code misses it.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(500);
/// An unused interpreter is ended after this time, because it keeps its sandbox from being idle.
const IDLE: Duration = Duration::from_secs(3600);
/// How long an owner without an interpreter remembers that there was one.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// The exit code of a shell that cannot find a program.
const NOT_FOUND: i32 = 127;

/// A message to an owner.
pub(super) enum OwnerMessage {
    /// Code to run, from a caller.
    CodeJob(CodeJob),
    /// Some call was cancelled.
    Cancelled,
    /// A frame of the driver with this number.
    Frame(u64, DriverFrame),
    /// Output of the driver outside of frames.
    RawOutput(u64, Vec<u8>),
    /// The driver has exited.
    DriverExited(u64, Result<Exit>),
    /// A probe for whether the owner still exists.
    Probe,
    /// The owner has to exit.
    Shutdown,
}

/// Code to run, and the channel for its result.
pub(super) struct CodeJob {
    pub(super) code: String,
    pub(super) limit: Duration,
    pub(super) cancel: Cancel,
    /// The audit origin of the call.
    pub(super) origin: CallOrigin,
    pub(super) result_sender: SyncSender<Result<CodeResult>>,
}

/// Starts an owner thread; its interpreter starts with the first call, whose origin the `Api` has.
pub(super) fn start_owner(
    api: Arc<dyn Api>,
    name: Name,
    language: Language,
) -> Result<SyncSender<OwnerMessage>> {
    let (messages, inbox) = mpsc::sync_channel(CHANNEL_SIZE);
    let owner = InterpreterOwner {
        api,
        name,
        language,
        messages: messages.clone(),
        inbox,
        waiting: VecDeque::new(),
        live: None,
        starts: 0,
        orders: 0,
        between_calls: OutputLines::default(),
        lost_reason: None,
    };
    thread::Builder::new()
        .name("repl".to_owned())
        .spawn(move || owner.serve())
        .map_err(|error| Error::host("cannot start a thread for the interpreter", error))?;
    Ok(messages)
}

struct InterpreterOwner {
    api: Arc<dyn Api>,
    name: Name,
    language: Language,
    /// A sender to itself, for the threads that it starts.
    messages: SyncSender<OwnerMessage>,
    inbox: Receiver<OwnerMessage>,
    waiting: VecDeque<CodeJob>,
    live: Option<RunningDriver>,
    starts: u64,
    orders: u64,
    /// Output between two calls; the next call gets it.
    between_calls: OutputLines,
    /// Why the state is lost, until a caller has been told.
    lost_reason: Option<&'static str>,
}

/// A running driver process.
struct RunningDriver {
    number: u64,
    input: Arc<dyn ExecInput>,
    /// Writes for the driver, in order. Another thread makes them: the sandbox may be paused, and the
    /// time limit of a call still counts.
    writes: Sender<DriverWrite>,
}

/// Something to write to a driver or to record about it.
enum DriverWrite {
    /// Records that code begins, then sends it.
    Code { code: String, origin: CallOrigin, frame: Vec<u8> },
    /// Records that the code has ended.
    Ended { status: Option<i32>, took: Duration },
}

impl RunningDriver {
    fn kill(&self) {
        let _ = self.input.signal(KILL);
    }
}

impl Drop for InterpreterOwner {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            live.kill();
        }
    }
}

impl InterpreterOwner {
    fn serve(mut self) {
        loop {
            if let Some(job) = self.waiting.pop_front() {
                if job.cancel.is_cancelled() {
                    let _ = job.result_sender.send(Err(cancelled()));
                    continue;
                }
                let started = Instant::now();
                let ran = self.run(&job);
                self.record_end(&ran, started.elapsed());
                let over = matches!(ran, Ok(None));
                let _ = job.result_sender.send(ran.and_then(|ran| ran.ok_or_else(ended)));
                if over {
                    return;
                }
                continue;
            }
            let patience = if self.live.is_some() { IDLE } else { FORGET_AFTER };
            match self.inbox.recv_timeout(patience) {
                Ok(OwnerMessage::CodeJob(job)) => self.waiting.push_back(job),
                Ok(OwnerMessage::Frame(number, frame)) if self.is_live(number) => match frame {
                    DriverFrame::Stdout(bytes) => {
                        self.between_calls.push(OutputStream::Stdout, &bytes)
                    }
                    DriverFrame::Stderr(bytes) => {
                        self.between_calls.push(OutputStream::Stderr, &bytes)
                    }
                    DriverFrame::Ready | DriverFrame::Done { .. } => {}
                },
                Ok(OwnerMessage::DriverExited(number, _)) if self.is_live(number) => {
                    self.live = None;
                    self.lost_reason = Some("the interpreter ended between two calls");
                }
                Ok(OwnerMessage::Shutdown) => return,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if self.live.is_some() => {
                    self.end_driver("the interpreter was ended because it was idle");
                }
                Err(_) => return,
            }
        }
    }

    fn is_live(&self, number: u64) -> bool {
        self.live.as_ref().is_some_and(|live| live.number == number)
    }

    /// Ends the interpreter; the next call reports why its state is lost.
    fn end_driver(&mut self, why: &'static str) {
        if let Some(live) = self.live.take() {
            live.kill();
        }
        self.lost_reason = Some(why);
    }

    /// Waits for a message until then; none after the time. Requests are queued.
    fn next(&mut self, until: Instant) -> Option<OwnerMessage> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left) {
                Ok(OwnerMessage::CodeJob(job)) if self.waiting.len() < MOST_WAITING => {
                    self.waiting.push_back(job);
                }
                Ok(OwnerMessage::CodeJob(job)) => {
                    let error = Error::new(Kind::Limit, "too many calls wait for the interpreter");
                    let _ = job.result_sender.send(Err(error));
                }
                Ok(OwnerMessage::Cancelled) => {
                    let (gone, kept) =
                        self.waiting.drain(..).partition(|job| job.cancel.is_cancelled());
                    self.waiting = kept;
                    let gone: VecDeque<CodeJob> = gone;
                    for job in gone {
                        let _ = job.result_sender.send(Err(cancelled()));
                    }
                    return Some(OwnerMessage::Cancelled);
                }
                Ok(message) => return Some(message),
                Err(_) => return None,
            }
        }
    }

    /// Runs code; none if the owner has to exit.
    fn run(&mut self, job: &CodeJob) -> Result<Option<CodeResult>> {
        let mut lines = OutputLines::default();
        if let Some(lost_reason) = self.lost_reason.take() {
            let message = format!("note: {lost_reason}; earlier definitions are lost\n");
            lines.push(OutputStream::Stderr, message.as_bytes());
        }
        if self.live.is_none() && !self.start(&job.cancel)? {
            return Ok(None);
        }
        let Some(live) = &self.live else {
            return Ok(None);
        };
        for line in std::mem::take(&mut self.between_calls).finish() {
            lines.push(line.stream, line.text.as_bytes());
            lines.push(line.stream, b"\n");
        }
        self.orders += 1;
        let frame = frames::encode_request(self.orders, &job.code);
        let (code, origin) = (job.code.clone(), job.origin.clone());
        // A writer that has ended has lost its driver, which reports its exit.
        let _ = live.writes.send(DriverWrite::Code { code, origin, frame });

        let mut until = Instant::now() + job.limit;
        // When the next interrupt is due.
        let mut due = until;
        let mut why = None;
        loop {
            let message = if job.cancel.is_cancelled() && why.is_none() {
                Some(OwnerMessage::Cancelled)
            } else if Instant::now() >= due {
                // Checked first: code that never stops writing must still time out.
                None
            } else {
                self.next(due)
            };
            let stopped = match message {
                Some(OwnerMessage::Frame(number, frame)) if self.is_live(number) => match frame {
                    DriverFrame::Stdout(bytes) => {
                        lines.push(OutputStream::Stdout, &bytes);
                        continue;
                    }
                    DriverFrame::Stderr(bytes) => {
                        lines.push(OutputStream::Stderr, &bytes);
                        continue;
                    }
                    DriverFrame::Done { number, succeeded } if number == self.orders => {
                        let ended = match (why, succeeded) {
                            (Some(why), _) => CodeEnd::Interrupted(why),
                            (None, true) => CodeEnd::Succeeded,
                            (None, false) => CodeEnd::Thrown,
                        };
                        return Ok(Some(CodeResult { lines: lines.finish(), ended }));
                    }
                    DriverFrame::Ready | DriverFrame::Done { .. } => continue,
                },
                Some(OwnerMessage::RawOutput(number, bytes)) if self.is_live(number) => {
                    lines.push(OutputStream::Stderr, &bytes);
                    continue;
                }
                Some(OwnerMessage::DriverExited(number, exit)) if self.is_live(number) => {
                    self.live = None;
                    let ended = match why {
                        Some(why) => CodeEnd::Killed(why),
                        None => CodeEnd::Crashed(describe_exit(&exit)),
                    };
                    return Ok(Some(CodeResult { lines: lines.finish(), ended }));
                }
                Some(OwnerMessage::Shutdown) => return Ok(None),
                Some(OwnerMessage::Cancelled) if job.cancel.is_cancelled() => {
                    InterruptReason::Cancelled
                }
                Some(_) => continue,
                None => InterruptReason::Timeout(job.limit),
            };
            match why {
                // The interrupt had no effect.
                Some(why) if Instant::now() >= until => {
                    self.end_driver("the interpreter was ended");
                    self.lost_reason = None;
                    return Ok(Some(CodeResult {
                        lines: lines.finish(),
                        ended: CodeEnd::Killed(why),
                    }));
                }
                Some(_) => {}
                None => {
                    why = Some(stopped);
                    until = Instant::now() + GRACE;
                }
            }
            due = until.min(Instant::now() + INTERRUPT_INTERVAL);
            if let Some(live) = &self.live {
                let _ = live.input.signal(INTERRUPT);
            }
        }
    }

    /// Records the end of a call in the event log of the sandbox.
    fn record_end(&self, ran: &Result<Option<CodeResult>>, took: Duration) {
        let (Ok(Some(ran)), Some(live)) = (ran, &self.live) else { return };
        let status = match ran.ended {
            CodeEnd::Succeeded => Some(0),
            CodeEnd::Thrown => Some(1),
            CodeEnd::Interrupted(_) | CodeEnd::Killed(_) | CodeEnd::Crashed(_) => None,
        };
        // The end of the driver itself is recorded anyway.
        let _ = live.writes.send(DriverWrite::Ended { status, took });
    }

    /// Starts the interpreter and waits until it is ready; false if the owner has to exit.
    fn start(&mut self, cancel: &Cancel) -> Result<bool> {
        let about = |error: Error| {
            error.under(format!("cannot start the interpreter of `{}`", self.language.as_str()))
        };
        let exec = self.language.start(self.api.as_ref(), &self.name).map_err(about)?;
        self.starts += 1;
        let (number, input, messages) = (self.starts, exec.input(), self.messages.clone());
        let (writes, queue) = mpsc::channel();
        let live = RunningDriver { number, input: Arc::clone(&input), writes };
        self.between_calls = OutputLines::default();
        let no_thread = |error| Error::host("cannot start a thread for the interpreter", error);
        thread::Builder::new()
            .name("repl-reader".to_owned())
            .spawn(move || forward_output(exec, number, &messages))
            .map_err(no_thread)?;
        thread::Builder::new()
            .name("repl-writer".to_owned())
            .spawn(move || write_in_order(input.as_ref(), &queue))
            .map_err(no_thread)?;
        self.live = Some(live);
        let until = Instant::now() + START_LIMIT;
        let mut startup_output = OutputLines::default();
        let failed = loop {
            match self.next(until) {
                Some(OwnerMessage::Frame(of, DriverFrame::Ready)) if of == number => {
                    return Ok(true);
                }
                Some(OwnerMessage::RawOutput(of, bytes)) if of == number => {
                    startup_output.push(OutputStream::Stderr, &bytes)
                }
                Some(OwnerMessage::DriverExited(of, exit)) if of == number => {
                    let missing = exit.as_ref().is_ok_and(|exit| exit.code == Some(NOT_FOUND));
                    break match missing {
                        true => self.language.missing(),
                        false => Error::new(Kind::State, describe_exit(&exit)),
                    };
                }
                Some(OwnerMessage::Shutdown) => return Ok(false),
                Some(OwnerMessage::Cancelled) if cancel.is_cancelled() => break cancelled(),
                Some(_) => {}
                None => break Error::new(Kind::Timeout, "the interpreter did not become ready"),
            }
        };
        if let Some(live) = self.live.take() {
            live.kill();
        }
        // A program that cannot start prints the reason last.
        Err(startup_output.finish().pop().map_or(failed.clone(), |line| failed.cause(line.text)))
    }
}

/// Makes the writes of a driver one after the other, until it is gone or the owner drops it.
fn write_in_order(input: &dyn ExecInput, queue: &Receiver<DriverWrite>) {
    while let Ok(write) = queue.recv() {
        let written = match write {
            DriverWrite::Code { code, origin, frame } => {
                let begun = CodeEvent::Began { code: &code, origin: &origin };
                input.note(&begun).and_then(|()| input.write(&frame))
            }
            DriverWrite::Ended { status, took } => input.note(&CodeEvent::Ended { status, took }),
        };
        if written.is_err() {
            return;
        }
    }
}

/// Forwards the driver's output to the owner until the driver has exited.
fn forward_output(mut exec: Box<dyn Exec>, number: u64, messages: &SyncSender<OwnerMessage>) {
    let mut decoder = FrameDecoder::default();
    let exit = loop {
        let event = match exec.next() {
            Ok(Some(event)) => event,
            Ok(None) => break Err(ended()),
            Err(error) => break Err(error),
        };
        match event {
            ExecEvent::Stdout(bytes) => {
                decoder.push(&bytes);
                loop {
                    match decoder.next() {
                        Ok(Some(frame)) => {
                            if messages.send(OwnerMessage::Frame(number, frame)).is_err() {
                                return;
                            }
                        }
                        Ok(None) => break,
                        Err(error) => {
                            // Dropping it kills the driver: after an invalid frame the stream is
                            // out of step.
                            drop(exec);
                            let _ = messages.send(OwnerMessage::DriverExited(number, Err(error)));
                            return;
                        }
                    }
                }
            }
            ExecEvent::Stderr(bytes) => {
                if messages.send(OwnerMessage::RawOutput(number, bytes)).is_err() {
                    return;
                }
            }
            ExecEvent::Exited(exit) => break Ok(exit),
        }
    };
    let _ = messages.send(OwnerMessage::DriverExited(number, exit));
}

/// Describes how an interpreter ended.
fn describe_exit(exit: &Result<Exit>) -> String {
    match exit {
        Ok(exit) => match (exit.reason(), exit.code, exit.signal) {
            (Some(reason), _, _) => format!("the interpreter ended: {reason}"),
            (None, Some(code), _) => format!("the interpreter exited with {code}"),
            (None, None, Some(signal)) => format!("the interpreter was killed by signal {signal}"),
            (None, None, None) => "the interpreter ended".to_owned(),
        },
        Err(error) => error.to_string(),
    }
}

fn cancelled() -> Error {
    Error::new(Kind::State, "the call was cancelled")
}

fn ended() -> Error {
    Error::new(Kind::State, "the interpreter was ended with its sandbox")
}
