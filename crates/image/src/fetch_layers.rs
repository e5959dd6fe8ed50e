//! Fetches the layers of an image: download, verification and unpacking in one pass.
//!
//! Each chunk of a layer goes to the partial file, into the SHA-256 and to the helper process that
//! unpacks it. After an interruption the partial file is read again and only the rest is
//! downloaded. A lock on the partial file makes other processes wait that need the same layer.

use crate::helper_process::{HelperTask, RunningHelper};
use crate::manifest::Descriptor;
use crate::progress::{Progress, ProgressEvent};
use crate::registry::MIN_BYTES;
use crate::store::{
    Layer, Store, boot_id, is_stale_temp, make_directories, storage_error, temp_name,
};
use crate::unpack::{Bounds, LayerContents, exceeded};
use msb_spec::{Bytes, Digest, Error, Kind, Result};
use rustix::fs::{AtFlags, CWD};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Where blobs come from: a registry, an archive, a directory.
pub(crate) trait BlobSource: Sync {
    /// Opens a blob at an offset. A source that cannot seek starts at 0; the first value says where
    /// the stream starts.
    fn open(&self, blob: &Descriptor, from: u64) -> Result<(u64, Box<dyn Read + '_>)>;

    /// Whether a broken transfer may be retried.
    fn can_resume(&self) -> bool;

    /// Hard-links the blob to this path if the source has it as a file.
    fn offer(&self, _digest: &Digest, _place: &Path) {}
}

/// Layers that are fetched in parallel: enough for two cores and a network connection.
const PARALLEL: usize = 4;
/// Attempts without progress before a transfer fails.
const MAX_TRIES: u32 = 5;
const RETRY_DELAY: Duration = Duration::from_millis(300);
/// Longest wait for another process with the same layer: a large layer over a slow network.
const WAIT_LIMIT: Duration = Duration::from_secs(3600);
const CHUNK: usize = 256 << 10;

/// A layer to fetch: its blob and the expected digest of the unpacked content.
#[derive(Debug, Clone)]
pub(crate) struct LayerRequest {
    pub(crate) blob: Descriptor,
    pub(crate) diff_id: Digest,
}

/// The size limits of one image, and how much of them its layers have used.
struct ImageBudget {
    limits: Bounds,
    /// Bytes and entries of the layers that are stored so far.
    taken: Mutex<(u64, u64)>,
}

impl ImageBudget {
    /// Refuses an image whose manifest exceeds the limit, before any download.
    fn of(store: &Store, request: &[&LayerRequest]) -> Result<Self> {
        let limits = store.bounds();
        let promised = request.iter().try_fold(0_u64, |sum, one| sum.checked_add(one.blob.size));
        match promised.is_some_and(|bytes| bytes <= limits.bytes) {
            true => Ok(Self { limits, taken: Mutex::default() }),
            false => Err(exceeded("bytes", Bytes(limits.bytes))),
        }
    }

    /// Limits for the next layer. Layers that are unpacked in parallel each get all that is left,
    /// so an image may use [`PARALLEL`] times its limit before it is refused.
    fn left(&self) -> Bounds {
        let (bytes, entries) = *self.taken.lock().expect("no holder panics");
        let bytes = self.limits.bytes.saturating_sub(bytes);
        let entries = self.limits.entries.saturating_sub(entries);
        Bounds { bytes, entries, ..self.limits }
    }

