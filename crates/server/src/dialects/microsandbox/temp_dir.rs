//! A private temporary directory.

use msb_spec::{Error, Result};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A temporary directory that is removed with its contents when it is dropped.
#[derive(Debug)]
pub(super) struct TempDir(PathBuf);

impl TempDir {
    pub(super) fn new() -> Result<Self> {
        let name = format!("msb-mcp-{}", super::exec_sessions::unguessable());
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Error::host(format!("cannot create `{}`", path.display()), error))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // If this fails, the system cleans its temporary directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
