//! How the dialect is set up.

use crate::namespace::Namespace;
use msb_spec::{Bytes, Cpus, SpawnPolicy};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How the dialect `sandbox-mcp` is set up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Where it keeps what outlives the server; nowhere if none.
    pub state: Option<PathBuf>,
    /// What sandboxes of these names are, where that differs from what is usual.
    pub profiles: BTreeMap<String, Profile>,
    /// Which children the sandbox that nobody names may have, where that differs from what is usual.
    pub children: Option<SpawnPolicy>,
}

/// What the sandbox of a name is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Its processors.
    pub cpus: Option<Cpus>,
    /// Its memory.
    pub memory: Option<Bytes>,
    /// Whether it is a microVM, or nothing.
    pub virtualization: bool,
}

impl Settings {
    /// The same for a namespace, whose sandboxes have names of their own.
    #[must_use]
    pub(crate) fn of_namespace(&self, namespace: &Namespace) -> Self {
        // No sandbox is called like this: a name has no `@`.
        let state = self.state.as_ref().map(|state| state.join(format!("@{}", namespace.as_str())));
        // A policy is for a name, which is another one there.
        Self { state, children: None, ..self.clone() }
    }
}
