//! Creates the ext4 disk of a `process` sandbox with a size limit (root only).

use msb_spec::{Bytes, Error, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// Creates a sparse ext4 image of this size. `owner` is the host id that owns its root directory.
pub(crate) fn make(path: &Path, size: Bytes, owner: u32) -> Result<()> {
    let about = |error| Error::host(format!("cannot make the disk `{}`", path.display()), error);
    crate::store::create_private_file(path).and_then(|file| file.set_len(size.0)).map_err(about)?;
    let output = Command::new("mkfs.ext4")
        .args(["-q", "-F", "-m", "0", "-O", "^has_journal", "-E"])
        .arg(format!("root_owner={owner}:{owner},lazy_itable_init=1,nodiscard"))
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| about(error).hint("`mkfs.ext4` is in the package e2fsprogs"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::host("mkfs.ext4 failed", String::from_utf8_lossy(&output.stderr).trim()))
}
