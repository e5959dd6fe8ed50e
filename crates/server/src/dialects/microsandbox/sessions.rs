//! Commands that go on between calls.
//!
//! One thread listens to each of them and keeps what it says, so much and no more. Lock order: the list of
//! sessions before the state of one; neither is held while a sandbox is talked to.

use super::envelope::{Done, Failure, Outcome, Truncation, cut};
use super::exec::decoded;
use super::lifecycle::GRACE;
use super::{Microsandbox, read};
use crate::dialect::{Call, Who};
use msb_api::{Api, Exec, ExecEvent, ExecInput};
use msb_spec::Name;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Commands that one client may have at a time; each takes a thread and some memory.
const MOST: usize = 64;
/// Bytes of output that are kept for a client that does not poll.
const KEPT: usize = 8 << 20;
/// Events that are kept; a command may write byte by byte.
const EVENTS: usize = 65_536;
/// How often forgotten commands are looked for, at most.
const SWEEP: Duration = Duration::from_secs(10);
const KILL: i32 = 9;

/// A command that has just been started.
pub(super) struct Begun {
    pub(super) exec: Box<dyn Exec>,
    /// The sandbox that ends with it.
    pub(super) stop: Option<Name>,
    /// Bytes of its output to keep, where that was said.
    pub(super) keep: Option<usize>,
    /// Whether an exit code that is not zero is an error.
    pub(super) strict: bool,
    pub(super) input: Option<Vec<u8>>,
    /// Whether its stdin ends after that.
    pub(super) close: bool,
}

/// The commands of all clients.
pub(super) struct Sessions {
    all: Arc<Mutex<BTreeMap<String, Arc<Session>>>>,
    api: Arc<dyn Api>,
    ttl: Duration,
}

struct Session {
    who: Who,
    input: Arc<dyn ExecInput>,
    state: Mutex<State>,
}

struct State {
    events: VecDeque<(u64, Value)>,
    /// The number of the next event.
    next: u64,
    bytes: usize,
    keep: usize,
    lost: u64,
    stdin_closed: bool,
    touched: Instant,
    over: Option<Over>,
}

/// How a command ended.
#[derive(Debug, Clone)]
struct Over {
    status: Option<i32>,
    error: Option<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    pub(super) fn new(api: Arc<dyn Api>, ttl: Duration) -> Self {
        Self { all: Arc::default(), api, ttl }
    }

    /// Keeps a command; the id that it is found by.
    pub(super) fn add(&self, begun: Begun, who: &Who) -> Result<String, Failure> {
        self.sweep();
        let session = Arc::new(Session {
            who: who.clone(),
            input: begun.exec.input(),
            state: Mutex::new(State {
                events: VecDeque::new(),
                next: 0,
                bytes: 0,
                keep: begun.keep.unwrap_or(KEPT).min(KEPT),
                lost: 0,
                stdin_closed: false,
                touched: Instant::now(),
                over: None,
            }),
        });
        let id = unguessable();
        {
            let mut all = locked(&self.all);
            if all.values().filter(|it| it.who == *who).count() >= MOST {
                let text = format!("there are {MOST} exec sessions already");
                let hint = "close some with sandbox_exec_close";
                return Err(Failure::new(text).detail("hint", hint).retryable());
            }
            all.insert(id.clone(), Arc::clone(&session));
            if all.len() == 1 {
                self.sweep_later();
            }
        }
        session.keep(json!({"kind": "started", "pid": begun.exec.pid()}), 0);
        if begun.input.is_some() || begun.close {
            locked(&session.state).stdin_closed = begun.close;
        }
        let (Begun { exec, stop, strict, input, close, .. }, api) = (begun, Arc::clone(&self.api));
        if input.is_some() || close {
            // Beside it: a command may say much before it reads.
            let to = Arc::clone(&session.input);
            std::thread::spawn(move || {
                let written = input.map_or(Ok(()), |bytes| to.write(&bytes));
                if close { written.and_then(|()| to.close()) } else { written }
            });
        }
        std::thread::spawn(move || {
            session.listen(exec, strict);
            if let Some(name) = stop {
                let _ = api.sandbox_stop(&name, GRACE);
            }
        });
        Ok(id)
    }

