//! The image store: names, blobs and unpacked layers in the state directory.
//!
//! There is no database. Each image name has one JSON record, so `run` reads one file to know an
//! image. Files are written to a temporary path and renamed. Everything that is read back is
//! checked, as if it were untrusted.

use crate::helper_process::{Helper, HelperTask, RunningHelper};
use crate::manifest::ImageConfig;
use crate::owners::Owners;
use crate::settings::Settings;
use crate::unpack::{Bounds, LayerContents};
pub(crate) use msb_spec::clock::now as now_ms;
use msb_spec::{Digest, Error, Kind, Platform, Reference, Result, RunConfig, env};
use msb_sys::lock::LockGuard;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// One layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Digest of the blob, as it is transferred.
    pub digest: Digest,
    /// Digest of the uncompressed tar.
    pub diff_id: Digest,
    /// Media type in the manifest.
    pub media_type: String,
    /// Size of the blob in bytes.
    pub size: u64,
    /// Size of the unpacked files in bytes.
    pub unpacked: u64,
}

/// The record of a stored image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Format of the record; see [`RECORD_VERSION`].
    pub(crate) version: u32,
    /// Name of the image, with its registry.
    pub reference: Reference,
    /// Digest of the manifest.
    pub digest: Digest,
    /// Digest of the index that the manifest was selected from.
    pub index: Option<Digest>,
    /// Platform of the image.
    pub platform: Platform,
    /// Digest of the config blob.
    pub config_digest: Digest,
    /// Run settings from the config.
    pub config: RunConfig,
    /// Layers, from the lowest up.
    pub layers: Vec<Layer>,
    /// Whether some file has an owner other than root.
    pub owners: bool,
    /// Time of the build, in milliseconds since 1970.
    pub created: Option<u64>,
    /// Time of the pull, in milliseconds since 1970.
    pub pulled: u64,
    /// Whether there is an additional layer of implied directories.
    #[serde(rename = "mended")]
    pub implied_dirs: bool,
    /// Boot id of the host when the layers were unpacked; none once they were verified after a
    /// reboot.
    pub boot: Option<String>,
}

impl Image {
    pub(crate) fn diff_ids(&self) -> Vec<&Digest> {
        self.layers.iter().map(|layer| &layer.diff_id).collect()
    }
}

/// The image store of a state directory.
#[derive(Debug, Clone)]
pub struct Store {
    home: PathBuf,
    helper: Helper,
    settings: Settings,
}

/// Shared lock that is held while blobs or layers are added. It keeps `prune` from removing what no
/// image names yet.
#[derive(Debug)]
pub struct AddLock {
    _lock: LockGuard,
}

/// Longest wait for a running `prune`.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

impl Store {
    /// Opens the store of a state directory. `program` is the path of `msb`.
    pub fn open(home: &Path, owners: Owners, program: PathBuf) -> Result<Self> {
        let settings = Settings::read(home)?;
        Ok(Self { home: home.to_owned(), helper: Helper { program, owners }, settings })
    }

