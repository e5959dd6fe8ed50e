//! A host directory shown copy-on-write, and its changes, looked at before they touch the host.

use crate::builder::SandboxBuilder;
use crate::sandbox::Sandbox;
use crate::worker::Worker;
use msb_engine::workspace::{ApplyReport, Change, Depth, RelPath, Selection};
use msb_spec::{Result, Workspace as Asked};
use std::path::{Path, PathBuf};

impl SandboxBuilder {
    /// Shows a host directory inside, as `./project` at /workspace or `./project:/there`. What is
    /// changed in it is kept apart until [`Workspace::apply`].
    #[must_use]
    pub fn workspace(self, workspace: &str) -> Self {
        self.with(Asked::parse(workspace), |spec, asked| spec.workspace = Some(asked))
    }
}

impl Sandbox {
    /// Its workspace, also when it has stopped.
    pub fn workspace(&self) -> Workspace<'_> {
        Workspace { worker: &self.worker }
    }
}

/// The workspace of one sandbox.
#[derive(Debug)]
pub struct Workspace<'a> {
    worker: &'a Worker,
}

impl Workspace<'_> {
    /// What the sandbox has changed, sorted by path; nothing on the host has.
    pub async fn diff(&self) -> Result<Vec<Change>> {
        self.diff_with(Vec::new(), Depth::default()).await
    }

    /// Changes below these paths, or all without paths; with digests, or with the
    /// differences of texts.
    pub async fn diff_with(&self, below: Vec<RelPath>, depth: Depth) -> Result<Vec<Change>> {
        self.worker.blocking(move |engine, name| engine.diff(name, &below, depth)).await
    }

    /// Brings changes to the host: all that are chosen, or none. What the host would run later has
    /// to be named by the [`Selection`].
    pub async fn apply(&self, selection: &Selection) -> Result<ApplyReport> {
        let selection = selection.clone();
        self.worker.blocking(move |engine, name| engine.apply(name, &selection, false)).await
    }

    /// Checks everything that [`Workspace::apply`] would, and writes nothing.
    pub async fn check(&self, selection: &Selection) -> Result<ApplyReport> {
        let selection = selection.clone();
        self.worker.blocking(move |engine, name| engine.apply(name, &selection, true)).await
    }

    /// Forgets changes of a sandbox that has stopped, at and below these paths, or all if there are
    /// none. Gives how many there were.
    pub async fn discard(&self, paths: &[RelPath]) -> Result<usize> {
        let paths = paths.to_vec();
        self.worker.blocking(move |engine, name| engine.discard(name, &paths)).await
    }

    /// The host's directory.
    pub async fn host(&self) -> Result<PathBuf> {
        let planned = self.worker.blocking(|engine, name| engine.planned_workspace(name)).await?;
        Ok(planned.host)
    }

    /// A path below the workspace, as [`Change`] has it, from one on the host or inside.
    pub async fn path(&self, path: impl AsRef<Path>) -> Result<RelPath> {
        let planned = self.worker.blocking(|engine, name| engine.planned_workspace(name)).await?;
        msb_engine::workspace::typed_path(path.as_ref(), &planned.host, Path::new(&planned.guest))
    }
}
