//! One namespace of an Api: whoever has this has nothing else.
//!
//! Every name that comes in is turned into the one in the state directory, and every name that goes
//! out is turned back or left out; see `namespace`. What would concern everybody is refused: to
//! remove images, to load archives (they bring images that others would use), to read secrets out
//! of the server's own files, variables and commands, and files of the host that are not allowed.
//! Images that are here and the registries' logins are common to all.

mod asked;
mod execs;
mod files;
mod images;
mod kept;
mod sandboxes;
mod snapshots;
#[cfg(test)]
mod tests;
mod volumes;
mod words;

use crate::namespace::Namespace;
use crate::paths::HostPaths;
use msb_api::Api;
use msb_spec::{Error, Kind, Name, Result, VolumeName};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The label that tells people which namespace something is in.
pub(crate) const LABEL: &str = "msb.namespace";

/// One namespace of an Api.
#[derive(Clone)]
pub struct Scoped {
    api: Arc<dyn Api>,
    namespace: Namespace,
    paths: Option<Arc<HostPaths>>,
}

impl std::fmt::Debug for Scoped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scoped").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Scoped {
    /// One namespace, which sees no files of the host.
    pub fn new(api: Arc<dyn Api>, namespace: Namespace) -> Self {
        Self { api, namespace, paths: None }
    }

    /// The same, and it sees these.
    #[must_use]
    pub fn with_host_paths(self, paths: Arc<HostPaths>) -> Self {
        Self { paths: Some(paths), ..self }
    }

    /// Which it is.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn inner(&self, name: &Name) -> Result<Name> {
        self.namespace.inner(name.as_str())
    }

    fn inner_volume(&self, name: &VolumeName) -> Result<VolumeName> {
        let inner = self.namespace.inner(name.as_str());
        inner.and_then(|inner| VolumeName::parse(inner.as_str())).map_err(|error| {
            match error.kind() {
                Kind::Invalid => Error::invalid(error.message().replace("sandbox", "volume")),
                _ => error,
            }
        })
    }

    fn outer(&self, name: &Name) -> Option<Name> {
        self.namespace.outer(name.as_str()).and_then(|outer| Name::parse(outer).ok())
    }

    fn outer_volume(&self, name: &VolumeName) -> Option<VolumeName> {
        self.namespace.outer(name.as_str()).and_then(|outer| VolumeName::parse(outer).ok())
    }

    /// Those of several that belong to it.
    fn own(&self, names: &[Name]) -> Vec<Name> {
        names.iter().filter_map(|name| self.outer(name)).collect()
    }

    /// A path of the host, if it may be used.
    fn host(&self, path: &Path) -> Result<PathBuf> {
        match &self.paths {
            Some(paths) => paths.check(path),
            None => Err(self.denied("names no files of the host")),
        }
    }

    /// What concerns everybody.
    fn denied(&self, what: &str) -> Error {
        let namespace = &self.namespace;
        Error::new(Kind::Denied, format!("a key of the namespace `{namespace}` {what}"))
            .hint("whoever runs the server can")
    }
}