    /// The settings file of the state directory.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Path of the state directory.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn helper(&self) -> &Helper {
        &self.helper
    }

    pub(crate) fn bounds(&self) -> Bounds {
        let limits = &self.settings.image_limits;
        Bounds { bytes: limits.bytes.0, entries: limits.entries.get(), depth: limits.depth.get() }
    }

    /// The image with this name. Aliases are not resolved.
    pub fn find(&self, reference: &Reference) -> Result<Option<Image>> {
        let path = self.record_path(reference);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| storage_error(&path, error))?,
        };
        // A power loss can leave an empty file.
        if file.metadata().is_ok_and(|meta| meta.len() == 0) {
            return Ok(None);
        }
        let image = read_record(file).ok_or_else(|| damaged(&path))?;
        if image.reference != *reference {
            return Err(damaged(&path));
        }
        Ok(Some(image))
    }

    /// All images, sorted by name. Unreadable records are skipped.
    pub fn list(&self) -> Vec<Image> {
        let mut images: Vec<Image> =
            self.records().iter().filter_map(|path| read_record(File::open(path).ok()?)).collect();
        images.retain(|image| self.record_path(&image.reference).exists());
        images.sort_by(|a, b| a.reference.cmp(&b.reference));
        images
    }

    /// All images; fails if a record cannot be read. For callers that remove what no image needs.
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

    /// Time of the last use, in milliseconds since 1970.
    pub fn used(&self, reference: &Reference) -> Option<u64> {
        let changed = fs::metadata(self.record_path(reference)).ok()?.modified().ok()?;
        let since = changed.duration_since(UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    }

    /// Sets the time of the last use to now.
    pub fn touch(&self, reference: &Reference) {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        let none = rustix::fs::AtFlags::empty();
        let _ = rustix::fs::utimensat(rustix::fs::CWD, self.record_path(reference), &times, none);
    }

    /// Layer directories of an image, topmost first; none if a layer is not unpacked for the id
    /// mapping of this user.
    pub fn layers_of(&self, image: &Image) -> Option<Vec<PathBuf>> {
        let trees = self.layer_paths(&image.diff_ids(), image.implied_dirs);
        trees.iter().all(|tree| tree.is_dir()).then_some(trees)
    }

    /// Layer directories of stored layers that need not belong to an image, topmost first.
    pub fn trees(&self, layers: &[Layer]) -> Result<Vec<PathBuf>> {
        let diff_ids: Vec<&Digest> = layers.iter().map(|layer| &layer.diff_id).collect();
        let implied_dirs = self.make_implied_dirs(&diff_ids)?;
        Ok(self.layer_paths(&diff_ids, implied_dirs))
    }

    fn layer_paths(&self, diff_ids: &[&Digest], implied_dirs: bool) -> Vec<PathBuf> {
        let own = diff_ids.iter().rev().map(|diff_id| self.tree(diff_id));
        let implied_dirs = implied_dirs.then(|| self.implied_dirs_path(diff_ids).join("fs"));
        let mut trees: Vec<PathBuf> = Vec::new();
        for tree in implied_dirs.into_iter().chain(own) {
            // overlayfs refuses a directory twice. The upper one hides the lower one.
            if !trees.contains(&tree) {
                trees.push(tree);
            }
        }
        trees
    }

    /// Whether the layers need no verification. Unpacking does not sync, because that would take
    /// longer than unpacking. So after a reboot files may be missing or truncated.
    pub(crate) fn is_checked(&self, image: &Image) -> bool {
        image.boot.as_ref().is_none_or(|then| *then == boot_id())
    }

    /// Verifies the layers of an image that were unpacked before the last reboot.
    pub(crate) fn recheck_layers(&self, image: &Image) -> Result<()> {
        let mut checked = true;
        for layer in &image.layers {
            let verified = self.verified_contents(&layer.diff_id)?;
            checked &= verified.is_some_and(|contents| contents.boot.is_none());
        }
        let boot = (!checked).then(boot_id);
        self.write_record(&Image { boot, ..image.clone() })
    }

    /// Contents of an unpacked layer, if it is complete. An incomplete one is removed, and will be
    /// unpacked again.
    pub(crate) fn verified_contents(&self, diff_id: &Digest) -> Result<Option<LayerContents>> {
        let path = self.layer(diff_id);
        let Some(contents) = self.contents(diff_id) else {
            return if path.exists() { self.discard_layer(&path).map(|()| None) } else { Ok(None) };
        };
        if contents.boot.as_ref().is_none_or(|then| *then == boot_id()) {
            return Ok(Some(contents));
        }
        let measured = self.helper.start(&self.tree(diff_id), HelperTask::Measure);
        let measured: Result<(u64, u64)> = measured.and_then(RunningHelper::reply);
        if !measured.is_ok_and(|tree| tree == contents.tree) {
            return self.discard_layer(&path).map(|()| None);
        }
        let contents = LayerContents { boot: None, ..contents };
        let text = serde_json::to_vec(&contents).expect("our own types always serialise");
        self.write_atomic(&path.join("layer.json"), &text)?;
        Ok(Some(contents))
    }

    /// Removes a layer. It is renamed first, so that other processes never see a part of it.
    pub(crate) fn discard_layer(&self, path: &Path) -> Result<()> {
        let gone = path.with_file_name(temp_name("gone"));
        fs::rename(path, &gone).map_err(|error| storage_error(path, error))?;
        self.remove_tree(&gone)
    }

    /// The complete config of an image.
    pub fn config(&self, image: &Image) -> Result<ImageConfig> {
        let text = self.read_blob(&image.config_digest)?;
        ImageConfig::parse(&text, image.layers.len())
    }

    /// Stores an image under another name. An existing name is moved.
    pub fn tag(&self, image: &Image, reference: &Reference) -> Result<Image> {
        let named = Image { reference: reference.clone(), ..image.clone() };
        self.write_record(&named)?;
        Ok(named)
    }

    /// Removes a name. Blobs and layers stay until `prune`.
    pub fn forget(&self, reference: &Reference) -> Result<()> {
        let path = self.record_path(reference);
        fs::remove_file(&path).map_err(|error| storage_error(&path, error))
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

    /// Directory of the layers of all id mappings.
    pub(crate) fn all_layers(&self) -> PathBuf {
        self.home.join("layers")
    }

    pub(crate) fn layers(&self) -> PathBuf {
        self.all_layers().join(self.helper.owners.directory())
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    pub(crate) fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.layers().join(diff_id.hex())
    }

    /// Path of the unpacked files of a layer.
    pub(crate) fn tree(&self, diff_id: &Digest) -> PathBuf {
        self.layer(diff_id).join("fs")
    }

    fn record_path(&self, reference: &Reference) -> PathBuf {
        let name = Digest::of_bytes(Sha256::digest(reference.to_string()).into());
        self.images().join(format!("{}.json", &name.hex()[..32]))
    }

    pub(crate) fn write_record(&self, image: &Image) -> Result<()> {
        let text = serde_json::to_vec(image).expect("our own types always serialise");
        self.write_atomic(&self.record_path(&image.reference), &text)
    }

    /// What was recorded when a layer was unpacked.
    pub(crate) fn contents(&self, diff_id: &Digest) -> Option<LayerContents> {
        let file = File::open(self.layer(diff_id).join("layer.json")).ok()?;
        let mut text = Vec::new();
        file.take(RECORD_LIMIT).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Reads a manifest or config blob into memory and verifies its digest.
    pub(crate) fn read_blob(&self, digest: &Digest) -> Result<Vec<u8>> {
        let path = self.blob(digest);
        let missing = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Error::new(Kind::State, "a blob of the image is missing")
                .cause(digest)
                .hint("`msb pull` fetches it again"),
            _ => storage_error(&path, error),
        };
        let mut text = Vec::new();
        let limit = self.settings.image_limits.manifest.0;
        File::open(&path).map_err(missing)?.take(limit).read_to_end(&mut text).map_err(missing)?;
        if digest_of(&text) != *digest {
            let _ = fs::remove_file(&path);
            return Err(Error::new(Kind::State, "a blob of the image is damaged")
                .cause(digest)
                .hint("`msb pull` fetches it again"));
        }
        Ok(text)
    }

    /// Stores a manifest or config blob.
    pub(crate) fn put_blob(&self, text: &[u8]) -> Result<Digest> {
        let digest = digest_of(text);
        let path = self.blob(&digest);
        if !path.exists() {
            self.write_atomic(&path, text)?;
        }
        Ok(digest)
    }

    /// Takes the shared lock for adding blobs or layers; `prune` waits for it.
    pub fn adding(&self) -> Result<AddLock> {
        let lock = self.lock_file()?;
        let since = Instant::now();
        while !msb_sys::lock::try_share(&lock).map_err(|error| storage_error(&self.home, error))? {
            if since.elapsed() > LOCK_LIMIT {
                return Err(Error::new(
                    Kind::Timeout,
                    "another msb process has been pruning for too long",
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(AddLock { _lock: LockGuard(lock) })
    }

    /// Takes the exclusive lock; none if another process adds blobs or layers.
    pub(crate) fn lock_exclusive(&self) -> Result<Option<AddLock>> {
        let lock = self.lock_file()?;
        let lock_exclusive =
            msb_sys::lock::try_lock(&lock).map_err(|error| storage_error(&self.home, error))?;
        Ok(lock_exclusive.then(|| AddLock { _lock: LockGuard(lock) }))
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
        open().map_err(|error| storage_error(&path, error))
    }

    /// Writes a file to a temporary path and renames it.
    pub(crate) fn write_atomic(&self, path: &Path, text: &[u8]) -> Result<()> {
        let write = || -> io::Result<()> {
            make_directories(&self.partials())?;
            if let Some(parent) = path.parent() {
                make_directories(parent)?;
            }
            let temp = self.partials().join(temp_name("file"));
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temp)?;
            let written = file.write_all(text).and_then(|()| fs::rename(&temp, path));
            if written.is_err() {
                let _ = fs::remove_file(&temp);
            }
            written
        };
        write().map_err(|error| storage_error(path, error))
    }

    /// Removes the directory of a layer, with files of all mapped ids.
    pub(crate) fn remove_tree(&self, path: &Path) -> Result<()> {
        let about = |error| storage_error(path, error);
        let tree = path.join("fs");
        if tree.is_dir() {
            self.helper.start(&tree, HelperTask::Clear)?.reply::<()>()?;
            // The mode of the root may deny access to us. Removing an empty directory needs none.
            fs::remove_dir(&tree).map_err(about)?;
        }
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(about(error)),
            _ => Ok(()),
        }
    }
}

/// Format of image records. Raise it when an older msb would misread them.
pub(crate) const RECORD_VERSION: u32 = 1;

/// Largest record that is read, in bytes.
const RECORD_LIMIT: u64 = 64 << 20;

fn read_record(file: File) -> Option<Image> {
    let mut text = Vec::new();
    file.take(RECORD_LIMIT).read_to_end(&mut text).ok()?;
    let image: Image = serde_json::from_slice(&text).ok()?;
    (image.version == RECORD_VERSION).then_some(image)
}

/// The SHA-256 digest of some bytes.
pub fn digest_of(bytes: &[u8]) -> Digest {
    Digest::of_bytes(Sha256::digest(bytes).into())
}

/// A name for a temporary file or directory. It ends in the pid of its creator.
pub(crate) fn temp_name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".{what}-{number}-{}", std::process::id())
}

/// Whether a temporary name belongs to a process that no longer runs.
pub(crate) fn is_stale_temp(name: &str) -> bool {
    let pid = name.rsplit_once('-').and_then(|(_, pid)| pid.parse::<u32>().ok());
    name.starts_with('.') && pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

pub(crate) fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Boot id of the host.
pub(crate) fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Converts an I/O error in the state directory, with a hint.
pub(crate) fn storage_error(path: &Path, error: io::Error) -> Error {
    let kind = error.kind();
    let wrapped =
        Error::host(format!("cannot write to the image store at `{}`", path.display()), error);
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            wrapped.hint("`msb prune` frees space; MSB_HOME can name a directory on another disk")
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            wrapped.hint(format!("{} can name a directory with write permission", env::HOME))
        }
        _ => wrapped,
    }
}

fn damaged(path: &Path) -> Error {
    Error::new(Kind::State, format!("cannot read the record of an image: `{}`", path.display()))
        .cause("it is damaged, or was written by a newer msb")
        .hint("use that msb, or remove the file and pull or load the image again")
}
