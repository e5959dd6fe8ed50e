//! Copies the workspace changes of a sandbox for its clone.
//!
//! The changes are the upper directory of an overlay, so they cannot be shared like lower layers:
//! their files must belong to the ids of the clone.

use super::running::layer_owners;
use super::{SnapshotStore, ensure_directory, new_id};
use crate::host::HostUser;
use crate::sandboxes::Engine;
use crate::store::temp_name;
use crate::workspace;
use msb_image::{IdShift, LiveCopy};
use msb_spec::{Error, Ids, Plan, PlannedWorkspace, Result, state};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A copy in progress; removed on drop unless it was moved to the clone.
pub(super) struct WorkspaceCopy<'a> {
    engine: &'a Engine,
    of: &'a Plan,
    workspace: &'a PlannedWorkspace,
    ids: Ids,
    temp: PathBuf,
}

impl SnapshotStore<'_> {
    /// Prepares a copy of the workspace changes for a clone with these ids; `None` without a
    /// workspace.
    pub(super) fn copy_workspace<'a>(
        &'a self,
        of: &'a Plan,
        ids: Ids,
    ) -> Result<Option<WorkspaceCopy<'a>>> {
        let Some(workspace) = &of.workspace else { return Ok(None) };
        let frozen = self.engine.home().frozen();
        ensure_directory(&frozen)?;
        let temp = frozen.join(temp_name("making", &new_id()));
        ensure_directory(&temp)?;
        let workspace_copy = WorkspaceCopy { engine: self.engine, of, workspace, ids, temp };
        if HostUser::current().is_root() {
            let (uid, gid) = ids.root();
            std::os::unix::fs::chown(&workspace_copy.temp, Some(uid), Some(gid))
                .map_err(|error| workspace_copy.failed(error))?;
        }
        Ok(Some(workspace_copy))
    }
}

impl WorkspaceCopy<'_> {
    /// Starts a live copy with a first full pass; `None` if there are no changes.
    pub(super) fn begin(&self) -> Result<Option<LiveCopy>> {
        let from = self.workspace.changes.join(PlannedWorkspace::UPPER);
        match fs::symlink_metadata(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(|error| self.failed(error))?,
        };
        let into = self.temp.join(PlannedWorkspace::UPPER);
        fs::create_dir(&into).map_err(|error| self.failed(error))?;
        let shift = match (self.of.ids, self.ids) {
            (Ids::Shifted { range }, Ids::Shifted { range: ours }) => {
                Some(IdShift { from: range, into: ours.start })
            }
            _ => None,
        };
        let (program, owners) = (self.engine.program(), layer_owners(&self.of.ids));
        LiveCopy::begin(program, owners, &from, &into, shift).map(Some)
    }

    /// Copies the changes of a stopped sandbox, which the caller has locked.
    pub(super) fn copy(&self) -> Result<()> {
        match self.begin()? {
            Some(following) => following.catch_up().map(|_| ()),
            None => Ok(()),
        }
    }

    /// Moves the copy to the directory of the clone, and copies the review notes.
    pub(super) fn put(&self, directory: &Path) -> Result<()> {
        fs::rename(&self.temp, directory.join(state::WORKSPACE))
            .map_err(|error| self.failed(error))?;
        workspace::copy_review_notes(self.engine, self.of, self.workspace, directory)
    }

    fn failed(&self, error: io::Error) -> Error {
        let name = &self.of.name;
        Error::host(format!("cannot copy the workspace changes of sandbox `{name}`"), error)
    }
}

impl Drop for WorkspaceCopy<'_> {
    fn drop(&mut self) {
        if self.temp.exists() {
            self.engine.remove_tree_as_owner(&self.temp);
        }
    }
}
