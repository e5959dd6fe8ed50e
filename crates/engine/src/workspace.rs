//! Reviews the changes of a sandbox in its workspace: diff, apply, discard.
//!
//! Files that a sandbox writes may belong to subordinate ids, and may be unreadable for this user.
//! A helper process with the ids of the sandbox (`msb __review`) does the review.

mod helper_process;

pub use helper_process::{REVIEW_ARGUMENT, serve};
pub use msb_api::{
    ApplyReport, Change, Conflict, Depth, Item, ItemKind, LeftOut, Patch, RelPath, Risk, Selection,
    What,
};
pub use msb_review::{between, judge, typed_path};

use crate::host::HostUser;
use crate::sandboxes::Engine;
use crate::store::Home;
use helper_process::{ReviewReply, ReviewTask};
use msb_image::Owners;
use msb_review::Workspace;
use msb_spec::{Error, Ids, Kind, Name, Plan, PlannedWorkspace, Result, state};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

impl Engine {
    /// The changes of a sandbox in its workspace, below these paths or all.
    pub fn diff(&self, name: &Name, below: &[RelPath], depth: Depth) -> Result<Vec<Change>> {
        let (plan, workspace) = self.workspace(name)?;
        match self.review(&plan, workspace, ReviewTask::Diff { below: below.to_vec(), depth })? {
            ReviewReply::Changes(changes) => Ok(changes),
            _ => Err(Error::new(Kind::Protocol, "the review process sent an unexpected reply")),
        }
    }

    /// Applies changes to the host. With `dry_run` nothing is written. A sandbox that was only kept
    /// for its changes is removed when none is left.
    pub fn apply(&self, name: &Name, selection: &Selection, dry_run: bool) -> Result<ApplyReport> {
        let (plan, workspace) = self.workspace(name)?;
        let task = ReviewTask::Apply { selection: selection.clone(), dry_run };
        let answer = self.review(&plan, workspace, task).map_err(|error| {
            error.under(format!("cannot apply the changes of sandbox `{name}`"))
        })?;
        match answer {
            ReviewReply::Applied(applied) => {
                if !dry_run {
                    self.end_review(&plan);
                }
                Ok(applied)
            }
            _ => Err(Error::new(Kind::Protocol, "the review process sent an unexpected reply")),
        }
    }

    /// Discards changes of a stopped sandbox, at and below these paths or all. Returns their
    /// number. A sandbox that was only kept for its changes is removed when none is left.
    pub fn discard(&self, name: &Name, paths: &[RelPath]) -> Result<usize> {
        let (plan, workspace) = self.workspace(name)?;
        // The lock keeps the sandbox from being started meanwhile.
        let Some(claim) = self.home().lock(name)? else {
            return Err(Error::new(Kind::State, format!("sandbox `{name}` is running"))
                .hint(format!("`msb stop {name}` ends it; what it changed stays until then")));
        };
        match self.review(&plan, workspace, ReviewTask::Discard { paths: paths.to_vec() })? {
            ReviewReply::Discarded(count) => {
                drop(claim);
                self.end_review(&plan);
                Ok(count)
            }
            _ => Err(Error::new(Kind::Protocol, "the review process sent an unexpected reply")),
        }
    }

    /// Removes an ephemeral sandbox whose last change was applied or discarded. If that fails it
    /// stays for `msb rm`; the review itself is done.
    fn end_review(&self, plan: &Plan) {
        if !plan.ephemeral || self.is_running(&plan.name) {
            return;
        }
        let reviewed = self.diff(&plan.name, &[], Depth::default());
        if reviewed.is_ok_and(|changes| changes.is_empty()) {
            msb_log::warn_on_failure!(
                self.remove(&plan.name, false),
                "cannot remove a sandbox whose changes were reviewed"
            );
        }
    }

