//! What happens while images are fetched, told to whoever watches an Operation.

use crate::images::{Progress, Step};
use msb_api::{Part, Watch};
use msb_spec::Digest;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Passes on what images tell, all layers in one number.
pub(super) struct Watched<'a> {
    watch: &'a dyn Watch,
    /// Bytes that are here and bytes there are, of each layer.
    layers: Mutex<BTreeMap<String, Part>>,
}

impl<'a> Watched<'a> {
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

impl Progress for Watched<'_> {
    fn step(&self, step: Step<'_>) {
        const FETCHING: &str = "fetching the image";
        match step {
            Step::Asking { registry } => self.watch.step(&format!("asking {registry}"), None),
            Step::Layer { digest, size } => self.note(FETCHING, digest, |it| it.of = size),
            Step::Disk { digest, size } => {
                self.note("making a disk of the image", digest, |it| it.of = size);
            }
            Step::Bytes { digest, done } => self.note(FETCHING, digest, |it| it.done = done),
            Step::Ready { digest } => self.note(FETCHING, digest, |it| it.done = it.of),
            Step::Waiting { .. } => {
                self.watch.step("waiting for another process that fetches the image", None);
            }
            Step::Unpacking { .. } => self.watch.step("unpacking the image", None),
            Step::Again { .. } => self.watch.step("connecting to the registry again", None),
        }
    }
}
