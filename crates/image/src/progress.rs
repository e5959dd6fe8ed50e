//! What a long job tells whoever watches it.

use msb_spec::Digest;

/// Something that happened while images were fetched or unpacked.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// A registry is asked.
    Asking {
        /// Which.
        registry: &'a str,
    },
    /// A layer is to be fetched, this large.
    Layer {
        /// Which.
        digest: &'a Digest,
        /// Compressed bytes.
        size: u64,
    },
    /// A disk is to be made of layers, this large.
    Disk {
        /// Which.
        digest: &'a Digest,
        /// Compressed bytes of its layers.
        size: u64,
    },
    /// So many of its bytes are here.
    Bytes {
        /// Which.
        digest: &'a Digest,
        /// Since its start.
        done: u64,
    },
    /// Another process fetches it, and we wait for that.
    Waiting {
        /// Which.
        digest: &'a Digest,
    },
    /// All its bytes are here and its last files are being written.
    Unpacking {
        /// Which.
        digest: &'a Digest,
    },
    /// It is ready.
    Ready {
        /// Which.
        digest: &'a Digest,
    },
    /// The connection broke and is made again.
    Again {
        /// Which.
        digest: &'a Digest,
    },
}

/// Whoever watches. Called from several threads.
pub trait Progress: Sync {
    /// Something happened.
    fn step(&self, step: Step<'_>);
}

/// Nobody watches.
#[derive(Debug, Clone, Copy)]
pub struct Unwatched;

impl Progress for Unwatched {
    fn step(&self, _: Step<'_>) {}
}
