//! The image of new sandboxes: `mcp-dev`, which is built when it is first needed, else `host`.
//!
//! No call waits for a registry that does not respond. A build without progress continues in the
//! background, and the reason for the missing image is remembered, in memory and in the state
//! directory, so that the next server does not try again at once. An image that is finished later
//! is used by the next new sandbox.

use super::full_text;
use crate::dialect::ToolCall;
use msb_api::{Api, Part, Watch};
use msb_spec::{ImageRef, Reference};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The name of the image of this dialect.
pub(super) const IMAGE: &str = "mcp-dev";
/// The Containerfile that it is built from.
const CONTAINERFILE: &str = include_str!("Containerfile");
/// A call stops waiting for a build after this time without progress. Layers report every few
/// megabytes.
const STALL_LIMIT: Duration = Duration::from_secs(15);
/// How long a failure is remembered: the registry may be back by then.
const RETRY_AFTER: Duration = Duration::from_secs(3600);
/// The file with the failure in the state directory. No sandbox can have this name.
const FILE: &str = "@mcp-dev-failed";

/// Chooses the image of new sandboxes.
#[derive(Debug, Default)]
pub(super) struct BaseImage {
    state: Option<PathBuf>,
    /// Why `mcp-dev` could not be built, if that was tried.
    failed: Mutex<Option<String>>,
}

/// The image for a new sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageChoice {
    pub(super) image: ImageRef,
    /// Why it is not `mcp-dev`.
    pub(super) why: Option<String>,
}

impl ImageChoice {
    /// Whether the image has the packages of Alpine.
    pub(super) fn has_apk(&self) -> bool {
        self.image != ImageRef::Host
    }

    /// The image name in results.
    pub(super) fn shown(&self) -> String {
        match self.image {
            ImageRef::Host => "host".to_owned(),
            _ => IMAGE.to_owned(),
        }
    }
}

impl BaseImage {
    pub(super) fn new(state: Option<PathBuf>) -> Self {
        Self { state, failed: Mutex::default() }
    }

    /// `mcp-dev` if it exists or can be built now, else `host`.
    pub(super) fn choose(&self, api: &Arc<dyn Api>, call: &ToolCall) -> ImageChoice {
        if let Some(image) = stored_image(api) {
            return ImageChoice { image, why: None };
        }
        // The lock is held during the build, so that two calls do not build twice.
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_none() {
            *failed = self.saved_failure();
        }
        let why = match &*failed {
            Some(why) => why.clone(),
            None => match build(api, call) {
                Ok(()) if stored_image(api).is_some() => return self.choose_uncached(api),
                Ok(()) => "the image does not exist".to_owned(),
                Err(why) => {
                    self.save_failure(&why);
                    *failed = Some(why.clone());
                    why
                }
            },
        };
        ImageChoice { image: ImageRef::Host, why: Some(why) }
    }

    fn choose_uncached(&self, api: &Arc<dyn Api>) -> ImageChoice {
        let image = stored_image(api).unwrap_or(ImageRef::Host);
        ImageChoice { image, why: None }
    }

    /// The image that would be used now; builds nothing.
    pub(super) fn current(&self, api: &Arc<dyn Api>) -> Option<ImageChoice> {
        if let Some(image) = stored_image(api) {
            return Some(ImageChoice { image, why: None });
        }
        // A build holds the lock; this call does not wait for it.
        let failed = self.failed.try_lock().ok()?;
        let why = failed.clone().or_else(|| self.saved_failure())?;
        Some(ImageChoice { image: ImageRef::Host, why: Some(why) })
    }

    fn saved_failure(&self) -> Option<String> {
        let path = self.state.as_ref()?.join(FILE);
        let since = std::fs::metadata(&path).ok()?.modified().ok()?.elapsed().ok()?;
        (since < RETRY_AFTER).then(|| std::fs::read_to_string(path).ok()).flatten()
    }

    fn save_failure(&self, why: &str) {
        let Some(state) = &self.state else { return };
        // If it cannot be written, the next server tries again.
        let _ = std::fs::create_dir_all(state);
        let _ = std::fs::write(state.join(FILE), why);
    }
}

fn stored_image(api: &Arc<dyn Api>) -> Option<ImageRef> {
    let name = Reference::parse(IMAGE).ok()?;
    api.image_inspect(&name).is_ok().then_some(ImageRef::Name(name))
}

/// Builds the image in another thread, and waits as long as there is progress.
fn build(api: &Arc<dyn Api>, call: &ToolCall) -> Result<(), String> {
    let name = Reference::parse(IMAGE).map_err(|error| full_text(&error))?;
    let (text, progress) = mpsc::channel();
    let api = Arc::clone(api);
    let steps = BuildProgress(Mutex::new(text.clone()));
    std::thread::spawn(move || {
        let built = api.image_build(&name, CONTAINERFILE, &steps);
        let failed = built.err().map(|error| {
            // The message and the last cause, in one line.
            let last = error.causes().last().cloned();
            let last = last.filter(|last| !error.message().contains(last.as_str()));
            [Some(error.message().to_owned()), last]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(": ")
        });
        let _ = text.send(BuildMessage::Over(failed));
    });
    loop {
        match progress.recv_timeout(STALL_LIMIT) {
            Ok(BuildMessage::Step(what, part)) => call.watch.step(&what, part),
            Ok(BuildMessage::Over(None)) => return Ok(()),
            Ok(BuildMessage::Over(Some(why))) => return Err(why.replace('\n', " ")),
            Err(RecvTimeoutError::Timeout) => {
                return Err("the build takes too long; it continues in the background".to_owned());
            }
            Err(RecvTimeoutError::Disconnected) => return Err("the build was aborted".to_owned()),
        }
    }
}

enum BuildMessage {
    Step(String, Option<Part>),
    Over(Option<String>),
}

/// Forwards progress to the waiting call.
struct BuildProgress(Mutex<mpsc::Sender<BuildMessage>>);

impl Watch for BuildProgress {
    fn step(&self, what: &str, done: Option<Part>) {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = text.send(BuildMessage::Step(what.to_owned(), done));
    }
}
