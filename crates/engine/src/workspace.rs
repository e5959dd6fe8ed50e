//! Reviewing what a sandbox has changed in its workspace.
//!
//! What a sandbox writes may belong to ids that this user has no other way to, and may be closed
//! even to its owner. An ordinary user's review is therefore done by a process of its own that has
//! the ids of the sandbox (`msb __review`); root needs none.

mod apart;

pub use apart::{REVIEW_ARGUMENT, serve};
pub use msb_api::{
    Applied, Change, Conflict, Depth, Item, ItemKind, LeftOut, Patch, RelPath, Risk, Selection,
    What,
};
pub use msb_review::{between, judge, typed_path};

use crate::host::User;
use crate::sandboxes::Engine;
use crate::store::Home;
use apart::{Answer, Task};
use msb_image::Owners;
use msb_review::Workspace;
use msb_spec::{Error, Ids, Kind, Name, Plan, PlannedWorkspace, Result, state};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

impl Engine {
    /// What a sandbox has changed in its workspace, below these paths or at all.
    pub fn diff(&self, name: &Name, below: &[RelPath], depth: Depth) -> Result<Vec<Change>> {
        let (plan, workspace) = self.workspace(name)?;
        match self.review(&plan, workspace, Task::Diff { below: below.to_vec(), depth })? {
            Answer::Changes(changes) => Ok(changes),
            _ => Err(Error::new(Kind::Protocol, "the review answered something else")),
        }
    }

    /// Brings changes to the host. With `dry_run` nothing is written.
    pub fn apply(&self, name: &Name, selection: &Selection, dry_run: bool) -> Result<Applied> {
        let (plan, workspace) = self.workspace(name)?;
        let task = Task::Apply { selection: selection.clone(), dry_run };
        let answer = self.review(&plan, workspace, task).map_err(|error| {
            error.under(format!("cannot apply the changes of sandbox `{name}`"))
        })?;
        match answer {
            Answer::Applied(applied) => Ok(applied),
            _ => Err(Error::new(Kind::Protocol, "the review answered something else")),
        }
    }

    /// Forgets changes of a sandbox that has stopped, at and below these paths or all. Gives how
    /// many there were.
    pub fn discard(&self, name: &Name, paths: &[RelPath]) -> Result<usize> {
        let (plan, workspace) = self.workspace(name)?;
        // Whoever holds the lock can be sure that nobody starts it meanwhile.
        let Some(_claim) = self.home().lock(name)? else {
            return Err(Error::new(Kind::State, format!("sandbox `{name}` is running"))
                .hint(format!("`msb stop {name}` ends it; what it changed stays until then")));
        };
        match self.review(&plan, workspace, Task::Discard { paths: paths.to_vec() })? {
            Answer::Discarded(count) => Ok(count),
            _ => Err(Error::new(Kind::Protocol, "the review answered something else")),
        }
    }

    /// The workspace of a sandbox as decided.
    pub fn planned_workspace(&self, name: &Name) -> Result<PlannedWorkspace> {
        let plan = self.existing(name)?;
        plan.workspace.ok_or_else(|| {
            Error::new(Kind::State, format!("sandbox `{name}` has no workspace"))
                .hint("`msb create --workspace DIR` makes one whose changes can be looked at")
        })
    }

    fn workspace(&self, name: &Name) -> Result<(Plan, Workspace)> {
        let planned = self.planned_workspace(name)?;
        let directory = self.home().directory(name);
        Ok((self.existing(name)?, located(&planned, &directory)))
    }

    fn review(&self, plan: &Plan, workspace: Workspace, task: Task) -> Result<Answer> {
        let owners = match plan.ids {
            Ids::Shifted { .. } => return task.perform(&workspace),
            Ids::Subordinate { uid, gid, uids, gids } => Owners::Granted { uid, gid, uids, gids },
            Ids::Single { uid, gid } => Owners::Single { uid, gid },
        };
        apart::ask(&self.program(), owners, workspace, task)
    }
}

/// Where the parts of a sandbox's workspace are.
fn located(planned: &PlannedWorkspace, directory: &Path) -> Workspace {
    Workspace {
        host: planned.host.clone(),
        changes: directory.join(state::WORKSPACE),
        notes: directory.join(state::REVIEW),
    }
}

/// What a new sandbox's directory needs for its workspace.
pub(crate) fn fill(plan: &Plan, planned: &PlannedWorkspace, directory: &Path) -> Result<()> {
    let workspace = located(planned, directory);
    let about = |error| Error::host("cannot make a place for the changes", error);
    fs::DirBuilder::new().mode(0o700).create(&workspace.changes).map_err(about)?;
    if User::current().is_root() {
        let (uid, gid) = plan.ids.root();
        std::os::unix::fs::chown(&workspace.changes, Some(uid), Some(gid)).map_err(about)?;
    }
    workspace.begin()
}

/// Gives a clone's directory, which has the changes of another sandbox already, what is known of
/// the host's files.
pub(crate) fn carry_notes(
    engine: &Engine,
    of: &Plan,
    planned: &PlannedWorkspace,
    directory: &Path,
) -> Result<()> {
    let original = located(planned, &engine.home().directory(&of.name));
    match engine.review(of, original, Task::Carry { clone: located(planned, directory) })? {
        Answer::Carried => Ok(()),
        _ => Err(Error::new(Kind::Protocol, "the review answered something else")),
    }
}

/// Whether a sandbox that is gone when it ends has something that somebody should look at first.
pub(crate) fn has_changes(plan: &Plan) -> bool {
    let Some(workspace) = &plan.workspace else { return false };
    let upper = workspace.changes.join(PlannedWorkspace::UPPER);
    match fs::read_dir(upper) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Finishes or undoes an `msb apply` that was killed. Says what it found.
pub(crate) fn recover(home: &Home, name: &Name) -> Result<Vec<String>> {
    let directory = home.directory(name);
    if !directory.join(state::REVIEW).exists() {
        return Ok(Vec::new());
    }
    let plan = home.plan(name)?;
    match &plan.workspace {
        Some(planned) => located(planned, &directory).recover(),
        None => Ok(Vec::new()),
    }
}

/// Why a sandbox that keeps nothing cannot be started again.
pub(crate) fn not_startable(plan: &Plan) -> Error {
    let name = &plan.name;
    match plan.workspace {
        None => Error::new(Kind::State, format!("sandbox `{name}` is gone when it ends")),
        Some(_) => Error::new(Kind::State, format!("only the workspace of `{name}` was kept"))
            .hint(format!("`msb diff {name}`, `msb apply {name}`, then `msb rm {name}`")),
    }
}
