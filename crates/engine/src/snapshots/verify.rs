//! Manifests of snapshot layers: written after a snapshot was taken, compared by `msb snapshot
//! verify`.
//!
//! Reading and removing a layer take time in proportion to its size, so a background process (`msb
//! __tidy`) does both. The snapshot can be used meanwhile.

use super::running::layer_owners;
use super::{SnapshotStore, ensure_directory};
use crate::launch::{Launcher, redirect_stdio_to_null};
use crate::store;
use msb_api::VerifyReport;
use msb_image::FileDigest;
use msb_spec::{Error, Kind, Name, Plan, Result, state};
use msb_sys::lock::LockGuard;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// The argument that makes `msb` the background process.
pub const TIDY_ARGUMENT: &str = "__tidy";

/// How long the background process waits, to leave the disk to the next command of the user.
const IDLE_DELAY: Duration = Duration::from_secs(2);
/// How often the lock of another background process is tried.
const LOCK_POLL: Duration = Duration::from_millis(200);

/// The most differences that are reported.
const MAX_DIFFERENCES: usize = 20;
/// The most bytes of a digest file.
const SUM_LIMIT: u64 = 4096;

/// The digest and size of a layer, stored beside its manifest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LayerDigest {
    pub(super) digest: String,
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// How the digests of its files were computed.
    #[serde(default)]
    digests: FileDigest,
}

