//! `msb setup`: making this host ready for what it cannot do yet.

use super::bare_engine;
use crate::listing;
use crate::output::{self, Outcome};
use crate::pull_progress::style;
use crate::verb_table::LocalVerb;
use clap::Parser;
use indicatif::ProgressBar;
use msb_engine::kernel::{Origin, Ready, Step};
use std::io::IsTerminal;
use std::time::Duration;

/// Finds a kernel for microVMs, or builds one: `MSB_KERNEL`, one that was built before, a system
/// libkrunfw, or else Debian's source of Linux, which takes some minutes and goes on where it was
/// interrupted. Prints the kernel's directory.
#[derive(Debug, Parser)]
#[command(override_usage = "msb setup vm [OPTIONS]")]
pub(crate) struct SetupVmArgs {
    /// Build one, whatever there is
    #[arg(long)]
    force: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl LocalVerb for SetupVmArgs {
    fn run(self) -> Outcome {
        let engine = bare_engine()?;
        let bar = bar(self.quiet);
        let ready = engine.set_up_vm(self.force, &|step| show(&bar, step));
        bar.finish_and_clear();
        let ready = ready?;
        if self.json {
            listing::json(&ready);
            return Ok(0);
        }
        output::print(ready.directory.display());
        if !self.quiet && std::io::stderr().is_terminal() {
            output::note(told(&ready));
        }
        Ok(0)
    }
}

fn told(ready: &Ready) -> String {
    let how = match ready.origin {
        Origin::Built if ready.built => "built just now",
        Origin::Built => "built before",
        Origin::Elf => "from a file of yours",
        Origin::Libkrunfw => "from this system's libkrunfw",
    };
    format!("microVMs boot Linux {}, {how}", ready.kernel.version)
}

/// Progress of the build; nothing unless stderr is a terminal.
fn bar(quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_style(style(WAITING));
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

const WAITING: &str = "{spinner} {time:>4}  {msg}";
const COMPILING: &str = "{spinner} {time:>4}  {msg}  {bar:30}  {pos} of about {len}";

fn show(bar: &ProgressBar, step: Step<'_>) {
    if let Step::Compiling { done, total } = step {
        if bar.length() != Some(total) {
            bar.set_style(style(COMPILING));
            bar.set_length(total);
            bar.set_message("compiling");
        }
        bar.set_position(done);
        return;
    }
    bar.set_style(style(WAITING));
    bar.set_message(match step {
        Step::Waiting => "another msb builds it".to_owned(),
        Step::Installing(packages) => format!("installing {packages}"),
        Step::Fetching(package) => format!("fetching {package}"),
        Step::Unpacking => "unpacking the source of Linux".to_owned(),
        Step::Configuring => "configuring".to_owned(),
        Step::Keeping | Step::Compiling { .. } => "keeping it".to_owned(),
    });
}
