//! Streams into the sandboxes of one namespace.

use super::Scoped;
use msb_api::{LinkListener, Links, Target};
use msb_spec::{Name, Result, UserRef};
use std::os::unix::net::UnixStream;

impl Links for Scoped {
    fn link_sftp(&self, name: &Name, user: Option<&UserRef>) -> Result<UnixStream> {
        self.told(self.api.link_sftp(&self.inner(name)?, user))
    }

    fn link_dial(&self, name: &Name, user: Option<&UserRef>, to: &Target) -> Result<UnixStream> {
        self.told(self.api.link_dial(&self.inner(name)?, user, to))
    }

    fn link_listen(
        &self,
        name: &Name,
        user: Option<&UserRef>,
        at: &Target,
    ) -> Result<Box<dyn LinkListener>> {
        self.told(self.api.link_listen(&self.inner(name)?, user, at))
    }
}
