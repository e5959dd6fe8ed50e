//! Interpreters that keep their state between calls: one for each caller scope, sandbox and
//! language.
//!
//! Each interpreter is a driver program that runs as an Exec in the sandbox. A thread of the
//! server owns it and queues its calls. Code can disturb only its own interpreter: see `frames`.

mod frames;
mod interpreter;
mod language;
mod lines;
#[cfg(test)]
mod tests;

pub use language::Language;
pub use lines::{OutputLine, OutputStream};

pub(crate) use lines::OutputLines;

use crate::cancel::Cancel;
use crate::namespace::{Namespace, Scope};
use interpreter::{CodeJob, OwnerMessage};
use msb_api::Api;
use msb_spec::{CallOrigin, Error, Kind, Name, Result};
use std::collections::HashMap;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interpreters at a time, of all callers together. Each has two threads in the server. A scope may
/// have as many as are still free, so no scope can block the others.
const MOST: usize = 512;
/// Longest code of one call, in bytes.
const LONGEST: usize = 4 << 20;
/// Default time limit of one call.
pub(crate) const USUAL_LIMIT: Duration = Duration::from_secs(600);
/// Largest time limit that a caller may set.
pub(crate) const LONGEST_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Separates interpreters: state is never shared between callers of different scopes.
///
/// A key of `default` and a key of `*` use the same sandboxes under the same names, and still have
/// separate interpreters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReplScope {
    /// The namespaces that the caller's key grants.
    caller: Scope,
    /// The namespace of the sandbox's name; none for stored names.
    namespace: Option<Namespace>,
}

impl ReplScope {
    /// The scope of a caller for names of this namespace.
    pub fn new(caller: Scope, namespace: Option<Namespace>) -> Self {
        // Names of `default` are stored as they are.
        Self { caller, namespace: namespace.filter(|namespace| !namespace.is_default()) }
    }
}

/// The key of an interpreter in the table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct InterpreterKey {
    scope: ReplScope,
    sandbox: Name,
    language: Language,
}

/// Code to run in an interpreter.
#[derive(Debug)]
pub struct CodeRequest<'a> {
    /// The scope that the interpreter belongs to.
    pub scope: &'a ReplScope,
    /// The name of the sandbox.
    pub sandbox: &'a Name,
    /// The language of the code.
    pub language: Language,
    /// The source text to run.
    pub code: &'a str,
    /// The time limit; 10 minutes by default.
    pub limit: Option<Duration>,
    /// Cancelled when the client no longer waits.
    pub cancel: &'a Cancel,
    /// The origin of the call, for the event log.
    pub origin: &'a CallOrigin,
}

/// How the code of a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodeEnd {
    /// It returned without an exception.
    Succeeded,
    /// It raised an exception, which is in the output.
    Thrown,
    /// It was interrupted, by timeout or cancellation. The interpreter keeps its state.
    Interrupted(InterruptReason),
    /// It did not react to the interrupt and was killed. The state is lost.
    Killed(InterruptReason),
    /// The interpreter exited by itself, and its state is lost. The text says how.
    Crashed(String),
}

/// Why code was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterruptReason {
    /// It exceeded this time limit.
    Timeout(Duration),
    /// The client no longer waited for it.
    Cancelled,
}

/// The result of running code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeResult {
    /// The output, line by line.
    pub lines: Vec<OutputLine>,
    /// How the code ended.
    pub ended: CodeEnd,
}

/// All interpreters of this server.
#[derive(Default)]
pub struct Interpreters {
    owners: Mutex<HashMap<InterpreterKey, SyncSender<OwnerMessage>>>,
}

impl std::fmt::Debug for Interpreters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repls").finish_non_exhaustive()
    }
}

impl Interpreters {
    /// Runs code in an interpreter, which is started if there is none.
    pub fn run(&self, api: &Arc<dyn Api>, ask: &CodeRequest<'_>) -> Result<CodeResult> {
        if ask.code.len() > LONGEST {
            return Err(Error::new(Kind::Limit, "the code has more than 4 MiB")
                .hint("write it to a file in the sandbox and run that"));
        }
        let key = InterpreterKey {
            scope: ask.scope.clone(),
            sandbox: ask.sandbox.clone(),
            language: ask.language,
        };
        // Tried again if the owner thread has just decided to exit.
        for _ in 0..3 {
            let owner = self.owner(api, &key)?;
            let (result_sender, answer) = mpsc::sync_channel(1);
            let job = CodeJob {
                code: ask.code.to_owned(),
                limit: ask.limit.unwrap_or(USUAL_LIMIT).min(LONGEST_LIMIT),
                cancel: ask.cancel.clone(),
                origin: ask.origin.clone(),
                result_sender,
            };
            let hooked = owner.clone();
            // If the channel is full, the owner is awake and checks for cancellation itself.
            let _hook =
                ask.cancel.when_cancelled(move || drop(hooked.try_send(OwnerMessage::Cancelled)));
            if owner.send(OwnerMessage::CodeJob(job)).is_ok()
                && let Ok(answer) = answer.recv()
            {
                return answer;
            }
            self.forget(&key);
        }
        Err(Error::new(Kind::State, "the interpreter is shutting down").hint("try again"))
    }

    /// Ends the interpreters of a sandbox.
    pub fn end(&self, scope: &ReplScope, sandbox: &Name) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = owners.extract_if(|key, _| key.scope == *scope && key.sandbox == *sandbox);
        for (_, owner) in ended {
            // From another thread: the owner may be busy before it reads this.
            std::thread::spawn(move || drop(owner.send(OwnerMessage::Shutdown)));
        }
    }

    fn owner(&self, api: &Arc<dyn Api>, key: &InterpreterKey) -> Result<SyncSender<OwnerMessage>> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = owners.get(key) {
            return Ok(owner.clone());
        }
        let is_full = |owners: &HashMap<InterpreterKey, SyncSender<OwnerMessage>>| {
            let own = owners.keys().filter(|other| other.scope == key.scope).count();
            own >= MOST.saturating_sub(owners.len())
        };
        if is_full(&owners) {
            owners.retain(|_, owner| !is_gone(owner));
        }
        if is_full(&owners) {
            return Err(Error::new(Kind::Limit, "too many interpreters are running")
                .hint("stop sandboxes that are not needed any more"));
        }
        let owner = interpreter::start_owner(Arc::clone(api), key.sandbox.clone(), key.language)?;
        owners.insert(key.clone(), owner.clone());
        Ok(owner)
    }

    fn forget(&self, key: &InterpreterKey) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        // Only an owner that has exited: another call may have started a new one.
        if owners.get(key).is_some_and(is_gone) {
            owners.remove(key);
        }
    }
}

fn is_gone(owner: &SyncSender<OwnerMessage>) -> bool {
    matches!(owner.try_send(OwnerMessage::Probe), Err(TrySendError::Disconnected(_)))
}

impl Drop for Interpreters {
    fn drop(&mut self) {
        let owners = self.owners.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, owner) in owners.drain() {
            let _ = owner.try_send(OwnerMessage::Shutdown);
        }
    }
}
