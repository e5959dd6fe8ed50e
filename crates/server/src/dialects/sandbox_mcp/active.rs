//! The sandboxes that this server has used, with their shells and the time of their last use.

use super::SandboxMcpState;
use super::lifecycle::SandboxSource;
use super::records::Incarnation;
use super::shell::Shell;
use msb_api::{Status, Summary};
use msb_spec::{Error, Kind, Name, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The label that marks sandboxes of this dialect.
pub(super) const LABEL: &str = "msb.dialect";
/// The value of the label.
pub(super) const OURS: &str = "sandbox-mcp";
/// The sandbox that is used if a call names none.
pub(super) const DEFAULT: &str = "default";

/// All sandboxes in use. Locks are taken in this order: `ActiveSandbox::lifecycle_lock`,
/// `ActiveSandbox::shell`, `ActiveSandboxes::all`, `ActiveSandbox::used`.
#[derive(Default)]
pub(super) struct ActiveSandboxes {
    all: Mutex<BTreeMap<Name, Arc<ActiveSandbox>>>,
}

/// One sandbox in use.
pub(super) struct ActiveSandbox {
    pub(super) name: Name,
    /// Held while the sandbox is created, reset or removed.
    lifecycle_lock: Mutex<()>,
    /// Held while a command runs, so that commands run one after the other.
    shell: Mutex<Option<Shell>>,
    used: Mutex<Instant>,
    /// Whether the last attempt to open a shell succeeded.
    responds: AtomicBool,
}

impl ActiveSandboxes {
    /// The entry of a sandbox; it is created if there is none.
    pub(super) fn of(&self, name: &Name) -> Arc<ActiveSandbox> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = all.entry(name.clone()).or_insert_with(|| {
            Arc::new(ActiveSandbox {
                name: name.clone(),
                lifecycle_lock: Mutex::default(),
                shell: Mutex::default(),
                used: Mutex::new(Instant::now()),
                responds: AtomicBool::new(true),
            })
        });
        Arc::clone(handle)
    }

    /// The entry of a sandbox, if this server has used it.
    pub(super) fn get(&self, name: &Name) -> Option<Arc<ActiveSandbox>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(super) fn forget(&self, name: &Name) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

impl ActiveSandbox {
    pub(super) fn shell(&self) -> MutexGuard<'_, Option<Shell>> {
        self.shell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serializes creation, reset and removal.
    pub(super) fn lifecycle_lock(&self) -> MutexGuard<'_, ()> {
        self.lifecycle_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends its shell, even while a command runs.
    pub(super) fn close(&self) {
        match self.shell.try_lock() {
            Ok(mut shell) => *shell = None,
            Err(TryLockError::Poisoned(shell)) => *shell.into_inner() = None,
            // The running command notices that the sandbox ends.
            Err(TryLockError::WouldBlock) => {}
        }
        self.responds.store(true, Ordering::Relaxed);
    }

    pub(super) fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn idle(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Whether its shell responds, or has not been needed yet.
    pub(super) fn responds(&self) -> bool {
        self.responds.load(Ordering::Relaxed)
    }

    /// Whether a command is running in its shell.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.shell.try_lock(), Err(TryLockError::WouldBlock))
    }

    pub(super) fn set_responds(&self, responds: bool) {
        self.responds.store(responds, Ordering::Relaxed);
    }

    /// Whether it has a live shell; a busy one counts.
    pub(super) fn is_alive(&self) -> bool {
        match self.shell.try_lock() {
            Ok(shell) => shell.as_ref().is_some_and(Shell::is_alive),
            Err(_) => self.responds.load(Ordering::Relaxed),
        }
    }
}

/// A sandbox of this dialect, as the Api lists it.
pub(super) struct ListedSandbox {
    pub(super) summary: Summary,
    pub(super) incarnation: Incarnation,
    /// The name of its parent, for children.
    pub(super) parent: Option<Name>,
    pub(super) resources: ResourceLimits,
    /// Whether it has a network.
    pub(super) is_online: bool,
}

/// CPU and memory limits of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ResourceLimits {
    pub(super) cpus: f64,
    pub(super) memory_mb: u64,
}

