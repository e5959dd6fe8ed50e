//! EROFS disks of images, for microVMs. A disk is packed when it is first needed, and cached.
//!
//! The file name is a digest of the layers, so images with the same layers share one disk. A disk
//! is written to a temporary directory; `rename(2)` is the commit point. Nothing is synced. Instead
//! a record next to the disk has the boot id, the size and a digest of the metadata. The first use
//! after a reboot compares the disk with its record and packs it again if they differ.

use crate::fetch_layers::lock_file;
use crate::helper_process::{Helper, HelperTask, RunningHelper};
use crate::owners::Owners;
use crate::pack::PackedDisk;
use crate::progress::{Progress, ProgressEvent};
use crate::store::{Layer, Store, boot_id, digest_of, make_directories, storage_error, temp_name};
use msb_spec::{Digest, Error, Kind, Result, Stage};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

const CHUNK: usize = 256 << 10;
/// File name of a disk in its temporary directory.
pub(crate) const DISK_FILE: &str = "disk";
/// Largest record that is read, in bytes.
const RECORD_LIMIT: u64 = 64 << 10;
/// Format of disks and records. Raise it to invalidate all cached disks.
const VERSION: u32 = 1;

/// The JSON file next to a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DiskRecord {
    version: u32,
    /// Boot id of the host when the disk was packed; none once it was verified after a reboot.
    boot: Option<String>,
    size: u64,
    /// Bytes of the disk that are holes. A power loss leaves more of them.
    holes: u64,
    /// Byte range of the directories, which are written last.
    directories: Range<u64>,
    /// SHA-256 of the first block and of `directories`.
    digest: Digest,
}

impl Store {
    /// The read-only EROFS disk with these layers, lowest first. Packs it if it is not cached.
    pub fn disk(&self, layers: &[Layer], progress: &dyn Progress) -> Result<PathBuf> {
        self.ensure_disk(layers, progress).map_err(|error| error.at(Stage::Image))
    }

    /// The directory of all disks.
    pub(crate) fn disks(&self) -> PathBuf {
        self.home().join("disks")
    }

    /// The digest that a disk of these layers is named by.
    pub(crate) fn disk_digest(layers: &[Layer]) -> Digest {
        let chain: Vec<&str> = layers.iter().map(|layer| layer.diff_id.hex()).collect();
        digest_of(format!("{VERSION} {}", chain.join(" ")).as_bytes())
    }

    pub(crate) fn disk_path(&self, layers: &[Layer]) -> PathBuf {
        self.disks().join(format!("{}.erofs", Self::disk_digest(layers).hex()))
    }

    fn ensure_disk(&self, layers: &[Layer], progress: &dyn Progress) -> Result<PathBuf> {
        let disk = self.disk_path(layers);
        if read_record(&disk).is_some_and(|record| record.boot.is_none_or(|then| then == boot_id()))
        {
            return Ok(disk);
        }
        let _adding = self.adding()?;
        let name = Self::disk_digest(layers);
        let path = self.partials().join(format!("disk-{}", name.hex()));
        make_directories(&self.partials()).map_err(|error| storage_error(&path, error))?;
        let waiting = || progress.step(ProgressEvent::Waiting { digest: &name });
        let file = lock_file(&path, &name, waiting, &AtomicBool::new(false))?;
        let _lock = DiskLock { path, _file: file };
        // Another process may have packed it while this one waited for the lock.
        if self.verify_disk(&disk)? {
            return Ok(disk);
        }
        self.make_disk(&name, layers, &disk, progress)?;
        Ok(disk)
    }

    /// Whether a disk matches its record. Removes it if not.
    fn verify_disk(&self, path: &Path) -> Result<bool> {
        let storage_failed = |error| storage_error(path, error);
        if let Some(record) = read_record(path) {
            if record.boot.as_ref().is_none_or(|then| *then == boot_id()) {
                return Ok(true);
            }
            let file = File::open(path).map_err(storage_failed)?;
            let found = (holes(&file, record.size), digest_of_metadata(&file, &record.directories));
            if let (Ok(holes), Ok(digest)) = found
                && (holes, &digest) == (record.holes, &record.digest)
            {
                self.write_disk_record(path, &DiskRecord { boot: None, ..record })?;
                return Ok(true);
            }
        }
        remove(path).map_err(storage_failed).map(|()| false)
    }

    fn write_disk_record(&self, path: &Path, record: &DiskRecord) -> Result<()> {
        let text = serde_json::to_vec(record).expect("our own types always serialise");
        self.write_atomic(&record_path(path), &text)
    }

