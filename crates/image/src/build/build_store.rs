//! Store operations of a build: layers from COPY and ADD, layers from the upper directory of a
//! sandbox, and the cache of build steps.

use super::copy_task::{CopyFrom, CopyResult, CopyTask};
use super::stage_builder::CopyArgs;
use crate::helper_process::HelperTask;
use crate::store::{Layer, Store, is_stale_temp, make_directories, storage_error, temp_name};
use msb_spec::{Digest, Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What COPY, ADD or WORKDIR adds to a layer.
#[derive(Debug, Clone)]
pub struct CopyRequest {
    /// Sources, target and owner.
    pub copying: CopyArgs,
    /// Layer directories of the stage so far, topmost first.
    pub below: Vec<PathBuf>,
    /// Where the files come from.
    pub from: CopyOrigin,
    /// Modification time of created directories, in seconds since 1970.
    pub time: i64,
    /// Latest modification time of a file, in seconds since 1970; newer ones are set to it.
    pub latest: Option<i64>,
}

/// Where copied files come from.
#[derive(Debug, Clone)]
pub enum CopyOrigin {
    /// The build context, without what `.dockerignore` excludes.
    Folder {
        /// Path of the build context.
        path: PathBuf,
        /// Text of its `.dockerignore`.
        ignore: String,
    },
    /// Layer directories of a stage or an image, topmost first.
    Layers(Vec<PathBuf>),
    /// No source: only the target directory is created.
    Nowhere,
}

/// The overlay upper directory of a sandbox, to be turned into a layer.
#[derive(Debug)]
pub struct UpperLayer<'a> {
    /// Path of the upper directory.
    pub upper: &'a Path,
    /// Path in the image that it is mounted at; empty for the root.
    pub at: String,
    /// Lower layer directories of its overlay, topmost first.
    pub below: Vec<PathBuf>,
    /// Offset of the ids in the upper directory to those in the image.
    pub shift: u32,
    /// Names in `/` that no layer has and that the sandbox creates for its own mounts.
    pub missing: Vec<String>,
    /// Paths that the sandbox has mounted its own files over.
    pub covered: Vec<String>,
    /// Latest modification time of a file, in seconds since 1970; newer ones are set to it.
    pub latest: Option<i64>,
}

/// The result of a build step, in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedStep {
    /// The layer; none if nothing changed.
    pub layer: Option<Layer>,
    /// Time of the step in RFC 3339.
    pub created: String,
}

/// Cache key of a build step: a hash of all its inputs.
#[derive(Debug, Clone)]
pub struct StepKey(Sha256);

impl StepKey {
    /// Starts a key for this type of step. The version changes when msb runs steps differently.
    pub fn new(sort: &str) -> Self {
        const VERSION: &str = "1";
        let mut key = Self(Sha256::new());
        key.add(VERSION);
        key.add(sort);
        key
    }

    /// Adds an input to the key.
    pub fn add(&mut self, part: impl AsRef<[u8]>) {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    fn digest(&self) -> Digest {
        Digest::of_bytes(self.0.clone().finalize().into())
    }
}

/// Largest cache record that is read, in bytes.
const RECORD_LIMIT: u64 = 64 << 10;

/// The upper directory of a sandbox that runs a build step; removed when dropped.
#[derive(Debug)]
pub struct ScratchDir {
    /// Path of the directory.
    pub path: PathBuf,
    store: Store,
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        msb_log::debug_on_failure!(
            self.store.remove_scratch(&self.path),
            "cannot remove a directory of a build"
        );
    }
}

impl Store {
    /// Hashes what a copy would produce, without writing a layer.
    pub fn look(&self, request: &CopyRequest) -> Result<CopyResult> {
        let mut running = self.begin(request, false)?;
        running.stdin.take();
        running.reply()
    }

    /// Copies files into a new layer; no layer if nothing changed.
    pub fn put(&self, request: &CopyRequest) -> Result<(Option<Layer>, CopyResult)> {
        let mut running = self.begin(request, true)?;
        let stored = self.keep(running.layer.take());
        both_succeeded(stored, running.reply())
    }

    fn begin(
        &self,
        request: &CopyRequest,
        write: bool,
    ) -> Result<crate::helper_process::RunningHelper> {
        let mut directories = request.below.clone();
        let from = match &request.from {
            CopyOrigin::Nowhere => CopyFrom::Nowhere,
            CopyOrigin::Layers(layers) => {
                directories.extend(layers.iter().cloned());
                CopyFrom::Layers
            }
            CopyOrigin::Folder { path, ignore } => {
                directories.push(path.clone());
                CopyFrom::Folder { ignore: ignore.clone() }
            }
        };
        let task = CopyTask {
            args: request.copying.clone(),
            below: request.below.len(),
            from,
            time: request.time,
            latest: request.latest,
            bounds: self.bounds(),
        };
        let text = serde_json::to_vec(&task).expect("our own types always serialise");
        let root = self.builds()?;
        let mut running =
            self.helper().start_reading(&root, directories, HelperTask::Copy { write })?;
        if let Some(mut stdin) = running.stdin.take() {
            // If the helper has died, its reply says why.
            let _ = stdin.write_all(&text);
        }
        Ok(running)
    }

