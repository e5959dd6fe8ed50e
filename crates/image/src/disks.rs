//! Disks of images, for microVMs: each made once, when one is first asked for.
//!
//! A disk is named by the layers that it holds, so that images which share them share it. It is
//! made aside and shown whole. Nothing is synced: a note beside it tells in which boot it was made
//! and what it looked like, and the first use after another boot compares that.

use crate::acquire::hold;
use crate::apart::{Apart, AtWork, Task};
use crate::owners::Owners;
use crate::pack::Packed;
use crate::progress::{Progress, Step};
use crate::store::{Layer, Store, boot, digest_of, make_directories, passing, unusable};
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
/// How a disk is called in the directory that it is made in.
pub(crate) const MAKING: &str = "disk";
/// Larger than any note.
const NOTE_LIMIT: u64 = 64 << 10;
/// Raised when disks are made otherwise, so that old ones are not used.
const VERSION: u32 = 1;

/// What is noted beside a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    version: u32,
    /// The boot that it was made in; none once it was seen to have outlived that.
    boot: Option<String>,
    size: u64,
    /// Bytes that are in no block of the host's disk. More of them are what a power cut leaves.
    holes: u64,
    /// Where its directories are, which are written last.
    directories: Range<u64>,
    /// Of these, and of the first block.
    digest: Digest,
}

impl Store {
    /// The read-only disk that holds these layers, lowest first. Made if it is not here.
    pub fn disk(&self, layers: &[Layer], progress: &dyn Progress) -> Result<PathBuf> {
        self.ensure_disk(layers, progress).map_err(|error| error.at(Stage::Image))
    }

    /// The directory of all disks.
    pub(crate) fn disks(&self) -> PathBuf {
        self.home().join("disks")
    }

    /// What the disk of these layers is called.
    pub(crate) fn disk_digest(layers: &[Layer]) -> Digest {
        let chain: Vec<&str> = layers.iter().map(|layer| layer.diff_id.hex()).collect();
        digest_of(format!("{VERSION} {}", chain.join(" ")).as_bytes())
    }

    pub(crate) fn disk_place(&self, layers: &[Layer]) -> PathBuf {
        self.disks().join(format!("{}.erofs", Self::disk_digest(layers).hex()))
    }

    fn ensure_disk(&self, layers: &[Layer], progress: &dyn Progress) -> Result<PathBuf> {
        let place = self.disk_place(layers);
        if settled(&place).is_some_and(|note| note.boot.is_none_or(|then| then == boot())) {
            return Ok(place);
        }
        let _adding = self.adding()?;
        let name = Self::disk_digest(layers);
        let path = self.partials().join(format!("disk-{}", name.hex()));
        make_directories(&self.partials()).map_err(|error| unusable(&path, error))?;
        let waiting = || progress.step(Step::Waiting { digest: &name });
        let file = hold(&path, &name, waiting, &AtomicBool::new(false))?;
        let _held = Held { path, _file: file };
        // Somebody else may have made it meanwhile.
        if self.is_whole(&place)? {
            return Ok(place);
        }
        self.make_disk(&name, layers, &place, progress)?;
        Ok(place)
    }

    /// Whether a disk is what it was when it was made. What is not is removed.
    fn is_whole(&self, place: &Path) -> Result<bool> {
        let about = |error| unusable(place, error);
        if let Some(note) = settled(place) {
            if note.boot.as_ref().is_none_or(|then| *then == boot()) {
                return Ok(true);
            }
            let file = File::open(place).map_err(about)?;
            let found = (holes(&file, note.size), digest_of_ends(&file, &note.directories));
            if let (Ok(holes), Ok(digest)) = found
                && (holes, &digest) == (note.holes, &note.digest)
            {
                self.write_note(place, &Note { boot: None, ..note })?;
                return Ok(true);
            }
        }
        remove(place).map_err(about).map(|()| false)
    }

    fn write_note(&self, place: &Path, note: &Note) -> Result<()> {
        let text = serde_json::to_vec(note).expect("our own types always serialise");
        self.write_aside(&note_of(place), &text)
    }

