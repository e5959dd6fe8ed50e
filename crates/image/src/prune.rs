//! Disk usage of images, and removal of what is not needed.

use crate::disks;
use crate::host_image;
use crate::store::{Image, Store, is_stale_temp, storage_error};
use msb_spec::{Digest, Error, Kind, Prune, PruneReport, Reference, Result, Space};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What sandboxes use, so that it is not removed.
#[derive(Debug, Clone, Default)]
pub struct InUse {
    /// Paths of layer directories.
    pub layers: BTreeSet<PathBuf>,
    /// Paths of image disks.
    pub disks: BTreeSet<PathBuf>,
    /// Names of images that sandboxes were created from.
    pub images: BTreeSet<Reference>,
}

/// Disk usage of one image, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// Bytes of all its layers.
    pub size: u64,
    /// Bytes of layers that no other image has.
    pub own: u64,
}

/// What the remaining images need.
#[derive(Default)]
struct KeepSet {
    /// File names of blobs.
    blobs: BTreeSet<String>,
    /// Directory names of layers.
    layers: BTreeSet<String>,
    /// Paths of image disks.
    disks: BTreeSet<PathBuf>,
}

/// A file or directory of the store that may be removed.
struct CacheItem {
    path: PathBuf,
    bytes: u64,
    kind: ItemKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemKind {
    Layer,
    Disk,
    Blob,
    Unfinished,
    HostLayer,
}

impl Store {
    /// Disk usage of each image, in the given order.
    pub fn shares(&self, images: &[Image]) -> Vec<Share> {
        let mut holders: BTreeMap<&Digest, BTreeSet<&Digest>> = BTreeMap::new();
        for image in images {
            for layer in &image.layers {
                holders.entry(&layer.diff_id).or_default().insert(&image.digest);
            }
        }
        let share = |image: &Image| {
            let layers: BTreeMap<&Digest, u64> =
                image.layers.iter().map(|layer| (&layer.diff_id, layer.unpacked)).collect();
            let own = layers.iter().filter(|(layer, _)| holders[*layer].len() == 1);
            Share { size: layers.values().sum(), own: own.map(|(_, bytes)| bytes).sum() }
        };
        images.iter().map(share).collect()
    }

    /// Disk usage of the whole store.
    pub fn space(&self) -> Space {
        let found = self.find_all(&InUse::default(), &KeepSet::default(), true);
        let sum = |kind: ItemKind| {
            found.iter().filter(|item| item.kind == kind).map(|item| item.bytes).sum()
        };
        Space {
            images: self.list().len() as u64,
            layers: sum(ItemKind::Layer),
            disks: sum(ItemKind::Disk),
            blobs: sum(ItemKind::Blob),
            unfinished: sum(ItemKind::Unfinished),
            host_layers: sum(ItemKind::HostLayer),
        }
    }

    /// Removes what no image and no sandbox needs. Fails while another process adds images.
    pub fn prune(&self, prune: &Prune, in_use: &InUse) -> Result<PruneReport> {
        let Some(_lock) = self.lock_exclusive()? else {
            return Err(Error::new(Kind::State, "another msb process is adding images")
                .hint("try again when it is done"));
        };
        let mut pruned = PruneReport::default();
        let (gone, kept): (Vec<Image>, Vec<Image>) =
            self.list_all()?.into_iter().partition(|image| {
                prune.all
                    && !in_use.images.contains(&image.reference)
                    && prune.older_than.is_none_or(|limit| self.is_older(&image.reference, limit))
            });
        for image in &gone {
            if !prune.dry_run {
                self.forget(&image.reference)?;
            }
            pruned.images.push(image.reference.clone());
        }
        let mut blobs: BTreeSet<&Digest> = BTreeSet::new();
        let mut layers: BTreeSet<&Digest> = BTreeSet::new();
        for image in &kept {
            blobs.extend([&image.digest, &image.config_digest]);
            blobs.extend(image.layers.iter().map(|layer| &layer.digest));
            layers.extend(image.layers.iter().map(|layer| &layer.diff_id));
        }
        let implied_dirs = kept.iter().filter(|image| image.implied_dirs).filter_map(|image| {
            let path = self.implied_dirs_path(&image.diff_ids());
            Some(path.file_name()?.to_str()?.to_owned())
        });
        let keep = KeepSet {
            blobs: blobs.iter().map(|digest| digest.hex().to_owned()).collect(),
            layers: layers
                .iter()
                .map(|digest| digest.hex().to_owned())
                .chain(implied_dirs)
                .collect(),
            disks: kept.iter().map(|image| self.disk_path(&image.layers)).collect(),
        };
        for item in self.find_all(in_use, &keep, false) {
            if !prune.dry_run
                && let Err(error) = self.remove_item(&item)
            {
                pruned.failed.push(error.to_string());
                continue;
            }
            pruned.bytes += item.bytes;
            match item.kind {
                ItemKind::Layer => pruned.layers += 1,
                ItemKind::Disk => pruned.disks += 1,
                ItemKind::Blob => pruned.blobs += 1,
                ItemKind::Unfinished => pruned.unfinished += 1,
                ItemKind::HostLayer => pruned.host_layers += 1,
            }
        }
        if !prune.dry_run {
            self.forget_steps();
        }
        Ok(pruned)
    }

