//! What the layers of snapshots hold: written down when they are taken, compared when asked.
//!
//! To read everything takes as long as there is much of it, as does removing it, so that both are
//! done by a process that is left behind; the snapshot can be used meanwhile.

use super::live::owners_of;
use super::make_directory;
use crate::launch::{Launcher, silence};
use crate::sandboxes::Engine;
use crate::store;
use msb_api::Verified;
use msb_image::FileDigest;
use msb_spec::{Error, Kind, Name, Plan, Result, state};
use msb_sys::lock::Held;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// The argument with which `msb` becomes the process that is left behind.
pub const TIDY_ARGUMENT: &str = "__tidy";

/// Who has just taken a snapshot does something next, and the disk is theirs first.
const SETTLING: Duration = Duration::from_secs(2);
/// How often is looked whether another one has tidied up.
const TURN_CHECK: Duration = Duration::from_millis(200);

/// Differences that are told one by one.
const MOST_TOLD: usize = 20;
/// A digest and two numbers.
const SUM_LIMIT: u64 = 4096;

/// What is known of a layer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Sum {
    pub(super) digest: String,
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// How the digests of its files were made.
    #[serde(default)]
    digests: FileDigest,
}

impl Engine {
    /// Compares the layers of a snapshot with what was written down when it was taken.
    pub fn verify_snapshot(&self, name: &Name) -> Result<Verified> {
        let record = self.records().find(name)?;
        let mut verified = Verified {
            id: record.id.clone(),
            intact: true,
            layers: 0,
            recorded: 0,
            files: 0,
            bytes: 0,
            differences: Vec::new(),
        };
        for place in self.places(&record.plan) {
            let sum = place.sum();
            let digests = sum.as_ref().map_or(FileDigest::Sparse, |sum| sum.digests);
            let aside = Aside(self.describe(&record.plan, &place, digests)?);
            verified.layers += 1;
            if sum.is_none() {
                keep(&place, &aside)?;
                verified.recorded += 1;
            } else {
                let different = compare(&place.seal_file(), &aside.manifest(), &record.plan)?;
                verified.intact &= different.is_empty();
                verified.differences.extend(different);
            }
            verified.files += aside.0.sum.files;
            verified.bytes += aside.0.sum.bytes;
        }
        verified.differences.truncate(MOST_TOLD);
        Ok(verified)
    }

    /// Has a process tidy up that is left behind.
    pub(super) fn tidy_later(&self) {
        match &self.launcher {
            // Nothing depends on it: who verifies or prunes does what was left undone.
            Launcher::Fork(_) => {
                if msb_sys::process::fork().unwrap_or(false) {
                    let _ = silence();
                    self.tidy();
                    msb_sys::process::leave(0);
                }
            }
            Launcher::Execute(path) => {
                let child = Command::new(path)
                    .arg(TIDY_ARGUMENT)
                    .arg(self.home().path())
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn();
                if let Ok(mut child) = child {
                    // It forks at once and this one ends.
                    let _ = child.wait();
                }
            }
        }
    }

    /// Removes layers that nobody needs and writes down what those of snapshots hold, when the
    /// machine has nothing better to do.
    pub fn tidy(&self) {
        let _ = rustix::process::setsid();
        let Ok(Some(_turn)) = self.turn_to_tidy() else { return };
        // Not before it has let go of the lock that this takes: others wait for that.
        let unneeded = self.put_aside();
        let _ = rustix::process::nice(19);
        self.remove_all(&unneeded);
        for record in self.records().all().unwrap_or_default() {
            for place in self.places(&record.plan) {
                if place.sum().is_none()
                    && let Ok(described) = self.describe(&record.plan, &place, FileDigest::Sparse)
                {
                    let _ = keep(&place, &Aside(described));
                }
            }
        }
    }