    /// Counts a stored layer, whether it was downloaded or cached.
    fn take(&self, contents: LayerContents) -> Result<LayerContents> {
        let mut taken = self.taken.lock().expect("no holder panics");
        taken.0 = taken.0.saturating_add(contents.bytes);
        taken.1 = taken.1.saturating_add(contents.entries);
        if taken.0 > self.limits.bytes {
            return Err(exceeded("bytes", Bytes(self.limits.bytes)));
        }
        if taken.1 > self.limits.entries {
            return Err(exceeded("entries", self.limits.entries));
        }
        Ok(contents)
    }
}

impl Store {
    /// Fetches all layers, largest first, several in parallel. The first failure stops the others.
    pub(crate) fn acquire(
        &self,
        request: &[LayerRequest],
        source: &dyn BlobSource,
        progress: &dyn Progress,
    ) -> Result<Vec<Layer>> {
        self.remove_stale_temps();
        let mut order: Vec<&LayerRequest> = request.iter().collect();
        let key =
            |one: &LayerRequest| (one.blob.size, one.blob.digest.clone(), one.diff_id.clone());
        order.sort_by_key(|one| std::cmp::Reverse(key(one)));
        order.dedup_by_key(|one| key(one));
        for one in &order {
            progress.step(ProgressEvent::Layer { digest: &one.blob.digest, size: one.blob.size });
        }
        let budget = ImageBudget::of(self, &order)?;
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let results: Mutex<BTreeMap<(Digest, Digest), LayerContents>> = Mutex::default();
        let failure: Mutex<Option<Error>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..PARALLEL.min(order.len()) {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let Some(one) = order.get(next.fetch_add(1, Ordering::Relaxed)) else {
                            return;
                        };
                        let acquired =
                            self.acquire_one(one, source, budget.left(), progress, &stop);
                        match acquired.and_then(|contents| budget.take(contents)) {
                            Ok(contents) => {
                                let mut results = results.lock().expect("no holder panics");
                                let of = (one.blob.digest.clone(), one.diff_id.clone());
                                results.insert(of, contents);
                            }
                            Err(error) => {
                                stop.store(true, Ordering::Relaxed);
                                failure.lock().expect("no holder panics").get_or_insert(error);
                            }
                        }
                    }
                });
            }
        });
        if let Some(error) = failure.into_inner().expect("no holder panics") {
            return Err(error);
        }
        let results = results.into_inner().expect("no holder panics");
        let layer = |one: &LayerRequest| {
            let contents = results.get(&(one.blob.digest.clone(), one.diff_id.clone()))?;
            Some(Layer {
                digest: one.blob.digest.clone(),
                diff_id: one.diff_id.clone(),
                media_type: one.blob.media_type.clone(),
                size: one.blob.size,
                unpacked: contents.bytes,
            })
        };
        let layers: Option<Vec<Layer>> = request.iter().map(layer).collect();
        layers.ok_or_else(|| Error::new(Kind::Host, "an image layer was not fetched"))
    }

    /// Removes temporary files of processes that no longer run.
    pub(crate) fn remove_stale_temps(&self) {
        for directory in [self.layers(), self.partials(), self.disks()] {
            let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
            for entry in entries.filter(|entry| is_stale_temp(&entry.file_name().to_string_lossy()))
            {
                let path = entry.path();
                // A failure here is reported by `prune`.
                let _ = if path.is_dir() {
                    self.remove_tree(&path)
                } else {
                    fs::remove_file(&path).map_err(|error| storage_error(&path, error))
                };
            }
        }
    }

    fn acquire_one(
        &self,
        request: &LayerRequest,
        source: &dyn BlobSource,
        bounds: Bounds,
        progress: &dyn Progress,
        stop: &AtomicBool,
    ) -> Result<LayerContents> {
        let digest = &request.blob.digest;
        if let Some(contents) = self.present(request)? {
            progress.step(ProgressEvent::Ready { digest });
            return Ok(contents);
        }
        make_directories(&self.partials())
            .map_err(|error| storage_error(&self.partials(), error))?;
        source.offer(digest, &self.partials().join(digest.hex()));
        let mut partial = PartialBlob::lock(self, request, progress, stop)?;
        if let Some(contents) = self.present(request)? {
            partial.discard();
            progress.step(ProgressEvent::Ready { digest });
            return Ok(contents);
        }
        // An unpacked layer is reused only if it was unpacked from this very blob. Otherwise a
        // manifest could name the diff id of a layer that its author does not have, and get its
        // files.
        let stored = self.unpacked_from(request)?;
        let mut unpacker = match stored {
            Some(_) => None,
            None => Some(LayerUnpacker::start(self, bounds)?),
        };
        let fetched = if self.blob(digest).is_file() {
            self.unpack_blob(request, unpacker.as_mut(), progress)
        } else {
            partial.fetch(request, source, unpacker.as_mut(), progress, stop)
        };
        let verified = fetched.and_then(|()| {
            progress.step(ProgressEvent::Unpacking { digest });
            match (unpacker, stored) {
                (Some(unpacker), _) => unpacker.finish(self, digest, Some(&request.diff_id)),
                (None, Some(contents)) => Ok(contents),
                (None, None) => unreachable!("a layer that is not stored has an unpacker"),
            }
        });
        match verified {
            Ok(contents) => {
                partial.commit(self, digest)?;
                progress.step(ProgressEvent::Ready { digest });
                Ok(contents)
            }
            Err(error) => {
                // A blob that failed verification must not be resumed.
                if matches!(error.kind(), Kind::Invalid | Kind::Limit) {
                    partial.discard();
                }
                Err(error)
            }
        }
    }

    fn present(&self, request: &LayerRequest) -> Result<Option<LayerContents>> {
        let blob = fs::metadata(self.blob(&request.blob.digest));
        if !blob.is_ok_and(|blob| blob.is_file() && blob.len() == request.blob.size) {
            return Ok(None);
        }
        self.unpacked_from(request)
    }

    /// Contents of the unpacked layer, if it was unpacked from this blob.
    fn unpacked_from(&self, request: &LayerRequest) -> Result<Option<LayerContents>> {
        let contents = self.verified_contents(&request.diff_id)?;
        let seen = self.layer(&request.diff_id).join(blob_marker(&request.blob.digest));
        Ok(contents.filter(|_| seen.is_file()))
    }

    /// Unpacks a blob that is stored already, and verifies it again.
    fn unpack_blob(
        &self,
        request: &LayerRequest,
        mut unpacker: Option<&mut LayerUnpacker>,
        progress: &dyn Progress,
    ) -> Result<()> {
        let digest = &request.blob.digest;
        let path = self.blob(digest);
        let storage_failed = |error| storage_error(&path, error);
        let mut file = File::open(&path).map_err(storage_failed)?;
        let (mut hash, mut buffer, mut done) = (Sha256::new(), vec![0; CHUNK], 0);
        loop {
            let n = file.read(&mut buffer).map_err(storage_failed)?;
            if n == 0 {
                break;
            }
            hash.update(&buffer[..n]);
            done += n as u64;
            progress.step(ProgressEvent::Bytes { digest, done });
            if let Some(unpacker) = unpacker.as_deref_mut() {
                unpacker.feed(&buffer[..n]);
            }
        }
        if done != request.blob.size {
            return Err(wrong_size(&request.blob));
        }
        if Digest::of_bytes(hash.finalize().into()) != *digest {
            let _ = fs::remove_file(&path);
            return Err(Error::new(Kind::State, "an image layer was damaged on disk")
                .cause(digest)
                .hint("it was removed; `msb pull` fetches it again"));
        }
        Ok(())
    }
}

