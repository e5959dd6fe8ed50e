//! Volumes: named storage that outlives sandboxes and is shared by them.

use crate::sandboxes::Sandboxes;
use crate::worker::blocking;
use msb_engine::files::CopyCount;
use msb_engine::{Engine, Volume as Found};
use msb_spec::{Bytes, Error, Result, VolumeKind, VolumeName, VolumeSpec};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A volume that is there.
///
/// ```no_run
/// # use microsandbox::{Result, Sandbox, Volume};
/// # async fn example() -> Result<()> {
/// Volume::builder("data").label("team", "a").create().await?;
/// let sandbox = Sandbox::builder("box").volume("data", "/data").create().await?;
/// # drop(sandbox);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Volume {
    found: Found,
    sandboxes: Sandboxes,
}

impl Volume {
    /// Begins a new volume of this user.
    pub fn builder(name: impl AsRef<str>) -> VolumeBuilder {
        Sandboxes::new().volume_builder(name)
    }

    /// Finds a volume by its name.
    pub async fn get(name: impl AsRef<str>) -> Result<Self> {
        Sandboxes::new().volume(name).await
    }

    /// Every volume, sorted by name.
    pub async fn list() -> Result<Vec<Self>> {
        Sandboxes::new().volumes().await
    }

    /// Removes one that no sandbox uses, with all it holds.
    pub async fn remove(name: impl AsRef<str>) -> Result<()> {
        Sandboxes::new().remove_volume(name).await
    }

    /// The name of the volume.
    pub fn name(&self) -> &str {
        self.found.name.as_str()
    }

    /// Directory or disk image.
    pub fn kind(&self) -> VolumeKind {
        self.found.kind
    }

    /// How much it may hold, in bytes; none is as much as the host has.
    pub fn size(&self) -> Option<u64> {
        self.found.size
    }

    /// Bytes of the host's disk that it took when it was looked at.
    pub fn used(&self) -> u64 {
        self.found.used
    }

    /// Labels that listings are filtered by.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.found.labels
    }

    /// The sandboxes that used it when it was looked at, running or not.
    pub fn sandboxes(&self) -> impl Iterator<Item = &str> {
        self.found.sandboxes.iter().map(msb_spec::Name::as_str)
    }

    /// Copies a file or tree of the host in, whole or not at all. No sandbox has to run for it.
    pub async fn copy_in(
        &self,
        from: impl Into<PathBuf>,
        to: impl AsRef<Path>,
    ) -> Result<CopyCount> {
        let (from, to) = (from.into(), to.as_ref().as_os_str().as_bytes().to_vec());
        self.blocking(move |engine, name| {
            engine.volumes().files(name)?.push(&from, &to, true, &mut |_| {})
        })
        .await
    }

    /// Copies a file or tree out to the host. No sandbox has to run for it.
    pub async fn copy_out(
        &self,
        from: impl AsRef<Path>,
        to: impl Into<PathBuf>,
    ) -> Result<CopyCount> {
        let (from, to) = (from.as_ref().as_os_str().as_bytes().to_vec(), to.into());
        self.blocking(move |engine, name| {
            engine.volumes().files(name)?.pull(&from, &to, &mut |_| {})
        })
        .await
    }

    /// Reads a file. No sandbox has to run for it.
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref().as_os_str().as_bytes().to_vec();
        self.blocking(move |engine, name| {
            let mut content = Vec::new();
            engine.volumes().files(name)?.read(&path, 0, None, |bytes| {
                content.extend_from_slice(bytes);
                Ok(())
            })?;
            Ok(content)
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine, &VolumeName) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sandboxes, name) = (self.sandboxes.clone(), self.found.name.clone());
        blocking(move || work(&sandboxes.engine()?, &name)).await
    }
}

/// Describes a new volume. A mistake in it is reported by [`VolumeBuilder::create`], before
/// anything is touched.
#[derive(Debug, Clone)]
pub struct VolumeBuilder {
    sandboxes: Sandboxes,
    spec: Result<VolumeSpec, Error>,
}

impl VolumeBuilder {
    /// How much it may hold, in MiB. What a directory volume holds is limited as root only.
    #[must_use]
    pub fn size(self, mib: u64) -> Self {
        self.with(Bytes::parse(&format!("{mib}M")), |spec, size| spec.size = Some(size))
    }

    /// What it is; a directory unless told.
    #[must_use]
    pub fn kind(self, kind: VolumeKind) -> Self {
        self.with(Ok(kind), |spec, kind| spec.kind = kind)
    }

    /// Adds a label, for finding it again.
    #[must_use]
    pub fn label(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        let label = (key.into(), value.into());
        self.with(Ok(label), |spec, (key, value)| {
            spec.labels.insert(key, value);
        })
    }

    /// Creates the volume; fails if the name is taken.
    pub async fn create(self) -> Result<Volume> {
        let Self { sandboxes, spec } = self;
        blocking(move || {
            let found = sandboxes.engine()?.volumes().create(&spec?)?;
            Ok(Volume { found, sandboxes })
        })
        .await
    }

    fn with<T>(mut self, value: Result<T>, set: impl FnOnce(&mut VolumeSpec, T)) -> Self {
        self.spec = match (self.spec, value) {
            (Ok(mut spec), Ok(value)) => {
                set(&mut spec, value);
                Ok(spec)
            }
            // The first mistake is told.
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        };
        self
    }
}

impl Sandboxes {
    /// Begins a new volume.
    pub fn volume_builder(&self, name: impl AsRef<str>) -> VolumeBuilder {
        let spec = VolumeName::parse(name.as_ref()).map(VolumeSpec::new);
        VolumeBuilder { sandboxes: self.clone(), spec }
    }

    /// A volume that exists.
    pub async fn volume(&self, name: impl AsRef<str>) -> Result<Volume> {
        let (sandboxes, name) = (self.clone(), VolumeName::parse(name.as_ref())?);
        blocking(move || Ok(Volume { found: sandboxes.engine()?.volumes().get(&name)?, sandboxes }))
            .await
    }

    /// Every volume, sorted by name.
    pub async fn volumes(&self) -> Result<Vec<Volume>> {
        let sandboxes = self.clone();
        blocking(move || {
            let all = sandboxes.engine()?.volumes().list().into_iter();
            Ok(all.map(|found| Volume { found, sandboxes: sandboxes.clone() }).collect())
        })
        .await
    }

    /// Removes a volume that no sandbox uses, with all it holds.
    pub async fn remove_volume(&self, name: impl AsRef<str>) -> Result<()> {
        let (sandboxes, name) = (self.clone(), VolumeName::parse(name.as_ref())?);
        blocking(move || sandboxes.engine()?.volumes().remove(&name, false)).await
    }
}