    fn find(&self, id: &str, who: &Who) -> Result<Arc<Session>, Failure> {
        self.sweep();
        let found = locked(&self.all).get(id).filter(|it| it.who == *who).cloned();
        let session = found.ok_or_else(|| not_found(id))?;
        locked(&session.state).touched = Instant::now();
        Ok(session)
    }

    fn forget(&self, id: &str, who: &Who) -> Result<(), Failure> {
        let session = self.find(id, who)?;
        locked(&self.all).remove(id);
        session.kill();
        Ok(())
    }

    fn sweep(&self) {
        sweep(&self.all, self.ttl);
    }

    /// Looks for forgotten commands as long as there are any, also if nobody calls.
    fn sweep_later(&self) {
        let (all, ttl) = (Arc::downgrade(&self.all), self.ttl);
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(ttl.clamp(Duration::from_millis(10), SWEEP));
                let Some(all) = Weak::upgrade(&all) else {
                    return;
                };
                sweep(&all, ttl);
                if locked(&all).is_empty() {
                    return;
                }
            }
        });
    }
}

/// Who serves nobody any more lets nothing run on.
impl Drop for Sessions {
    fn drop(&mut self) {
        for session in std::mem::take(&mut *locked(&self.all)).into_values() {
            session.kill();
        }
    }
}

fn sweep(all: &Mutex<BTreeMap<String, Arc<Session>>>, ttl: Duration) {
    let mut forgotten = Vec::new();
    locked(all).retain(|_, session| {
        let stays = locked(&session.state).touched.elapsed() <= ttl;
        if !stays {
            forgotten.push(Arc::clone(session));
        }
        stays
    });
    forgotten.iter().for_each(|session| session.kill());
}

fn not_found(id: &str) -> Failure {
    let shown = msb_spec::shown(&id.chars().take(60).collect::<String>()).to_string();
    Failure::new(format!("exec session not found: {shown}"))
}

/// 122 bits of chance, written as a UUID because clients expect one.
pub(super) fn unguessable() -> String {
    let mut bytes = [0_u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags).unwrap_or(0);
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    parts.join("-")
}

impl Session {
    /// Hears a command to its end.
    fn listen(&self, mut exec: Box<dyn Exec>, strict: bool) {
        let over = loop {
            match exec.next() {
                Ok(Some(ExecEvent::Stdout(bytes))) => self.heard("stdout", &bytes),
                Ok(Some(ExecEvent::Stderr(bytes))) => self.heard("stderr", &bytes),
                Ok(Some(ExecEvent::Exited(exit))) => {
                    let status = exit.status();
                    self.keep(json!({"kind": "exited", "code": status}), 0);
                    let failed = strict && status != 0;
                    let reason = exit.reason().map(str::to_owned);
                    let error = reason
                        .or_else(|| failed.then(|| format!("command exited with status {status}")));
                    break Over { status: Some(status), error };
                }
                Ok(None) => break Over { status: None, error: None },
                Err(error) => break Over { status: None, error: Some(error.to_string()) },
            }
        };
        let mut state = locked(&self.state);
        state.stdin_closed = true;
        state.touched = Instant::now();
        state.over = Some(over);
    }

    fn heard(&self, kind: &str, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let length = text.len();
        self.keep(json!({"kind": kind, "data": text}), length);
    }

    /// Keeps an event, and lets go of the oldest if that is too much.
    fn keep(&self, event: Value, bytes: usize) {
        let mut state = locked(&self.state);
        let number = state.next;
        state.next += 1;
        state.bytes += bytes;
        state.touched = Instant::now();
        state.events.push_back((number, event));
        while state.events.len() > 1 && (state.bytes > state.keep || state.events.len() > EVENTS) {
            let Some((_, old)) = state.events.pop_front() else {
                return;
            };
            let length = old["data"].as_str().map_or(0, str::len);
            state.bytes -= length;
            state.lost += length as u64;
        }
    }

