//! Copies the files of a running sandbox: a full pass while it runs, then a delta pass while it is
//! paused.

use super::workspace_copy::WorkspaceCopy;
use super::{SnapshotStore, WritableLayer, ensure_directory, new_id, with_frozen_layer};
use crate::store::{TempDir, temp_name};
use msb_image::{LiveCopy, Owners};
use msb_spec::{Error, Ids, Name, Plan, Result, state};
use msb_wire::Request;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the pause may take to begin. Milliseconds are usual, unless a disk hangs.
const PAUSE_LIMIT: Duration = Duration::from_secs(30);

impl SnapshotStore<'_> {
    /// Copies the writable layer of a running sandbox to the frozen layers. Returns a Plan on top
    /// of the copy, and the length of the pause.
    pub(super) fn copy_running(
        &self,
        name: &Name,
        workspace_copy: Option<&WorkspaceCopy<'_>>,
    ) -> Result<(Plan, Duration)> {
        let plan = self.engine.existing(name)?;
        let layer = match WritableLayer::of(&plan)? {
            WritableLayer::Layer(layer) => layer.to_owned(),
            WritableLayer::Disk(disk) => {
                return self.copy_running_disk(name, &plan, disk, workspace_copy);
            }
        };
        let frozen = self.engine.home().frozen();
        ensure_directory(&frozen)?;
        let plan = self.flatten(plan)?;
        let id = new_id();
        let temp = TempDir(frozen.join(temp_name("making", &id)));
        ensure_directory(&temp.0)?;
        let uppers: Vec<(PathBuf, PathBuf)> = (0..plan.rootfs.overlays.len())
            .map(|at| format!("upper{at}"))
            .map(|upper| (layer.join(&upper), temp.0.join(upper)))
            .collect();
        let owners = layer_owners(&plan.ids);
        let begun = uppers.iter().map(|(from, into)| {
            fs::create_dir(into)
                .map_err(|error| Error::host(format!("cannot make `{}`", into.display()), error))?;
            LiveCopy::begin(self.engine.program(), owners, from, into, None)
        });
        let copies = begun.collect::<Result<Vec<_>>>().and_then(|mut copies| {
            copies.extend(workspace_copy.map(WorkspaceCopy::begin).transpose()?.flatten());
            Ok(copies)
        });
        let done = copies.and_then(|copies| {
            let since = Instant::now();
            // The guest resumes when this connection closes, even if this process is killed.
            let mut pause = self.engine.connect(name, &Request::Hold)?;
            pause.reply_within(PAUSE_LIMIT)?;
            let caught_up: Result<Vec<_>> = copies.into_iter().map(LiveCopy::catch_up).collect();
            drop(pause);
            let pause_time = since.elapsed();
            caught_up.map(|_| pause_time)
        });
        let pause_time = match done {
            Ok(pause_time) => pause_time,
            Err(error) => {
                self.engine.remove_tree_as_owner(&temp.0);
                return Err(error.under(format!("cannot copy the files of sandbox `{name}`")));
            }
        };
        let target = frozen.join(id);
        fs::rename(&temp.0, &target)
            .map_err(|error| Error::host(format!("cannot make `{}`", target.display()), error))?;
        std::mem::forget(temp);
        Ok((with_frozen_layer(plan, &target), pause_time))
    }
}

impl SnapshotStore<'_> {
    /// Copies the disk of a running microVM while its guest keeps the file system frozen.
    fn copy_running_disk(
        &self,
        name: &Name,
        plan: &Plan,
        disk: &Path,
        workspace_copy: Option<&WorkspaceCopy<'_>>,
    ) -> Result<(Plan, Duration)> {
        let frozen = self.engine.home().frozen();
        ensure_directory(&frozen)?;
        let id = new_id();
        let temp = TempDir(frozen.join(temp_name("making", &id)));
        ensure_directory(&temp.0)?;
        let copies = workspace_copy.map(WorkspaceCopy::begin).transpose()?.flatten();
        let since = Instant::now();
        // The guest resumes when this connection closes, even if this process is killed.
        let mut pause = self.engine.connect(name, &Request::Hold)?;
        pause.reply_within(PAUSE_LIMIT)?;
        let copied = msb_image::copy_file(disk, &temp.0.join(state::DISK));
        let caught_up = copies.map(LiveCopy::catch_up).transpose();
        drop(pause);
        let pause_time = since.elapsed();
        copied.map_err(|error| {
            Error::host(format!("cannot copy the disk of sandbox `{name}`"), error)
        })?;
        caught_up?;
        let target = frozen.join(id);
        fs::rename(&temp.0, &target)
            .map_err(|error| Error::host(format!("cannot make `{}`", target.display()), error))?;
        std::mem::forget(temp);
        Ok((with_frozen_layer(plan.clone(), &target), pause_time))
    }
}

/// The owners of the files of a sandbox on the host.
pub(super) fn layer_owners(ids: &Ids) -> Owners {
    match *ids {
        Ids::Shifted { .. } => Owners::All,
        Ids::Single { uid, gid } => Owners::Single { uid, gid },
        Ids::Subordinate { uid, gid, uids, gids } => Owners::Granted { uid, gid, uids, gids },
    }
}
