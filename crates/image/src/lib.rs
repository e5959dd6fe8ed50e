//! Images: turns an image reference into layers that can be mounted.
//!
//! References, manifests, archives and settings are untrusted input and are checked in this crate.
//! Types that leave it are safe to mount.

mod add_layer;
mod blank_disk;
pub mod build;
mod credentials;
mod disks;
mod ensure;
mod fetch_layers;
mod helper_process;
mod host_image;
mod implied_dirs;
mod live_copy;
mod load;
mod manifest;
mod owners;
pub mod pack;
mod posix_acl;
mod progress;
mod prune;
mod pull;
mod registry;
mod save;
mod settings;
mod sparse_digest;
mod squash;
mod store;
mod toml_sizes;
mod tree_digest;
pub mod unpack;

pub use blank_disk::blank_disk;
pub use credentials::{Credential, Credentials, Login, Secret};
pub use ensure::EnsureOptions;
pub use helper_process::{IMAGE_HELPER_ARGUMENT, LiveCopy, clear, serve, squash};
pub use live_copy::{IdShift, copy_file};
pub use load::LoadOptions;
pub use manifest::{ImageConfig, RootfsIds, WireConfig};
pub use msb_spec::{History, Prune, PruneReport, RunConfig, Space};
pub use owners::Owners;
pub use pack::OverlayXattrs;
pub use progress::{NoProgress, Progress, ProgressEvent};
pub use prune::{InUse, Share};
pub use pull::PullOptions;
pub use registry::{PullFor, RegistryOptions, check_login};
pub use settings::{
    FILE as SETTINGS_FILE, ImageLimits, Mirror, NAMESPACE_LABEL, RegistrySettings, SandboxProfile,
    ServerSettings, Settings,
};
pub use sparse_digest::digest_of_sparse;
pub use store::{AddLock, Image, Layer, Store, digest_of};
pub use toml_sizes::{parse_toml, plain_sizes_are_mib};
pub use tree_digest::{FileDigest, TreeDigest, digest_tree};

use msb_spec::{Digest, Error, ImageRef, Kind, Lower, MachineBase, Overlay, Result, Stage};
use std::fs;
use std::io::Read;
use std::path::Path;

/// An image that is ready to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedImage {
    /// The overlays to mount, in this order.
    pub overlays: Vec<Overlay>,
    /// The reference, with an absolute path and with its alias resolved.
    pub image: ImageRef,
    /// Digest of the manifest; none for a directory, a disk or `host`.
    pub digest: Option<Digest>,
    /// Command, environment and user that the image config sets.
    pub config: RunConfig,
    /// Whether some file has an owner other than root.
    pub owners: bool,
    /// Directories that the image adds to PATH.
    pub path: Vec<String>,
    /// Its layers, lowest first; [`Store::disk`] packs them into a disk. Empty if the image is not
    /// in the store.
    pub layers: Vec<Layer>,
}

impl PreparedImage {
    /// An image without a config and without layers in the store.
    fn plain(overlays: Vec<Overlay>, image: ImageRef) -> Self {
        let config = RunConfig::default();
        let (path, layers) = (Vec::new(), Vec::new());
        Self { overlays, image, digest: None, config, owners: false, path, layers }
    }
}

impl PreparedImage {
    /// Whether some layer has this directory. An upper layer may have removed it, so this is a
    /// hint.
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

/// The `host` image: the programs of this host. Derived layers are kept in `cache`.
pub fn host_image(cache: &Path, progress: &dyn Progress) -> Result<PreparedImage> {
    host_image::prepare(cache, progress).map_err(|error| error.at(Stage::Image))
}

/// A directory or a disk image as root filesystem of a microVM. `PATH[:fstype=NAME]` for a disk.
pub fn path_image(path: &Path) -> Result<(PreparedImage, MachineBase)> {
    disk_or_directory(path).map_err(|error| error.at(Stage::Image))
}

fn disk_or_directory(path: &Path) -> Result<(PreparedImage, MachineBase)> {
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
    Ok((PreparedImage::plain(Vec::new(), ImageRef::Path(found)), base))
}

/// The file system on a disk, by its magic number.
fn file_system(path: &Path) -> Option<&'static str> {
    let mut start = Vec::new();
    fs::File::open(path).ok()?.take(4096).read_to_end(&mut start).ok()?;
    let ext4 = start.get(EXT) == Some(&[0x53, 0xef]);
    let erofs = start.get(EROFS) == Some(&[0xe2, 0xe1, 0xf5, 0xe0]);
    ext4.then_some("ext4").or(erofs.then_some("erofs"))
}

/// Bytes of the ext2/3/4 magic number.
const EXT: std::ops::Range<usize> = 0x438..0x43a;
/// Bytes of the EROFS magic number.
const EROFS: std::ops::Range<usize> = 1024..1028;

/// A directory of the host as image.
pub fn directory_image(path: &Path) -> Result<PreparedImage> {
    directory(path).map_err(|error| error.at(Stage::Image))
}

fn directory(path: &Path) -> Result<PreparedImage> {
    let shown = path.display();
    let found = fs::canonicalize(path).map_err(|error| {
        Error::new(Kind::NotFound, format!("no root filesystem at `{shown}`")).cause(error)
    })?;
    if found.is_file() {
        return Err(match disk_format(&found) {
            Some(format) => Error::unsupported(format!(
                "a {format} disk image needs a microVM: `{shown}`"
            ))
            .cause("isolation `process` does not mount untrusted disk images")
            .hint(
                "`--isolation vm` mounts it on hosts with KVM; here, use a directory or an image",
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
            .hint("the image `host` has the host's programs without its files"));
    }
    let lower = Lower::of_image(found.clone());
    let overlays = vec![Overlay { at: "/".to_owned(), lowers: vec![lower] }];
    Ok(PreparedImage::plain(overlays, ImageRef::Path(found)))
}

/// The format of a disk image, by its first bytes.
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
