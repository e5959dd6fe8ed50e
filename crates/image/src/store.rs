//! Images on this machine: names, blobs and unpacked layers below the state directory.
//!
//! Files only, no database: a name is one small file, so that `run` reads one file to know all
//! about an image. Everything is made aside and shown whole, and read back as if anybody could
//! have written it.

use crate::apart::{Apart, AtWork, Task};
use crate::manifest::ImageConfig;
use crate::owners::Owners;
use crate::settings::Settings;
use crate::unpack::{Bounds, Contents};
use msb_spec::{Digest, Error, Kind, Platform, Reference, Result, RunConfig, env};
use msb_sys::lock::Held;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Of the blob, as it is transferred.
    pub digest: Digest,
    /// Of what it holds, decompressed.
    pub diff_id: Digest,
    /// How its manifest calls it.
    pub media_type: String,
    /// Bytes of the blob.
    pub size: u64,
    /// Bytes of its files.
    pub unpacked: u64,
}

/// An image that is here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Of the form that this is written in.
    pub(crate) version: u32,
    /// Its name.
    pub reference: Reference,
    /// Of its manifest.
    pub digest: Digest,
    /// Of the list of platforms that it was chosen from.
    pub index: Option<Digest>,
    /// What it is for.
    pub platform: Platform,
    /// Of its config.
    pub config_digest: Digest,
    /// How to run it.
    pub config: RunConfig,
    /// From the lowest up.
    pub layers: Vec<Layer>,
    /// Whether any file belongs to somebody other than root.
    pub owners: bool,
    /// When it was made, in milliseconds since 1970.
    pub created: Option<u64>,
    /// When it came here.
    pub pulled: u64,
    /// Whether it has one more layer, of directories that its own only imply.
    pub mended: bool,
    /// The boot that its layers were unpacked in; none once they were seen to have outlived it.
    pub boot: Option<String>,
}

impl Image {
    pub(crate) fn diff_ids(&self) -> Vec<&Digest> {
        self.layers.iter().map(|layer| &layer.diff_id).collect()
    }
}

/// Images on this machine.
#[derive(Debug, Clone)]
pub struct Store {
    home: PathBuf,
    apart: Apart,
    settings: Settings,
}

/// Held while something is added, so that what is not named yet is not taken for rubbish.
#[derive(Debug)]
pub struct Adding {
    _lock: Held,
}

/// Longer than any removal of rubbish takes.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

impl Store {
    /// Opens the images of a state directory. `program` is the `msb` executable.
    pub fn open(home: &Path, owners: Owners, program: PathBuf) -> Result<Self> {
        let settings = Settings::read(home)?;
        Ok(Self { home: home.to_owned(), apart: Apart { program, owners }, settings })
    }