impl std::fmt::Display for ResourceLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.memory_mb {
            mb if mb >= 1024 && mb % 1024 == 0 => write!(f, "{}cpu/{}G", self.cpus, mb / 1024),
            mb => write!(f, "{}cpu/{mb}M", self.cpus),
        }
    }
}

impl SandboxMcpState {
    /// A running sandbox of this dialect. It is created or started if necessary.
    pub(super) fn ensure_active(
        &self,
        call: &crate::dialect::ToolCall,
        text: &str,
    ) -> Result<Arc<ActiveSandbox>> {
        let name = name_of(text)?;
        let handle = self.active.of(&name);
        handle.touch();
        // A live shell means that the sandbox is running; the Api is not asked.
        if !handle.is_alive() {
            let _making = handle.lifecycle_lock();
            self.ensure_running(call, &name)?;
        }
        Ok(handle)
    }

    /// Creates a sandbox that does not exist, or starts a stopped one.
    pub(super) fn ensure_running(
        &self,
        call: &crate::dialect::ToolCall,
        name: &Name,
    ) -> Result<()> {
        match self.find(name)? {
            None => match self.create(call, name, SandboxSource::First) {
                // Another server has created it meanwhile.
                Err(error) if error.kind() == Kind::Exists => self.ensure_running(call, name),
                created => created.map(drop),
            },
            Some(found) => match found.summary.status {
                Status::Running | Status::Draining => Ok(()),
                Status::Paused => self.api().sandbox_resume(name),
                Status::Stopped | Status::Crashed => self.api().sandbox_start(name).map(drop),
            },
        }
    }

    /// A sandbox of this dialect, running or not; none if the name is free.
    pub(super) fn find(&self, name: &Name) -> Result<Option<ListedSandbox>> {
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
                format!("the sandbox `{name}` exists and was not created by these tools"),
            )
            .hint("choose another name, or remove it with `msb rm`"));
        }
        let incarnation = self.incarnation(name, plan.created);
        let limits = &plan.limits;
        let resources = ResourceLimits {
            cpus: limits.cpus.as_ref().map_or(0.0, |cpus| f64::from(cpus.value.millis) / 1000.0),
            memory_mb: limits.memory.as_ref().map_or(0, |memory| memory.value.0 >> 20),
        };
        let summary = self.api().sandbox_summary(name)?;
        let is_online = plan.network.is_some();
        Ok(Some(ListedSandbox { summary, incarnation, parent, resources, is_online }))
    }

    /// A running sandbox of this dialect.
    pub(super) fn active(&self, name: &Name) -> Result<Option<ListedSandbox>> {
        Ok(self.find(name)?.filter(ListedSandbox::runs))
    }

    /// All running sandboxes of this dialect, by name.
    pub(super) fn all(&self) -> Result<Vec<ListedSandbox>> {
        let listed = self.api().sandbox_list()?;
        let found = listed.into_iter().filter(|one| one.status != Status::Stopped);
        // A sandbox without the label is an error for calls that name it; lists leave it out.
        let found = found.filter_map(|one| self.find(&one.name).ok().flatten());
        Ok(found.filter(ListedSandbox::runs).collect())
    }

    /// The incarnation of a sandbox; one that another program created gets its first record.
    pub(super) fn incarnation(&self, name: &Name, created: u64) -> Incarnation {
        if let Some(incarnation) =
            self.records.incarnation(name).filter(|incarnation| incarnation.created == created)
        {
            return incarnation;
        }
        let incarnation = Incarnation { container: container(), created, processes: Vec::new() };
        self.records.set_incarnation(name, Some(incarnation.clone()));
        incarnation
    }
}

impl ListedSandbox {
    fn runs(&self) -> bool {
        matches!(self.summary.status, Status::Running | Status::Draining | Status::Paused)
    }
}

/// Parses a sandbox name of a client.
pub(super) fn name_of(text: &str) -> Result<Name> {
    Name::parse(text)
}

/// A random container name for results. Nothing is looked up by it.
pub(super) fn container() -> String {
    format!("mcp-sb-{}", hex())
}

/// Six random hexadecimal digits.
pub(super) fn hex() -> String {
    let mut bytes = [0; 3];
    // The digits only distinguish names; without random bytes the clock is used.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        let time = super::records::now().to_le_bytes();
        bytes.copy_from_slice(&time[..3]);
    }
    msb_spec::encoding::hex(bytes)
}
