//! Streams into a sandbox (SFTP, dial, listen), which the HTTP API does not offer.

use crate::Client;
use msb_api::{LinkListener, Links, Target};
use msb_spec::{Error, Name, Result, UserRef};
use std::os::unix::net::UnixStream;

impl Links for Client {
    fn link_sftp(&self, name: &Name, _: Option<&UserRef>) -> Result<UnixStream> {
        Err(unsupported_link(name))
    }

    fn link_dial(&self, name: &Name, _: Option<&UserRef>, _: &Target) -> Result<UnixStream> {
        Err(unsupported_link(name))
    }

    fn link_listen(
        &self,
        name: &Name,
        _: Option<&UserRef>,
        _: &Target,
    ) -> Result<Box<dyn LinkListener>> {
        Err(unsupported_link(name))
    }
}

fn unsupported_link(name: &Name) -> Error {
    Error::unsupported(format!("the HTTP API has no streams into sandbox `{name}`"))
        .hint("run `msb` without `--server` on the host of the server")
}
