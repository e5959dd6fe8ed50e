//! `msb image bootstrap`: images from the host's own packages.

use super::bare_engine;
use crate::output::{self, Outcome};
use crate::pull_progress::style;
use crate::verb_table::LocalVerb;
use crate::{clock, listing};
use clap::Parser;
use indicatif::ProgressBar;
use msb_engine::bootstrap;
use msb_spec::Reference;
use std::io::IsTerminal;
use std::time::Duration;

/// Makes an image from Debian packages, as apt finds them on this host: no registry is needed.
#[derive(Debug, Parser)]
#[command(override_usage = "msb image bootstrap [OPTIONS] debian|python|node")]
pub(crate) struct ImageBootstrapArgs {
    /// What to make: debian, python or node
    #[arg(value_name = "BASE")]
    base: bootstrap::Base,
    /// Release, as in `trixie` [default: this host's]
    #[arg(long, value_name = "SUITE")]
    suite: Option<String>,
    /// More packages, as in `git,curl`
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    packages: Vec<String>,
    /// Where packages come from [default: where apt has them from]
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
    /// Name of the image [default: the base with the suite, and as the latest]
    #[arg(long, short, value_name = "NAME")]
    tag: Option<Reference>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl LocalVerb for ImageBootstrapArgs {
    fn run(self) -> Outcome {
        let engine = bare_engine()?;
        let asked = bootstrap::Bootstrap {
            base: self.base,
            suite: self.suite,
            packages: self.packages,
            mirror: self.mirror,
            name: self.tag,
            created: clock::written(clock::now_ms()),
        };
        let bar = spinner(self.quiet);
        let made = engine.bootstrap(&asked, &|step| bar.set_message(step.to_owned()));
        bar.finish_and_clear();
        let made = made?;
        if self.json {
            listing::json(&made);
        } else {
            made.iter().for_each(|image| output::print(image.reference.at(&image.digest)));
        }
        Ok(0)
    }
}

/// The current step and its duration; nothing unless stderr is a terminal.
fn spinner(quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_style(style("{spinner} {time:>4}  {msg}"));
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}