/// The locked file that a blob is downloaded into.
#[derive(Debug)]
struct PartialBlob {
    path: PathBuf,
    file: File,
    /// Set when the file must not be kept for a later attempt.
    done: bool,
}

impl PartialBlob {
    fn lock(
        store: &Store,
        request: &LayerRequest,
        progress: &dyn Progress,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let digest = &request.blob.digest;
        let path = store.partials().join(digest.hex());
        let waiting = || progress.step(ProgressEvent::Waiting { digest });
        let file = lock_file(&path, digest, waiting, stop)?;
        Ok(Self { path, file, done: false })
    }

    /// Downloads what is missing, with retries.
    fn fetch(
        &mut self,
        request: &LayerRequest,
        source: &dyn BlobSource,
        mut unpacker: Option<&mut LayerUnpacker>,
        progress: &dyn Progress,
        stop: &AtomicBool,
    ) -> Result<()> {
        let blob = &request.blob;
        let mut hash = Sha256::new();
        let mut done = self.resume_from_file(blob, &mut hash, &mut unpacker)?;
        let mut tries = 0;
        while done < blob.size {
            let before = done;
            let fetched = source.open(blob, done).and_then(|(from, stream)| {
                if from != done {
                    // The source starts over at 0.
                    self.file.set_len(0).map_err(|error| storage_error(&self.path, error))?;
                    hash = Sha256::new();
                    done = 0;
                    if let Some(unpacker) = unpacker.as_deref_mut() {
                        unpacker.restart()?;
                    }
                }
                self.file
                    .seek(io::SeekFrom::Start(from))
                    .map_err(|error| storage_error(&self.path, error))?;
                let take = |bytes: &[u8]| -> Result<()> {
                    self.file.write_all(bytes).map_err(|error| storage_error(&self.path, error))?;
                    hash.update(bytes);
                    done += bytes.len() as u64;
                    progress.step(ProgressEvent::Bytes { digest: &blob.digest, done });
                    if let Some(unpacker) = unpacker.as_deref_mut() {
                        unpacker.feed(bytes);
                    }
                    Ok(())
                };
                copy(stream, blob.size - from, stop, take)
            });
            match fetched {
                // A stream that ends early is a broken connection.
                Ok(()) if done == blob.size => break,
                Ok(()) if !source.can_resume() => return Err(wrong_size(blob)),
                Err(error) if error.kind() != Kind::Host || !source.can_resume() => {
                    return Err(error);
                }
                broken => {
                    // A transfer that gains only a few bytes per attempt counts as failed, or it
                    // would never end.
                    let gained = done.saturating_sub(before) >= MIN_BYTES;
                    tries = if gained { 1 } else { tries + 1 };
                    if tries >= MAX_TRIES || stop.load(Ordering::Relaxed) {
                        return Err(broken.err().unwrap_or_else(|| wrong_size(blob)));
                    }
                    progress.step(ProgressEvent::Again { digest: &blob.digest });
                    std::thread::sleep(RETRY_DELAY * tries);
                }
            }
        }
        let found = Digest::of_bytes(hash.finalize().into());
        if found != blob.digest {
            return Err(Error::invalid("an image layer does not match the digest in its manifest")
                .cause(format!("wanted {}", blob.digest))
                .cause(format!("got {found}")));
        }
        Ok(())
    }