    /// The planned workspace of a sandbox; fails if it has none.
    pub fn planned_workspace(&self, name: &Name) -> Result<PlannedWorkspace> {
        let plan = self.existing(name)?;
        plan.workspace.ok_or_else(|| {
            Error::new(Kind::State, format!("sandbox `{name}` has no workspace"))
                .hint("`msb create --workspace DIR` creates one with reviewable changes")
        })
    }

    fn workspace(&self, name: &Name) -> Result<(Plan, Workspace)> {
        let planned = self.planned_workspace(name)?;
        let directory = self.home().directory(name);
        Ok((self.existing(name)?, workspace_paths(&planned, &directory)))
    }

    fn review(&self, plan: &Plan, workspace: Workspace, task: ReviewTask) -> Result<ReviewReply> {
        let owners = match plan.ids {
            Ids::Shifted { .. } => Owners::All,
            Ids::Subordinate { uid, gid, uids, gids } => Owners::Granted { uid, gid, uids, gids },
            Ids::Single { uid, gid } => Owners::Single { uid, gid },
        };
        helper_process::run_helper(&self.program(), owners, workspace, task)
    }
}

/// The paths of the workspace: host directory, changes and review notes.
fn workspace_paths(planned: &PlannedWorkspace, directory: &Path) -> Workspace {
    Workspace {
        host: planned.host.clone(),
        changes: directory.join(state::WORKSPACE),
        notes: directory.join(state::REVIEW),
    }
}

/// Creates the workspace directories of a new sandbox and takes the baseline.
pub(crate) fn fill(plan: &Plan, planned: &PlannedWorkspace, directory: &Path) -> Result<()> {
    let workspace = workspace_paths(planned, directory);
    let about = |error| Error::host("cannot create the directory of the changes", error);
    fs::DirBuilder::new().mode(0o700).create(&workspace.changes).map_err(about)?;
    if HostUser::current().is_root() {
        let (uid, gid) = plan.ids.root();
        std::os::unix::fs::chown(&workspace.changes, Some(uid), Some(gid)).map_err(about)?;
    }
    workspace.begin()
}

/// Copies the review notes to a clone that has the changes of the original already.
pub(crate) fn copy_review_notes(
    engine: &Engine,
    of: &Plan,
    planned: &PlannedWorkspace,
    directory: &Path,
) -> Result<()> {
    let original = workspace_paths(planned, &engine.home().directory(&of.name));
    match engine.review(
        of,
        original,
        ReviewTask::Carry { clone: workspace_paths(planned, directory) },
    )? {
        ReviewReply::Carried => Ok(()),
        _ => Err(Error::new(Kind::Protocol, "the review process sent an unexpected reply")),
    }
}

/// Whether an ephemeral sandbox has workspace changes to be reviewed.
pub(crate) fn has_changes(plan: &Plan) -> bool {
    let Some(workspace) = &plan.workspace else { return false };
    let upper = workspace.changes.join(PlannedWorkspace::UPPER);
    match fs::read_dir(upper) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Completes or reverts an `msb apply` that was killed. Returns one line for each.
pub(crate) fn recover(home: &Home, name: &Name) -> Result<Vec<String>> {
    let directory = home.directory(name);
    if !directory.join(state::REVIEW).exists() {
        return Ok(Vec::new());
    }
    let plan = home.plan(name)?;
    match &plan.workspace {
        Some(planned) => workspace_paths(planned, &directory).recover(),
        None => Ok(Vec::new()),
    }
}

/// The error for starting an ephemeral sandbox again.
pub(crate) fn not_startable(plan: &Plan) -> Error {
    let name = &plan.name;
    match plan.workspace {
        None => Error::new(Kind::State, format!("sandbox `{name}` is ephemeral")),
        Some(_) => {
            let message = format!("sandbox `{name}` has ended; only its changes are kept");
            Error::new(Kind::State, message).hint(format!(
                "`msb diff {name}` shows them, `msb apply {name}` brings them here, \
                 `msb discard {name}` forgets them; `msb run` starts a new sandbox"
            ))
        }
    }
}
