//! Sandboxes that belong to a session and end with it.

use msb_api::http::SecretValues;
use msb_api::{Create, Summary, Watch};
use msb_spec::{Error, Kind, Name, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The tie between a sandbox and its owner. Dropping it ends the sandbox, and so does the end of this
/// process.
pub trait OwnedSandbox: Send {
    /// Releases the sandbox: it goes on without an owner.
    fn release(self: Box<Self>) -> Result<()>;
}

/// Starts sandboxes that have an owner from their first moment.
pub trait SandboxOwner: Send + Sync {
    /// Creates a sandbox and owns it.
    fn create(
        &self,
        create: &Create,
        secrets: SecretValues,
        watch: &dyn Watch,
    ) -> Result<(Summary, Box<dyn OwnedSandbox>)>;

    /// Starts a stopped sandbox and owns it; none if it was running already.
    fn start(&self, name: &Name, secrets: SecretValues) -> Result<Option<Box<dyn OwnedSandbox>>>;

    /// Owns a running sandbox from now on.
    fn own(&self, name: &Name) -> Result<Box<dyn OwnedSandbox>>;
}

/// The sandboxes of one session.
pub(super) struct OwnedSandboxes {
    owner: Arc<dyn SandboxOwner>,
    /// None once the session has ended.
    ties: Mutex<Option<BTreeMap<Name, Box<dyn OwnedSandbox>>>>,
}

impl OwnedSandboxes {
    pub(super) fn new(owner: Arc<dyn SandboxOwner>) -> Self {
        Self { owner, ties: Mutex::new(Some(BTreeMap::new())) }
    }

    pub(super) fn create(
        &self,
        create: &Create,
        secrets: SecretValues,
        watch: &dyn Watch,
    ) -> Result<Summary> {
        let (summary, tie) = self.owner.create(create, secrets, watch)?;
        self.insert(&summary.name, tie)?;
        Ok(summary)
    }

    pub(super) fn start(&self, name: &Name, secrets: SecretValues) -> Result<bool> {
        match self.owner.start(name, secrets)? {
            Some(tie) => self.insert(name, tie).map(|()| true),
            None => Ok(false),
        }
    }

    pub(super) fn own(&self, name: &Name) -> Result<()> {
        self.insert(name, self.owner.own(name)?)
    }

    pub(super) fn release(&self, name: &Name) -> Result<()> {
        let mut ties = self.ties.lock().unwrap_or_else(PoisonError::into_inner);
        match ties.as_mut().and_then(|ties| ties.remove(name)) {
            Some(tie) => tie.release(),
            None => Err(Error::new(Kind::State, "the sandbox does not belong to this session")
                .cause(format!("it is `{name}`"))),
        }
    }

    pub(super) fn names(&self) -> Vec<Name> {
        let ties = self.ties.lock().unwrap_or_else(PoisonError::into_inner);
        ties.as_ref().map(|ties| ties.keys().cloned().collect()).unwrap_or_default()
    }

    /// Ends every sandbox, and each that a running call still starts.
    pub(super) fn end_all(&self) {
        let ties = self.ties.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(ties);
    }

    fn insert(&self, name: &Name, tie: Box<dyn OwnedSandbox>) -> Result<()> {
        let mut ties = self.ties.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ties) = ties.as_mut() else {
            return Err(Error::new(Kind::State, "the session has ended"));
        };
        match ties.insert(name.clone(), tie) {
            // Two ties would be one too many: dropping the first would end the sandbox.
            Some(before) => before.release(),
            None => Ok(()),
        }
    }
}
