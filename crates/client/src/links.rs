//! Streams that lead into a sandbox, which a server does not give.

use crate::Client;
use msb_api::{LinkListener, Links, Target};
use msb_spec::{Error, Name, Result, UserRef};
use std::os::unix::net::UnixStream;

impl Links for Client {
    fn link_sftp(&self, name: &Name, _: Option<&UserRef>) -> Result<UnixStream> {
        Err(elsewhere(name))
    }

    fn link_dial(&self, name: &Name, _: Option<&UserRef>, _: &Target) -> Result<UnixStream> {
        Err(elsewhere(name))
    }

    fn link_listen(
        &self,
        name: &Name,
        _: Option<&UserRef>,
        _: &Target,
    ) -> Result<Box<dyn LinkListener>> {
        Err(elsewhere(name))
    }
}

fn elsewhere(name: &Name) -> Error {
    Error::unsupported(format!("a server gives no stream into its sandboxes: `{name}`"))
        .hint("where the server runs, `msb` without `--server` does")
}
