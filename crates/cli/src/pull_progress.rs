//! How images are fetched: the flags for it, and what a person sees meanwhile.

use crate::clock;
use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use msb_api::{Part, Registry, Watch};
use msb_engine::images::{Mirror, Progress, ProgressEvent, RegistryOptions};
use msb_spec::{Bytes, Digest, Error, Result};
use std::collections::HashMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Mutex;

/// How a registry is reached, for this once; config.toml says it for good.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReachArgs {
    /// Accept a registry without TLS, or with a certificate of an unknown CA
    #[arg(long, help_heading = REGISTRY)]
    insecure: bool,
    /// File with CA certificates for the registry
    #[arg(long, value_name = "FILE", help_heading = REGISTRY)]
    ca: Option<PathBuf>,
}

const REGISTRY: &str = "Registry";

impl ReachArgs {
    pub(crate) fn reach(&self) -> RegistryOptions {
        RegistryOptions {
            insecure: self.insecure,
            ca: self.ca.clone(),
            ..RegistryOptions::default()
        }
    }
}

/// How a registry and its mirrors are reached.
#[derive(Debug, Clone, Args)]
pub(crate) struct FetchArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// Ask this registry first, as in `https://mirror.example`
    #[arg(long = "mirror", value_name = "URL", help_heading = REGISTRY)]
    mirrors: Vec<Mirror>,
}

impl FetchArgs {
    pub(crate) fn reach(&self) -> RegistryOptions {
        RegistryOptions { mirrors: self.mirrors.clone(), ..self.reach.reach() }
    }
}

impl FetchArgs {
    /// What a server can be told of it: a server has its own CA certificates and mirrors.
    pub(crate) fn registry(&self) -> Result<Registry> {
        let flag = match (&self.reach.ca, self.mirrors.is_empty()) {
            (Some(_), _) => "ca",
            (None, false) => "mirror",
            (None, true) => {
                return Ok(Registry { insecure: self.reach.insecure, ..Registry::default() });
            }
        };
        Err(Error::unsupported(format!("`--{flag}` cannot be done through a server"))
            .hint("the config.toml of the machine where the server is can say it for good"))
    }
}

/// One line on a terminal that tells what a server does; silent elsewhere.
#[derive(Debug)]
pub(crate) struct Steps(ProgressBar);

impl Steps {
    pub(crate) fn new(quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        Self(ProgressBar::new_spinner().with_style(style("{spinner} {msg}")))
    }
}

