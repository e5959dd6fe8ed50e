//! The engine with reduced authority: for clients of a server and for code in a sandbox.

use crate::host::half_of_memory;
use crate::images::{PullFor, RegistryOptions};
use crate::sandboxes::Engine;
use msb_api::ClientScope;
use msb_spec::{Authority, Bytes, Ceiling, Error, Kind, Name, Result, Spec};
use std::sync::Arc;

impl Engine {
    /// An engine for clients of a server, limited by `ceiling`. The memory ceiling defaults to half
    /// of the host's memory.
    #[must_use]
    pub fn for_clients(mut self, ceiling: Ceiling) -> Self {
        let memory = ceiling.memory.or_else(|| Some(Bytes(half_of_memory())));
        self.authority = Authority::Client(Arc::new(Ceiling { memory, ..ceiling }));
        self.pull_for = PullFor::Client;
        self
    }

    /// An engine for one client. Without a known ceiling it gets the most restrictive one.
    pub(crate) fn for_client_of(self, scope: ClientScope) -> Self {
        let mut client = match self.authority {
            Authority::Operator => self.for_clients(Ceiling::default()),
            Authority::Client(_) => self,
        };
        if scope == ClientScope::OneNamespace {
            client.pull_for = PullFor::NamespaceClient;
        }
        client
    }

    /// An engine for code in a sandbox. The spawn policy of its parent is the ceiling.
    #[must_use]
    pub(crate) fn for_guests(mut self) -> Self {
        self.pull_for = PullFor::NamespaceClient;
        self
    }

    /// The ceiling for clients of a server, from config.toml.
    pub fn ceiling(&self) -> Result<Ceiling> {
        Ok(msb_image::Settings::read(self.home().path())?.server.ceiling)
    }

    /// A Spec of defaults with limits that clients may have: those above the ceiling are lowered.
    #[must_use]
    pub fn lowered_to_ceiling(&self, spec: Spec) -> Spec {
        let Authority::Client(ceiling) = &self.authority else { return spec };
        Spec {
            memory: spec.memory.map(|own| ceiling.memory.map_or(own, |most| own.min(most))),
            cpus: spec.cpus.map(|own| ceiling.cpus.map_or(own, |most| own.min(most))),
            ..spec
        }
    }

    /// The registry options with the pull scope of this engine.
    pub(crate) fn reach(&self, reach: &RegistryOptions) -> RegistryOptions {
        RegistryOptions { pull_for: self.pull_for, ..reach.clone() }
    }

    /// Fails if the namespace of a sandbox has more sandboxes than its ceiling. Called after the
    /// directory was created, so that concurrent creations count each other.
    pub(crate) fn check_count(&self, name: &Name) -> Result<()> {
        let Some(most) = self.authority.most_sandboxes() else { return Ok(()) };
        let namespace = |name: &Name| name.as_str().split_once("--").map(|(own, _)| own.to_owned());
        let own = namespace(name);
        let count = self.home().names().iter().filter(|name| namespace(name) == own).count();
        match count > most as usize {
            true => Err(Error::new(
                Kind::Limit,
                format!("the namespace has {most} sandboxes already"),
            )
            .hint(
                "remove some; the operator of the server can allow more: `--ceiling sandboxes=…`",
            )),
            false => Ok(()),
        }
    }
}
