//! What a build asks of the store: layers of files, layers of what a sandbox wrote, and whether
//! a step was done before.

use super::assembly::Copying;
use super::errand::{Copied, Errand, From};
use crate::apart::Task;
use crate::store::{Layer, Store, is_debris, make_directories, passing, unusable};
use msb_spec::{Digest, Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What COPY, ADD or WORKDIR puts into a layer.
#[derive(Debug, Clone)]
pub struct Putting {
    /// What and whereto.
    pub copying: Copying,
    /// The directories of the layers so far, topmost first.
    pub below: Vec<PathBuf>,
    /// Where it comes from.
    pub from: Origin,
    /// The time of what is made on the way, in seconds since 1970.
    pub time: i64,
    /// No file is newer than this.
    pub latest: Option<i64>,
}

/// Where files come from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A directory of the host, without what these rules leave out.
    Folder {
        /// Which.
        path: PathBuf,
        /// The text of its `.dockerignore`.
        ignore: String,
    },
    /// The directories of a stage's or an image's layers, topmost first.
    Layers(Vec<PathBuf>),
    /// Nowhere: only the target has to be there.
    Nowhere,
}

/// What a sandbox has written.
#[derive(Debug)]
pub struct Written<'a> {
    /// Where.
    pub upper: &'a Path,
    /// Where it lies in the image; empty at its top.
    pub at: String,
    /// The directories of the layers that it lay over, topmost first.
    pub below: Vec<PathBuf>,
    /// How much higher owners are there than in the image.
    pub shift: u32,
    /// Names at the top that none of the layers has, and that the sandbox makes for itself.
    pub missing: Vec<String>,
    /// Paths that the sandbox has shown files of its own over, which the layers may not have.
    pub covered: Vec<String>,
    /// No file is newer than this.
    pub latest: Option<i64>,
}

/// What a step has made, kept for the next time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// None if nothing changed.
    pub layer: Option<Layer>,
    /// When, as images write it.
    pub created: String,
}

/// What a step is known by: everything that decides what it makes.
#[derive(Debug, Clone)]
pub struct Key(Sha256);

impl Key {
    /// A step of this sort; a later version of msb may do it otherwise.
    pub fn new(sort: &str) -> Self {
        const VERSION: &str = "1";
        let mut key = Self(Sha256::new());
        key.add(VERSION);
        key.add(sort);
        key
    }

    /// Adds something that decides.
    pub fn add(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn digest(&self) -> Digest {
        Digest::of_bytes(self.0.clone().finalize().into())
    }
}

/// A record is one layer's description.
const RECORD_LIMIT: u64 = 64 << 10;

/// The writable directory of a sandbox that a step runs in; removed when dropped.
#[derive(Debug)]
pub struct Scratch {
    /// Where it is.
    pub path: PathBuf,
    store: Store,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = self.store.remove_scratch(&self.path);
    }
}

impl Store {
    /// What would be copied, without copying it.
    pub fn look(&self, putting: &Putting) -> Result<Copied> {
        let mut work = self.begin(putting, false)?;
        work.stdin.take();
        work.answer()
    }

    /// Copies; none if nothing had to be.
    pub fn put(&self, putting: &Putting) -> Result<(Option<Layer>, Copied)> {
        let mut work = self.begin(putting, true)?;
        let kept = self.keep(work.layer.take());
        agreed(kept, work.answer())
    }

    fn begin(&self, putting: &Putting, write: bool) -> Result<crate::apart::AtWork> {
        let mut directories = putting.below.clone();
        let from = match &putting.from {
            Origin::Nowhere => From::Nowhere,
            Origin::Layers(layers) => {
                directories.extend(layers.iter().cloned());
                From::Layers
            }
            Origin::Folder { path, ignore } => {
                directories.push(path.clone());
                From::Folder { ignore: ignore.clone() }
            }
        };
        let errand = Errand {
            copying: putting.copying.clone(),
            below: putting.below.len(),
            from,
            time: putting.time,
            latest: putting.latest,
            bounds: self.bounds(),
        };
        let text = serde_json::to_vec(&errand).expect("our own types always serialise");
        let root = self.builds()?;
        let mut work = self.apart().start_reading(&root, directories, Task::Copy { write })?;
        if let Some(mut stdin) = work.stdin.take() {
            // One that has died tells why in its answer.
            let _ = stdin.write_all(&text);
        }
        Ok(work)
    }

    /// What a sandbox wrote into its writable directory, as a layer; none if it wrote nothing.
    pub fn pack(&self, written: Written<'_>) -> Result<Option<Layer>> {
        let Written { upper, at, below, shift, missing, covered, latest } = written;
        let task = Task::Pack { at, shift, missing, covered, latest };
        let mut work = self.apart().start_reading(upper, below, task)?;
        let kept = self.keep(work.layer.take());
        let (layer, any): (_, bool) = agreed(kept, work.answer())?;
        Ok(layer.filter(|_| any))
    }

