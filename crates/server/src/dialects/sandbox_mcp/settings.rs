//! Settings of the dialect `sandbox-mcp`.

use crate::namespace::Namespace;
use msb_spec::{Bytes, Cpus, SpawnPolicy};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Settings of the dialect `sandbox-mcp`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxMcpSettings {
    /// The directory for data that survives the server; none keeps it in memory.
    pub state: Option<PathBuf>,
    /// Resources of sandboxes by name, where they differ from the defaults.
    pub profiles: BTreeMap<String, SandboxMcpProfile>,
    /// The spawn policy of the sandbox `default`; none for the default policy.
    pub children: Option<SpawnPolicy>,
}

/// Resources of a named sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxMcpProfile {
    /// The number of CPUs; 2 by default.
    pub cpus: Option<Cpus>,
    /// The memory limit; 512 MiB by default.
    pub memory: Option<Bytes>,
    /// Whether it must be a microVM.
    pub virtualization: bool,
}

impl SandboxMcpSettings {
    /// The settings for one namespace, with a state directory of its own.
    #[must_use]
    pub(crate) fn of_namespace(&self, namespace: &Namespace) -> Self {
        // No sandbox has such a name: a name has no `@`.
        let state = self.state.as_ref().map(|state| state.join(format!("@{}", namespace.as_str())));
        // The policy is for a sandbox of another namespace.
        Self { state, children: None, ..self.clone() }
    }
}
