//! `msb build`: what a Containerfile asks for is what the image holds.

mod copies;
mod failures;
mod interop;
mod steps;

use msb_e2e::images::Layout;
use msb_e2e::{CmdOutput, Msb};
use std::path::PathBuf;

/// A directory that is built from, and the image `base` to build on.
struct Project<'a> {
    msb: &'a Msb,
}

impl<'a> Project<'a> {
    fn new(msb: &'a Msb) -> Self {
        let layout = Layout::busybox().path().to_str().expect("a path of ours");
        msb.run(["load", "-i", layout, "-t", "base"]).ok();
        Self { msb }
    }

    /// Writes a file of the directory.
    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.msb.file(&format!("project/{name}"), content)
    }

    /// Builds this text as `built`, with these flags.
    fn build_with(&self, text: &str, flags: &[&str]) -> CmdOutput {
        self.file("Containerfile", text);
        let words = ["build", "-t", "built"].iter().chain(flags).chain(&["./project"]);
        self.msb.run(words)
    }

    /// Builds this text as `built`; the build must succeed.
    #[track_caller]
    fn build(&self, text: &str) -> CmdOutput {
        self.build_with(text, &[]).ok()
    }

    /// What a command says in the image that was built.
    #[track_caller]
    fn says(&self, script: &str) -> String {
        self.msb.run(["run", "--entrypoint", "sh", "built", "--", "-c", script]).line()
    }

    /// How the image that was built is run.
    #[track_caller]
    fn config(&self) -> serde_json::Value {
        self.msb.json(["image", "inspect", "built", "--json"])["config"].clone()
    }
}

/// The lines of steps that were told on stderr.
fn steps_of(gave: &CmdOutput) -> Vec<&str> {
    gave.stderr.lines().filter(|line| line.starts_with('[')).collect()
}

/// How many of them were done before.
fn cached(gave: &CmdOutput) -> usize {
    steps_of(gave).iter().filter(|line| line.ends_with("(cached)")).count()
}
