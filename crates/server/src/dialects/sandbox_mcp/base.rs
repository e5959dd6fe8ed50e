//! What new sandboxes start from: `mcp-dev`, which is built when it is first needed, or else `host`.
//!
//! Nobody waits for a registry that does not answer: a build that makes no progress is left to itself,
//! and why there is no image is remembered, here and in the state directory, so that the next server does not
//! try at once again. A build that ends later is found by whoever makes the next sandbox.

use super::words;
use crate::dialect::Call;
use msb_api::{Api, Part, Watch};
use msb_spec::{ImageRef, Reference};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The image of this dialect.
pub(super) const IMAGE: &str = "mcp-dev";
/// What it is made of.
const CONTAINERFILE: &str = include_str!("Containerfile");
/// Without a word for this long a build is not waited for. A layer of some megabytes tells its progress.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a failure is remembered: a registry may be back by then.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Where it is, in the state directory. No sandbox has this name.
const FILE: &str = "@mcp-dev-failed";

/// Decides what new sandboxes start from.
#[derive(Debug, Default)]
pub(super) struct Base {
    state: Option<PathBuf>,
    /// Why there is no `mcp-dev`, once that was tried.
    failed: Mutex<Option<String>>,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) image: ImageRef,
    /// Why it is not `mcp-dev`.
    pub(super) why: Option<String>,
}

impl Chosen {
    /// Whether its packages are those of Alpine.
    pub(super) fn has_apk(&self) -> bool {
        self.image != ImageRef::Host
    }

    /// As answers name it.
    pub(super) fn shown(&self) -> String {
        match self.image {
            ImageRef::Host => "host".to_owned(),
            _ => IMAGE.to_owned(),
        }
    }
}

impl Base {
    pub(super) fn new(state: Option<PathBuf>) -> Self {
        Self { state, failed: Mutex::default() }
    }

    /// `mcp-dev` if there is one or it can be built now, else `host`.
    pub(super) fn choose(&self, api: &Arc<dyn Api>, call: &Call) -> Chosen {
        if let Some(image) = found(api) {
            return Chosen { image, why: None };
        }
        // Held meanwhile: of two who need it, one builds.
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_none() {
            *failed = self.remembered();
        }
        let why = match &*failed {
            Some(why) => why.clone(),
            None => match build(api, call) {
                Ok(()) if found(api).is_some() => return self.choose_again(api),
                Ok(()) => "it is not there".to_owned(),
                Err(why) => {
                    self.remember(&why);
                    *failed = Some(why.clone());
                    why
                }
            },
        };
        Chosen { image: ImageRef::Host, why: Some(why) }
    }

    fn choose_again(&self, api: &Arc<dyn Api>) -> Chosen {
        let image = found(api).unwrap_or(ImageRef::Host);
        Chosen { image, why: None }
    }

    /// What would be taken now; nothing is built.
    pub(super) fn known(&self, api: &Arc<dyn Api>) -> Option<Chosen> {
        if let Some(image) = found(api) {
            return Some(Chosen { image, why: None });
        }
        // Whoever builds it holds the lock; nobody waits for that here.
        let failed = self.failed.try_lock().ok()?;
        let why = failed.clone().or_else(|| self.remembered())?;
        Some(Chosen { image: ImageRef::Host, why: Some(why) })
    }

    fn remembered(&self) -> Option<String> {
        let path = self.state.as_ref()?.join(FILE);
        let since = std::fs::metadata(&path).ok()?.modified().ok()?.elapsed().ok()?;
        (since < REMEMBERED).then(|| std::fs::read_to_string(path).ok()).flatten()
    }

    fn remember(&self, why: &str) {
        let Some(state) = &self.state else { return };
        // If it cannot be kept, the next server tries again.
        let _ = std::fs::create_dir_all(state);
        let _ = std::fs::write(state.join(FILE), why);
    }
}

fn found(api: &Arc<dyn Api>) -> Option<ImageRef> {
    let name = Reference::parse(IMAGE).ok()?;
    api.image_inspect(&name).is_ok().then_some(ImageRef::Name(name))
}

/// Builds it beside this one, and waits as long as there is progress.
fn build(api: &Arc<dyn Api>, call: &Call) -> Result<(), String> {
    let name = Reference::parse(IMAGE).map_err(|error| words(&error))?;
    let (told, progress) = mpsc::channel();
    let api = Arc::clone(api);
    let steps = Steps(Mutex::new(told.clone()));
    std::thread::spawn(move || {
        let built = api.image_build(&name, CONTAINERFILE, &steps);
        let failed = built.err().map(|error| {
            // The reason, in one line.
            let last = error.causes().last().cloned();
            let last = last.filter(|last| !error.message().contains(last.as_str()));
            [Some(error.message().to_owned()), last]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(": ")
        });
        let _ = told.send(Told::Over(failed));
    });
    loop {
        match progress.recv_timeout(PATIENCE) {
            Ok(Told::Step(what, part)) => call.watch.step(&what, part),
            Ok(Told::Over(None)) => return Ok(()),
            Ok(Told::Over(Some(why))) => return Err(why.replace('\n', " ")),
            Err(RecvTimeoutError::Timeout) => {
                return Err("it takes too long; it may be there later".to_owned());
            }
            Err(RecvTimeoutError::Disconnected) => return Err("its build was given up".to_owned()),
        }
    }
}

enum Told {
    Step(String, Option<Part>),
    Over(Option<String>),
}

/// Tells whoever waits that there is progress.
struct Steps(Mutex<mpsc::Sender<Told>>);

impl Watch for Steps {
    fn step(&self, what: &str, done: Option<Part>) {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = told.send(Told::Step(what.to_owned(), done));
    }
}
