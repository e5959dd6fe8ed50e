//! Reports the progress of an image pull to the caller of an Operation.

use crate::images::{Progress, ProgressEvent};
use msb_api::{Part, Watch};
use msb_spec::Digest;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Shown while the layers of the `host` image are derived.
const HOST_IMAGE: &str = "preparing the programs of this host, once";

/// Sums the progress of all layers into one number.
pub(super) struct PullProgress<'a> {
    watch: &'a dyn Watch,
    /// Bytes received and bytes in total, by layer digest.
    layers: Mutex<BTreeMap<String, Part>>,
}

impl<'a> PullProgress<'a> {
    pub(super) fn new(watch: &'a dyn Watch) -> Self {
        Self { watch, layers: Mutex::default() }
    }

    fn note(&self, what: &str, digest: &Digest, change: impl FnOnce(&mut Part)) {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        change(layers.entry(digest.to_string()).or_insert(Part { done: 0, of: 0 }));
        let sum = layers.values().fold(Part { done: 0, of: 0 }, |sum, layer| Part {
            done: sum.done + layer.done,
            of: sum.of + layer.of,
        });
        drop(layers);
        self.watch.step(what, Some(sum));
    }
}

impl Progress for PullProgress<'_> {
    fn step(&self, step: ProgressEvent<'_>) {
        const FETCHING: &str = "fetching the image";
        match step {
            ProgressEvent::Asking { registry } => {
                self.watch.step(&format!("asking {registry}"), None)
            }
            ProgressEvent::HostImage => self.watch.step(HOST_IMAGE, None),
            ProgressEvent::Layer { digest, size } => self.note(FETCHING, digest, |it| it.of = size),
            ProgressEvent::Disk { digest, size } => {
                self.note("making a disk of the image", digest, |it| it.of = size);
            }
            ProgressEvent::Bytes { digest, done } => {
                self.note(FETCHING, digest, |it| it.done = done)
            }
            ProgressEvent::Ready { digest } => self.note(FETCHING, digest, |it| it.done = it.of),
            ProgressEvent::Waiting { .. } => {
                self.watch.step("waiting for another process that fetches the image", None);
            }
            ProgressEvent::Unpacking { .. } => self.watch.step("unpacking the image", None),
            ProgressEvent::Again { .. } => {
                self.watch.step("connecting to the registry again", None)
            }
        }
    }
}
