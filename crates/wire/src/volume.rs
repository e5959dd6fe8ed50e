//! Request to the helper process that serves the files of a volume, on its command line.

use msb_spec::{Ids, VolumeStorage};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Argument with which `msb` runs as that process. It writes one line to stdout, an empty result or
/// an error, and then serves one file operation on stdin, which is a socket.
pub const VOLUME_ARGUMENT: &str = "__volume";

/// A volume and the owner of its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeHelperRequest {
    /// Host ids that the ids of the volume's files are mapped to.
    pub ids: Ids,
    /// Directory or disk image that holds the volume.
    pub path: PathBuf,
    /// Whether it is a directory or a disk image.
    pub stored: VolumeStorage,
}
