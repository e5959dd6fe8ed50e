//! A directory of the host, kept in step inside a running sandbox.

use crate::fs::inside;
use crate::worker::{Worker, blocking};
use msb_engine::{Engine, SyncSpec, SyncStatus};
use msb_spec::Result;
use std::path::{Path, PathBuf};

/// A sync that goes on, in a process of its own.
///
/// It does not end with this handle, but with [`DirectorySync::stop`], with the sandbox, or when
/// its source is moved or removed.
#[derive(Debug, Clone)]
pub struct DirectorySync {
    engine: Engine,
    id: String,
}

/// What a sync leaves out beside what `.gitignore` files say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncOptions {
    excludes: Vec<String>,
    default_excludes: bool,
}

impl Default for SyncOptions {
    fn default() -> Self {
        Self { excludes: Vec::new(), default_excludes: true }
    }
}

impl SyncOptions {
    /// Leaves this out, as a line of a `.gitignore` would that comes before all others. With a
    /// `!` in front it brings something back.
    #[must_use]
    pub fn exclude(mut self, pattern: impl Into<String>) -> Self {
        self.excludes.push(pattern.into());
        self
    }

    /// Whether `.git`, `node_modules`, `__pycache__` and `.venv` are left out; they are unless told
    /// otherwise.
    #[must_use]
    pub fn default_excludes(mut self, leave_out: bool) -> Self {
        self.default_excludes = leave_out;
        self
    }
}

impl DirectorySync {
    pub(crate) async fn start(
        worker: &Worker,
        source: PathBuf,
        target: &Path,
        options: SyncOptions,
    ) -> Result<Self> {
        let SyncOptions { excludes, default_excludes } = options;
        let (sandbox, target) = (worker.name.clone(), inside(target)?);
        let spec = SyncSpec { source, sandbox, target, excludes, default_excludes };
        let id = worker.blocking(move |engine, _| engine.start_sync(&spec, &mut |_| {})).await?;
        Ok(Self { engine: worker.engine.clone(), id })
    }

    /// What `msb sync ls` calls it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How it is doing. One that was stopped or killed is not found.
    pub async fn status(&self) -> Result<SyncStatus> {
        let Self { engine, id } = self.clone();
        blocking(move || engine.sync(&id).map(|sync| sync.status)).await
    }

    /// Ends it. What it has sent stays.
    pub async fn stop(&self) -> Result<()> {
        let Self { engine, id } = self.clone();
        blocking(move || engine.stop_sync(&id)).await
    }
}
