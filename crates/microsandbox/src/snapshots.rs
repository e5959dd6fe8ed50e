//! Saved filesystems: taken of sandboxes, started from, gone back to.

use crate::sandbox::Sandbox;
use crate::sandboxes::Sandboxes;
use msb_engine::images::NoProgress;
use msb_engine::snapshots::{Snapshot, VerifyReport};
use msb_spec::{Error, Name, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

impl Sandbox {
    /// Saves its files under a name; `Sandbox::builder(..).image("snapshot:NAME")` starts from
    /// them. One that runs stands still for a moment, which the answer tells.
    pub async fn snapshot(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        let name = Name::parse(name.as_ref())?;
        self.worker.blocking(move |engine, of| engine.snapshots().create(&name, of, None)).await
    }

    /// Makes a second sandbox like it, which is not started.
    pub async fn clone_as(&self, name: impl AsRef<str>) -> Result<()> {
        let name = Name::parse(name.as_ref())?;
        self.worker
            .blocking(move |engine, of| engine.snapshots().clone_sandbox(of, &name).map(drop))
            .await
    }
}

impl Sandboxes {
    /// Every snapshot, the oldest first.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        self.blocking(|engine| engine.snapshots().list()).await
    }

    /// One snapshot, by a name or its id.
    pub async fn snapshot(&self, name: impl AsRef<str>) -> Result<Snapshot> {
        let name = Name::parse(name.as_ref())?;
        self.blocking(move |engine| engine.snapshots().get(&name)).await
    }

    /// Compares a snapshot with what was written down when it was taken.
    pub async fn verify_snapshot(&self, name: impl AsRef<str>) -> Result<VerifyReport> {
        let name = Name::parse(name.as_ref())?;
        self.blocking(move |engine| engine.snapshots().verify(&name)).await
    }

    /// Gives a snapshot one more name.
    pub async fn tag_snapshot(&self, name: impl AsRef<str>, new: impl AsRef<str>) -> Result<()> {
        let (name, new) = (Name::parse(name.as_ref())?, Name::parse(new.as_ref())?);
        self.blocking(move |engine| engine.snapshots().tag(&name, &new)).await
    }

    /// Removes a name of a snapshot, and the snapshot with its last one. One that others lie on
    /// is only removed with `force`.
    pub async fn remove_snapshot(&self, name: impl AsRef<str>, force: bool) -> Result<()> {
        let name = Name::parse(name.as_ref())?;
        self.blocking(move |engine| engine.snapshots().remove(&name, force)).await
    }

    /// Writes a snapshot to a new file, an OCI archive; with the layers of its image if `whole`.
    pub async fn save_snapshot(
        &self,
        name: impl AsRef<str>,
        path: impl Into<PathBuf>,
        whole: bool,
    ) -> Result<()> {
        let (name, path) = (Name::parse(name.as_ref())?, path.into());
        self.blocking(move |engine| {
            let about = |error| Error::host(format!("cannot write `{}`", path.display()), error);
            let mut out = BufWriter::new(File::create_new(&path).map_err(about)?);
            let saved = engine.snapshots().save(&name, whole, &mut out);
            let saved = saved.and_then(|()| out.flush().map_err(about));
            if saved.is_err() {
                let _ = std::fs::remove_file(&path);
            }
            saved
        })
        .await
    }

    /// Reads a snapshot from a file, under its own name or another; the name that it has.
    pub async fn load_snapshot(
        &self,
        path: impl Into<PathBuf>,
        name: Option<&str>,
    ) -> Result<Name> {
        let (path, name) = (path.into(), name.map(Name::parse).transpose()?);
        self.blocking(move |engine| {
            let about = |error| Error::host(format!("cannot read `{}`", path.display()), error);
            let mut file = File::open(&path).map_err(about)?;
            engine.snapshots().load(name.as_ref(), &mut file, &NoProgress)
        })
        .await
    }

    /// Makes a sandbox from a snapshot with the settings of the one that it was taken of, but for
    /// ports and secrets. It is not started.
    pub async fn restore(&self, snapshot: impl AsRef<str>, name: impl AsRef<str>) -> Result<()> {
        let (snapshot, name) = (Name::parse(snapshot.as_ref())?, Name::parse(name.as_ref())?);
        self.blocking(move |engine| engine.snapshots().restore(&snapshot, &name).map(drop)).await
    }

    /// Puts the files of a sandbox that does not run back to what a snapshot holds.
    pub async fn rollback(&self, name: impl AsRef<str>, snapshot: impl AsRef<str>) -> Result<()> {
        let (name, snapshot) = (Name::parse(name.as_ref())?, Name::parse(snapshot.as_ref())?);
        self.blocking(move |engine| engine.snapshots().rollback(&name, &snapshot)).await
    }

    /// Puts the files of a sandbox that does not run back to what its image holds, and forgets
    /// what it changed in its workspace unless `keep_workspace`.
    pub async fn reset(&self, name: impl AsRef<str>, keep_workspace: bool) -> Result<()> {
        let name = Name::parse(name.as_ref())?;
        self.blocking(move |engine| engine.snapshots().reset(&name, keep_workspace)).await
    }
}
