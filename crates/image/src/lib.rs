//! From an image reference to layers that are ready to mount.
//!
//! What comes from a user or an image is checked here; what leaves here can be mounted.

mod acl;
mod acquire;
mod apart;
mod blank;
pub mod build;
mod credentials;
mod disks;
mod ensure;
mod host;
mod layout;
mod load;
mod make;
mod manifest;
mod mend;
mod owners;
pub mod pack;
mod progress;
mod pull;
mod registry;
mod save;
mod seal;
mod settings;
mod sparse;
mod squash;
mod store;
mod twin;
pub mod unpack;
mod usage;

pub use apart::{APART_ARGUMENT, Following, clear, serve, squash};
pub use blank::blank_disk;
pub use credentials::{Credential, Credentials, Login, Secret};
pub use ensure::Wish;
pub use load::Load;
pub use manifest::{ImageConfig, RootfsIds, WireConfig};
pub use msb_spec::{History, Prune, Pruned, RunConfig, Space};
pub use owners::Owners;
pub use pack::Marks;
pub use progress::{Progress, Step, Unwatched};
pub use pull::Pull;
pub use registry::{PullFor, Reach, check_login};
pub use seal::{FileDigest, Seal, seal};
pub use settings::{
    ImageLimits, Mirror, NAMESPACE_LABEL, RegistrySettings, SandboxProfile, ServerSettings,
    Settings,
};
pub use sparse::digest_of_sparse;
pub use store::{Adding, Image, Layer, Store, digest_of};
pub use twin::{Shift, copy_file};
pub use usage::{InUse, Share};

use msb_spec::{Digest, Error, ImageRef, Kind, Lower, MachineBase, Overlay, Result, Stage};
use std::fs;
use std::io::Read;
use std::path::Path;

/// An image that is ready to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// In the order they are mounted.
    pub overlays: Vec<Overlay>,
    /// The reference with its path made absolute and its alias followed.
    pub image: ImageRef,
    /// Which image behind the name, if it has a digest.
    pub digest: Option<Digest>,
    /// How the image wants to be run.
    pub config: RunConfig,
    /// Whether its files belong to others than root.
    pub owners: bool,
    /// Directories that the image wants on PATH beyond the usual ones.
    pub path: Vec<String>,
    /// Its layers, lowest first, of which [`Store::disk`] makes a disk; none if it is no image of
    /// the store.
    pub layers: Vec<Layer>,
}

impl Prepared {
    /// An image that says nothing about itself.
    fn plain(overlays: Vec<Overlay>, image: ImageRef) -> Self {
        let config = RunConfig::default();
        let (path, layers) = (Vec::new(), Vec::new());
        Self { overlays, image, digest: None, config, owners: false, path, layers }
    }
}

impl Prepared {
    /// Whether a layer has this directory. Only a guess: another layer may have removed it.
    pub fn has_directory(&self, path: &str) -> bool {
        use rustix::fs::{Mode, OFlags, ResolveFlags};
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let below = path.trim_start_matches('/');
        self.overlays.iter().flat_map(|overlay| &overlay.lowers).any(|lower| {
            let root = rustix::fs::open(&lower.path, flags, Mode::empty());
            let found = root
                .and_then(|root| rustix::fs::openat2(root, below, flags, Mode::empty(), within));
            matches!(found, Ok(_) | Err(rustix::io::Errno::ACCESS))
        })
    }
}

/// The image that is the host's own programs; `cache` is where derived layers are kept.
pub fn host_image(cache: &Path) -> Result<Prepared> {
    host::prepare(cache).map_err(|error| error.at(Stage::Image))
}

/// An image that is a directory or a disk, for a microVM. A disk is `PATH[:fstype=NAME]`.
pub fn path_image(path: &Path) -> Result<(Prepared, MachineBase)> {
    disk_or_directory(path).map_err(|error| error.at(Stage::Image))
}

