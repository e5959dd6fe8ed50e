//! The Operations on images, and which sandboxes use them.

use crate::sandboxes::Engine;
pub use msb_api::{DiskUsage, ImageInspection, ImageSummary, LayerInspection};
pub use msb_image::{
    Credential, Credentials, EnsureOptions, History, IMAGE_HELPER_ARGUMENT, Image, ImageConfig,
    Layer, LoadOptions, Login, Mirror, NoProgress, Progress, ProgressEvent, Prune, PruneReport,
    PullFor, PullOptions, RegistryOptions, RunConfig, Secret, Space, Store, serve,
};
use msb_image::{InUse, Share};
use msb_spec::{Error, ImageRef, Kind, MachineBase, Name, Reference, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// Options for fetching images while a sandbox is planned.
#[derive(Clone)]
pub struct Fetching<'a> {
    /// How registries are reached: TLS, CA and credentials.
    pub reach: RegistryOptions,
    /// Receives progress events of the pull.
    pub progress: &'a dyn Progress,
}

impl Default for Fetching<'_> {
    fn default() -> Self {
        Self { reach: RegistryOptions::default(), progress: &NoProgress }
    }
}

impl std::fmt::Debug for Fetching<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetching").field("reach", &self.reach).finish_non_exhaustive()
    }
}

impl Engine {
    /// All images, sorted by name.
    pub fn image_list(&self) -> Result<Vec<ImageSummary>> {
        let store = self.images()?;
        let images = store.list();
        let shares = store.shares(&images);
        let users = self.users();
        let line = |(image, share): (Image, Share)| ImageSummary {
            sandboxes: users.get(&image.reference).cloned().unwrap_or_default(),
            used: store.used(&image.reference),
            platform: image.platform.to_string(),
            size: share.size,
            own: share.own,
            shared: share.size - share.own,
            layers: image.layers.len(),
            created: image.created,
            pulled: image.pulled,
            digest: image.digest,
            reference: image.reference,
        };
        Ok(images.into_iter().zip(shares).map(line).collect())
    }

    /// Config, layers, sizes and users of an image.
    pub fn image_inspect(&self, name: &Reference) -> Result<ImageInspection> {
        let store = self.images()?;
        let image = self.image(&store, name)?;
        let images = store.list();
        let shares = store.shares(&images);
        let share = images.iter().zip(shares).find(|(one, _)| one.reference == image.reference);
        let share = share.map(|(_, share)| share).unwrap_or_default();
        let config = store.config(&image)?;
        let layer = |layer: &Layer| {
            let holds = |other: &&Image| {
                other.reference != image.reference
                    && other.layers.iter().any(|one| one.diff_id == layer.diff_id)
            };
            LayerInspection {
                digest: layer.digest.clone(),
                diff_id: layer.diff_id.clone(),
                media_type: layer.media_type.clone(),
                size: layer.size,
                unpacked: layer.unpacked,
                shared_with: images.iter().filter(holds).map(|one| one.reference.clone()).collect(),
            }
        };
        Ok(ImageInspection {
            layers: image.layers.iter().map(layer).collect(),
            sandboxes: self.users().remove(&image.reference).unwrap_or_default(),
            used: store.used(&image.reference),
            platform: image.platform.to_string(),
            size: share.size,
            own: share.own,
            shared: share.size - share.own,
            created: image.created,
            pulled: image.pulled,
            config: image.config,
            history: config.history,
            index: image.index,
            digest: image.digest,
            reference: image.reference,
        })
    }