impl SnapshotStore<'_> {
    /// Compares the layers of a snapshot with their manifests. A layer without one gets it now.
    pub fn verify(&self, name: &Name) -> Result<VerifyReport> {
        let record = self.records().find(name)?;
        let mut verified = VerifyReport {
            id: record.id.clone(),
            intact: true,
            layers: 0,
            recorded: 0,
            files: 0,
            bytes: 0,
            differences: Vec::new(),
        };
        for layer in self.layer_dirs(&record.plan) {
            let sum = layer.digest();
            let digests = sum.as_ref().map_or(FileDigest::Sparse, |sum| sum.digests);
            let temp = TempManifest(self.write_manifest(&record.plan, &layer, digests)?);
            verified.layers += 1;
            if sum.is_none() {
                commit_manifest(&layer, &temp)?;
                verified.recorded += 1;
            } else {
                let differences = compare(&layer.manifest_file(), &temp.manifest(), &record.plan)?;
                verified.intact &= differences.is_empty();
                verified.differences.extend(differences);
            }
            verified.files += temp.0.sum.files;
            verified.bytes += temp.0.sum.bytes;
        }
        verified.differences.truncate(MAX_DIFFERENCES);
        Ok(verified)
    }

    /// Starts the background process.
    pub(super) fn spawn_tidy(&self) {
        match &self.engine.launcher {
            // A failed fork is ignored: verify and prune do the work later.
            Launcher::Fork(_) => {
                if msb_sys::process::fork().unwrap_or(false) {
                    let _ = redirect_stdio_to_null();
                    self.tidy();
                    msb_sys::process::leave(0);
                }
            }
            Launcher::Execute(path) => {
                let child = Command::new(path)
                    .arg(TIDY_ARGUMENT)
                    .arg(self.engine.home().path())
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn();
                if let Ok(mut child) = child {
                    // It forks at once; the process that we started exits.
                    let _ = child.wait();
                }
            }
        }
    }

    /// Removes unreferenced layers and writes missing manifests, at low priority.
    pub fn tidy(&self) {
        let _ = rustix::process::setsid();
        let Ok(Some(_lock)) = self.lock_tidy() else { return };
        // Before the priority drops: other processes wait for the layer lock that this holds.
        let unneeded = self.detach_unreferenced();
        let _ = rustix::process::nice(19);
        self.remove_dirs(&unneeded);
        for record in self.records().all().unwrap_or_default() {
            for layer in self.layer_dirs(&record.plan) {
                if layer.digest().is_none()
                    && let Ok(written) =
                        self.write_manifest(&record.plan, &layer, FileDigest::Sparse)
                {
                    msb_log::warn_on_failure!(
                        commit_manifest(&layer, &TempManifest(written)),
                        "cannot store the manifest of a layer"
                    );
                }
            }
        }
    }

    /// Waits until no other process tidies. `None` if another one waits already: it will do the
    /// work.
    fn lock_tidy(&self) -> Result<Option<LockGuard>> {
        let failed =
            |error: io::Error| Error::host("cannot lock the layers for cleaning up", error);
        ensure_directory(&self.engine.home().frozen())?;
        let lock = |name: &str| {
            let options = &mut File::options();
            let path = self.engine.home().frozen().join(name);
            let opened = options.read(true).write(true).create(true).truncate(false).open(path);
            opened.map(LockGuard).map_err(failed)
        };
        let (next, running) = (lock("tidy-next")?, lock("tidy")?);
        if !msb_sys::lock::try_lock(&next.0).map_err(failed)? {
            return Ok(None);
        }
        thread::sleep(IDLE_DELAY);
        while !msb_sys::lock::try_lock(&running.0).map_err(failed)? {
            thread::sleep(LOCK_POLL);
        }
        Ok(Some(running))
    }

    /// Reads a layer completely and writes its manifest to a temporary file.
    fn write_manifest(
        &self,
        plan: &Plan,
        layer: &LayerDir,
        digests: FileDigest,
    ) -> Result<LayerManifest> {
        let name = layer.directory.file_name().unwrap_or_default().to_string_lossy();
        ensure_directory(&self.engine.home().frozen())?;
        let temp = || self.engine.home().frozen().join(store::temp_name("making", &name));
        let (path, sum_path) = (temp(), temp());
        let failed = |error: io::Error| Error::host("cannot write the manifest of a layer", error);
        let mut file = io::BufWriter::new(store::create_private_file(&path).map_err(failed)?);
        let written = match plan.machine {
            Some(_) => {
                let disk = plan.written().find(|disk| disk.parent() == Some(&layer.directory));
                write_disk_manifest(disk.unwrap_or(&layer.directory), &mut file).map_err(failed)
            }
            None => self.write_tree_manifest(plan, (layer, digests), &mut file),
        };
        let written = written.and_then(|sum| file.flush().map_err(failed).map(|()| sum));
        match written {
            Ok(sum) => Ok(LayerManifest { path, sum_path, sum }),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn write_tree_manifest(
        &self,
        plan: &Plan,
        (layer, digests): (&LayerDir, FileDigest),
        out: &mut dyn Write,
    ) -> Result<LayerDigest> {
        let owners = layer_owners(&plan.ids);
        let nothing = LayerDigest { digest: String::new(), files: 0, bytes: 0, digests };
        layer.trees.iter().try_fold(nothing, |mut sum, name| {
            let tree = layer.directory.join(name);
            let written_as = plan.rootfs.written().find(|lower| lower.path == tree);
            let shift = written_as.and_then(|lower| lower.written_as).unwrap_or(0);
            writeln!(out, "{name}")
                .map_err(|error| Error::host("cannot write the manifest of a layer", error))?;
            let seal = msb_image::digest_tree(
                self.engine.program(),
                owners,
                &tree,
                (shift, digests),
                out,
            )?;
            sum.digest = join(&sum.digest, &seal.digest.to_string());
            sum.files += seal.files;
            sum.bytes += seal.bytes;
            Ok(sum)
        })
    }
}

/// Moves a manifest into place; the digest file, renamed last, makes it valid. Several processes
/// may do this at the same time.
fn commit_manifest(layer: &LayerDir, temp: &TempManifest) -> Result<()> {
    let LayerManifest { path, sum_path, sum } = &temp.0;
    let write = || -> io::Result<()> {
        File::open(path)?.sync_all()?;
        fs::write(sum_path, serde_json::to_vec(sum).unwrap_or_default())?;
        fs::rename(path, layer.manifest_file())?;
        fs::rename(sum_path, layer.notes.with_extension("sum"))
    };
    // The layer may have been removed meanwhile.
    if !layer.directory.is_dir() {
        return Ok(());
    }
    write().map_err(|error| Error::host("cannot write the manifest of a layer", error))
}

/// The manifest of a disk is the digest of the whole image: the host does not parse disks of
/// guests.
fn write_disk_manifest(disk: &Path, out: &mut dyn Write) -> io::Result<LayerDigest> {
    let file = File::open(disk)?;
    let bytes = file.metadata()?.len();
    let digest = msb_image::digest_of_sparse(&file)?.to_string();
    writeln!(out, "f - - - - {digest} - {}", state::DISK)?;
    Ok(LayerDigest { digest, files: 1, bytes, digests: FileDigest::Sparse })
}

struct LayerManifest {
    path: PathBuf,
    /// The temporary path of the digest file.
    sum_path: PathBuf,
    sum: LayerDigest,
}

/// A temporary manifest, removed on drop.
struct TempManifest(LayerManifest);

impl TempManifest {
    fn manifest(&self) -> PathBuf {
        self.0.path.clone()
    }
}

impl Drop for TempManifest {
    fn drop(&mut self) {
        for path in [&self.0.path, &self.0.sum_path] {
            let _ = fs::remove_file(path);
        }
    }
}

/// The directory of one snapshot layer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LayerDir {
    directory: PathBuf,
    /// The trees in the directory.
    trees: Vec<String>,
    /// The path of the manifest and digest files, without extension.
    notes: PathBuf,
}