    /// Waits until nobody else tidies up. None if another one waits already: it has yet to look.
    fn turn_to_tidy(&self) -> Result<Option<Held>> {
        let failed = |error: io::Error| Error::host("cannot take a turn to tidy up", error);
        make_directory(&self.home().frozen())?;
        let lock = |name: &str| {
            let options = &mut File::options();
            let path = self.home().frozen().join(name);
            let opened = options.read(true).write(true).create(true).truncate(false).open(path);
            opened.map(Held).map_err(failed)
        };
        let (next, turn) = (lock("tidy-next")?, lock("tidy")?);
        if !msb_sys::lock::try_lock(&next.0).map_err(failed)? {
            return Ok(None);
        }
        thread::sleep(SETTLING);
        while !msb_sys::lock::try_lock(&turn.0).map_err(failed)? {
            thread::sleep(TURN_CHECK);
        }
        Ok(Some(turn))
    }

    /// Reads a layer from end to end.
    fn describe(&self, plan: &Plan, place: &Place, digests: FileDigest) -> Result<Described> {
        let name = place.directory.file_name().unwrap_or_default().to_string_lossy();
        make_directory(&self.home().frozen())?;
        let aside = || self.home().frozen().join(store::passing("making", &name));
        let (path, sum_path) = (aside(), aside());
        let failed = |error: io::Error| Error::host("cannot write what a layer holds", error);
        let mut file = io::BufWriter::new(store::create_private(&path).map_err(failed)?);
        let described = match plan.machine {
            Some(_) => {
                let disk = plan.written().find(|disk| disk.parent() == Some(&place.directory));
                describe_disk(disk.unwrap_or(&place.directory), &mut file).map_err(failed)
            }
            None => self.describe_trees(plan, (place, digests), &mut file),
        };
        let described = described.and_then(|sum| file.flush().map_err(failed).map(|()| sum));
        match described {
            Ok(sum) => Ok(Described { path, sum_path, sum }),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn describe_trees(
        &self,
        plan: &Plan,
        (place, digests): (&Place, FileDigest),
        out: &mut dyn Write,
    ) -> Result<Sum> {
        let owners = owners_of(&plan.ids);
        let nothing = Sum { digest: String::new(), files: 0, bytes: 0, digests };
        place.trees.iter().try_fold(nothing, |mut sum, name| {
            let tree = place.directory.join(name);
            let written_as = plan.rootfs.written().find(|lower| lower.path == tree);
            let shift = written_as.and_then(|lower| lower.written_as).unwrap_or(0);
            writeln!(out, "{name}")
                .map_err(|error| Error::host("cannot write what a layer holds", error))?;
            let seal = msb_image::seal(self.program(), owners, &tree, (shift, digests), out)?;
            sum.digest = join(&sum.digest, &seal.digest.to_string());
            sum.files += seal.files;
            sum.bytes += seal.bytes;
            Ok(sum)
        })
    }
}

/// Keeps a description; the sum is what makes it one. Another may do the same at the same moment.
fn keep(place: &Place, aside: &Aside) -> Result<()> {
    let Described { path, sum_path, sum } = &aside.0;
    let keep = || -> io::Result<()> {
        File::open(path)?.sync_all()?;
        fs::write(sum_path, serde_json::to_vec(sum).unwrap_or_default())?;
        fs::rename(path, place.seal_file())?;
        fs::rename(sum_path, place.notes.with_extension("sum"))
    };
    // Its layer may have been removed meanwhile.
    if !place.directory.is_dir() {
        return Ok(());
    }
    keep().map_err(|error| Error::host("cannot write what a layer holds", error))
}

/// A disk is not looked into: what a machine has written is only for machines.
fn describe_disk(disk: &Path, out: &mut dyn Write) -> io::Result<Sum> {
    let file = File::open(disk)?;
    let bytes = file.metadata()?.len();
    let digest = msb_image::digest_of_sparse(&file)?.to_string();
    writeln!(out, "f - - - - {digest} - {}", state::DISK)?;
    Ok(Sum { digest, files: 1, bytes, digests: FileDigest::Sparse })
}

struct Described {
    path: PathBuf,
    /// Where the sum is written until it is kept.
    sum_path: PathBuf,
    sum: Sum,
}

/// A description that is removed again.
struct Aside(Described);

impl Aside {
    fn manifest(&self) -> PathBuf {
        self.0.path.clone()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        for path in [&self.0.path, &self.0.sum_path] {
            let _ = fs::remove_file(path);
        }
    }
}

/// A layer of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    directory: PathBuf,
    /// What lies in it.
    trees: Vec<String>,
    /// Where it is written down what that holds, but for the endings of those files.
    notes: PathBuf,
}

impl Place {
    fn seal_file(&self) -> PathBuf {
        self.notes.with_extension("seal")
    }

