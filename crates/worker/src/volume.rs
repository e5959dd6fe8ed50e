//! Serves files of a volume without a sandbox.

use msb_spec::{Error, Result};
use msb_wire::VolumeHelperRequest;
use std::os::fd::OwnedFd;

/// Serves one file operation of the client as `letter` (a JSON [`VolumeHelperRequest`]) says, and waits
/// for its end. Calls `ready` once the serving process is confined. The calling process must have
/// one thread.
pub fn serve_volume(letter: &str, client: OwnedFd, ready: impl FnOnce()) -> Result<i32> {
    let VolumeHelperRequest { ids, path, stored } = serde_json::from_str(letter)
        .map_err(|error| Error::invalid("only msb itself can call this").cause(error))?;
    msb_jail::serve_volume(&ids, &path, stored, client, ready, msb_guest::serve_volume)
}
