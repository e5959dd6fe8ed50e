//! An `Api` restricted to one namespace, or to all namespaces without host files.
//!
//! Names in requests are translated to stored names (`to_stored`). Names in responses are translated
//! back, or removed if they belong to another namespace (`to_visible`); see `namespace`. With one namespace, Operations
//! that affect other namespaces are refused:
//!
//! - removing images, and loading archives, which bring images that others would use;
//! - reading secrets from files, variables and commands of the server;
//! - host paths that are not allowed.
//!
//! Images and registry logins are shared by all namespaces. With all namespaces, names are not
//! translated; only files, variables and commands of the host are refused.

mod errors;
mod operations;
mod spec;
mod streams;
#[cfg(test)]
mod tests;
mod to_stored;
mod to_visible;

use crate::namespace::Namespace;
use crate::paths::HostPaths;
use msb_api::{Api, ClientScope};
use msb_spec::{Error, Kind, Result};
use std::sync::Arc;
use to_visible::ToVisible;

/// A label that shows users the namespace of an object.
pub(crate) const LABEL: &str = "msb.namespace";

/// An `Api` restricted to a scope. It grants nothing else.
#[derive(Clone)]
pub struct ScopedApi {
    api: Arc<dyn Api>,
    /// The namespace; none means all.
    namespace: Option<Namespace>,
    paths: Option<Arc<HostPaths>>,
}

impl std::fmt::Debug for ScopedApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scoped").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl ScopedApi {
    /// One namespace, without access to host files.
    pub fn new(api: Arc<dyn Api>, namespace: Namespace) -> Self {
        let api = api.for_client(ClientScope::OneNamespace);
        Self { api, namespace: Some(namespace), paths: None }
    }

    /// All namespaces, without access to host files.
    pub fn all(api: Arc<dyn Api>) -> Self {
        let api = api.for_client(ClientScope::AllNamespaces);
        Self { api, namespace: None, paths: None }
    }

    /// Allows these host paths.
    #[must_use]
    pub fn with_host_paths(self, paths: Arc<HostPaths>) -> Self {
        Self { paths: Some(paths), ..self }
    }

    /// The namespace, if it is only one.
    pub fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// Refuses an Operation that affects all namespaces, if this is only one.
    fn require_all_namespaces(&self, what: &str) -> Result<()> {
        match &self.namespace {
            Some(_) => Err(self.denied(what)),
            None => Ok(()),
        }
    }

    /// An answer as the client sees it.
    fn visible<T: ToVisible>(&self, answer: Result<T>) -> Result<T> {
        self.redact(answer)?.to_visible(self)
    }

    fn denied(&self, what: &str) -> Error {
        let caller = match &self.namespace {
            Some(namespace) => format!("a key of the namespace `{namespace}`"),
            None => "a client of this server".to_owned(),
        };
        Error::new(Kind::Denied, format!("{caller} {what}"))
            .hint("the operator of the server can do this")
    }
}
