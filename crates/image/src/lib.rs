//! From an image reference to layers that are ready to mount.
//!
//! What comes from a user or an image is checked here; what leaves here can be mounted.

mod apart;
mod credentials;
mod host;
mod layout;
mod manifest;
mod owners;
mod settings;
pub mod unpack;

pub use apart::{APART_ARGUMENT, serve};
pub use credentials::{Credential, Credentials, Login, Secret};
pub use manifest::{History, Platform, RunConfig};
pub use owners::Owners;
pub use settings::{ImageLimits, Mirror, RegistrySettings, Settings};

use msb_spec::{Error, ImageRef, Kind, Lower, Overlay, Result, Stage};
use std::fs;
use std::path::Path;

/// An image that is ready to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// In the order they are mounted.
    pub overlays: Vec<Overlay>,
    /// The reference with its path made absolute.
    pub image: ImageRef,
    /// Directories that the image wants on PATH beyond the usual ones.
    pub path: Vec<String>,
}

/// Finds an image and makes it ready; `cache` is where derived layers are kept.
pub fn prepare(image: &ImageRef, cache: &Path) -> Result<Prepared> {
    match image {
        ImageRef::Host => host::prepare(cache),
        ImageRef::Path(path) => directory(path),
        ImageRef::Name(name) => Err(Error::unsupported(format!("no such image: `{name}`"))
            .hint("this version runs `host` (the default) and directories: `./rootfs`")),
    }
    .map_err(|error| error.at(Stage::Image))
}

fn directory(path: &Path) -> Result<Prepared> {
    let shown = path.display();
    let found = fs::canonicalize(path).map_err(|error| {
        Error::new(Kind::NotFound, format!("no root filesystem at `{shown}`")).cause(error)
    })?;
    if !found.is_dir() {
        return Err(Error::invalid(format!("the root filesystem is not a directory: `{shown}`")));
    }
    if found == Path::new("/") {
        return Err(Error::invalid("`/` cannot be an image")
            .hint("`host` shows the host's programs without its files"));
    }
    let lower = Lower { path: found.clone(), owned: true };
    Ok(Prepared {
        overlays: vec![Overlay { at: "/".to_owned(), lowers: vec![lower] }],
        image: ImageRef::Path(found),
        path: Vec::new(),
    })
}