    fn make_disk(
        &self,
        name: &Digest,
        layers: &[Layer],
        place: &Path,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.sweep();
        let aside = Aside(self.disks().join(passing("making")));
        let about = |error| unusable(&aside.0, error);
        make_directories(&self.disks()).map_err(about)?;
        make_directories(&aside.0).map_err(about)?;
        // Of a layer that comes twice the upper hides the lower.
        let above = |at: usize, layer: &Layer| {
            layers[at + 1..].iter().any(|other| other.diff_id == layer.diff_id)
        };
        let layers = layers.iter().enumerate().filter(|(at, layer)| !above(*at, layer));
        let layers: Vec<&Layer> = layers.map(|(_, layer)| layer).collect();
        let total: u64 = layers.iter().map(|layer| layer.size).sum();
        progress.step(Step::Disk { digest: name, size: total });

        let sizes = layers.iter().map(|layer| layer.size).collect();
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&Sha256::digest(name.hex())[..16]);
        let task = Task::Disk { sizes, bounds: self.bounds(), uuid, marks: None };
        let mut work = self.packer().start(&aside.0, task)?;
        let mut done = 0;
        for layer in &layers {
            self.feed(layer, &mut work, |bytes| {
                done += bytes;
                progress.step(Step::Bytes { digest: name, done });
            })?;
        }
        let packed: Packed = work.answer()?;
        for (layer, found) in layers.iter().zip(&packed.diff_ids) {
            if layer.diff_id != *found {
                return Err(Error::invalid("a layer of the image is not what its config says")
                    .cause(format!("wanted {}", layer.diff_id))
                    .cause(format!("got {found}")));
            }
        }
        let made = aside.0.join(MAKING);
        let file = File::open(&made).map_err(about)?;
        let note = Note {
            version: VERSION,
            boot: Some(boot()),
            size: packed.size,
            holes: holes(&file, packed.size).map_err(about)?,
            digest: digest_of_ends(&file, &packed.directories).map_err(about)?,
            directories: packed.directories,
        };
        self.write_note(place, &note)?;
        fs::rename(&made, place).map_err(about)?;
        progress.step(Step::Ready { digest: name });
        Ok(())
    }

    /// Packing writes one file, which is ours: it needs no ids but one.
    pub(crate) fn packer(&self) -> Apart {
        let owners = match self.apart().owners {
            Owners::Granted { uid, gid, .. } => Owners::Single { uid, gid },
            owners => owners,
        };
        Apart { program: self.apart().program.clone(), owners }
    }

    /// Sends the blob of a layer, and verifies it on the way.
    fn feed(&self, layer: &Layer, work: &mut AtWork, mut sent: impl FnMut(u64)) -> Result<()> {
        let path = self.blob(&layer.digest);
        let again = |what: &str| {
            Error::new(Kind::State, format!("a layer of the image is {what}"))
                .cause(&layer.digest)
                .hint("`msb pull` fetches it again")
        };
        let about = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => again("missing"),
            _ => unusable(&path, error),
        };
        let mut file = File::open(&path).map_err(about)?;
        let (mut hash, mut buffer, mut done) = (Sha256::new(), vec![0; CHUNK], 0);
        let mut deaf = false;
        loop {
            let n = file.read(&mut buffer).map_err(about)?;
            if n == 0 {
                break;
            }
            hash.update(&buffer[..n]);
            done += n as u64;
            // The other side counts on this size.
            if done > layer.size {
                break;
            }
            sent(n as u64);
            // Should it have given up, its answer says why. It may be that the blob is damaged.
            let stdin = work.stdin.as_mut().filter(|_| !deaf);
            deaf = stdin.is_none_or(|stdin| stdin.write_all(&buffer[..n]).is_err());
        }
        if done != layer.size || Digest::of_bytes(hash.finalize().into()) != layer.digest {
            let _ = fs::remove_file(&path);
            return Err(again("damaged on this disk"));
        }
        Ok(())
    }
}

/// The note of a disk that has the right size.
fn settled(place: &Path) -> Option<Note> {
    let mut text = Vec::new();
    File::open(note_of(place)).ok()?.take(NOTE_LIMIT).read_to_end(&mut text).ok()?;
    let note: Note = serde_json::from_slice(&text).ok()?;
    let disk = fs::symlink_metadata(place).ok()?;
    (note.version == VERSION && disk.is_file() && disk.len() == note.size).then_some(note)
}

/// Where the note of a disk is.
pub(crate) fn note_of(place: &Path) -> PathBuf {
    place.with_extension("json")
}

/// Removes a disk and its note.
pub(crate) fn remove(place: &Path) -> io::Result<()> {
    for path in [place.to_owned(), note_of(place)] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Bytes of a file that are holes.
fn holes(file: &File, size: u64) -> io::Result<u64> {
    use rustix::fs::SeekFrom;
    let (mut at, mut holes) = (0, 0);
    while at < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            // Nothing but a hole is left.
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

/// The digest of the first block and of what is at the end.
fn digest_of_ends(file: &File, directories: &Range<u64>) -> io::Result<Digest> {
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

/// The file whose lock tells that somebody makes a disk.
struct Held {
    path: PathBuf,
    _file: File,
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The directory that a disk is made in.
struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