impl Watch for Steps {
    fn step(&self, what: &str, done: Option<Part>) {
        let what = msb_spec::shown(what);
        self.0.set_message(match done {
            Some(Part { done, of }) => format!("{what}, {} of {}", Bytes(done), Bytes(of)),
            None => what,
        });
        self.0.tick();
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Lines on a terminal, one for each layer; silent elsewhere.
#[derive(Debug)]
pub(crate) struct Bars {
    all: MultiProgress,
    bars: Mutex<HashMap<Digest, ProgressBar>>,
}

impl Bars {
    pub(crate) fn new(quiet: bool) -> Self {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target =
            if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self { all: MultiProgress::with_draw_target(target), bars: Mutex::default() }
    }

    fn bar(&self, digest: &Digest) -> Option<ProgressBar> {
        self.bars.lock().expect("no holder panics").get(digest).cloned()
    }
}

impl Progress for Bars {
    fn step(&self, step: ProgressEvent<'_>) {
        if self.all.is_hidden() {
            return;
        }
        match step {
            ProgressEvent::Asking { .. } => {}
            ProgressEvent::HostImage => {
                crate::output::note("preparing the programs of this host for sandboxes, once");
            }
            ProgressEvent::Layer { digest, size } => self.add(digest, size, WAITING),
            ProgressEvent::Disk { digest, size } => self.add(digest, size, PACKING),
            ProgressEvent::Bytes { digest, done } => {
                if let Some(bar) = self.bar(digest) {
                    if bar.message() == WAITING {
                        bar.set_message("pulling");
                        bar.reset_elapsed();
                    }
                    bar.set_position(done);
                }
            }
            ProgressEvent::Waiting { digest } => self.say(digest, BUSY),
            ProgressEvent::Again { digest } => self.say(digest, "connecting again"),
            ProgressEvent::Unpacking { digest } => self.say(digest, "unpacking"),
            ProgressEvent::Ready { digest } => {
                if let Some(bar) = self.bar(digest) {
                    bar.set_position(bar.length().unwrap_or(0));
                    bar.set_message("ready");
                    bar.abandon();
                }
            }
        }
    }
}

impl Bars {
    fn add(&self, digest: &Digest, size: u64, what: &'static str) {
        let bar = self.all.add(ProgressBar::new(size).with_style(style(LINE)));
        bar.set_prefix(digest.short().to_owned());
        bar.set_message(what);
        self.bars.lock().expect("no holder panics").insert(digest.clone(), bar);
    }

    fn say(&self, digest: &Digest, what: &'static str) {
        if let Some(bar) = self.bar(digest) {
            bar.set_message(what);
        }
    }
}

/// Shown for a layer that is not fetched yet.
const WAITING: &str = "waiting";
/// Shown while the layers of an image become one disk.
const PACKING: &str = "packing for microVMs";
/// Shown for a layer that another process has locked.
const BUSY: &str = "another msb pulls it";
/// Which layer, how much of it, how fast, and what is being done: 80 columns with the longest
/// message.
const LINE: &str = "{prefix}  {bar:12}  {size:>7} of {total:7} {speed:>9}  {msg}";

/// The style of a progress bar, with sizes and durations as they are written everywhere:
/// `{size}` of `{total}`, `{speed}`, `{time}`.
pub(crate) fn style(template: &'static str) -> ProgressStyle {
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "bytes a second")]
    let speed = |state: &ProgressState| Bytes(state.per_sec().max(0.0) as u64);
    let ms = |state: &ProgressState| u64::try_from(state.elapsed().as_millis()).unwrap_or(u64::MAX);
    ProgressStyle::with_template(template)
        .expect("a constant of ours")
        .with_key("size", |state: &ProgressState, out: &mut dyn Write| {
            let _ = write!(out, "{}", Bytes(state.pos()));
        })
        .with_key("total", |state: &ProgressState, out: &mut dyn Write| {
            let _ = write!(out, "{}", Bytes(state.len().unwrap_or(0)));
        })
        .with_key("speed", move |state: &ProgressState, out: &mut dyn Write| {
            let _ = write!(out, "{}/s", speed(state));
        })
        .with_key("time", move |state: &ProgressState, out: &mut dyn Write| {
            let _ = write!(out, "{}", clock::whole_seconds(ms(state)));
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A wide terminal that keeps what is written to it.
    #[derive(Debug, Clone, Default)]
    struct Wide(Arc<Mutex<String>>);

    impl indicatif::TermLike for Wide {
        fn width(&self) -> u16 {
            200
        }
        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> std::io::Result<()> {
            self.write_str(&format!("{text}\n"))
        }
        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> std::io::Result<()> {
            self.write_str("\n")
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_of_a_layer_fits_a_terminal_of_80_columns() {
        let terminal = Wide::default();
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let most = (1 << 30) - 1;
        let bar = ProgressBar::with_draw_target(Some(most), target).with_style(style(LINE));
        bar.set_prefix("0123456789ab");
        for message in [WAITING, PACKING, BUSY, "connecting again"] {
            bar.set_position(most);
            bar.set_message(message);
            bar.force_draw();
        }
        let text = terminal.0.lock().unwrap().clone();
        let widest = text.lines().map(|line| line.trim_end().chars().count()).max();
        assert!(text.contains("1024M of 1024M"), "{text}");
        assert!(widest.is_some_and(|widest| (70..=80).contains(&widest)), "{widest:?}: {text}");
    }
}
