//! Layers that are made here rather than fetched.

use crate::acquire::Unpacking;
use crate::manifest::OCI_LAYER_GZIP;
use crate::store::{Layer, Store, make_directories, passing, unusable};
use flate2::Compression;
use flate2::write::GzEncoder;
use msb_spec::{Digest, Error, Result};
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Half as large as the files, at the speed of a disk.
const LEVEL: u32 = 3;

impl Store {
    /// Keeps a layer that comes as a tar stream, not compressed: as a blob and unpacked.
    pub fn add_layer(&self, mut tar: impl Read) -> Result<Layer> {
        let _adding = self.adding()?;
        let path = self.partials().join(passing("layer"));
        let about = |error| unusable(&path, error);
        make_directories(&self.partials()).map_err(about)?;
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        let aside = Aside(path.clone());
        let counted = Counted { file: file.map_err(about)?, hash: Sha256::new(), size: 0 };
        // No name and no time in its header: the same files make the same blob.
        let mut compressor = GzEncoder::new(counted, Compression::new(LEVEL));
        let mut unpacking = Unpacking::start(self, self.bounds())?;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let n = match tar.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::host("cannot read the layer", error)),
            };
            unpacking.feed(&buffer[..n]);
            compressor.write_all(&buffer[..n]).map_err(about)?;
        }
        let Counted { hash, size, .. } = compressor.finish().map_err(about)?;
        let digest = Digest::of_bytes(hash.finalize().into());
        let contents = unpacking.finish(self, &digest, None)?;
        make_directories(&self.blobs()).map_err(about)?;
        fs::rename(&path, self.blob(&digest)).map_err(about)?;
        std::mem::forget(aside);
        Ok(Layer {
            digest,
            diff_id: contents.diff_id,
            media_type: OCI_LAYER_GZIP.to_owned(),
            size,
            unpacked: contents.bytes,
        })
    }
}

/// Removed unless it got its place.
struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A file whose digest and size are taken while it is written.
struct Counted {
    file: File,
    hash: Sha256,
    size: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.size += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