    fn is_older(&self, reference: &Reference, limit: Duration) -> bool {
        let used = self.used(reference).map(Duration::from_millis);
        let used = used.map(|since| SystemTime::UNIX_EPOCH + since);
        used.and_then(|used| used.elapsed().ok()).is_some_and(|age| age >= limit)
    }

    /// Items that are not needed; with `all`, every item.
    fn find_all(&self, in_use: &InUse, keep: &KeepSet, all: bool) -> Vec<CacheItem> {
        let mut found = self.find_disks(in_use, keep);
        for (name, path) in entries(&self.blobs()) {
            if !keep.blobs.contains(&name) {
                found.push(CacheItem { bytes: size_of_file(&path), path, kind: ItemKind::Blob });
            }
        }
        for (name, path) in entries(&self.partials()) {
            let dead = if name.starts_with('.') { is_stale_temp(&name) } else { !is_locked(&path) };
            if all || dead {
                found.push(CacheItem {
                    bytes: size_of_tree(&path),
                    path,
                    kind: ItemKind::Unfinished,
                });
            }
        }
        let current = host_image::current_layer(&self.all_layers());
        for (name, path) in entries(&self.all_layers()) {
            if name.starts_with("host-") {
                let used = in_use.layers.iter().any(|layer| layer.starts_with(&path));
                if all || (path != current && !used) {
                    found.push(CacheItem {
                        bytes: size_of_tree(&path),
                        path,
                        kind: ItemKind::HostLayer,
                    });
                }
                continue;
            }
            if name.starts_with('.') {
                if is_stale_temp(&name) {
                    found.push(CacheItem {
                        bytes: size_of_tree(&path),
                        path,
                        kind: ItemKind::Unfinished,
                    });
                }
                continue;
            }
            for (name, path) in entries(&path) {
                if name.starts_with('.') {
                    if is_stale_temp(&name) {
                        let bytes = size_of_tree(&path);
                        found.push(CacheItem { bytes, path, kind: ItemKind::Unfinished });
                    }
                } else if !keep.layers.contains(&name) && !in_use.layers.contains(&path.join("fs"))
                {
                    let noted = fs::read(path.join("layer.json")).ok();
                    let noted = noted.and_then(|text| {
                        serde_json::from_slice::<crate::unpack::LayerContents>(&text).ok()
                    });
                    let bytes = noted.map_or_else(|| size_of_tree(&path), |noted| noted.bytes);
                    found.push(CacheItem { path, bytes, kind: ItemKind::Layer });
                }
            }
        }
        found
    }

    fn find_disks(&self, in_use: &InUse, keep: &KeepSet) -> Vec<CacheItem> {
        let mut found = Vec::new();
        for (name, path) in entries(&self.disks()) {
            let bytes = size_of_tree(&path);
            if name.starts_with('.') {
                if is_stale_temp(&name) {
                    found.push(CacheItem { path, bytes, kind: ItemKind::Unfinished });
                }
            } else if name.ends_with(".erofs") {
                if !keep.disks.contains(&path) && !in_use.disks.contains(&path) {
                    found.push(CacheItem { path, bytes, kind: ItemKind::Disk });
                }
            } else if !path.with_extension("erofs").exists() {
                found.push(CacheItem { path, bytes, kind: ItemKind::Unfinished });
            }
        }
        found
    }

    fn remove_item(&self, item: &CacheItem) -> Result<()> {
        let path = &item.path;
        if item.kind == ItemKind::Disk {
            return disks::remove(path).map_err(|error| storage_error(path, error));
        }
        if !path.is_dir() {
            return fs::remove_file(path).map_err(|error| storage_error(path, error));
        }
        if item.kind == ItemKind::Layer || path.join("fs").is_dir() {
            return self.discard_layer(path);
        }
        fs::remove_dir_all(path).map_err(|error| storage_error(path, error))
    }
}

fn entries(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .filter(|(name, _)| name != ".lock")
        .collect()
}

fn is_locked(path: &Path) -> bool {
    let file = File::options().read(true).write(true).open(path);
    file.is_ok_and(|file| msb_sys::lock::is_locked(&file).unwrap_or(true))
}

fn size_of_file(path: &Path) -> u64 {
    fs::symlink_metadata(path).map_or(0, |meta| meta.blocks() * 512)
}

/// Bytes on disk, as far as the tree is readable.
fn size_of_tree(path: &Path) -> u64 {
    let below = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => entries(path).iter().map(|(_, path)| size_of_tree(path)).sum(),
        _ => 0,
    };
    size_of_file(path) + below
}
