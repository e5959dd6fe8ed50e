//! The Operations that are streams, for the objects of one namespace.

use super::ScopedApi;
use super::to_stored::ToStored;
use msb_api::operation_types::*;
use msb_api::{Event, EventStream, LinkListener, Links, Target};
use msb_spec::{Result, UserRef};
use std::os::unix::net::UnixStream;

/// Events, with stored names translated back.
pub(super) struct VisibleEvents {
    pub(super) events: Box<dyn EventStream>,
    pub(super) scoped: ScopedApi,
}

impl EventStream for VisibleEvents {
    fn more(&mut self) -> Result<Vec<Event>> {
        self.scoped.visible(self.events.more())
    }
}

impl Links for ScopedApi {
    fn link_sftp(&self, name: &Name, user: Option<&UserRef>) -> Result<UnixStream> {
        self.redact(self.api.link_sftp(&Name::to_stored(name, self)?, user))
    }

    fn link_dial(&self, name: &Name, user: Option<&UserRef>, to: &Target) -> Result<UnixStream> {
        self.redact(self.api.link_dial(&Name::to_stored(name, self)?, user, to))
    }

    fn link_listen(
        &self,
        name: &Name,
        user: Option<&UserRef>,
        at: &Target,
    ) -> Result<Box<dyn LinkListener>> {
        self.redact(self.api.link_listen(&Name::to_stored(name, self)?, user, at))
    }
}