    /// What the user has settled.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The state directory.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn apart(&self) -> &Apart {
        &self.apart
    }

    pub(crate) fn bounds(&self) -> Bounds {
        let limits = &self.settings.image_limits;
        Bounds { bytes: limits.bytes.0, entries: limits.entries.get(), depth: limits.depth.get() }
    }

    /// The image of this name, if it is here. An alias is not followed.
    pub fn find(&self, reference: &Reference) -> Result<Option<Image>> {
        let path = self.record(reference);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| unusable(&path, error))?,
        };
        // A name without a file behind it is what a power cut leaves.
        if file.metadata().is_ok_and(|meta| meta.len() == 0) {
            return Ok(None);
        }
        let image = read_record(file).ok_or_else(|| damaged(&path))?;
        if image.reference != *reference {
            return Err(damaged(&path));
        }
        Ok(Some(image))
    }

    /// Every image, sorted by name. What cannot be read is not one.
    pub fn list(&self) -> Vec<Image> {
        let mut images: Vec<Image> =
            self.records().iter().filter_map(|path| read_record(File::open(path).ok()?)).collect();
        images.retain(|image| self.record(&image.reference).exists());
        images.sort_by(|a, b| a.reference.cmp(&b.reference));
        images
    }

    /// The same, or an error if a file cannot be read: whoever removes what no image needs must
    /// know all of them.
    pub(crate) fn list_all(&self) -> Result<Vec<Image>> {
        for path in self.records() {
            let empty = fs::metadata(&path).is_ok_and(|meta| meta.len() == 0);
            if !empty && File::open(&path).ok().and_then(read_record).is_none() {
                return Err(damaged(&path));
            }
        }
        Ok(self.list())
    }

    fn records(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.images()).into_iter().flatten().filter_map(Result::ok);
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect()
    }

    /// When an image was last used, in milliseconds since 1970.
    pub fn used(&self, reference: &Reference) -> Option<u64> {
        let changed = fs::metadata(self.record(reference)).ok()?.modified().ok()?;
        let since = changed.duration_since(UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    }

    /// Notes that an image is used now.
    pub fn touch(&self, reference: &Reference) {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        let none = rustix::fs::AtFlags::empty();
        let _ = rustix::fs::utimensat(rustix::fs::CWD, self.record(reference), &times, none);
    }

    /// The directories of an image's layers, topmost first; none if one is not unpacked yet for
    /// whoever runs msb now.
    pub fn layers_of(&self, image: &Image) -> Option<Vec<PathBuf>> {
        let trees = self.stacked(&image.diff_ids(), image.mended);
        trees.iter().all(|tree| tree.is_dir()).then_some(trees)
    }

    /// The directories of layers that are here but belong to no image yet, topmost first.
    pub fn trees(&self, layers: &[Layer]) -> Result<Vec<PathBuf>> {
        let diff_ids: Vec<&Digest> = layers.iter().map(|layer| &layer.diff_id).collect();
        let mended = self.mend(&diff_ids)?;
        Ok(self.stacked(&diff_ids, mended))
    }

    fn stacked(&self, diff_ids: &[&Digest], mended: bool) -> Vec<PathBuf> {
        let own = diff_ids.iter().rev().map(|diff_id| self.tree(diff_id));
        let mended = mended.then(|| self.mended(diff_ids).join("fs"));
        let mut trees: Vec<PathBuf> = Vec::new();
        for tree in mended.into_iter().chain(own) {
            // The kernel takes no layer twice; the upper of two hides the lower.
            if !trees.contains(&tree) {
                trees.push(tree);
            }
        }
        trees
    }

    /// Whether the layers of an image need no look. What was written before the machine went down
    /// may not have reached the disk: it is not waited for when a layer is unpacked, because that
    /// takes longer than unpacking it.
    pub(crate) fn is_settled(&self, image: &Image) -> bool {
        image.boot.as_ref().is_none_or(|then| *then == boot())
    }

    /// Looks at the layers of an image that were unpacked before the machine was last started.
    pub(crate) fn settle(&self, image: &Image) -> Result<()> {
        let mut settled = true;
        for layer in &image.layers {
            let whole = self.whole_contents(&layer.diff_id)?;
            settled &= whole.is_some_and(|contents| contents.boot.is_none());
        }
        let boot = (!settled).then(boot);
        self.write_record(&Image { boot, ..image.clone() })
    }

    /// What was found when a layer was unpacked, if all of it is still there. What is not whole
    /// is removed, and will be unpacked again.
    pub(crate) fn whole_contents(&self, diff_id: &Digest) -> Result<Option<Contents>> {
        let path = self.layer(diff_id);
        let Some(contents) = self.contents(diff_id) else {
            return if path.exists() { self.discard_layer(&path).map(|()| None) } else { Ok(None) };
        };
        if contents.boot.as_ref().is_none_or(|then| *then == boot()) {
            return Ok(Some(contents));
        }
        let measured = self.apart.start(&self.tree(diff_id), Task::Measure);
        let measured: Result<(u64, u64)> = measured.and_then(AtWork::answer);
        if !measured.is_ok_and(|tree| tree == contents.tree) {
            return self.discard_layer(&path).map(|()| None);
        }
        let contents = Contents { boot: None, ..contents };
        let text = serde_json::to_vec(&contents).expect("our own types always serialise");
        self.write_aside(&path.join("layer.json"), &text)?;
        Ok(Some(contents))
    }

    /// Removes a layer: first its name, so that nobody finds half of it.
    pub(crate) fn discard_layer(&self, path: &Path) -> Result<()> {
        let gone = path.with_file_name(passing("gone"));
        fs::rename(path, &gone).map_err(|error| unusable(path, error))?;
        self.remove_tree(&gone)
    }

    /// The config of an image, whole.
    pub fn config(&self, image: &Image) -> Result<ImageConfig> {
        let text = self.read_blob(&image.config_digest)?;
        ImageConfig::parse(&text, image.layers.len())
    }

    /// Gives an image another name too, or its name to another image.
    pub fn tag(&self, image: &Image, reference: &Reference) -> Result<Image> {
        let named = Image { reference: reference.clone(), ..image.clone() };
        self.write_record(&named)?;
        Ok(named)
    }

    /// Takes a name away. Blobs and layers stay until they are pruned.
    pub fn forget(&self, reference: &Reference) -> Result<()> {
        let path = self.record(reference);
        fs::remove_file(&path).map_err(|error| unusable(&path, error))
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.home.join("images")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.home.join("blobs/sha256")
    }

    pub(crate) fn partials(&self) -> PathBuf {
        self.home.join("partial")
    }

    /// The directory of all layers, of whatever owners.
    pub(crate) fn all_layers(&self) -> PathBuf {
        self.home.join("layers")
    }

    pub(crate) fn layers(&self) -> PathBuf {
        self.all_layers().join(self.apart.owners.directory())
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    pub(crate) fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.layers().join(diff_id.hex())
    }

    /// The files of a layer.
    pub(crate) fn tree(&self, diff_id: &Digest) -> PathBuf {
        self.layer(diff_id).join("fs")
    }

    fn record(&self, reference: &Reference) -> PathBuf {
        let name = Digest::of_bytes(Sha256::digest(reference.to_string()).into());
        self.images().join(format!("{}.json", &name.hex()[..32]))
    }

    pub(crate) fn write_record(&self, image: &Image) -> Result<()> {
        let text = serde_json::to_vec(image).expect("our own types always serialise");
        self.write_aside(&self.record(&image.reference), &text)
    }

    /// What was found when a layer was unpacked.
    pub(crate) fn contents(&self, diff_id: &Digest) -> Option<Contents> {
        let file = File::open(self.layer(diff_id).join("layer.json")).ok()?;
        let mut text = Vec::new();
        file.take(RECORD_LIMIT).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// A blob that is held in memory: a manifest or a config.
    pub(crate) fn read_blob(&self, digest: &Digest) -> Result<Vec<u8>> {
        let path = self.blob(digest);
        let missing = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Error::new(Kind::State, "a part of the image is missing")
                .cause(digest)
                .hint("`msb pull` fetches it again"),
            _ => unusable(&path, error),
        };
        let mut text = Vec::new();
        let limit = self.settings.image_limits.manifest.0;
        File::open(&path).map_err(missing)?.take(limit).read_to_end(&mut text).map_err(missing)?;
        if digest_of(&text) != *digest {
            let _ = fs::remove_file(&path);
            return Err(Error::new(Kind::State, "a part of the image is damaged")
                .cause(digest)
                .hint("`msb pull` fetches it again"));
        }
        Ok(text)
    }

    /// Keeps a manifest or a config.
    pub(crate) fn put_blob(&self, text: &[u8]) -> Result<Digest> {
        let digest = digest_of(text);
        let path = self.blob(&digest);
        if !path.exists() {
            self.write_aside(&path, text)?;
        }
        Ok(digest)
    }

    /// Holds off those who look for rubbish, for as long as what is returned is kept.
    pub fn adding(&self) -> Result<Adding> {
        let lock = self.lock_file()?;
        let since = Instant::now();
        while !msb_sys::lock::try_share(&lock).map_err(|error| unusable(&self.home, error))? {
            if since.elapsed() > LOCK_LIMIT {
                return Err(Error::new(Kind::Timeout, "another msb has been pruning for too long"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Adding { _lock: Held(lock) })
    }

    /// Nobody adds anything while this is held; none if somebody does.
    pub(crate) fn alone(&self) -> Result<Option<Adding>> {
        let lock = self.lock_file()?;
        let alone = msb_sys::lock::try_lock(&lock).map_err(|error| unusable(&self.home, error))?;
        Ok(alone.then(|| Adding { _lock: Held(lock) }))
    }

    fn lock_file(&self) -> Result<File> {
        let path = self.images().join(".lock");
        let open = || {
            make_directories(&self.images())?;
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
        };
        open().map_err(|error| unusable(&path, error))
    }

    /// Writes a file aside and shows it whole.
    pub(crate) fn write_aside(&self, path: &Path, text: &[u8]) -> Result<()> {
        let write = || -> io::Result<()> {
            make_directories(&self.partials())?;
            if let Some(parent) = path.parent() {
                make_directories(parent)?;
            }
            let aside = self.partials().join(passing("file"));
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
            let written = file.write_all(text).and_then(|()| fs::rename(&aside, path));
            if written.is_err() {
                let _ = fs::remove_file(&aside);
            }
            written
        };
        write().map_err(|error| unusable(path, error))
    }

    /// Removes a tree of a layer, whoever its files belong to.
    pub(crate) fn remove_tree(&self, path: &Path) -> Result<()> {
        let about = |error| unusable(path, error);
        let tree = path.join("fs");
        if tree.is_dir() {
            self.apart.start(&tree, Task::Clear)?.answer::<()>()?;
            // A layer may say that its root is closed to us; what is empty need not be opened.
            fs::remove_dir(&tree).map_err(about)?;
        }
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(about(error)),
            _ => Ok(()),
        }
    }
}

/// Raised whenever an older msb could misread the file of an image.
pub(crate) const RECORD_VERSION: u32 = 1;

/// Larger than any config that passes the limits.
const RECORD_LIMIT: u64 = 64 << 20;

fn read_record(file: File) -> Option<Image> {
    let mut text = Vec::new();
    file.take(RECORD_LIMIT).read_to_end(&mut text).ok()?;
    let image: Image = serde_json::from_slice(&text).ok()?;
    (image.version == RECORD_VERSION).then_some(image)
}

/// The SHA-256 of some bytes.
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest::of_bytes(Sha256::digest(bytes).into())
}

/// A name for what is only there for a moment; the pid at its end tells whether its maker lives.
pub(crate) fn passing(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".{what}-{number}-{}", std::process::id())
}

/// Whether something only there for a moment was left by a process that is dead.
pub(crate) fn is_debris(name: &str) -> bool {
    let pid = name.rsplit_once('-').and_then(|(_, pid)| pid.parse::<u32>().ok());
    name.starts_with('.') && pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

pub(crate) fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Which start of the machine this is.
pub(crate) fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The state directory failed us.
pub(crate) fn unusable(path: &Path, error: io::Error) -> Error {
    let kind = error.kind();
    let wrapped = Error::host(format!("cannot keep images in `{}`", path.display()), error);
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            wrapped.hint("`msb prune` makes room; MSB_HOME can name a directory on another disk")
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            wrapped.hint(format!("{} can name a directory that you may write", env::HOME))
        }
        _ => wrapped,
    }
}

fn damaged(path: &Path) -> Error {
    Error::new(Kind::State, format!("the file of an image cannot be read: `{}`", path.display()))
        .cause("it is damaged, or a newer msb has written it")
        .hint("use that msb, or remove the file and pull or load the image again")
}
