//! A directory of our own that nobody else looks into, for what is on its way.

use msb_spec::{Error, Result};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Removed with all it holds when it is dropped.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Result<Self> {
        let name = format!("msb-mcp-{}", super::sessions::unguessable());
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Error::host(format!("cannot make `{}`", path.display()), error))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left in a temporary directory is the system's to remove.
        let _ = fs::remove_dir_all(&self.0);
    }
}
