//! The thread that owns one interpreter.

use super::frames::{self, Decoder, Frame};
use super::{Ended, Language, Lines, Ran, Stream, Why};
use crate::cancel::Cancel;
use msb_api::{Api, CodeEvent, Exec, ExecEvent, ExecInput, asked_by};
use msb_spec::{Asker, Error, Exit, Kind, Name, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

/// Notes on their way; a driver that says much waits.
const ROOM: usize = 64;
/// Calls that wait for one interpreter.
const MOST_WAITING: usize = 256;
/// A cold cache and a slow disk, for an interpreter that is large.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long code has to end after it was interrupted.
const GRACE: Duration = Duration::from_secs(3);
/// How often it is asked in that time: an interpreter that is about to begin does not hear yet.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long an interpreter is kept that nobody uses. It keeps a sandbox from being idle, too.
const IDLE: Duration = Duration::from_secs(3600);
/// How long it is remembered that there was one.
const REMEMBERED: Duration = Duration::from_secs(60);

const INTERRUPT: i32 = 2;
const KILL: i32 = 9;
/// What a shell says of a program that is not there.
const NOT_FOUND: i32 = 127;

/// What an owner is told.
pub(super) enum Note {
    /// Code is to be run.
    Order(Order),
    /// Some call was cancelled.
    Cancelled,
    /// The driver reports something.
    Said(u64, Frame),
    /// The driver said this outside of frames.
    Raw(u64, Vec<u8>),
    /// The driver has ended.
    Over(u64, Result<Exit>),
    /// Nothing: whether there is still an owner.
    Look,
    /// It is not needed any more.
    End,
}

/// Code to be run, and who waits for it.
pub(super) struct Order {
    pub(super) code: String,
    pub(super) limit: Duration,
    pub(super) cancel: Cancel,
    /// Who asked for it.
    pub(super) asker: Option<Asker>,
    pub(super) told: SyncSender<Result<Ran>>,
}

/// Makes an owner; its interpreter is started with the first code.
pub(super) fn own(api: Arc<dyn Api>, name: Name, language: Language) -> Result<SyncSender<Note>> {
    let (notes, inbox) = mpsc::sync_channel(ROOM);
    let owner = Owner {
        api,
        name,
        language,
        notes: notes.clone(),
        inbox,
        waiting: VecDeque::new(),
        live: None,
        starts: 0,
        orders: 0,
        between: Lines::default(),
        lost: None,
    };
    // Whoever needs it first has it started.
    let asker = msb_api::asker();
    thread::Builder::new()
        .name("repl".to_owned())
        .spawn(move || asked_by(asker, || owner.serve()))
        .map_err(|error| Error::host("cannot make a thread for the interpreter", error))?;
    Ok(notes)
}

struct Owner {
    api: Arc<dyn Api>,
    name: Name,
    language: Language,
    /// For those who tell us something.
    notes: SyncSender<Note>,
    inbox: Receiver<Note>,
    waiting: VecDeque<Order>,
    live: Option<Live>,
    starts: u64,
    orders: u64,
    /// What was said while no code was running; it belongs to the next.
    between: Lines,
    /// Why what was defined before is lost, until somebody was told.
    lost: Option<&'static str>,
}

/// A driver that runs.
struct Live {
    number: u64,
    input: Arc<dyn ExecInput>,
}

impl Live {
    fn kill(&self) {
        let _ = self.input.signal(KILL);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            live.kill();
        }
    }
}

impl Owner {
    fn serve(mut self) {
        loop {
            if let Some(order) = self.waiting.pop_front() {
                if order.cancel.is_cancelled() {
                    let _ = order.told.send(Err(cancelled()));
                    continue;
                }
                let begun = Instant::now();
                let ran = self.run(&order);
                self.note_end(&ran, begun.elapsed());
                let over = matches!(ran, Ok(None));
                let _ = order.told.send(ran.and_then(|ran| ran.ok_or_else(ended)));
                if over {
                    return;
                }
                continue;
            }
            let patience = if self.live.is_some() { IDLE } else { REMEMBERED };
            match self.inbox.recv_timeout(patience) {
                Ok(Note::Order(order)) => self.waiting.push_back(order),
                Ok(Note::Said(number, frame)) if self.is_live(number) => match frame {
                    Frame::Stdout(bytes) => self.between.push(Stream::Stdout, &bytes),
                    Frame::Stderr(bytes) => self.between.push(Stream::Stderr, &bytes),
                    Frame::Ready | Frame::Done { .. } => {}
                },
                Ok(Note::Over(number, _)) if self.is_live(number) => {
                    self.live = None;
                    self.lost = Some("the interpreter ended between two calls");
                }
                Ok(Note::End) => return,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if self.live.is_some() => {
                    self.give_up("the interpreter was ended because nobody used it");
                }
                Err(_) => return,
            }
        }
    }

