//! Brings the layers of an image here: fetched, verified and unpacked in one pass.
//!
//! The bytes of a layer go at once to its file, through its digest and to the process that
//! unpacks it. What was fetched before an interruption is read from the file and not fetched
//! again. Of several processes that want the same layer one works and the others wait.

use crate::apart::{AtWork, Task};
use crate::manifest::Descriptor;
use crate::progress::{Progress, Step};
use crate::registry::PACE;
use crate::store::{Layer, Store, boot, is_debris, make_directories, passing, unusable};
use crate::unpack::{Bounds, Contents, exceeded};
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

/// Where the bytes of a blob come from.
pub(crate) trait Source: Sync {
    /// Its bytes from an offset on, or from the start if the source cannot do that; which of
    /// the two is the first of the pair.
    fn open(&self, blob: &Descriptor, from: u64) -> Result<(u64, Box<dyn Read + '_>)>;

    /// Whether a broken transfer is worth another try.
    fn can_resume(&self) -> bool;

    /// Puts the blob at a place at once, if the source has it as a file that may be given away.
    fn offer(&self, _digest: &Digest, _place: &Path) {}
}

/// Layers that are fetched at a time: enough to keep two cores and a network busy.
const AT_ONCE: usize = 4;
/// How often a transfer that broke is taken up again before we give up.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(300);
/// As long as a large layer takes over a slow network; whoever holds it is alive.
const WAIT_LIMIT: Duration = Duration::from_secs(3600);
const CHUNK: usize = 256 << 10;

/// One layer that is wanted.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) blob: Descriptor,
    pub(crate) diff_id: Digest,
}

/// What the layers of one image may hold together, and how much of it is taken.
struct Room {
    limits: Bounds,
    /// Bytes and entries of the layers that are here.
    taken: Mutex<(u64, u64)>,
}

impl Room {
    /// Refuses blobs that promise too much before one of them is fetched.
    fn of(store: &Store, wanted: &[&Wanted]) -> Result<Self> {
        let limits = store.bounds();
        let promised = wanted.iter().try_fold(0_u64, |sum, one| sum.checked_add(one.blob.size));
        match promised.is_some_and(|bytes| bytes <= limits.bytes) {
            true => Ok(Self { limits, taken: Mutex::default() }),
            false => Err(exceeded("bytes", Bytes(limits.bytes))),
        }
    }

    /// What the next layer may hold. Layers that are unpacked at the same time are each given all
    /// of it, so that the image may take [`AT_ONCE`] times as much before it is refused.
    fn left(&self) -> Bounds {
        let (bytes, entries) = *self.taken.lock().expect("no holder panics");
        let bytes = self.limits.bytes.saturating_sub(bytes);
        let entries = self.limits.entries.saturating_sub(entries);
        Bounds { bytes, entries, ..self.limits }
    }

