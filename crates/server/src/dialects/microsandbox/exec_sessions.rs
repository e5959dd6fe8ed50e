//! Commands that continue between calls.
//!
//! One thread reads the events of each command and keeps a bounded number of them. Lock order: the
//! list of sessions before the state of one. No lock is held during calls of the Api.

use super::envelope::{Outcome, ToolFailure, ToolSuccess, Truncation, cut};
use super::exec::decoded;
use super::lifecycle::GRACE;
use super::{Microsandbox, read};
use crate::dialect::{Caller, ToolCall};
use msb_api::{Api, Exec, ExecEvent, ExecInput};
use msb_spec::Name;
use msb_spec::encoding::hex;
use msb_sys::signal::SIGKILL as KILL;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Most commands of one client; each needs a thread and some memory.
const MOST: usize = 64;
/// Bytes of output that are kept for a client that does not poll.
const KEPT: usize = 8 << 20;
/// Events that are kept; a command may write byte by byte.
const EVENTS: usize = 65_536;
/// Least interval between two searches for expired sessions.
const SWEEP: Duration = Duration::from_secs(10);

/// A command that has just been started.
pub(super) struct NewExecSession {
    pub(super) exec: Box<dyn Exec>,
    /// The sandbox to stop when the command ends.
    pub(super) stop: Option<Name>,
    /// Bytes of output to keep, if the client sets that.
    pub(super) keep: Option<usize>,
    /// Whether a non-zero exit code is an error.
    pub(super) strict: bool,
    pub(super) input: Option<Vec<u8>>,
    /// Whether stdin is closed after this input.
    pub(super) close: bool,
}

/// The commands of all clients.
pub(super) struct ExecSessions {
    all: Arc<Mutex<BTreeMap<String, Arc<ExecSession>>>>,
    api: Arc<dyn Api>,
    ttl: Duration,
}

struct ExecSession {
    caller: Caller,
    input: Arc<dyn ExecInput>,
    state: Mutex<ExecSessionState>,
}

struct ExecSessionState {
    events: VecDeque<(u64, Value)>,
    /// The number of the next event.
    next: u64,
    bytes: usize,
    max_bytes: usize,
    lost: u64,
    stdin_closed: bool,
    touched: Instant,
    over: Option<ExecEnd>,
}

