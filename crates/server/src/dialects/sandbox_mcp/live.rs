//! Sandboxes that were used here: each with its shell, and when it was last used.

use super::Surface;
use super::begin::Made;
use super::ledger::Life;
use super::shell::Shell;
use msb_api::{Status, Summary};
use msb_spec::{Error, Kind, Name, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The label that says whose a sandbox is.
pub(super) const LABEL: &str = "msb.dialect";
/// What it says.
pub(super) const OURS: &str = "sandbox-mcp";
/// The sandbox of whoever names none.
pub(super) const DEFAULT: &str = "default";

/// Locks are taken in this order: `Live::making`, `Live::shell`, `Lives::all`, `Live::used`.
#[derive(Default)]
pub(super) struct Lives {
    all: Mutex<BTreeMap<Name, Arc<Live>>>,
}

/// One sandbox that was used here.
pub(super) struct Live {
    pub(super) name: Name,
    /// Held by whoever makes, resets or removes it.
    making: Mutex<()>,
    /// Held by whoever runs something in it: commands come one after the other.
    shell: Mutex<Option<Shell>>,
    used: Mutex<Instant>,
    /// Whether a shell could be opened when somebody last tried.
    answers: AtomicBool,
}

impl Lives {
    /// What is known of a sandbox; it is known from now on.
    pub(super) fn of(&self, name: &Name) -> Arc<Live> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let live = all.entry(name.clone()).or_insert_with(|| {
            Arc::new(Live {
                name: name.clone(),
                making: Mutex::default(),
                shell: Mutex::default(),
                used: Mutex::new(Instant::now()),
                answers: AtomicBool::new(true),
            })
        });
        Arc::clone(live)
    }

    /// What is known of one that was used here.
    pub(super) fn get(&self, name: &Name) -> Option<Arc<Live>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(super) fn forget(&self, name: &Name) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

impl Live {
    pub(super) fn shell(&self) -> MutexGuard<'_, Option<Shell>> {
        self.shell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only one at a time makes it, resets it or removes it.
    pub(super) fn making(&self) -> MutexGuard<'_, ()> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends its shell, even while somebody runs something in it.
    pub(super) fn close(&self) {
        match self.shell.try_lock() {
            Ok(mut shell) => *shell = None,
            Err(TryLockError::Poisoned(shell)) => *shell.into_inner() = None,
            // Whoever runs something notices that the sandbox ends.
            Err(TryLockError::WouldBlock) => {}
        }
        self.answers.store(true, Ordering::Relaxed);
    }

    pub(super) fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn idle(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Whether it has a shell that answers, or has none yet and nothing speaks against one.
    pub(super) fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// Whether somebody runs something in it.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.shell.try_lock(), Err(TryLockError::WouldBlock))
    }

    pub(super) fn answered(&self, answers: bool) {
        self.answers.store(answers, Ordering::Relaxed);
    }

    /// Whether it has a shell that answers; one that is at work counts.
    pub(super) fn is_alive(&self) -> bool {
        match self.shell.try_lock() {
            Ok(shell) => shell.as_ref().is_some_and(Shell::is_alive),
            Err(_) => self.answers.load(Ordering::Relaxed),
        }
    }
}

/// A sandbox of this dialect as a list has it.
pub(super) struct Found {
    pub(super) summary: Summary,
    pub(super) life: Life,
    /// Whose child it is.
    pub(super) parent: Option<Name>,
    pub(super) resources: Resources,
    /// Whether it has a network.
    pub(super) is_online: bool,
}

/// What a sandbox has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Resources {
    pub(super) cpus: f64,
    pub(super) memory_mb: u64,
}

impl std::fmt::Display for Resources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.memory_mb {
            mb if mb >= 1024 && mb % 1024 == 0 => write!(f, "{}cpu/{}G", self.cpus, mb / 1024),
            mb => write!(f, "{}cpu/{mb}M", self.cpus),
        }
    }
}

