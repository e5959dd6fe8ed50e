//! What the process that serves the files of a volume is told on its command line.

use msb_spec::{Ids, Stored};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The argument with which `msb` becomes that process. It answers on stdout with one line, an
/// empty result or an error, and then serves one file operation on stdin, which is a socket.
pub const VOLUME_ARGUMENT: &str = "__volume";

/// Which volume, and whose its files are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLetter {
    /// The host ids behind the ids of its files.
    pub ids: Ids,
    /// The directory or image that holds it.
    pub path: PathBuf,
    /// Which of them.
    pub stored: Stored,
}
