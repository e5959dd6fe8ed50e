//! Progress events of pulls, loads and builds.

use msb_spec::Digest;

/// An event while images are fetched or unpacked.
#[derive(Debug, Clone, Copy)]
pub enum ProgressEvent<'a> {
    /// A registry is contacted.
    Asking {
        /// URL of the registry or mirror.
        registry: &'a str,
    },
    /// The layers of the `host` image are derived, once for each change of the host's programs.
    HostImage,
    /// A layer will be fetched.
    Layer {
        /// Digest of the blob.
        digest: &'a Digest,
        /// Size of the blob in bytes.
        size: u64,
    },
    /// A disk will be packed from layers.
    Disk {
        /// Digest that names the disk.
        digest: &'a Digest,
        /// Size of all blobs in bytes.
        size: u64,
    },
    /// Some bytes of a layer or disk were processed.
    Bytes {
        /// Digest of the blob or disk.
        digest: &'a Digest,
        /// Bytes so far, from its start.
        done: u64,
    },
    /// Another process fetches or packs it.
    Waiting {
        /// Digest of the blob or disk.
        digest: &'a Digest,
    },
    /// All bytes have arrived; the last files are being written.
    Unpacking {
        /// Digest of the blob.
        digest: &'a Digest,
    },
    /// A layer or disk is complete.
    Ready {
        /// Digest of the blob or disk.
        digest: &'a Digest,
    },
    /// The connection broke; the transfer is retried.
    Again {
        /// Digest of the blob.
        digest: &'a Digest,
    },
}

/// Receives progress events. Called from several threads.
pub trait Progress: Sync {
    /// Handles one event; must not block for long.
    fn step(&self, step: ProgressEvent<'_>);
}

/// Discards all events; for callers without a display.
#[derive(Debug, Clone, Copy)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn step(&self, _: ProgressEvent<'_>) {}
}