    /// Hashes and unpacks what an earlier attempt has downloaded. Returns the number of bytes.
    fn resume_from_file(
        &mut self,
        blob: &Descriptor,
        hash: &mut Sha256,
        unpacker: &mut Option<&mut LayerUnpacker>,
    ) -> Result<u64> {
        let storage_failed = |error| storage_error(&self.path, error);
        let length = self.file.metadata().map_err(storage_failed)?.len();
        if length > blob.size {
            self.file.set_len(0).map_err(storage_failed)?;
            return Ok(0);
        }
        let (mut buffer, mut done) = (vec![0; CHUNK], 0);
        while done < length {
            let n = self.file.read(&mut buffer).map_err(storage_failed)?;
            if n == 0 {
                break;
            }
            hash.update(&buffer[..n]);
            done += n as u64;
            if let Some(unpacker) = unpacker.as_deref_mut() {
                unpacker.feed(&buffer[..n]);
            }
        }
        Ok(done)
    }

    /// Moves the verified blob to its final path.
    fn commit(mut self, store: &Store, digest: &Digest) -> Result<()> {
        self.done = true;
        let target = store.blob(digest);
        let storage_failed = |error| storage_error(&target, error);
        if target.is_file() {
            let _ = fs::remove_file(&self.path);
            return Ok(());
        }
        make_directories(&store.blobs()).map_err(storage_failed)?;
        // Not synced: blobs are verified whenever they are read.
        fs::rename(&self.path, &target).map_err(storage_failed)
    }

    fn discard(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.done = true;
    }
}