impl Surface {
    /// A sandbox that runs and is ours. It is made, or started, if it is not.
    pub(super) fn used(&self, call: &crate::dialect::Call, text: &str) -> Result<Arc<Live>> {
        let name = name_of(text)?;
        let live = self.lives.of(&name);
        live.touch();
        // One whose shell lives runs: nothing is asked.
        if !live.is_alive() {
            let _making = live.making();
            self.begin(call, &name)?;
        }
        Ok(live)
    }

    /// Makes it if there is none, starts it if it does not run.
    fn begin(&self, call: &crate::dialect::Call, name: &Name) -> Result<()> {
        match self.find(name)? {
            None => match self.make(call, name, Made::First) {
                // Another server has made it meanwhile.
                Err(error) if error.kind() == Kind::Exists => self.begin(call, name),
                made => made.map(drop),
            },
            Some(found) => match found.summary.status {
                Status::Running | Status::Draining => Ok(()),
                Status::Paused => self.api().sandbox_resume(name),
                Status::Stopped | Status::Crashed => self.api().sandbox_start(name).map(drop),
            },
        }
    }

    /// One of ours, running or not; none if there is no sandbox of that name.
    pub(super) fn find(&self, name: &Name) -> Result<Option<Found>> {
        let inspection = match self.api().sandbox_inspect(name) {
            Ok(inspection) => inspection,
            Err(error) if error.kind() == Kind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let plan = inspection.plan;
        let parent = plan.family.as_ref().map(|family| family.parent.clone());
        let ours = match &parent {
            Some(parent) => self.find(parent)?.is_some(),
            None => plan.labels.get(LABEL).is_some_and(|label| label == OURS),
        };
        if !ours {
            return Err(Error::new(
                Kind::Exists,
                format!("there is a sandbox `{name}` that was not made by these tools"),
            )
            .hint("take another name, or remove it with `msb rm`"));
        }
        let life = self.life(name, plan.created);
        let limits = &plan.limits;
        let resources = Resources {
            cpus: limits.cpus.as_ref().map_or(0.0, |cpus| f64::from(cpus.value.millis) / 1000.0),
            memory_mb: limits.memory.as_ref().map_or(0, |memory| memory.value.0 >> 20),
        };
        let summary = self.api().sandbox_summary(name)?;
        let is_online = plan.network.is_some();
        Ok(Some(Found { summary, life, parent, resources, is_online }))
    }

    /// One that runs.
    pub(super) fn active(&self, name: &Name) -> Result<Option<Found>> {
        Ok(self.find(name)?.filter(Found::runs))
    }

    /// Every one of ours that runs, by name.
    pub(super) fn all(&self) -> Result<Vec<Found>> {
        let listed = self.api().sandbox_list()?;
        let found = listed.into_iter().filter(|one| one.status != Status::Stopped);
        // Whoever is not ours is an error for those who name it, and none of a list.
        let found = found.filter_map(|one| self.find(&one.name).ok().flatten());
        Ok(found.filter(Found::runs).collect())
    }

    /// Which life a sandbox is in; one that was made elsewhere gets its first.
    pub(super) fn life(&self, name: &Name, created: u64) -> Life {
        if let Some(life) = self.ledger.life(name).filter(|life| life.created == created) {
            return life;
        }
        let life = Life { container: container(), created, processes: Vec::new() };
        self.ledger.set_life(name, Some(life.clone()));
        life
    }
}

impl Found {
    fn runs(&self) -> bool {
        matches!(self.summary.status, Status::Running | Status::Draining | Status::Paused)
    }
}

/// A name as clients give it.
pub(super) fn name_of(text: &str) -> Result<Name> {
    Name::parse(text)
}

/// How a life is called; nobody looks anything up by it.
pub(super) fn container() -> String {
    format!("mcp-sb-{}", hex())
}

/// Six digits by chance.
pub(super) fn hex() -> String {
    let mut bytes = [0; 3];
    // Only to tell things apart: without randomness they are told apart by the clock.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        let time = super::ledger::now().to_le_bytes();
        bytes.copy_from_slice(&time[..3]);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
