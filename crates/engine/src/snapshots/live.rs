//! The files of a sandbox that runs: copied while it goes on, and once more, for a moment, while
//! it stands still.

use super::carried::Carried;
use super::{Writable, make_directory, new_id, placed};
use crate::sandboxes::Engine;
use crate::store::{Aside, passing};
use msb_image::{Following, Owners};
use msb_spec::{Error, Ids, Name, Plan, Result, state};
use msb_wire::Request;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything inside stops within milliseconds, unless a disk hangs.
const STAND_LIMIT: Duration = Duration::from_secs(30);

impl Engine {
    /// Copies what a running sandbox has written to where frozen layers are. A Plan that lies on
    /// it, and how long everything inside stood still for it.
    pub(super) fn copied(
        &self,
        name: &Name,
        carried: Option<&Carried<'_>>,
    ) -> Result<(Plan, Duration)> {
        let plan = self.existing(name)?;
        let layer = match Writable::of(&plan)? {
            Writable::Layer(layer) => layer.to_owned(),
            Writable::Disk(disk) => return self.copied_disk(name, &plan, disk, carried),
        };
        let frozen = self.home().frozen();
        make_directory(&frozen)?;
        let plan = self.shallow(plan)?;
        let id = new_id();
        let aside = Aside(frozen.join(passing("making", &id)));
        make_directory(&aside.0)?;
        let uppers: Vec<(PathBuf, PathBuf)> = (0..plan.rootfs.overlays.len())
            .map(|at| format!("upper{at}"))
            .map(|upper| (layer.join(&upper), aside.0.join(upper)))
            .collect();
        let owners = owners_of(&plan.ids);
        let begun = uppers.iter().map(|(from, into)| {
            fs::create_dir(into)
                .map_err(|error| Error::host(format!("cannot make `{}`", into.display()), error))?;
            Following::begin(self.program(), owners, from, into, None)
        });
        let followed = begun.collect::<Result<Vec<_>>>().and_then(|mut followed| {
            followed.extend(carried.map(Carried::begin).transpose()?.flatten());
            Ok(followed)
        });
        let done = followed.and_then(|followed| {
            let since = Instant::now();
            // It goes on when this connection closes, whatever becomes of us.
            let mut held = self.connect(name, &Request::Hold)?;
            held.reply_within(STAND_LIMIT)?;
            let caught: Result<Vec<_>> = followed.into_iter().map(Following::catch_up).collect();
            drop(held);
            let stood = since.elapsed();
            caught.map(|_| stood)
        });
        let stood = match done {
            Ok(stood) => stood,
            Err(error) => {
                self.remove_whole(&aside.0);
                return Err(error.under(format!("cannot copy the files of sandbox `{name}`")));
            }
        };
        let place = frozen.join(id);
        fs::rename(&aside.0, &place)
            .map_err(|error| Error::host(format!("cannot make `{}`", place.display()), error))?;
        std::mem::forget(aside);
        Ok((placed(plan, &place), stood))
    }
}

impl Engine {
    /// The same of a machine: its file system lets nobody write while its disk is copied.
    fn copied_disk(
        &self,
        name: &Name,
        plan: &Plan,
        disk: &Path,
        carried: Option<&Carried<'_>>,
    ) -> Result<(Plan, Duration)> {
        let frozen = self.home().frozen();
        make_directory(&frozen)?;
        let id = new_id();
        let aside = Aside(frozen.join(passing("making", &id)));
        make_directory(&aside.0)?;
        let followed = carried.map(Carried::begin).transpose()?.flatten();
        let since = Instant::now();
        // It goes on when this connection closes, whatever becomes of us.
        let mut held = self.connect(name, &Request::Hold)?;
        held.reply_within(STAND_LIMIT)?;
        let copied = msb_image::copy_file(disk, &aside.0.join(state::DISK));
        let caught = followed.map(Following::catch_up).transpose();
        drop(held);
        let stood = since.elapsed();
        copied.map_err(|error| {
            Error::host(format!("cannot copy the disk of sandbox `{name}`"), error)
        })?;
        caught?;
        let place = frozen.join(id);
        fs::rename(&aside.0, &place)
            .map_err(|error| Error::host(format!("cannot make `{}`", place.display()), error))?;
        std::mem::forget(aside);
        Ok((placed(plan.clone(), &place), stood))
    }
}

/// Who the files of a sandbox belong to on disk.
pub(super) fn owners_of(ids: &Ids) -> Owners {
    match *ids {
        Ids::Shifted { .. } => Owners::All,
        Ids::Single { uid, gid } => Owners::Single { uid, gid },
        Ids::Subordinate { uid, gid, uids, gids } => Owners::Granted { uid, gid, uids, gids },
    }
}