/// How a command ended.
#[derive(Debug, Clone)]
struct ExecEnd {
    status: Option<i32>,
    error: Option<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ExecSessions {
    pub(super) fn new(api: Arc<dyn Api>, ttl: Duration) -> Self {
        Self { all: Arc::default(), api, ttl }
    }

    /// Adds a command. Returns the id of its session.
    pub(super) fn add(&self, new: NewExecSession, caller: &Caller) -> Result<String, ToolFailure> {
        self.sweep();
        let session = Arc::new(ExecSession {
            caller: caller.clone(),
            input: new.exec.input(),
            state: Mutex::new(ExecSessionState {
                events: VecDeque::new(),
                next: 0,
                bytes: 0,
                max_bytes: new.keep.unwrap_or(KEPT).min(KEPT),
                lost: 0,
                stdin_closed: false,
                touched: Instant::now(),
                over: None,
            }),
        });
        let id = unguessable();
        {
            let mut all = locked(&self.all);
            if all.values().filter(|it| it.caller == *caller).count() >= MOST {
                let text = format!("the limit of {MOST} exec sessions is reached");
                let hint = "close some with sandbox_exec_close";
                return Err(ToolFailure::new(text).detail("hint", hint).retryable());
            }
            all.insert(id.clone(), Arc::clone(&session));
            if all.len() == 1 {
                self.sweep_later();
            }
        }
        session.add_event(json!({"kind": "started", "pid": new.exec.pid()}), 0);
        if new.input.is_some() || new.close {
            locked(&session.state).stdin_closed = new.close;
        }
        let (NewExecSession { exec, stop, strict, input, close, .. }, api) =
            (new, Arc::clone(&self.api));
        if input.is_some() || close {
            // In a thread of its own: a command may write much before it reads.
            let to = Arc::clone(&session.input);
            std::thread::spawn(move || {
                let written = input.map_or(Ok(()), |bytes| to.write(&bytes));
                if close { written.and_then(|()| to.close()) } else { written }
            });
        }
        std::thread::spawn(move || {
            session.read_events(exec, strict);
            if let Some(name) = stop {
                let _ = api.sandbox_stop(&name, GRACE);
            }
        });
        Ok(id)
    }

    fn find(&self, id: &str, caller: &Caller) -> Result<Arc<ExecSession>, ToolFailure> {
        self.sweep();
        let found = locked(&self.all).get(id).filter(|it| it.caller == *caller).cloned();
        let session = found.ok_or_else(|| not_found(id))?;
        locked(&session.state).touched = Instant::now();
        Ok(session)
    }

    fn forget(&self, id: &str, caller: &Caller) -> Result<(), ToolFailure> {
        let session = self.find(id, caller)?;
        locked(&self.all).remove(id);
        session.kill();
        Ok(())
    }

    fn sweep(&self) {
        sweep(&self.all, self.ttl);
    }

    /// Starts a thread that removes expired sessions, even if no call arrives.
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

/// Kills all commands when the server ends.
impl Drop for ExecSessions {
    fn drop(&mut self) {
        for session in std::mem::take(&mut *locked(&self.all)).into_values() {
            session.kill();
        }
    }
}

fn sweep(all: &Mutex<BTreeMap<String, Arc<ExecSession>>>, ttl: Duration) {
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

fn not_found(id: &str) -> ToolFailure {
    let shown = msb_spec::shown(&id.chars().take(60).collect::<String>()).to_string();
    ToolFailure::new(format!("exec session not found: {shown}"))
}

/// A random id of 122 bits, in the format of a UUID, as clients expect.
pub(super) fn unguessable() -> String {
    let mut bytes = [0_u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags).unwrap_or(0);
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex(bytes);
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    parts.join("-")
}

impl ExecSession {
    /// Reads the events of a command until it ends.
    fn read_events(&self, mut exec: Box<dyn Exec>, strict: bool) {
        let over = loop {
            match exec.next() {
                Ok(Some(ExecEvent::Stdout(bytes))) => self.add_output("stdout", &bytes),
                Ok(Some(ExecEvent::Stderr(bytes))) => self.add_output("stderr", &bytes),
                Ok(Some(ExecEvent::Exited(exit))) => {
                    let status = exit.status();
                    self.add_event(json!({"kind": "exited", "code": status}), 0);
                    let failed = strict && status != 0;
                    let reason = exit.reason().map(str::to_owned);
                    let error = reason
                        .or_else(|| failed.then(|| format!("command exited with status {status}")));
                    break ExecEnd { status: Some(status), error };
                }
                Ok(None) => break ExecEnd { status: None, error: None },
                Err(error) => break ExecEnd { status: None, error: Some(error.to_string()) },
            }
        };
        let mut state = locked(&self.state);
        state.stdin_closed = true;
        state.touched = Instant::now();
        state.over = Some(over);
    }

    fn add_output(&self, kind: &str, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let length = text.len();
        self.add_event(json!({"kind": kind, "data": text}), length);
    }

    /// Adds an event, and drops the oldest ones beyond the limit.
    fn add_event(&self, event: Value, bytes: usize) {
        let mut state = locked(&self.state);
        let number = state.next;
        state.next += 1;
        state.bytes += bytes;
        state.touched = Instant::now();
        state.events.push_back((number, event));
        while state.events.len() > 1
            && (state.bytes > state.max_bytes || state.events.len() > EVENTS)
        {
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
            // Ignored: it may be ending right now.
            let _ = self.input.signal(KILL);
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PollParams {
    exec_session_id: String,
    #[serde(default)]
    cursor: u64,
    #[serde(default)]
    limit: Option<usize>,
    max_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WriteStdinParams {
    exec_session_id: String,
    data: Option<String>,
    data_base64: Option<String>,
    #[serde(default)]
    close: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignalParams {
    exec_session_id: String,
    signal: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CloseParams {
    exec_session_id: String,
}

/// Default number of events in one result.
const USUAL: usize = 100;

impl Microsandbox {
    pub(super) fn sandbox_exec_poll(&self, call: &ToolCall) -> Outcome {
        let poll: PollParams = read(call)?;
        let session = self.sessions.find(&poll.exec_session_id, &call.caller)?;
        let limit = self.settings.limit(poll.max_bytes);
        let state = locked(&session.state);
        let unseen = state.events.iter().filter(|(number, _)| *number >= poll.cursor);
        let (mut events, mut truncated, mut next) = (Vec::new(), Vec::new(), poll.cursor);
        for (number, event) in unseen.take(poll.limit.unwrap_or(USUAL)) {
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
        // Events that were dropped before the client polled.
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
        Ok(ToolSuccess::new(data).truncated(truncated))
    }

    pub(super) fn sandbox_exec_write_stdin(&self, call: &ToolCall) -> Outcome {
        let written: WriteStdinParams = read(call)?;
        let bytes = match (&written.data_base64, written.data) {
            (Some(text), _) => decoded("dataBase64", text)?,
            (None, text) => text.unwrap_or_default().into_bytes(),
        };
        let session = self.sessions.find(&written.exec_session_id, &call.caller)?;
        if locked(&session.state).stdin_closed {
            return Err(ToolFailure::new("stdin is not available for this exec session"));
        }
        // A command that does not read would block the call; a cancellation kills it.
        let input = Arc::clone(&session.input);
        let _hook = call.cancel.when_cancelled(move || drop(input.signal(KILL)));
        session.input.write(&bytes)?;
        if written.close {
            session.input.close()?;
            locked(&session.state).stdin_closed = true;
        }
        Ok(ToolSuccess::new(json!({
            "execSessionId": written.exec_session_id,
            "written": bytes.len(),
            "stdinClosed": written.close,
        })))
    }

    pub(super) fn sandbox_exec_signal(&self, call: &ToolCall) -> Outcome {
        let signalled: SignalParams = read(call)?;
        let number = match &signalled.signal {
            Value::String(name) => match name.as_str() {
                "hup" => 1,
                "int" => 2,
                "term" => 15,
                _ => KILL,
            },
            number => number.as_i64().and_then(|it| i32::try_from(it).ok()).unwrap_or(0),
        };
        // Linux has signals 1 to 64.
        if !(1..=64).contains(&number) {
            return Err(ToolFailure::new(format!("no such signal: {}", signalled.signal)));
        }
        let session = self.sessions.find(&signalled.exec_session_id, &call.caller)?;
        session.input.signal(number)?;
        let id = signalled.exec_session_id;
        Ok(ToolSuccess::new(json!({"execSessionId": id, "signaled": signalled.signal})))
    }

    pub(super) fn sandbox_exec_close(&self, call: &ToolCall) -> Outcome {
        let CloseParams { exec_session_id } = read(call)?;
        self.sessions.forget(&exec_session_id, &call.caller)?;
        Ok(ToolSuccess::new(json!({"execSessionId": exec_session_id, "closed": true})))
    }
}