    /// What was written down about it.
    pub(super) fn sum(&self) -> Option<Sum> {
        let mut text = Vec::new();
        let file = File::open(self.notes.with_extension("sum")).ok()?;
        file.take(SUM_LIMIT).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

impl Engine {
    /// The layers of a Plan that sandboxes wrote, the topmost first. What came from a file is a
    /// layer of the image store; if its image came with it, those are layers of the snapshot, too.
    pub(super) fn places(&self, plan: &Plan) -> Vec<Place> {
        let all = plan.rootfs.overlays.iter().flat_map(|overlay| &overlay.lowers);
        let mut layers: Vec<&Path> = plan.written().collect();
        if layers.is_empty() {
            layers = all.map(|lower| lower.path.as_path()).collect();
        }
        let mut places: Vec<Place> = Vec::new();
        for place in layers.into_iter().filter_map(|layer| self.place(layer, plan)) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    fn place(&self, layer: &Path, plan: &Plan) -> Option<Place> {
        if layer.starts_with(self.home().frozen()) {
            let directory = layer.parent()?.to_owned();
            let trees = (0..plan.rootfs.overlays.len()).map(|at| format!("upper{at}")).collect();
            return Some(Place { notes: directory.clone(), directory, trees });
        }
        // Whose layers, the layer, its files, and the part of them that an overlay has.
        let below = layer.strip_prefix(self.home().layers()).ok()?;
        let whose_and_which: PathBuf = below.iter().take(2).collect();
        let directory = self.home().layers().join(whose_and_which);
        Some(Place { notes: directory.join("layer"), directory, trees: vec!["fs".to_owned()] })
    }
}

/// One digest of several.
pub(super) fn join(before: &str, next: &str) -> String {
    match before {
        "" => next.to_owned(),
        _ => msb_image::digest_of(format!("{before}\n{next}\n").as_bytes()).to_string(),
    }
}

/// What two descriptions say differently, by path.
fn compare(kept: &Path, found: &Path, plan: &Plan) -> Result<Vec<String>> {
    let failed = |error: io::Error| {
        Error::new(Kind::State, "what was written down about a layer cannot be read").cause(error)
    };
    let read = |path: &Path| -> io::Result<BTreeMap<String, String>> {
        let mut lines = BTreeMap::new();
        let mut tree = String::new();
        let tree_of = |line: &str| {
            let at = line.strip_prefix("upper").and_then(|at| at.parse::<usize>().ok());
            let overlay = at.and_then(|at| plan.rootfs.overlays.get(at));
            overlay.map(|overlay| overlay.at.trim_end_matches('/').to_owned()).unwrap_or_default()
        };
        for line in BufReader::new(File::open(path)?).lines() {
            let line = line?;
            match line.rsplit_once(' ') {
                Some((said, path)) => lines.insert(format!("{tree}/{path}"), said.to_owned()),
                None => {
                    tree = tree_of(&line);
                    None
                }
            };
        }
        Ok(lines)
    };
    let (kept, found) = (read(kept).map_err(failed)?, read(found).map_err(failed)?);
    let mut differences = Vec::new();
    for (path, said) in &kept {
        match found.get(path) {
            None => differences.push(format!("{path} is gone")),
            Some(now) if now != said => differences.push(format!("{path} has changed")),
            Some(_) => {}
        }
    }
    let new = found.keys().filter(|path| !kept.contains_key(*path));
    differences.extend(new.map(|path| format!("{path} is new")));
    Ok(differences)
}
