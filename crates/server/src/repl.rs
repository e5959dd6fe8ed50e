//! Interpreters that keep their state between calls: one for each sandbox and language.
//!
//! Each is a driver of ours that runs as an Exec in the sandbox, with a thread here that owns it.
//! Calls queue at that thread. Nothing that code does can disturb more than its own interpreter:
//! see `frames`.

mod frames;
mod interpreter;
mod language;
mod lines;
#[cfg(test)]
mod tests;

pub use language::Language;
pub use lines::{Line, Stream};

pub(crate) use lines::Lines;

use crate::cancel::Cancel;
use crate::namespace::{Namespace, Reaches};
use interpreter::{Note, Order};
use msb_api::Api;
use msb_spec::{Error, Kind, Name, Result};
use std::collections::HashMap;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interpreters at a time, of all callers together. Each has two threads here. One scope has at most as many as
/// are still free, so that none keeps out another.
const MOST: usize = 512;
/// The longest code of one call.
const LONGEST: usize = 4 << 20;
/// How long code may run where the caller does not say.
pub(crate) const USUAL_LIMIT: Duration = Duration::from_secs(600);
/// The most that a caller may say.
pub(crate) const LONGEST_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Whose interpreters: state never passes between callers of different reach.
///
/// A key of `default` and a key of `*` reach the same sandboxes by the same names, and still have
/// interpreters of their own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    /// What the caller's key reaches.
    caller: Reaches,
    /// The namespace that the name of the sandbox is of; none for names as the CLI has them.
    namespace: Option<Namespace>,
}

impl Scope {
    /// The scope of a caller who means names of this namespace.
    pub fn new(caller: Reaches, namespace: Option<Namespace>) -> Self {
        // Names of `default` are those of the CLI.
        Self { caller, namespace: namespace.filter(|namespace| !namespace.is_usual()) }
    }
}

/// Which interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    scope: Scope,
    sandbox: Name,
    language: Language,
}

/// Code to be run.
#[derive(Debug)]
pub struct Ask<'a> {
    /// Whose interpreter it is.
    pub scope: &'a Scope,
    /// In which sandbox.
    pub sandbox: &'a Name,
    /// In which language.
    pub language: Language,
    /// What is to be run.
    pub code: &'a str,
    /// How long it may take.
    pub limit: Option<Duration>,
    /// Told when nobody waits for it any more.
    pub cancel: &'a Cancel,
}

/// How code ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Well,
    /// It threw something, which is among its lines.
    Thrown,
    /// It took too long, or nobody waited for it, and was interrupted. What it defined is kept.
    Interrupted(Why),
    /// The same, and it had to be killed: what it defined is lost.
    Killed(Why),
    /// The interpreter ended, and what it knew is lost. How, in words.
    Crashed(String),
}

/// Why code was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It took longer than this.
    Timeout(Duration),
    /// Nobody waited for it any more.
    Cancelled,
}

/// What came of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// What it said.
    pub lines: Vec<Line>,
    /// How it ended.
    pub ended: Ended,
}

/// All interpreters of this server.
#[derive(Default)]
pub struct Repls {
    owners: Mutex<HashMap<Key, SyncSender<Note>>>,
}

impl std::fmt::Debug for Repls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repls").finish_non_exhaustive()
    }
}

impl Repls {
    /// Runs code in the interpreter of a sandbox, which is started if need be.
    pub fn run(&self, api: &Arc<dyn Api>, ask: &Ask<'_>) -> Result<Ran> {
        if ask.code.len() > LONGEST {
            return Err(Error::new(Kind::Limit, "the code is too long")
                .hint("write it to a file in the sandbox and run that"));
        }
        let key =
            Key { scope: ask.scope.clone(), sandbox: ask.sandbox.clone(), language: ask.language };
        // An owner may just have decided to end.
        for _ in 0..3 {
            let owner = self.owner(api, &key)?;
            let (told, answer) = mpsc::sync_channel(1);
            let order = Order {
                code: ask.code.to_owned(),
                limit: ask.limit.unwrap_or(USUAL_LIMIT).min(LONGEST_LIMIT),
                cancel: ask.cancel.clone(),
                asker: msb_api::asker(),
                told,
            };
            let hooked = owner.clone();
            // If there is no room, the owner is awake and looks by itself.
            let _hook = ask.cancel.when_cancelled(move || drop(hooked.try_send(Note::Cancelled)));
            if owner.send(Note::Order(order)).is_ok()
                && let Ok(answer) = answer.recv()
            {
                return answer;
            }
            self.forget(&key);
        }
        Err(Error::new(Kind::State, "the interpreter is being ended").hint("try again"))
    }

    /// Ends the interpreters of a sandbox.
    pub fn end(&self, scope: &Scope, sandbox: &Name) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = owners.extract_if(|key, _| key.scope == *scope && key.sandbox == *sandbox);
        for (_, owner) in ended {
            // It is told beside this one: it may have much to do before it reads.
            std::thread::spawn(move || drop(owner.send(Note::End)));
        }
    }

    fn owner(&self, api: &Arc<dyn Api>, key: &Key) -> Result<SyncSender<Note>> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = owners.get(key) {
            return Ok(owner.clone());
        }
        let is_full = |owners: &HashMap<Key, SyncSender<Note>>| {
            let own = owners.keys().filter(|other| other.scope == key.scope).count();
            own >= MOST.saturating_sub(owners.len())
        };
        if is_full(&owners) {
            owners.retain(|_, owner| !is_gone(owner));
        }
        if is_full(&owners) {
            return Err(Error::new(Kind::Limit, "there are too many interpreters already")
                .hint("stop sandboxes that are not needed any more"));
        }
        let owner = interpreter::own(Arc::clone(api), key.sandbox.clone(), key.language)?;
        owners.insert(key.clone(), owner.clone());
        Ok(owner)
    }

    fn forget(&self, key: &Key) {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        // Only one that has ended: another call may have made a new one.
        if owners.get(key).is_some_and(is_gone) {
            owners.remove(key);
        }
    }
}

fn is_gone(owner: &SyncSender<Note>) -> bool {
    matches!(owner.try_send(Note::Look), Err(TrySendError::Disconnected(_)))
}

impl Drop for Repls {
    fn drop(&mut self) {
        let owners = self.owners.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, owner) in owners.drain() {
            let _ = owner.try_send(Note::End);
        }
    }
}