impl Drop for PartialBlob {
    fn drop(&mut self) {
        // An empty file has nothing to resume.
        if !self.done && self.file.metadata().is_ok_and(|meta| meta.len() == 0) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens and locks a file exclusively. Calls `waiting` once if another process holds the lock.
pub(crate) fn lock_file(
    path: &Path,
    digest: &Digest,
    waiting: impl FnOnce(),
    stop: &AtomicBool,
) -> Result<File> {
    let storage_failed = |error: io::Error| storage_error(path, error);
    let (since, mut waiting) = (Instant::now(), Some(waiting));
    loop {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(storage_failed)?;
        if msb_sys::lock::try_lock(&file).map_err(storage_failed)? {
            // The former holder may have renamed the file. Then this lock is on the renamed one.
            let own = file.metadata().map_err(storage_failed)?.ino();
            let same = rustix::fs::statat(CWD, path, AtFlags::empty())
                .is_ok_and(|stat| stat.st_ino == own);
            if same {
                return Ok(file);
            }
            continue;
        }
        if let Some(waiting) = waiting.take() {
            waiting();
        }
        if stop.load(Ordering::Relaxed) || since.elapsed() > WAIT_LIMIT {
            return Err(Error::new(
                Kind::Timeout,
                "another msb process has not finished this image layer",
            )
            .cause(digest));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A helper process that unpacks a layer while it arrives, and its temporary directory.
pub(crate) struct LayerUnpacker {
    temp: PathBuf,
    running: Option<RunningHelper>,
    store: Store,
    /// Size limits of this layer.
    bounds: Bounds,
    /// Writing to the helper has failed; its reply says why.
    gave_up: bool,
}

impl LayerUnpacker {
    pub(crate) fn start(store: &Store, bounds: Bounds) -> Result<Self> {
        let temp = store.layers().join(temp_name("making"));
        let mut unpacker =
            Self { temp, running: None, store: store.clone(), bounds, gave_up: false };
        unpacker.begin()?;
        Ok(unpacker)
    }

    fn begin(&mut self) -> Result<()> {
        let tree = self.temp.join("fs");
        let make = || {
            make_directories(&self.store.layers())?;
            fs::create_dir(&self.temp)?;
            fs::create_dir(&tree)?;
            // Mode of the root directory if the layer has no entry for it.
            fs::set_permissions(&tree, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        };
        make().map_err(|error| storage_error(&self.temp, error))?;
        let task = HelperTask::Unpack { bounds: self.bounds };
        self.running = Some(self.store.helper().start(&tree, task)?);
        self.gave_up = false;
        Ok(())
    }

    /// Discards what was unpacked so far and starts a new helper.
    fn restart(&mut self) -> Result<()> {
        drop(self.running.take());
        self.store.remove_tree(&self.temp)?;
        self.begin()
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.gave_up {
            return;
        }
        let stdin = self.running.as_mut().and_then(|running| running.stdin.as_mut());
        self.gave_up = stdin.is_none_or(|stdin| stdin.write_all(bytes).is_err());
    }

    /// Waits for the helper, compares the diff id, and renames the directory to its final path,
    /// with a marker for the blob.
    pub(crate) fn finish(
        mut self,
        store: &Store,
        blob: &Digest,
        expected: Option<&Digest>,
    ) -> Result<LayerContents> {
        let running = self.running.take().expect("started when made");
        let mut contents: LayerContents = running.reply()?;
        contents.boot = Some(boot_id());
        if let Some(expected) = expected.filter(|expected| **expected != contents.diff_id) {
            return Err(Error::invalid(
                "the content of an image layer does not match the image config",
            )
            .cause(format!("wanted {expected}"))
            .cause(format!("got {}", contents.diff_id)));
        }
        let text = serde_json::to_vec(&contents).expect("our own types always serialise");
        let target = store.layer(&contents.diff_id);
        let show = || {
            let mut file = File::create(self.temp.join("layer.json"))?;
            file.write_all(&text)?;
            File::create(self.temp.join(blob_marker(blob)))?;
            match fs::rename(&self.temp, &target) {
                // Another process has unpacked a blob with the same content.
                Err(_) if target.is_dir() => File::create(target.join(blob_marker(blob))).map(drop),
                shown => shown,
            }
        };
        show().map_err(|error| storage_error(&target, error))?;
        Ok(contents)
    }
}

impl Drop for LayerUnpacker {
    fn drop(&mut self) {
        drop(self.running.take());
        if self.temp.is_dir() {
            msb_log::debug_on_failure!(
                self.store.remove_tree(&self.temp),
                "cannot remove a partial layer"
            );
        }
    }
}

/// File name of the marker that a layer was unpacked from this blob.
fn blob_marker(blob: &Digest) -> String {
    format!("blob-{}", blob.hex())
}

/// Copies a stream; fails if it has more than `limit` bytes.
fn copy(
    mut stream: Box<dyn Read + '_>,
    limit: u64,
    stop: &AtomicBool,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let (mut buffer, mut left) = (vec![0; CHUNK], limit);
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Host, "another layer of the image failed"));
        }
        let n = match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Error::host("the transfer of a layer was interrupted", error));
            }
        };
        if n as u64 > left {
            return Err(Error::invalid("an image layer is larger than its manifest says"));
        }
        take(&buffer[..n])?;
        left -= n as u64;
    }
}

fn wrong_size(blob: &Descriptor) -> Error {
    Error::invalid("an image layer does not have the size in its manifest").cause(&blob.digest)
}
