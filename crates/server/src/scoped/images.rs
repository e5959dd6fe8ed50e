//! Images, which are common to all namespaces: they can be used, not taken away.

use super::Scoped;
use msb_api::{
    Api, ClientScope, DiskUsage, ImageInspection, ImageSummary, Images, Registry, Watch,
};
use msb_spec::{Prune, Pruned, Reference, Result};
use std::sync::Arc;

impl Scoped {
    /// How a registry is reached, as far as a client may say. What a client of one namespace pulls
    /// is used by the others, who have not agreed to do without verification.
    pub(super) fn registry(&self, registry: &Registry) -> Result<Registry> {
        let mut registry = registry.clone();
        if registry.insecure {
            self.common("pulls over TLS that is verified: others use the images too")?;
        }
        registry.ca = registry.ca.map(|path| self.host(&path)).transpose()?;
        Ok(registry)
    }
}

impl Images for Scoped {
    fn for_client(self: Arc<Self>, scope: ClientScope) -> Arc<dyn Api> {
        let api = Arc::clone(&self.api).for_client(scope);
        Arc::new(Self { api, ..(*self).clone() })
    }

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
        let registry = self.registry(registry)?;
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
