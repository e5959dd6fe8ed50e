//! Volumes of one namespace.

use super::Scoped;
use msb_api::{PrunedVolumes, Volume, Volumes};
use msb_spec::{Error, Kind, Result, VolumeName, VolumeSpec};

impl Scoped {
    fn volume(&self, mut volume: Volume) -> Option<Volume> {
        volume.name = self.outer_volume(&volume.name)?;
        volume.sandboxes = self.own(&volume.sandboxes);
        Some(volume)
    }

    fn that_volume(&self, volume: Volume) -> Result<Volume> {
        self.volume(volume).ok_or_else(|| Error::new(Kind::Protocol, "another volume came back"))
    }
}

impl Volumes for Scoped {
    fn volume_create(&self, spec: &VolumeSpec) -> Result<Volume> {
        let VolumeSpec { name, kind, size, mut labels } = spec.clone();
        self.mark(&mut labels);
        let spec = VolumeSpec { name: self.inner_volume(&name)?, kind, size, labels };
        self.told(self.api.volume_create(&spec)).and_then(|volume| self.that_volume(volume))
    }

    fn volume_list(&self) -> Result<Vec<Volume>> {
        let all = self.told(self.api.volume_list())?;
        Ok(all.into_iter().filter_map(|volume| self.volume(volume)).collect())
    }

    fn volume_inspect(&self, name: &VolumeName) -> Result<Volume> {
        let volume = self.told(self.api.volume_inspect(&self.inner_volume(name)?))?;
        self.that_volume(volume)
    }

    fn volume_remove(&self, name: &VolumeName, force: bool) -> Result<()> {
        self.told(self.api.volume_remove(&self.inner_volume(name)?, force))
    }

    /// One by one: the Operation below would take everybody's.
    fn volume_prune(&self, dry_run: bool) -> Result<PrunedVolumes> {
        let mut pruned = PrunedVolumes::default();
        for volume in self.told(self.api.volume_list())? {
            let Some(name) = self.outer_volume(&volume.name) else { continue };
            if !volume.sandboxes.is_empty() {
                continue;
            }
            if !dry_run {
                match self.api.volume_remove(&volume.name, false) {
                    Ok(()) => {}
                    // Somebody began to use it, or was quicker.
                    Err(error) if matches!(error.kind(), Kind::State | Kind::NotFound) => continue,
                    Err(error) => return self.told(Err(error)),
                }
            }
            pruned.volumes.push(name);
            pruned.volume_bytes += volume.used;
        }
        Ok(pruned)
    }
}