    fn is_live(&self, number: u64) -> bool {
        self.live.as_ref().is_some_and(|live| live.number == number)
    }

    /// Ends the interpreter; the next code is told why it knows nothing.
    fn give_up(&mut self, why: &'static str) {
        if let Some(live) = self.live.take() {
            live.kill();
        }
        self.lost = Some(why);
    }

    /// Waits for a note until then; none if the time has come. Orders are put in line.
    fn next(&mut self, until: Instant) -> Option<Note> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.inbox.recv_timeout(left) {
                Ok(Note::Order(order)) if self.waiting.len() < MOST_WAITING => {
                    self.waiting.push_back(order);
                }
                Ok(Note::Order(order)) => {
                    let error = Error::new(Kind::Limit, "too many calls wait for the interpreter");
                    let _ = order.told.send(Err(error));
                }
                Ok(Note::Cancelled) => {
                    let (gone, kept) =
                        self.waiting.drain(..).partition(|order| order.cancel.is_cancelled());
                    self.waiting = kept;
                    let gone: VecDeque<Order> = gone;
                    for order in gone {
                        let _ = order.told.send(Err(cancelled()));
                    }
                    return Some(Note::Cancelled);
                }
                Ok(note) => return Some(note),
                Err(_) => return None,
            }
        }
    }

    /// Runs code; none if this interpreter is not needed any more.
    fn run(&mut self, order: &Order) -> Result<Option<Ran>> {
        let mut lines = Lines::default();
        if let Some(lost) = self.lost.take() {
            let note = format!("note: {lost}; what was defined before is gone\n");
            lines.push(Stream::Stderr, note.as_bytes());
        }
        if self.live.is_none() && !self.start(&order.cancel)? {
            return Ok(None);
        }
        let Some(live) = &self.live else {
            return Ok(None);
        };
        for line in std::mem::take(&mut self.between).finish() {
            lines.push(line.stream, line.text.as_bytes());
            lines.push(line.stream, b"\n");
        }
        self.orders += 1;
        let (input, frame) = (Arc::clone(&live.input), frames::order(self.orders, &order.code));
        let (code, asker) = (order.code.clone(), order.asker.clone());
        // Beside this one: the sandbox may be paused, and the time passes all the same.
        thread::spawn(move || {
            let noted = asked_by(asker, || input.note(&CodeEvent::Began(&code)));
            noted.and_then(|()| input.write(&frame))
        });

        let mut until = Instant::now() + order.limit;
        // When it is asked to end, and then asked again.
        let mut due = until;
        let mut why = None;
        loop {
            let note = if order.cancel.is_cancelled() && why.is_none() {
                Some(Note::Cancelled)
            } else if Instant::now() >= due {
                // Looked at first: code that never stops talking is late all the same.
                None
            } else {
                self.next(due)
            };
            let stopped = match note {
                Some(Note::Said(number, frame)) if self.is_live(number) => match frame {
                    Frame::Stdout(bytes) => {
                        lines.push(Stream::Stdout, &bytes);
                        continue;
                    }
                    Frame::Stderr(bytes) => {
                        lines.push(Stream::Stderr, &bytes);
                        continue;
                    }
                    Frame::Done { number, well } if number == self.orders => {
                        let ended = match (why, well) {
                            (Some(why), _) => Ended::Interrupted(why),
                            (None, true) => Ended::Well,
                            (None, false) => Ended::Thrown,
                        };
                        return Ok(Some(Ran { lines: lines.finish(), ended }));
                    }
                    Frame::Ready | Frame::Done { .. } => continue,
                },
                Some(Note::Raw(number, bytes)) if self.is_live(number) => {
                    lines.push(Stream::Stderr, &bytes);
                    continue;
                }
                Some(Note::Over(number, exit)) if self.is_live(number) => {
                    self.live = None;
                    let ended = match why {
                        Some(why) => Ended::Killed(why),
                        None => Ended::Crashed(words(&exit)),
                    };
                    return Ok(Some(Ran { lines: lines.finish(), ended }));
                }
                Some(Note::End) => return Ok(None),
                Some(Note::Cancelled) if order.cancel.is_cancelled() => Why::Cancelled,
                Some(_) => continue,
                None => Why::Timeout(order.limit),
            };
            match why {
                // Asked in vain.
                Some(why) if Instant::now() >= until => {
                    self.give_up("the interpreter was ended");
                    self.lost = None;
                    return Ok(Some(Ran { lines: lines.finish(), ended: Ended::Killed(why) }));
                }
                Some(_) => {}
                None => {
                    why = Some(stopped);
                    until = Instant::now() + GRACE;
                }
            }
            due = until.min(Instant::now() + ASK_AGAIN);
            if let Some(live) = &self.live {
                let _ = live.input.signal(INTERRUPT);
            }
        }
    }

    /// Notes how code ended whose interpreter is there to tell.
    fn note_end(&self, ran: &Result<Option<Ran>>, took: Duration) {
        let (Ok(Some(ran)), Some(live)) = (ran, &self.live) else { return };
        let status = match ran.ended {
            Ended::Well => Some(0),
            Ended::Thrown => Some(1),
            Ended::Interrupted(_) | Ended::Killed(_) | Ended::Crashed(_) => None,
        };
        let input = Arc::clone(&live.input);
        thread::spawn(move || input.note(&CodeEvent::Ended { status, took }));
    }

    /// Starts the interpreter and waits until it is ready; false if it is not needed any more.
    fn start(&mut self, cancel: &Cancel) -> Result<bool> {
        let about = |error: Error| {
            error.under(format!("cannot start the interpreter of `{}`", self.language.as_str()))
        };
        let exec = self.language.start(self.api.as_ref(), &self.name).map_err(about)?;
        self.starts += 1;
        let (number, input, notes) = (self.starts, exec.input(), self.notes.clone());
        let live = Live { number, input };
        self.between = Lines::default();
        thread::Builder::new()
            .name("repl-reader".to_owned())
            .spawn(move || listen(exec, number, &notes))
            .map_err(|error| Error::host("cannot make a thread for the interpreter", error))?;
        self.live = Some(live);
        let until = Instant::now() + START_LIMIT;
        let mut said = Lines::default();
        let failed = loop {
            match self.next(until) {
                Some(Note::Said(of, Frame::Ready)) if of == number => return Ok(true),
                Some(Note::Raw(of, bytes)) if of == number => said.push(Stream::Stderr, &bytes),
                Some(Note::Over(of, exit)) if of == number => {
                    let missing = exit.as_ref().is_ok_and(|exit| exit.code == Some(NOT_FOUND));
                    break match missing {
                        true => self.language.missing(),
                        false => Error::new(Kind::State, words(&exit)),
                    };
                }
                Some(Note::End) => return Ok(false),
                Some(Note::Cancelled) if cancel.is_cancelled() => break cancelled(),
                Some(_) => {}
                None => break Error::new(Kind::Timeout, "the interpreter did not become ready"),
            }
        };
        if let Some(live) = self.live.take() {
            live.kill();
        }
        // The last line of what a program says when it cannot start is the one that tells why.
        Err(said.finish().pop().map_or(failed.clone(), |line| failed.cause(line.text)))
    }
}

/// Tells what a driver says until it has ended.
fn listen(mut exec: Box<dyn Exec>, number: u64, notes: &SyncSender<Note>) {
    let mut decoder = Decoder::default();
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
                            if notes.send(Note::Said(number, frame)).is_err() {
                                return;
                            }
                        }
                        Ok(None) => break,
                        Err(error) => {
                            // Dropping it kills it: there is no way back into the frames.
                            drop(exec);
                            let _ = notes.send(Note::Over(number, Err(error)));
                            return;
                        }
                    }
                }
            }
            ExecEvent::Stderr(bytes) => {
                if notes.send(Note::Raw(number, bytes)).is_err() {
                    return;
                }
            }
            ExecEvent::Exited(exit) => break Ok(exit),
        }
    };
    let _ = notes.send(Note::Over(number, exit));
}

/// How an interpreter ended.
fn words(exit: &Result<Exit>) -> String {
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
