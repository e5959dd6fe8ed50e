//! The process that serves the files of a volume.

use msb_spec::{Error, Result};
use msb_wire::VolumeLetter;
use std::os::fd::OwnedFd;

/// Serves one file operation of this client, as the letter says, and waits for its end. `ready` is
/// called once nothing can go wrong before it. The process has one thread.
pub fn serve_volume(letter: &str, client: OwnedFd, ready: impl FnOnce()) -> Result<i32> {
    let VolumeLetter { ids, path, stored } = serde_json::from_str(letter)
        .map_err(|error| Error::invalid("this is for msb itself to call").cause(error))?;
    msb_jail::serve_volume(&ids, &path, stored, client, ready, msb_guest::serve_volume)
}
