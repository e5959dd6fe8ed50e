//! What images take on the disk, and how to get it back.

use crate::disks;
use crate::host;
use crate::store::{Image, Store, is_debris, unusable};
use msb_spec::{Digest, Error, Kind, Prune, Pruned, Reference, Result, Space};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What sandboxes need.
#[derive(Debug, Clone, Default)]
pub struct InUse {
    /// Directories of layers.
    pub layers: BTreeSet<PathBuf>,
    /// Disks of images.
    pub disks: BTreeSet<PathBuf>,
    /// Names of images that sandboxes were made from.
    pub images: BTreeSet<Reference>,
}

/// What one image takes: bytes of its files, and of those that no other image has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    /// All its layers.
    pub size: u64,
    /// Layers that are in no other image.
    pub own: u64,
}

/// What images that stay need.
#[derive(Default)]
struct Needed {
    /// Names of blobs.
    blobs: BTreeSet<String>,
    /// Names of layers.
    layers: BTreeSet<String>,
    /// Disks.
    disks: BTreeSet<PathBuf>,
}

/// What is there and could go.
struct Find {
    path: PathBuf,
    bytes: u64,
    sort: Sort,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Layer,
    Disk,
    Blob,
    Unfinished,
    HostLayer,
}

impl Store {
    /// What each image takes, in the order of the list.
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

    /// What all images take together.
    pub fn space(&self) -> Space {
        let found = self.find_all(&InUse::default(), &Needed::default(), true);
        let sum =
            |sort: Sort| found.iter().filter(|find| find.sort == sort).map(|find| find.bytes).sum();
        Space {
            images: self.list().len() as u64,
            layers: sum(Sort::Layer),
            disks: sum(Sort::Disk),
            blobs: sum(Sort::Blob),
            unfinished: sum(Sort::Unfinished),
            host_layers: sum(Sort::HostLayer),
        }
    }

    /// Removes what nothing needs. Nobody may be adding images meanwhile.
    pub fn prune(&self, prune: &Prune, in_use: &InUse) -> Result<Pruned> {
        let Some(_alone) = self.alone()? else {
            return Err(Error::new(Kind::State, "another msb is adding images right now")
                .hint("try again when it is done"));
        };
        let mut pruned = Pruned::default();
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
        let mended = kept.iter().filter(|image| image.mended).filter_map(|image| {
            let path = self.mended(&image.diff_ids());
            Some(path.file_name()?.to_str()?.to_owned())
        });
        let needed = Needed {
            blobs: blobs.iter().map(|digest| digest.hex().to_owned()).collect(),
            layers: layers.iter().map(|digest| digest.hex().to_owned()).chain(mended).collect(),
            disks: kept.iter().map(|image| self.disk_place(&image.layers)).collect(),
        };
        for find in self.find_all(in_use, &needed, false) {
            if !prune.dry_run
                && let Err(error) = self.remove_found(&find)
            {
                pruned.failed.push(error.to_string());
                continue;
            }
            pruned.bytes += find.bytes;
            match find.sort {
                Sort::Layer => pruned.layers += 1,
                Sort::Disk => pruned.disks += 1,
                Sort::Blob => pruned.blobs += 1,
                Sort::Unfinished => pruned.unfinished += 1,
                Sort::HostLayer => pruned.host_layers += 1,
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

    /// Everything that is not needed; everything at all if `all`.
    fn find_all(&self, in_use: &InUse, needed: &Needed, all: bool) -> Vec<Find> {
        let mut found = self.find_disks(in_use, needed);
        for (name, path) in entries(&self.blobs()) {
            if !needed.blobs.contains(&name) {
                found.push(Find { bytes: size_of_file(&path), path, sort: Sort::Blob });
            }
        }
        for (name, path) in entries(&self.partials()) {
            let dead = if name.starts_with('.') { is_debris(&name) } else { !is_locked(&path) };
            if all || dead {
                found.push(Find { bytes: size_of_tree(&path), path, sort: Sort::Unfinished });
            }
        }
        let current = host::current_layer(&self.all_layers());
        for (name, path) in entries(&self.all_layers()) {
            if name.starts_with("host-") {
                let used = in_use.layers.iter().any(|layer| layer.starts_with(&path));
                if all || (path != current && !used) {
                    found.push(Find { bytes: size_of_tree(&path), path, sort: Sort::HostLayer });
                }
                continue;
            }
            if name.starts_with('.') {
                if is_debris(&name) {
                    found.push(Find { bytes: size_of_tree(&path), path, sort: Sort::Unfinished });
                }
                continue;
            }
            for (name, path) in entries(&path) {
                if name.starts_with('.') {
                    if is_debris(&name) {
                        let bytes = size_of_tree(&path);
                        found.push(Find { bytes, path, sort: Sort::Unfinished });
                    }
                } else if !needed.layers.contains(&name)
                    && !in_use.layers.contains(&path.join("fs"))
                {
                    let noted = fs::read(path.join("layer.json")).ok();
                    let noted = noted.and_then(|text| {
                        serde_json::from_slice::<crate::unpack::Contents>(&text).ok()
                    });
                    let bytes = noted.map_or_else(|| size_of_tree(&path), |noted| noted.bytes);
                    found.push(Find { path, bytes, sort: Sort::Layer });
                }
            }
        }
        found
    }

    fn find_disks(&self, in_use: &InUse, needed: &Needed) -> Vec<Find> {
        let mut found = Vec::new();
        for (name, path) in entries(&self.disks()) {
            let bytes = size_of_tree(&path);
            if name.starts_with('.') {
                if is_debris(&name) {
                    found.push(Find { path, bytes, sort: Sort::Unfinished });
                }
            } else if name.ends_with(".erofs") {
                if !needed.disks.contains(&path) && !in_use.disks.contains(&path) {
                    found.push(Find { path, bytes, sort: Sort::Disk });
                }
            } else if !path.with_extension("erofs").exists() {
                found.push(Find { path, bytes, sort: Sort::Unfinished });
            }
        }
        found
    }

    fn remove_found(&self, find: &Find) -> Result<()> {
        let path = &find.path;
        if find.sort == Sort::Disk {
            return disks::remove(path).map_err(|error| unusable(path, error));
        }
        if !path.is_dir() {
            return fs::remove_file(path).map_err(|error| unusable(path, error));
        }
        if find.sort == Sort::Layer || path.join("fs").is_dir() {
            return self.discard_layer(path);
        }
        fs::remove_dir_all(path).map_err(|error| unusable(path, error))
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

/// As much as we may see of it.
fn size_of_tree(path: &Path) -> u64 {
    let below = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => entries(path).iter().map(|(_, path)| size_of_tree(path)).sum(),
        _ => 0,
    };
    size_of_file(path) + below
}
