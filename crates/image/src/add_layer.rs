//! Adds a layer that was built on this machine: compresses the tar stream and unpacks it.

use crate::fetch_layers::LayerUnpacker;
use crate::manifest::OCI_LAYER_GZIP;
use crate::store::{Layer, Store, make_directories, storage_error, temp_name};
use flate2::Compression;
use flate2::write::GzEncoder;
use msb_spec::{Digest, Error, Result};
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Gzip level. Halves the size at about the speed of a disk.
const LEVEL: u32 = 3;

impl Store {
    /// Adds a layer from an uncompressed tar stream: as a gzip blob and as an unpacked directory.
    pub fn add_layer(&self, mut tar: impl Read) -> Result<Layer> {
        let _adding = self.adding()?;
        let path = self.partials().join(temp_name("layer"));
        let storage_failed = |error| storage_error(&path, error);
        make_directories(&self.partials()).map_err(storage_failed)?;
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        let temp = TempFile(path.clone());
        let writer =
            HashingWriter { file: file.map_err(storage_failed)?, hash: Sha256::new(), size: 0 };
        // The gzip header has no name and no time: equal input gives an equal blob.
        let mut compressor = GzEncoder::new(writer, Compression::new(LEVEL));
        let mut unpacker = LayerUnpacker::start(self, self.bounds())?;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let n = match tar.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::host("cannot read the layer", error)),
            };
            unpacker.feed(&buffer[..n]);
            compressor.write_all(&buffer[..n]).map_err(storage_failed)?;
        }
        let HashingWriter { hash, size, .. } = compressor.finish().map_err(storage_failed)?;
        let digest = Digest::of_bytes(hash.finalize().into());
        let contents = unpacker.finish(self, &digest, None)?;
        make_directories(&self.blobs()).map_err(storage_failed)?;
        fs::rename(&path, self.blob(&digest)).map_err(storage_failed)?;
        std::mem::forget(temp);
        Ok(Layer {
            digest,
            diff_id: contents.diff_id,
            media_type: OCI_LAYER_GZIP.to_owned(),
            size,
            unpacked: contents.bytes,
        })
    }
}

/// A file that is removed when dropped, unless it was renamed and forgotten.
struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Counts and hashes everything that is written to the file.
struct HashingWriter {
    file: File,
    hash: Sha256,
    size: u64,
}

impl Write for HashingWriter {
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
