//! What a sandbox has changed in its workspace, copied for a clone of it.
//!
//! The clone has ids of its own, so that a layer below cannot be shared as the others are: the
//! changes are the upper layer of an overlay, and those belong to whoever writes them.

use super::live::owners_of;
use super::{make_directory, new_id};
use crate::host::User;
use crate::sandboxes::Engine;
use crate::store::passing;
use crate::workspace;
use msb_image::{Following, Shift};
use msb_spec::{Error, Ids, Plan, PlannedWorkspace, Result, state};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Changes that are on their way to a clone; removed unless they arrive.
pub(super) struct Carried<'a> {
    engine: &'a Engine,
    of: &'a Plan,
    workspace: &'a PlannedWorkspace,
    ids: Ids,
    aside: PathBuf,
}

impl Engine {
    /// Makes a place for what was changed in the workspace of a sandbox, if it has one, for a
    /// clone that has these ids.
    pub(super) fn carry<'a>(&'a self, of: &'a Plan, ids: Ids) -> Result<Option<Carried<'a>>> {
        let Some(workspace) = &of.workspace else { return Ok(None) };
        let frozen = self.home().frozen();
        make_directory(&frozen)?;
        let aside = frozen.join(passing("making", &new_id()));
        make_directory(&aside)?;
        let carried = Carried { engine: self, of, workspace, ids, aside };
        if User::current().is_root() {
            let (uid, gid) = ids.root();
            std::os::unix::fs::chown(&carried.aside, Some(uid), Some(gid))
                .map_err(|error| carried.failed(error))?;
        }
        Ok(Some(carried))
    }
}

impl Carried<'_> {
    /// Copies everything once; none if nothing was ever written.
    pub(super) fn begin(&self) -> Result<Option<Following>> {
        let from = self.workspace.changes.join(PlannedWorkspace::UPPER);
        match fs::symlink_metadata(&from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(|error| self.failed(error))?,
        };
        let into = self.aside.join(PlannedWorkspace::UPPER);
        fs::create_dir(&into).map_err(|error| self.failed(error))?;
        let shift = match (self.of.ids, self.ids) {
            (Ids::Shifted { range }, Ids::Shifted { range: ours }) => {
                Some(Shift { from: range, into: ours.start })
            }
            _ => None,
        };
        let (program, owners) = (self.engine.program(), owners_of(&self.of.ids));
        Following::begin(program, owners, &from, &into, shift).map(Some)
    }

    /// The same for a sandbox that nobody can start meanwhile.
    pub(super) fn copy(&self) -> Result<()> {
        match self.begin()? {
            Some(following) => following.catch_up().map(|_| ()),
            None => Ok(()),
        }
    }

    /// Puts the changes into the directory of the clone, with what is known of the host's files.
    pub(super) fn put(&self, directory: &Path) -> Result<()> {
        fs::rename(&self.aside, directory.join(state::WORKSPACE))
            .map_err(|error| self.failed(error))?;
        workspace::carry_notes(self.engine, self.of, self.workspace, directory)
    }

    fn failed(&self, error: io::Error) -> Error {
        let name = &self.of.name;
        Error::host(format!("cannot copy what sandbox `{name}` has changed"), error)
    }
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        if self.aside.exists() {
            self.engine.remove_whole(&self.aside);
        }
    }
}