    fn make_disk(
        &self,
        name: &Digest,
        layers: &[Layer],
        path: &Path,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.remove_stale_temps();
        let temp = TempDir(self.disks().join(temp_name("making")));
        let storage_failed = |error| storage_error(&temp.0, error);
        make_directories(&self.disks()).map_err(storage_failed)?;
        make_directories(&temp.0).map_err(storage_failed)?;
        // A layer that occurs twice is packed at its upper position only.
        let above = |at: usize, layer: &Layer| {
            layers[at + 1..].iter().any(|other| other.diff_id == layer.diff_id)
        };
        let layers = layers.iter().enumerate().filter(|(at, layer)| !above(*at, layer));
        let layers: Vec<&Layer> = layers.map(|(_, layer)| layer).collect();
        let total: u64 = layers.iter().map(|layer| layer.size).sum();
        progress.step(ProgressEvent::Disk { digest: name, size: total });

        let sizes = layers.iter().map(|layer| layer.size).collect();
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&Sha256::digest(name.hex())[..16]);
        let task = HelperTask::Disk { sizes, bounds: self.bounds(), uuid, marks: None };
        let mut running = self.single_id_helper().start(&temp.0, task)?;
        let mut done = 0;
        for layer in &layers {
            self.send_layer(layer, &mut running, |bytes| {
                done += bytes;
                progress.step(ProgressEvent::Bytes { digest: name, done });
            })?;
        }
        let packed: PackedDisk = running.reply()?;
        for (layer, found) in layers.iter().zip(&packed.diff_ids) {
            if layer.diff_id != *found {
                return Err(Error::invalid(
                    "the content of an image layer does not match the image config",
                )
                .cause(format!("wanted {}", layer.diff_id))
                .cause(format!("got {found}")));
            }
        }
        let made = temp.0.join(DISK_FILE);
        let file = File::open(&made).map_err(storage_failed)?;
        let record = DiskRecord {
            version: VERSION,
            boot: Some(boot_id()),
            size: packed.size,
            holes: holes(&file, packed.size).map_err(storage_failed)?,
            digest: digest_of_metadata(&file, &packed.directories).map_err(storage_failed)?,
            directories: packed.directories,
        };
        self.write_disk_record(path, &record)?;
        fs::rename(&made, path).map_err(storage_failed)?;
        progress.step(ProgressEvent::Ready { digest: name });
        Ok(())
    }

    /// A helper with a single id: packing writes one file of our own.
    pub(crate) fn single_id_helper(&self) -> Helper {
        let owners = match self.helper().owners {
            Owners::Granted { uid, gid, .. } => Owners::Single { uid, gid },
            owners => owners,
        };
        Helper { program: self.helper().program.clone(), owners }
    }

    /// Sends the blob of a layer to the helper and verifies its size and digest.
    fn send_layer(
        &self,
        layer: &Layer,
        running: &mut RunningHelper,
        mut sent: impl FnMut(u64),
    ) -> Result<()> {
        let path = self.blob(&layer.digest);
        let damaged = |what: &str| {
            Error::new(Kind::State, format!("an image layer is {what}"))
                .cause(&layer.digest)
                .hint("`msb pull` fetches it again")
        };
        let storage_failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => damaged("missing"),
            _ => storage_error(&path, error),
        };
        let mut file = File::open(&path).map_err(storage_failed)?;
        let (mut hash, mut buffer, mut done) = (Sha256::new(), vec![0; CHUNK], 0);
        let mut gave_up = false;
        loop {
            let n = file.read(&mut buffer).map_err(storage_failed)?;
            if n == 0 {
                break;
            }
            hash.update(&buffer[..n]);
            done += n as u64;
            // The helper reads exactly this many bytes.
            if done > layer.size {
                break;
            }
            sent(n as u64);
            // The helper may have failed because the blob is damaged: go on hashing to find out.
            // Its own error comes with the reply.
            let stdin = running.stdin.as_mut().filter(|_| !gave_up);
            gave_up = stdin.is_none_or(|stdin| stdin.write_all(&buffer[..n]).is_err());
        }
        if done != layer.size || Digest::of_bytes(hash.finalize().into()) != layer.digest {
            let _ = fs::remove_file(&path);
            return Err(damaged("damaged on disk"));
        }
        Ok(())
    }
}

/// The record of a disk, if the file has the recorded size.
fn read_record(path: &Path) -> Option<DiskRecord> {
    let mut text = Vec::new();
    File::open(record_path(path)).ok()?.take(RECORD_LIMIT).read_to_end(&mut text).ok()?;
    let record: DiskRecord = serde_json::from_slice(&text).ok()?;
    let disk = fs::symlink_metadata(path).ok()?;
    (record.version == VERSION && disk.is_file() && disk.len() == record.size).then_some(record)
}

/// Path of the record of a disk.
pub(crate) fn record_path(path: &Path) -> PathBuf {
    path.with_extension("json")
}

/// Removes a disk and its record.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    for path in [path.to_owned(), record_path(path)] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Counts the bytes of a file that are holes.
fn holes(file: &File, size: u64) -> io::Result<u64> {
    use rustix::fs::SeekFrom;
    let (mut at, mut holes) = (0, 0);
    while at < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            // Only a hole follows.
            Err(rustix::io::Errno::NXIO) => size,
            Err(error) => return Err(error.into()),
        };
        holes += data - at;
        at = match data {
            data if data == size => size,
            data => rustix::fs::seek(file, SeekFrom::Hole(data))?,
        };
    }
    Ok(holes)
}

/// SHA-256 of the first block and of the directories.
fn digest_of_metadata(file: &File, directories: &Range<u64>) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    file.read_exact_at(&mut buffer[..msb_erofs::BLOCK as usize], 0)?;
    hash.update(&buffer[..msb_erofs::BLOCK as usize]);
    let mut at = directories.start;
    while at < directories.end {
        let some = (directories.end - at).min(CHUNK as u64) as usize;
        file.read_exact_at(&mut buffer[..some], at)?;
        hash.update(&buffer[..some]);
        at += some as u64;
    }
    Ok(Digest::of_bytes(hash.finalize().into()))
}

/// Exclusive lock on the file that stands for packing this disk. Removes the file when dropped.
struct DiskLock {
    path: PathBuf,
    _file: File,
}

impl Drop for DiskLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A temporary directory that is removed when dropped.
struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        msb_log::debug_on_failure!(
            fs::remove_dir_all(&self.0),
            "cannot remove a temporary directory"
        );
    }
}