    /// An image in the store, by its name or alias.
    pub fn image(&self, store: &Store, name: &Reference) -> Result<Image> {
        let meant = store.settings().meant(name);
        if let Some(image) = store.here(meant)? {
            return Ok(image);
        }
        let error =
            Error::new(Kind::NotFound, format!("image `{}` is not in the store", meant.short()));
        let names: Vec<String> = store.list().iter().map(|one| one.reference.short()).collect();
        Err(match msb_spec::nearest(&meant.short(), names.iter().map(String::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint("`msb image ls` lists the images, `msb pull` fetches one"),
        })
    }

    /// Removes a name, and layers that only it needed. Fails if a sandbox uses it, unless `force`.
    pub fn image_remove(&self, name: &Reference, force: bool) -> Result<Reference> {
        let store = self.images()?;
        let image = self.image(&store, name)?;
        let users = self.users().remove(&image.reference).unwrap_or_default();
        if !force && !users.is_empty() {
            let names: Vec<&str> = users.iter().map(Name::as_str).collect();
            return Err(Error::new(
                Kind::State,
                format!("image `{}` is used by `{}`", image.reference.short(), names.join("`, `")),
            )
            .hint(
                "`msb rm` removes sandboxes; `-f` removes the name only; they keep their layers",
            ));
        }
        store.forget(&image.reference)?;
        // Unreferenced layers are removed now, or next time if images are being added.
        match self.in_use().and_then(|in_use| store.prune(&Prune::default(), &in_use)) {
            Err(error) if error.kind() != Kind::State => Err(error),
            _ => Ok(image.reference),
        }
    }

    /// Removes layers that neither an image nor a sandbox needs.
    pub fn image_prune(&self, prune: &Prune) -> Result<PruneReport> {
        self.images()?.prune(prune, &self.in_use()?)
    }

    /// Removes unused image layers, unreferenced frozen layers and the build cache.
    pub fn prune(&self, prune: &Prune) -> Result<PruneReport> {
        let cache = self.home().path().join("build");
        let bytes = size_of_tree(&cache);
        if !prune.dry_run
            && let Err(error) = std::fs::remove_dir_all(&cache)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(Error::host(format!("cannot remove `{}`", cache.display()), error));
        }
        if !prune.dry_run {
            self.snapshots().gc_layers();
        }
        let mut pruned = self.image_prune(prune)?;
        pruned.bytes += bytes;
        Ok(pruned)
    }

    /// Disk usage by kind, and how much of it can be reclaimed.
    pub fn disk_usage(&self) -> Result<DiskUsage> {
        let store = self.images()?;
        let in_use = self.in_use()?;
        let build_cache = size_of_tree(&self.home().path().join("build"));
        let would = |all| {
            let prune = Prune { all, dry_run: true, older_than: None };
            // While images are being added nothing can be reclaimed.
            store.prune(&prune, &in_use).map_or(0, |pruned| pruned.bytes + build_cache)
        };
        let names = self.home().names();
        let bytes = |name: &Name| size_of_tree(&self.home().directory(name));
        let volumes = self.home().volume_names();
        Ok(DiskUsage {
            snapshots: self.snapshots().list()?.len() as u64,
            frozen_bytes: size_of_tree(&self.home().frozen()),
            volumes: volumes.len() as u64,
            volume_bytes: volumes.iter().map(|name| size_of_tree(&self.home().volume(name))).sum(),
            images: store.space(),
            sandboxes: names.len() as u64,
            sandbox_bytes: names.iter().map(bytes).sum(),
            build_cache,
            reclaimable: would(false),
            reclaimable_all: would(true),
        })
    }

    /// The sandboxes that were created from each image.
    fn users(&self) -> BTreeMap<Reference, Vec<Name>> {
        let mut users: BTreeMap<Reference, Vec<Name>> = BTreeMap::new();
        for name in self.home().names() {
            if let Ok(plan) = self.home().plan(&name)
                && let ImageRef::Name(reference) = plan.image
            {
                users.entry(reference).or_default().push(name);
            }
        }
        users
    }

    /// The layers, images and disks in use. Fails if a snapshot cannot be read, so that nothing is
    /// removed by mistake.
    fn in_use(&self) -> Result<InUse> {
        let mut in_use = InUse::default();
        let sandboxes = self.home().names();
        let plans = sandboxes.iter().filter_map(|name| self.home().plan(name).ok());
        for plan in plans.chain(self.snapshots().recorded_plans()?) {
            for overlay in plan.rootfs.overlays {
                in_use.layers.extend(overlay.lowers.into_iter().map(|lower| lower.path));
            }
            if let ImageRef::Name(reference) = plan.image {
                in_use.images.insert(reference);
            }
            if let Some(MachineBase::Image { path, .. }) = plan.machine.map(|machine| machine.base)
            {
                in_use.disks.insert(path);
            }
        }
        Ok(in_use)
    }
}

/// Bytes of disk that a tree takes, as far as it can be read, without following symlinks.
pub(crate) fn size_of_tree(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = std::fs::symlink_metadata(path) else {
        return 0;
    };
    let below = match meta.is_dir() {
        true => {
            let entries = std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
            entries.map(|entry| size_of_tree(&entry.path())).sum()
        }
        false => 0,
    };
    meta.blocks() * 512 + below
}
