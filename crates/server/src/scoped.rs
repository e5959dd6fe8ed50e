//! One namespace of an Api, or all of them without the host: whoever has this has nothing else.
//!
//! Every name that comes in is turned into the one in the state directory, and every name that goes
//! out is turned back or left out; see `namespace`. What would concern everybody is refused: to
//! remove images, to load archives (they bring images that others would use), to read secrets out
//! of the server's own files, variables and commands, and files of the host that are not allowed.
//! Images that are here and the registries' logins are common to all. Where all namespaces are
//! reached names stay as they are, and only the host's own files, variables and commands are kept.

mod asked;
mod execs;
mod files;
mod images;
mod kept;
mod links;
mod sandboxes;
mod snapshots;
#[cfg(test)]
mod tests;
mod volumes;
mod words;

use crate::namespace::Namespace;
use crate::paths::HostPaths;
use msb_api::{Api, ClientScope};
use msb_spec::{Asker, Error, Kind, Name, Result, VolumeName};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The label that tells people which namespace something is in.
pub(crate) const LABEL: &str = "msb.namespace";

/// One namespace of an Api.
#[derive(Clone)]
pub struct Scoped {
    api: Arc<dyn Api>,
    /// None is all.
    namespace: Option<Namespace>,
    paths: Option<Arc<HostPaths>>,
    /// Who asks; none is whoever is known otherwise.
    asker: Option<Asker>,
}

impl std::fmt::Debug for Scoped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scoped").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Scoped {
    /// One namespace, which sees no files of the host.
    pub fn new(api: Arc<dyn Api>, namespace: Namespace) -> Self {
        let api = api.for_client(ClientScope::OneNamespace);
        Self { api, namespace: Some(namespace), paths: None, asker: None }
    }

    /// All namespaces, and no files of the host.
    pub fn all(api: Arc<dyn Api>) -> Self {
        let api = api.for_client(ClientScope::AllNamespaces);
        Self { api, namespace: None, paths: None, asker: None }
    }

    /// The same, and it sees these.
    #[must_use]
    pub fn with_host_paths(self, paths: Arc<HostPaths>) -> Self {
        Self { paths: Some(paths), ..self }
    }

    /// The same, and whatever it starts was asked for by this one.
    #[must_use]
    pub fn asked_by(self, asker: Asker) -> Self {
        Self { asker: Some(asker), ..self }
    }

    /// Does something that runs commands, and has it known for whom.
    fn asking<T>(&self, act: impl FnOnce() -> T) -> T {
        msb_api::asked_by(self.asker.clone(), act)
    }

    /// Which it is, if it is one.
    pub fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// Tells people whose something is.
    fn mark(&self, labels: &mut BTreeMap<String, String>) {
        if let Some(namespace) = &self.namespace {
            labels.insert(LABEL.to_owned(), namespace.to_string());
        }
    }

    /// What concerns everybody, for who reaches one namespace.
    fn common(&self, what: &str) -> Result<()> {
        match &self.namespace {
            Some(_) => Err(self.denied(what)),
            None => Ok(()),
        }
    }

    fn inner(&self, name: &Name) -> Result<Name> {
        match &self.namespace {
            Some(namespace) => namespace.inner(name.as_str()),
            None => Ok(name.clone()),
        }
    }

    fn inner_volume(&self, name: &VolumeName) -> Result<VolumeName> {
        let Some(namespace) = &self.namespace else { return Ok(name.clone()) };
        let inner = namespace.inner(name.as_str());
        inner.and_then(|inner| VolumeName::parse(inner.as_str())).map_err(|error| {
            match error.kind() {
                Kind::Invalid => Error::invalid(error.message().replace("sandbox", "volume")),
                _ => error,
            }
        })
    }

    fn outer(&self, name: &Name) -> Option<Name> {
        let Some(namespace) = &self.namespace else { return Some(name.clone()) };
        namespace.outer(name.as_str()).and_then(|outer| Name::parse(outer).ok())
    }

    fn outer_volume(&self, name: &VolumeName) -> Option<VolumeName> {
        let Some(namespace) = &self.namespace else { return Some(name.clone()) };
        namespace.outer(name.as_str()).and_then(|outer| VolumeName::parse(outer).ok())
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

    fn denied(&self, what: &str) -> Error {
        let who = match &self.namespace {
            Some(namespace) => format!("a key of the namespace `{namespace}`"),
            None => "a client of this server".to_owned(),
        };
        Error::new(Kind::Denied, format!("{who} {what}")).hint("whoever runs the server can")
    }
}