    /// Keeps a layer that somebody streams, no longer than layers may be; one that holds nothing
    /// is none.
    pub fn keep_streamed(&self, stream: impl Read) -> Result<Option<Layer>> {
        // With one byte too many it is refused by whoever unpacks it.
        self.keep(Some(stream.take(self.bounds().bytes.saturating_add(1))))
    }

    /// Keeps a layer as it comes; one that holds nothing is none.
    fn keep(&self, stream: Option<impl Read>) -> Result<Option<Layer>> {
        const BLOCK: u64 = 512;
        let Some(mut stream) = stream else {
            return Ok(None);
        };
        let unread = |error: io::Error| Error::host("cannot read a layer", error);
        let mut start = Vec::new();
        stream.by_ref().take(BLOCK).read_to_end(&mut start).map_err(unread)?;
        if start.iter().all(|byte| *byte == 0) {
            io::copy(&mut stream, &mut io::sink()).map_err(unread)?;
            return Ok(None);
        }
        self.add_layer(start.as_slice().chain(stream)).map(Some)
    }

    /// Whether a layer is here, as a blob and unpacked for whoever runs msb now.
    pub fn has(&self, layer: &Layer) -> bool {
        let blob = fs::metadata(self.blob(&layer.digest));
        blob.is_ok_and(|blob| blob.len() == layer.size)
            && self.whole_contents(&layer.diff_id).is_ok_and(|contents| contents.is_some())
    }

    /// What a step made when it was last done, if that is still here.
    pub fn made(&self, key: &Key) -> Option<Made> {
        self.read_made(&self.home().join(BUILDS).join(format!("{}.json", key.digest().hex())))
    }

    fn read_made(&self, path: &Path) -> Option<Made> {
        let mut text = Vec::new();
        File::open(path).ok()?.take(RECORD_LIMIT).read_to_end(&mut text).ok()?;
        let made: Made = serde_json::from_slice(&text).ok()?;
        made.layer.as_ref().is_none_or(|layer| self.has(layer)).then_some(made)
    }

    /// Remembers what a step made.
    pub fn remember(&self, key: &Key, made: &Made) -> Result<()> {
        let text = serde_json::to_vec(made).expect("our own types always serialise");
        let path = self.builds()?.join(format!("{}.json", key.digest().hex()));
        self.write_aside(&path, &text)
    }

    /// Forgets steps whose layers are gone.
    pub(crate) fn forget_steps(&self) {
        let entries = fs::read_dir(self.home().join(BUILDS)).into_iter().flatten();
        for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
            let is_record = path.extension().is_some_and(|ending| ending == "json");
            if is_record && self.read_made(&path).is_none() {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// A writable directory for a sandbox of a build, which belongs to this host id.
    pub fn scratch(&self, owner: (u32, u32)) -> Result<Scratch> {
        let path = self.builds()?.join(passing("upper"));
        let make = || {
            fs::create_dir(&path)?;
            // Only root can give it away, and only root has to.
            match rustix::process::geteuid().is_root() {
                true => std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1)),
                false => Ok(()),
            }
        };
        make().map_err(|error| unusable(&path, error))?;
        Ok(Scratch { path, store: self.clone() })
    }

    /// Removes what builds that were killed have left.
    pub fn remove_scratches(&self) {
        let entries = fs::read_dir(self.home().join(BUILDS)).into_iter().flatten();
        for entry in entries.filter_map(Result::ok) {
            if is_debris(&entry.file_name().to_string_lossy()) {
                let _ = self.remove_scratch(&entry.path());
            }
        }
    }

    fn remove_scratch(&self, path: &Path) -> Result<()> {
        self.apart().start(path, Task::Clear)?.answer::<()>()?;
        fs::remove_dir(path).map_err(|error| unusable(path, error))
    }

    fn builds(&self) -> Result<PathBuf> {
        let path = self.home().join(BUILDS);
        make_directories(&path).map_err(|error| unusable(&path, error))?;
        Ok(path)
    }
}

/// What both sides of a pipe say. Where both failed, one failed because of the other.
fn agreed<T>(kept: Result<Option<Layer>>, told: Result<T>) -> Result<(Option<Layer>, T)> {
    match (kept, told) {
        (Ok(layer), Ok(told)) => Ok((layer, told)),
        (Err(kept), Err(told)) => {
            let unread = told.causes().iter().any(|cause| cause == "broken pipe");
            Err(if unread { kept } else { told })
        }
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
    }
}

/// Where builds keep what they know, below the state directory.
const BUILDS: &str = "build";

/// Whether builds that were killed have left something below this state directory.
pub fn has_scratches(home: &Path) -> bool {
    let entries = fs::read_dir(home.join(BUILDS)).into_iter().flatten();
    entries.filter_map(Result::ok).any(|entry| is_debris(&entry.file_name().to_string_lossy()))
}