    /// A layer is here: it counts, whether it was fetched or had been here before.
    fn take(&self, contents: Contents) -> Result<Contents> {
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
    /// Brings all layers, largest first, several at a time. The first failure ends the others.
    pub(crate) fn acquire(
        &self,
        wanted: &[Wanted],
        source: &dyn Source,
        progress: &dyn Progress,
    ) -> Result<Vec<Layer>> {
        self.sweep();
        let mut order: Vec<&Wanted> = wanted.iter().collect();
        let key = |one: &Wanted| (one.blob.size, one.blob.digest.clone(), one.diff_id.clone());
        order.sort_by_key(|one| std::cmp::Reverse(key(one)));
        order.dedup_by_key(|one| key(one));
        for one in &order {
            progress.step(Step::Layer { digest: &one.blob.digest, size: one.blob.size });
        }
        let room = Room::of(self, &order)?;
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let results: Mutex<BTreeMap<(Digest, Digest), Contents>> = Mutex::default();
        let failure: Mutex<Option<Error>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(order.len()) {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let Some(one) = order.get(next.fetch_add(1, Ordering::Relaxed)) else {
                            return;
                        };
                        let acquired = self.acquire_one(one, source, room.left(), progress, &stop);
                        match acquired.and_then(|contents| room.take(contents)) {
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
        let layer = |one: &Wanted| {
            let contents = results.get(&(one.blob.digest.clone(), one.diff_id.clone()))?;
            Some(Layer {
                digest: one.blob.digest.clone(),
                diff_id: one.diff_id.clone(),
                media_type: one.blob.media_type.clone(),
                size: one.blob.size,
                unpacked: contents.bytes,
            })
        };
        let layers: Option<Vec<Layer>> = wanted.iter().map(layer).collect();
        layers.ok_or_else(|| Error::new(Kind::Host, "a layer of the image was not fetched"))
    }

    /// Removes what processes that were killed have left half made.
    pub(crate) fn sweep(&self) {
        for directory in [self.layers(), self.partials(), self.disks()] {
            let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
            for entry in entries.filter(|entry| is_debris(&entry.file_name().to_string_lossy())) {
                let path = entry.path();
                // Should it fail, `prune` says why.
                let _ = if path.is_dir() {
                    self.remove_tree(&path)
                } else {
                    fs::remove_file(&path).map_err(|error| unusable(&path, error))
                };
            }
        }
    }

    fn acquire_one(
        &self,
        wanted: &Wanted,
        source: &dyn Source,
        bounds: Bounds,
        progress: &dyn Progress,
        stop: &AtomicBool,
    ) -> Result<Contents> {
        let digest = &wanted.blob.digest;
        if let Some(contents) = self.present(wanted)? {
            progress.step(Step::Ready { digest });
            return Ok(contents);
        }
        make_directories(&self.partials()).map_err(|error| unusable(&self.partials(), error))?;
        source.offer(digest, &self.partials().join(digest.hex()));
        let mut partial = Partial::lock(self, wanted, progress, stop)?;
        if let Some(contents) = self.present(wanted)? {
            partial.discard();
            progress.step(Step::Ready { digest });
            return Ok(contents);
        }
        // A layer that is here is not taken for what another blob holds: whoever names it need
        // not have it. Its files would be given away for the asking.
        let known = self.known(wanted)?;
        let mut unpacking = match known {
            Some(_) => None,
            None => Some(Unpacking::start(self, bounds)?),
        };
        let fetched = if self.blob(digest).is_file() {
            self.unpack_blob(wanted, unpacking.as_mut(), progress)
        } else {
            partial.fetch(wanted, source, unpacking.as_mut(), progress, stop)
        };
        let verified = fetched.and_then(|()| {
            progress.step(Step::Unpacking { digest });
            match (unpacking, known) {
                (Some(unpacking), _) => unpacking.finish(self, digest, Some(&wanted.diff_id)),
                (None, Some(contents)) => Ok(contents),
                (None, None) => unreachable!("one of the two is there"),
            }
        });
        match verified {
            Ok(contents) => {
                partial.keep(self, digest)?;
                progress.step(Step::Ready { digest });
                Ok(contents)
            }
            Err(error) => {
                // What was verified to be wrong must not be read again.
                if matches!(error.kind(), Kind::Invalid | Kind::Limit) {
                    partial.discard();
                }
                Err(error)
            }
        }
    }

    fn present(&self, wanted: &Wanted) -> Result<Option<Contents>> {
        let blob = fs::metadata(self.blob(&wanted.blob.digest));
        if !blob.is_ok_and(|blob| blob.is_file() && blob.len() == wanted.blob.size) {
            return Ok(None);
        }
        self.known(wanted)
    }

    /// What is in a layer that is here, if it was seen to come out of this very blob.
    fn known(&self, wanted: &Wanted) -> Result<Option<Contents>> {
        let contents = self.whole_contents(&wanted.diff_id)?;
        let seen = self.layer(&wanted.diff_id).join(seen_in(&wanted.blob.digest));
        Ok(contents.filter(|_| seen.is_file()))
    }

    /// Unpacks a layer whose blob is here already, and verifies it once more on the way.
    fn unpack_blob(
        &self,
        wanted: &Wanted,
        mut unpacking: Option<&mut Unpacking>,
        progress: &dyn Progress,
    ) -> Result<()> {
        let digest = &wanted.blob.digest;
        let path = self.blob(digest);
        let about = |error| unusable(&path, error);
        let mut file = File::open(&path).map_err(about)?;
        let (mut hash, mut buffer, mut done) = (Sha256::new(), vec![0; CHUNK], 0);
        loop {
            let n = file.read(&mut buffer).map_err(about)?;
            if n == 0 {
                break;
            }
            hash.update(&buffer[..n]);
            done += n as u64;
            progress.step(Step::Bytes { digest, done });
            if let Some(unpacking) = unpacking.as_deref_mut() {
                unpacking.feed(&buffer[..n]);
            }
        }
        if done != wanted.blob.size {
            return Err(wrong_size(&wanted.blob));
        }
        if Digest::of_bytes(hash.finalize().into()) != *digest {
            let _ = fs::remove_file(&path);
            return Err(Error::new(Kind::State, "a layer of the image was damaged on this disk")
                .cause(digest)
                .hint("it was removed; `msb pull` fetches it again"));
        }
        Ok(())
    }
}

/// The file that a blob is fetched into, locked.
#[derive(Debug)]
struct Partial {
    path: PathBuf,
    file: File,
    /// Whether the file is to be removed rather than resumed.
    done: bool,
}

impl Partial {
    fn lock(
        store: &Store,
        wanted: &Wanted,
        progress: &dyn Progress,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let digest = &wanted.blob.digest;
        let path = store.partials().join(digest.hex());
        let waiting = || progress.step(Step::Waiting { digest });
        let file = hold(&path, digest, waiting, stop)?;
        Ok(Self { path, file, done: false })
    }

    /// Fetches what is missing, as often as it takes.
    fn fetch(
        &mut self,
        wanted: &Wanted,
        source: &dyn Source,
        mut unpacking: Option<&mut Unpacking>,
        progress: &dyn Progress,
        stop: &AtomicBool,
    ) -> Result<()> {
        let blob = &wanted.blob;
        let mut hash = Sha256::new();
        let mut done = self.read_again(blob, &mut hash, &mut unpacking)?;
        let mut tries = 0;
        while done < blob.size {
            let before = done;
            let fetched = source.open(blob, done).and_then(|(from, stream)| {
                if from != done {
                    // It begins anew, and so do we.
                    self.file.set_len(0).map_err(|error| unusable(&self.path, error))?;
                    hash = Sha256::new();
                    done = 0;
                    if let Some(unpacking) = unpacking.as_deref_mut() {
                        unpacking.again()?;
                    }
                }
                self.file
                    .seek(io::SeekFrom::Start(from))
                    .map_err(|error| unusable(&self.path, error))?;
                let take = |bytes: &[u8]| -> Result<()> {
                    self.file.write_all(bytes).map_err(|error| unusable(&self.path, error))?;
                    hash.update(bytes);
                    done += bytes.len() as u64;
                    progress.step(Step::Bytes { digest: &blob.digest, done });
                    if let Some(unpacking) = unpacking.as_deref_mut() {
                        unpacking.feed(bytes);
                    }
                    Ok(())
                };
                copy(stream, blob.size - from, stop, take)
            });
            match fetched {
                // An end before the end is a connection that was cut.
                Ok(()) if done == blob.size => break,
                Ok(()) if !source.can_resume() => return Err(wrong_size(blob)),
                Err(error) if error.kind() != Kind::Host || !source.can_resume() => {
                    return Err(error);
                }
                broken => {
                    // A few bytes a try are no progress, or it could go on for ever.
                    let gained = done.saturating_sub(before) >= PACE;
                    tries = if gained { 1 } else { tries + 1 };
                    if tries >= TRIES || stop.load(Ordering::Relaxed) {
                        return Err(broken.err().unwrap_or_else(|| wrong_size(blob)));
                    }
                    progress.step(Step::Again { digest: &blob.digest });
                    std::thread::sleep(PAUSE * tries);
                }
            }
        }
        let found = Digest::of_bytes(hash.finalize().into());
        if found != blob.digest {
            return Err(Error::invalid("a layer of the image is not what its manifest says")
                .cause(format!("wanted {}", blob.digest))
                .cause(format!("got {found}")));
        }
        Ok(())
    }

    /// What an earlier attempt has left.
    fn read_again(
        &mut self,
        blob: &Descriptor,
        hash: &mut Sha256,
        unpacking: &mut Option<&mut Unpacking>,
    ) -> Result<u64> {
        let about = |error| unusable(&self.path, error);
        let length = self.file.metadata().map_err(about)?.len();
        if length > blob.size {
            self.file.set_len(0).map_err(about)?;
            return Ok(0);
        }
        let (mut buffer, mut done) = (vec![0; CHUNK], 0);
        while done < length {
            let n = self.file.read(&mut buffer).map_err(about)?;
            if n == 0 {
                break;
            }
            hash.update(&buffer[..n]);
            done += n as u64;
            if let Some(unpacking) = unpacking.as_deref_mut() {
                unpacking.feed(&buffer[..n]);
            }
        }
        Ok(done)
    }

    /// The blob is whole and right: it gets its place.
    fn keep(mut self, store: &Store, digest: &Digest) -> Result<()> {
        self.done = true;
        let place = store.blob(digest);
        let about = |error| unusable(&place, error);
        if place.is_file() {
            let _ = fs::remove_file(&self.path);
            return Ok(());
        }
        make_directories(&store.blobs()).map_err(about)?;
        // Not synced: a blob is verified whenever it is read.
        fs::rename(&self.path, &place).map_err(about)
    }

    fn discard(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.done = true;
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // An empty file is nothing to resume.
        if !self.done && self.file.metadata().is_ok_and(|meta| meta.len() == 0) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens a file that only one may have open at a time. Who waits for another says so once.
pub(crate) fn hold(
    path: &Path,
    digest: &Digest,
    waiting: impl FnOnce(),
    stop: &AtomicBool,
) -> Result<File> {
    let about = |error: io::Error| unusable(path, error);
    let (since, mut waiting) = (Instant::now(), Some(waiting));
    loop {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(about)?;
        if msb_sys::lock::try_lock(&file).map_err(about)? {
            // Whoever had it may have moved it to its place; then the lock is on that.
            let own = file.metadata().map_err(about)?.ino();
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
                "another msb has not finished this part of the image",
            )
            .cause(digest));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The process that unpacks a layer as it comes, and the place where it does.
pub(crate) struct Unpacking {
    aside: PathBuf,
    work: Option<AtWork>,
    store: Store,
    /// How much it may hold.
    bounds: Bounds,
    /// It has given up; why is in its answer.
    deaf: bool,
}

impl Unpacking {
    pub(crate) fn start(store: &Store, bounds: Bounds) -> Result<Self> {
        let aside = store.layers().join(passing("making"));
        let mut unpacking = Self { aside, work: None, store: store.clone(), bounds, deaf: false };
        unpacking.begin()?;
        Ok(unpacking)
    }

    fn begin(&mut self) -> Result<()> {
        let tree = self.aside.join("fs");
        let make = || {
            make_directories(&self.store.layers())?;
            fs::create_dir(&self.aside)?;
            fs::create_dir(&tree)?;
            // What a layer does not say of its root is what every root is.
            fs::set_permissions(&tree, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        };
        make().map_err(|error| unusable(&self.aside, error))?;
        let task = Task::Unpack { bounds: self.bounds };
        self.work = Some(self.store.apart().start(&tree, task)?);
        self.deaf = false;
        Ok(())
    }

    /// Throws away what was unpacked: the stream begins anew.
    fn again(&mut self) -> Result<()> {
        drop(self.work.take());
        self.store.remove_tree(&self.aside)?;
        self.begin()
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        if self.deaf {
            return;
        }
        let stdin = self.work.as_mut().and_then(|work| work.stdin.as_mut());
        self.deaf = stdin.is_none_or(|stdin| stdin.write_all(bytes).is_err());
    }

    /// Waits for its end, compares what it found, and shows the layer, with a note of the blob
    /// that it was in.
    pub(crate) fn finish(
        mut self,
        store: &Store,
        blob: &Digest,
        wanted: Option<&Digest>,
    ) -> Result<Contents> {
        let work = self.work.take().expect("started when made");
        let mut contents: Contents = work.answer()?;
        contents.boot = Some(boot());
        if let Some(wanted) = wanted.filter(|wanted| **wanted != contents.diff_id) {
            return Err(Error::invalid("a layer of the image is not what its config says")
                .cause(format!("wanted {wanted}"))
                .cause(format!("got {}", contents.diff_id)));
        }
        let text = serde_json::to_vec(&contents).expect("our own types always serialise");
        let place = store.layer(&contents.diff_id);
        let show = || {
            let mut file = File::create(self.aside.join("layer.json"))?;
            file.write_all(&text)?;
            File::create(self.aside.join(seen_in(blob)))?;
            match fs::rename(&self.aside, &place) {
                // Another blob of the same contents was quicker.
                Err(_) if place.is_dir() => File::create(place.join(seen_in(blob))).map(drop),
                shown => shown,
            }
        };
        show().map_err(|error| unusable(&place, error))?;
        Ok(contents)
    }
}

impl Drop for Unpacking {
    fn drop(&mut self) {
        drop(self.work.take());
        if self.aside.is_dir() {
            let _ = self.store.remove_tree(&self.aside);
        }
    }
}

/// The file beside a layer that notes a blob which was seen to hold it.
fn seen_in(blob: &Digest) -> String {
    format!("blob-{}", blob.hex())
}

/// Copies at most `limit` bytes; more than that is not what was promised.
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
            Err(error) => return Err(Error::host("the transfer of a layer broke", error)),
        };
        if n as u64 > left {
            return Err(Error::invalid("a layer of the image is larger than its manifest says"));
        }
        take(&buffer[..n])?;
        left -= n as u64;
    }
}

fn wrong_size(blob: &Descriptor) -> Error {
    Error::invalid("a layer of the image is not as large as its manifest says").cause(&blob.digest)
}
