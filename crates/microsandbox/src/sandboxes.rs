//! Where sandboxes are kept, which `msb` runs them, and which there are.

use crate::builder::SandboxBuilder;
use crate::sandbox::Sandbox;
use crate::worker::{Worker, blocking};
use msb_engine::{Engine, Home, Launcher, Summary, SyncSummary};
use msb_spec::{Name, Result};
use std::path::PathBuf;

/// The sandboxes of one state directory. [`Sandbox`]'s own functions use the user's:
/// `MSB_HOME`, or `~/.msb`.
#[derive(Debug, Clone, Default)]
pub struct Sandboxes {
    home: Option<PathBuf>,
    executable: Option<PathBuf>,
}

impl Sandboxes {
    /// Those of this user.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses another state directory, which is made if it is missing.
    #[must_use]
    pub fn home(mut self, path: impl Into<PathBuf>) -> Self {
        self.home = Some(path.into());
        self
    }

    /// Uses this `msb` instead of the one that is found by `MSB_PATH`, beside the program, on
    /// PATH or in the state directory.
    #[must_use]
    pub fn executable(mut self, path: impl Into<PathBuf>) -> Self {
        self.executable = Some(path.into());
        self
    }

    /// Begins a new sandbox.
    pub fn builder(&self, name: impl AsRef<str>) -> SandboxBuilder {
        SandboxBuilder::new(self.clone(), name.as_ref())
    }

    /// One that exists, running or not. It does not end with this handle.
    pub async fn get(&self, name: impl AsRef<str>) -> Result<Sandbox> {
        let sandbox = self.open(name.as_ref(), |engine, name| {
            let plan = engine.existing(name)?;
            Ok((plan, None))
        });
        sandbox.await
    }

    /// Every sandbox, sorted by name.
    pub async fn list(&self) -> Result<Vec<Summary>> {
        self.blocking(|engine| Ok(engine.list())).await
    }

    /// Gives one that has stopped another name.
    pub async fn rename(&self, name: impl AsRef<str>, to: impl AsRef<str>) -> Result<()> {
        let (name, to) = (Name::parse(name.as_ref())?, Name::parse(to.as_ref())?);
        self.blocking(move |engine| engine.rename(&name, &to)).await
    }

    /// Starts one that has stopped. It ends with this handle unless it ran already.
    pub async fn start(&self, name: impl AsRef<str>) -> Result<Sandbox> {
        let sandbox =
            self.open(name.as_ref(), |engine, name| match engine.start_stopped(name)? {
                Some(running) => Ok(running.into_owner()),
                None => Ok((engine.existing(name)?, None)),
            });
        sandbox.await
    }

    /// Starts one that has stopped. It goes on without us.
    pub async fn start_detached(&self, name: impl AsRef<str>) -> Result<Sandbox> {
        let sandbox = self.open(name.as_ref(), |engine, name| {
            engine.start(name)?;
            Ok((engine.existing(name)?, None))
        });
        sandbox.await
    }

    /// Removes one that does not run, with its files and logs.
    pub async fn remove(&self, name: impl AsRef<str>) -> Result<()> {
        let name = Name::parse(name.as_ref())?;
        self.blocking(move |engine| engine.remove(&name, false)).await
    }

    /// Every sync that goes on or has ended lately, the oldest first.
    pub async fn syncs(&self) -> Result<Vec<SyncSummary>> {
        self.blocking(|engine| Ok(engine.syncs())).await
    }

    /// Ends a sync by its ID.
    pub async fn stop_sync(&self, id: impl Into<String>) -> Result<()> {
        let id = id.into();
        self.blocking(move |engine| engine.stop_sync(&id)).await
    }

    /// Cleans up behind workers that were killed, and tells what was done. [`SandboxBuilder`]
    /// does it too, silently.
    pub async fn repair(&self) -> Result<Vec<String>> {
        self.blocking(|engine| Ok(engine.repair())).await
    }

    /// The engine. It looks at the file system, so it may block.
    pub(crate) fn engine(&self) -> Result<Engine> {
        let home = match &self.home {
            Some(path) => Home::at(path)?,
            None => Home::open()?,
        };
        let launcher = match &self.executable {
            Some(path) => Launcher::Execute(path.clone()),
            None => Launcher::find(home.path())?,
        };
        Ok(Engine::at(home, launcher))
    }

    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let sandboxes = self.clone();
        blocking(move || work(&sandboxes.engine()?)).await
    }

    async fn open(
        &self,
        name: &str,
        find: impl FnOnce(&Engine, &Name) -> Result<Found> + Send + 'static,
    ) -> Result<Sandbox> {
        let name = Name::parse(name)?;
        self.blocking(move |engine| {
            let (plan, tie) = find(engine, &name)?;
            Ok(Sandbox::new(Worker::new(engine.clone(), name), plan.shell, tie))
        })
        .await
    }
}

/// A sandbox's Plan, and the connection that it ends with if it does.
type Found = (msb_spec::Plan, Option<std::os::unix::net::UnixStream>);