    /// Turns an upper directory into a layer; none if it is empty.
    pub fn pack(&self, written: UpperLayer<'_>) -> Result<Option<Layer>> {
        let UpperLayer { upper, at, below, shift, missing, covered, latest } = written;
        let task = HelperTask::Pack { at, shift, missing, covered, latest };
        let mut running = self.helper().start_reading(upper, below, task)?;
        let stored = self.keep(running.layer.take());
        let (layer, any): (_, bool) = both_succeeded(stored, running.reply())?;
        Ok(layer.filter(|_| any))
    }

    /// Stores a layer from a tar stream, up to the size limit; none if the stream is empty.
    pub fn keep_streamed(&self, stream: impl Read) -> Result<Option<Layer>> {
        // One byte more than the limit makes the unpacker refuse the layer.
        self.keep(Some(stream.take(self.bounds().bytes.saturating_add(1))))
    }

    /// Stores a layer from a tar stream; none if the stream is empty.
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

    /// Whether a layer is stored: as a blob, and unpacked for the id mapping of this user.
    pub fn has(&self, layer: &Layer) -> bool {
        let blob = fs::metadata(self.blob(&layer.digest));
        blob.is_ok_and(|blob| blob.len() == layer.size)
            && self.verified_contents(&layer.diff_id).is_ok_and(|contents| contents.is_some())
    }

    /// The cached result of a step, if its layer is still stored.
    pub fn made(&self, key: &StepKey) -> Option<CachedStep> {
        self.read_made(&self.home().join(BUILDS).join(format!("{}.json", key.digest().hex())))
    }

    fn read_made(&self, path: &Path) -> Option<CachedStep> {
        let mut text = Vec::new();
        File::open(path).ok()?.take(RECORD_LIMIT).read_to_end(&mut text).ok()?;
        let made: CachedStep = serde_json::from_slice(&text).ok()?;
        made.layer.as_ref().is_none_or(|layer| self.has(layer)).then_some(made)
    }

    /// Stores the result of a step in the cache.
    pub fn remember(&self, key: &StepKey, made: &CachedStep) -> Result<()> {
        let text = serde_json::to_vec(made).expect("our own types always serialise");
        let path = self.builds()?.join(format!("{}.json", key.digest().hex()));
        self.write_atomic(&path, &text)
    }

    /// Removes cache records whose layers are gone.
    pub(crate) fn forget_steps(&self) {
        let entries = fs::read_dir(self.home().join(BUILDS)).into_iter().flatten();
        for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
            let is_record = path.extension().is_some_and(|ending| ending == "json");
            if is_record && self.read_made(&path).is_none() {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Creates an upper directory for a sandbox of a build, owned by this host id.
    pub fn scratch(&self, owner: (u32, u32)) -> Result<ScratchDir> {
        let path = self.builds()?.join(temp_name("upper"));
        let make = || {
            fs::create_dir(&path)?;
            // Only root may change the owner, and only root needs to.
            match rustix::process::geteuid().is_root() {
                true => std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1)),
                false => Ok(()),
            }
        };
        make().map_err(|error| storage_error(&path, error))?;
        Ok(ScratchDir { path, store: self.clone() })
    }

    /// Removes upper directories of builds that were killed.
    pub fn remove_scratches(&self) {
        let entries = fs::read_dir(self.home().join(BUILDS)).into_iter().flatten();
        for entry in entries.filter_map(Result::ok) {
            if is_stale_temp(&entry.file_name().to_string_lossy()) {
                msb_log::debug_on_failure!(
                    self.remove_scratch(&entry.path()),
                    "cannot remove a directory of an earlier build"
                );
            }
        }
    }

    fn remove_scratch(&self, path: &Path) -> Result<()> {
        self.helper().start(path, HelperTask::Clear)?.reply::<()>()?;
        fs::remove_dir(path).map_err(|error| storage_error(path, error))
    }

    fn builds(&self) -> Result<PathBuf> {
        let path = self.home().join(BUILDS);
        make_directories(&path).map_err(|error| storage_error(&path, error))?;
        Ok(path)
    }
}

/// Combines the results of both ends of a pipe. If both failed, one caused the other.
fn both_succeeded<T>(
    stored: Result<Option<Layer>>,
    reply: Result<T>,
) -> Result<(Option<Layer>, T)> {
    match (stored, reply) {
        (Ok(layer), Ok(reply)) => Ok((layer, reply)),
        (Err(stored), Err(reply)) => {
            let unread = reply.causes().iter().any(|cause| cause == "broken pipe");
            Err(if unread { stored } else { reply })
        }
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
    }
}

/// Directory of the build cache in the state directory.
const BUILDS: &str = "build";

/// Whether builds that were killed have left upper directories.
pub fn has_scratches(home: &Path) -> bool {
    let entries = fs::read_dir(home.join(BUILDS)).into_iter().flatten();
    entries.filter_map(Result::ok).any(|entry| is_stale_temp(&entry.file_name().to_string_lossy()))
}