fn disk_or_directory(path: &Path) -> Result<(Prepared, MachineBase)> {
    let text = path.to_string_lossy();
    let (file, asked) = match text.rsplit_once(":fstype=") {
        Some((file, fstype)) if !path.exists() => (Path::new(file), Some(fstype)),
        _ => (path, None),
    };
    let shown = file.display();
    let found = fs::canonicalize(file).map_err(|error| {
        Error::new(Kind::NotFound, format!("no root filesystem at `{shown}`")).cause(error)
    })?;
    if !found.is_file() {
        return directory(file).map(|prepared| (prepared, MachineBase::Shares));
    }
    let mountable = ["ext4", "erofs"];
    let hint = "a disk holds one ext4 or erofs, without partitions";
    let fstype = match asked {
        Some(fstype) if mountable.contains(&fstype) => fstype,
        Some(fstype) => {
            let message = format!("a microVM cannot mount `{fstype}`: `{shown}`");
            return Err(Error::unsupported(message).hint(hint));
        }
        None => file_system(&found).ok_or_else(|| {
            Error::invalid(format!("no file system that a microVM can mount: `{shown}`")).hint(hint)
        })?,
    };
    let base = MachineBase::Image { path: found.clone(), fstype: fstype.to_owned() };
    Ok((Prepared::plain(Vec::new(), ImageRef::Path(found)), base))
}

/// The file system of a disk, by its mark.
fn file_system(path: &Path) -> Option<&'static str> {
    let mut start = Vec::new();
    fs::File::open(path).ok()?.take(4096).read_to_end(&mut start).ok()?;
    let ext4 = start.get(EXT) == Some(&[0x53, 0xef]);
    let erofs = start.get(EROFS) == Some(&[0xe2, 0xe1, 0xf5, 0xe0]);
    ext4.then_some("ext4").or(erofs.then_some("erofs"))
}

/// Where an ext file system has its mark.
const EXT: std::ops::Range<usize> = 0x438..0x43a;
/// Where an EROFS has it.
const EROFS: std::ops::Range<usize> = 1024..1028;

/// An image that is a directory.
pub fn directory_image(path: &Path) -> Result<Prepared> {
    directory(path).map_err(|error| error.at(Stage::Image))
}

fn directory(path: &Path) -> Result<Prepared> {
    let shown = path.display();
    let found = fs::canonicalize(path).map_err(|error| {
        Error::new(Kind::NotFound, format!("no root filesystem at `{shown}`")).cause(error)
    })?;
    if found.is_file() {
        return Err(match disk_format(&found) {
            Some(format) => Error::unsupported(format!(
                "a {format} disk image needs a microVM: `{shown}`"
            ))
            .cause("isolation `process` does not mount a disk that others have written")
            .hint(
                "`--isolation vm` takes it where there is one; a directory or an image runs here",
            ),
            None => Error::invalid(format!("neither a directory nor a disk image: `{shown}`"))
                .hint("`msb load -i` reads images that were saved to a file"),
        });
    }
    if !found.is_dir() {
        return Err(Error::invalid(format!("the root filesystem is not a directory: `{shown}`")));
    }
    if found == Path::new("/") {
        return Err(Error::invalid("`/` cannot be an image")
            .hint("`host` shows the host's programs without its files"));
    }
    let lower = Lower::of_image(found.clone());
    let overlays = vec![Overlay { at: "/".to_owned(), lowers: vec![lower] }];
    Ok(Prepared::plain(overlays, ImageRef::Path(found)))
}

/// What a disk image is, by its first bytes.
fn disk_format(path: &Path) -> Option<&'static str> {
    let mut start = Vec::new();
    fs::File::open(path).ok()?.take(4096).read_to_end(&mut start).ok()?;
    if start.starts_with(b"QFI\xfb") {
        return Some("qcow2");
    }
    let partitioned = start.get(510..512) == Some(&[0x55, 0xaa]);
    let extended = start.get(EXT) == Some(&[0x53, 0xef]);
    let others = start.starts_with(b"XFSB") || start.starts_with(b"hsqs");
    let erofs = start.get(EROFS) == Some(&[0xe2, 0xe1, 0xf5, 0xe0]);
    (partitioned || extended || others || erofs).then_some("raw")
}
