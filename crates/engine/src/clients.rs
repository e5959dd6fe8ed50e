//! The engine for callers that are not the operator: clients of a server, code in a sandbox.

use crate::host::half_of_memory;
use crate::images::{PullFor, Reach};
use crate::sandboxes::Engine;
use msb_api::ClientScope;
use msb_spec::{Authority, Bytes, Ceiling, Error, Kind, Name, Result};
use std::sync::Arc;

impl Engine {
    /// The same engine for clients of a server, who may ask for so much.
    #[must_use]
    pub fn for_clients(mut self, ceiling: Ceiling) -> Self {
        let memory = ceiling.memory.or_else(|| Some(Bytes(half_of_memory())));
        self.authority = Authority::Client(Arc::new(Ceiling { memory, ..ceiling }));
        self.pull_for = PullFor::Client;
        self
    }

    /// The same for one of them. Who is not known to have a ceiling gets the closed one.
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

    /// The same engine for code in a sandbox, which has its parent's policy for a ceiling.
    #[must_use]
    pub(crate) fn for_guests(mut self) -> Self {
        self.pull_for = PullFor::NamespaceClient;
        self
    }

    /// What config.toml says clients of a server may ask for.
    pub fn ceiling(&self) -> Result<Ceiling> {
        Ok(msb_image::Settings::read(self.home().path())?.server.ceiling)
    }

    /// How registries are reached for who asks, whatever else was said.
    pub(crate) fn reach(&self, reach: &Reach) -> Reach {
        Reach { pull_for: self.pull_for, ..reach.clone() }
    }

    /// Whether the namespace of a sandbox, whose directory is there, has no more than it may. Looked
    /// at afterwards, so that several who make one at once do not pass each other.
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
