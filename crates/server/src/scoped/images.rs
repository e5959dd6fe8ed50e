//! Images, which are common to all namespaces: they can be used, not taken away.

use super::Scoped;
use msb_api::{DiskUsage, ImageInspection, ImageSummary, Images, Registry, Watch};
use msb_spec::{Prune, Pruned, Reference, Result};

impl Images for Scoped {
    fn image_list(&self) -> Result<Vec<ImageSummary>> {
        let images = self.told(self.api.image_list())?;
        let own = |image: ImageSummary| {
            let sandboxes = self.own(&image.sandboxes);
            ImageSummary { sandboxes, ..image }
        };
        Ok(images.into_iter().map(own).collect())
    }

    fn image_inspect(&self, name: &Reference) -> Result<ImageInspection> {
        let image = self.told(self.api.image_inspect(name))?;
        let sandboxes = self.own(&image.sandboxes);
        Ok(ImageInspection { sandboxes, ..image })
    }

    fn image_pull(&self, name: &Reference, watch: &dyn Watch) -> Result<ImageInspection> {
        let image = self.told(self.api.image_pull(name, watch))?;
        let sandboxes = self.own(&image.sandboxes);
        Ok(ImageInspection { sandboxes, ..image })
    }

    fn image_pull_from(
        &self,
        name: &Reference,
        registry: &Registry,
        watch: &dyn Watch,
    ) -> Result<ImageInspection> {
        let mut registry = registry.clone();
        registry.ca = registry.ca.map(|path| self.host(&path)).transpose()?;
        let image = self.told(self.api.image_pull_from(name, &registry, watch))?;
        let sandboxes = self.own(&image.sandboxes);
        Ok(ImageInspection { sandboxes, ..image })
    }

    fn image_build(
        &self,
        name: &Reference,
        containerfile: &str,
        watch: &dyn Watch,
    ) -> Result<ImageInspection> {
        self.common("builds no images: others would start from them")?;
        self.api.image_build(name, containerfile, watch)
    }

    fn image_remove(&self, name: &Reference, force: bool) -> Result<Reference> {
        self.common("removes no images: others use them too")?;
        self.api.image_remove(name, force)
    }

    fn image_prune(&self, prune: &Prune) -> Result<Pruned> {
        self.common("removes no images: others use them too")?;
        self.api.image_prune(prune)
    }

    fn disk_usage(&self) -> Result<DiskUsage> {
        self.common("does not see how much the others use")?;
        self.api.disk_usage()
    }
}