impl LayerDir {
    fn manifest_file(&self) -> PathBuf {
        self.notes.with_extension("seal")
    }

    /// The recorded digest; `None` if there is no manifest.
    pub(super) fn digest(&self) -> Option<LayerDigest> {
        let mut text = Vec::new();
        let file = File::open(self.notes.with_extension("sum")).ok()?;
        file.take(SUM_LIMIT).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

impl SnapshotStore<'_> {
    /// The written layers of a Plan, the topmost first. A snapshot from an archive has layers of
    /// the image store; if its image came along, those are included.
    pub(super) fn layer_dirs(&self, plan: &Plan) -> Vec<LayerDir> {
        let all = plan.rootfs.overlays.iter().flat_map(|overlay| &overlay.lowers);
        let mut paths: Vec<&Path> = plan.written().collect();
        if paths.is_empty() {
            paths = all.map(|lower| lower.path.as_path()).collect();
        }
        let mut layers: Vec<LayerDir> = Vec::new();
        for layer in paths.into_iter().filter_map(|path| self.layer_dir(path, plan)) {
            if !layers.contains(&layer) {
                layers.push(layer);
            }
        }
        layers
    }

    fn layer_dir(&self, path: &Path, plan: &Plan) -> Option<LayerDir> {
        if path.starts_with(self.engine.home().frozen()) {
            let directory = path.parent()?.to_owned();
            let trees = (0..plan.rootfs.overlays.len()).map(|at| format!("upper{at}")).collect();
            return Some(LayerDir { notes: directory.clone(), directory, trees });
        }
        // The path is OWNERS/LAYER/fs/PART: the first two components name the layer.
        let below = path.strip_prefix(self.engine.home().layers()).ok()?;
        let owner_and_layer: PathBuf = below.iter().take(2).collect();
        let directory = self.engine.home().layers().join(owner_and_layer);
        Some(LayerDir { notes: directory.join("layer"), directory, trees: vec!["fs".to_owned()] })
    }
}

/// Combines two digests into one.
pub(super) fn join(before: &str, next: &str) -> String {
    match before {
        "" => next.to_owned(),
        _ => msb_image::digest_of(format!("{before}\n{next}\n").as_bytes()).to_string(),
    }
}

/// The differences of two manifests, by path.
fn compare(kept: &Path, found: &Path, plan: &Plan) -> Result<Vec<String>> {
    let failed = |error: io::Error| {
        Error::new(Kind::State, "the manifest of a layer cannot be read").cause(error)
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
                Some((recorded, path)) => {
                    lines.insert(format!("{tree}/{path}"), recorded.to_owned())
                }
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
    for (path, recorded) in &kept {
        match found.get(path) {
            None => differences.push(format!("{path} is gone")),
            Some(now) if now != recorded => differences.push(format!("{path} has changed")),
            Some(_) => {}
        }
    }
    let new = found.keys().filter(|path| !kept.contains_key(*path));
    differences.extend(new.map(|path| format!("{path} is new")));
    Ok(differences)
}