    fn kill(&self) {
        if locked(&self.state).over.is_none() {
            // It may end just now.
            let _ = self.input.signal(KILL);
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Poll {
    exec_session_id: String,
    #[serde(default)]
    cursor: u64,
    #[serde(default)]
    limit: Option<usize>,
    max_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    exec_session_id: String,
    data: Option<String>,
    data_base64: Option<String>,
    #[serde(default)]
    close: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Signalled {
    exec_session_id: String,
    signal: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Closed {
    exec_session_id: String,
}

/// Events in one answer where the call does not say.
const USUAL: usize = 100;

impl Microsandbox {
    pub(super) fn sandbox_exec_poll(&self, call: &Call) -> Outcome {
        let poll: Poll = read(call)?;
        let session = self.sessions.find(&poll.exec_session_id, &call.who)?;
        let limit = self.settings.limit(poll.max_bytes);
        let state = locked(&session.state);
        let wanted = state.events.iter().filter(|(number, _)| *number >= poll.cursor);
        let (mut events, mut truncated, mut next) = (Vec::new(), Vec::new(), poll.cursor);
        for (number, event) in wanted.take(poll.limit.unwrap_or(USUAL)) {
            let mut event = event.clone();
            if let Some(data) = event["data"].as_str() {
                let kind = event["kind"].as_str().unwrap_or_default();
                let (text, truncation) = cut(data.as_bytes(), limit, kind);
                truncated.extend(truncation);
                event["data"] = json!(text);
            }
            events.push(json!({"index": number, "event": event}));
            next = number + 1;
        }
        // What was let go before the client came for it.
        let first = state.events.front().map_or(state.next, |(number, _)| *number);
        if poll.cursor < first && state.lost > 0 {
            let kept = state.bytes;
            truncated.extend(Truncation::of("events", kept, kept as u64 + state.lost));
        }
        let status = state.over.as_ref().and_then(|over| over.status);
        let data = json!({
            "events": events,
            "nextCursor": next,
            "done": state.over.is_some(),
            "exitStatus": status.map(|code| json!({"code": code, "success": code == 0})),
            "error": state.over.as_ref().and_then(|over| over.error.as_deref()),
        });
        Ok(Done::new(data).truncated(truncated))
    }

    pub(super) fn sandbox_exec_write_stdin(&self, call: &Call) -> Outcome {
        let written: Written = read(call)?;
        let bytes = match (&written.data_base64, written.data) {
            (Some(text), _) => decoded("dataBase64", text)?,
            (None, text) => text.unwrap_or_default().into_bytes(),
        };
        let session = self.sessions.find(&written.exec_session_id, &call.who)?;
        if locked(&session.state).stdin_closed {
            return Err(Failure::new("stdin is not available for this exec session"));
        }
        // A command that does not read must not keep the call for ever: whoever cancels it, kills it.
        let input = Arc::clone(&session.input);
        let _hook = call.cancel.when_cancelled(move || drop(input.signal(KILL)));
        session.input.write(&bytes)?;
        if written.close {
            session.input.close()?;
            locked(&session.state).stdin_closed = true;
        }
        Ok(Done::new(json!({
            "execSessionId": written.exec_session_id,
            "written": bytes.len(),
            "stdinClosed": written.close,
        })))
    }

    pub(super) fn sandbox_exec_signal(&self, call: &Call) -> Outcome {
        let signalled: Signalled = read(call)?;
        let number = match &signalled.signal {
            Value::String(name) => match name.as_str() {
                "hup" => 1,
                "int" => 2,
                "term" => 15,
                _ => KILL,
            },
            number => number.as_i64().and_then(|it| i32::try_from(it).ok()).unwrap_or(0),
        };
        // There are 64 of them on Linux.
        if !(1..=64).contains(&number) {
            return Err(Failure::new(format!("no such signal: {}", signalled.signal)));
        }
        let session = self.sessions.find(&signalled.exec_session_id, &call.who)?;
        session.input.signal(number)?;
        let id = signalled.exec_session_id;
        Ok(Done::new(json!({"execSessionId": id, "signaled": signalled.signal})))
    }

    pub(super) fn sandbox_exec_close(&self, call: &Call) -> Outcome {
        let Closed { exec_session_id } = read(call)?;
        self.sessions.forget(&exec_session_id, &call.who)?;
        Ok(Done::new(json!({"execSessionId": exec_session_id, "closed": true})))
    }
}
