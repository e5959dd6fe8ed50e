//! `msb build`: an image from a Containerfile.

use super::engine;
use crate::network_arguments::EgressArgs;
use crate::output::{self, Outcome};
use crate::pull_progress::{Bars, FetchArgs};
use crate::verb_table::LocalVerb;
use clap::Parser;
use msb_engine::build::{BuildEvent, ContainerfileSource, Watcher};
use msb_engine::images::Fetching;
use msb_spec::{Error, Platform, PullWhen, Reference, Result, env};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

/// Builds an image from a Containerfile or Dockerfile. Every RUN is done in a sandbox of its own;
/// what was done before is not done again.
#[derive(Debug, Parser)]
#[command(override_usage = "msb build -t NAME [OPTIONS] DIR")]
pub(crate) struct BuildArgs {
    /// Directory that COPY and ADD take files from
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Name of the image; may be given more than once
    #[arg(long = "tag", short, value_name = "NAME", required = true)]
    tags: Vec<Reference>,
    /// Containerfile, `-` for stdin (default: Containerfile or Dockerfile in DIR)
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Value of an ARG, as in `VERSION=3`; without a value the environment's
    #[arg(long = "build-arg", value_name = "NAME=VALUE")]
    arguments: Vec<String>,
    /// Build this stage rather than the last
    #[arg(long, value_name = "STAGE")]
    target: Option<String>,
    /// Do every step again
    #[arg(long)]
    no_cache: bool,
    /// When to fetch images to build on: `always`, `if-missing` or `never`
    #[arg(long, value_name = "WHEN", default_value = "if-missing")]
    pull: PullWhen,
    /// Platform of the image, as in `linux/arm64`
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<Platform>,
    #[command(flatten)]
    fetch: FetchArgs,
    #[command(flatten)]
    network: EgressArgs,
    /// Say nothing but the name, unless it fails
    #[arg(long, short)]
    quiet: bool,
}

impl LocalVerb for BuildArgs {
    fn run(self) -> Outcome {
        let arguments = arguments(&self.arguments)?;
        let build = msb_engine::build::Build {
            directory: self.directory,
            recipe: recipe(self.file)?,
            names: self.tags,
            epoch: epoch(&arguments)?,
            arguments,
            target: self.target,
            no_cache: self.no_cache,
            pull: self.pull,
            platform: self.platform,
            network: Some(self.network.network()?),
            until: None,
        };
        let bars = Bars::new(self.quiet);
        let fetching = Fetching { reach: self.fetch.reach(), progress: &bars };
        let mut shown = Shown { quiet: self.quiet, last: Vec::new() };
        let built = engine()?.build(&build, &fetching, &mut shown);
        if built.is_err() {
            // A failure is shown even with `--quiet`.
            output::write_stderr(&shown.last);
        }
        for image in built? {
            output::result("image", image.reference.at(&image.digest));
        }
        Ok(0)
    }
}

/// A line for every step, and what commands say.
struct Shown {
    quiet: bool,
    /// The end of the last command's output, if it was not shown.
    last: Vec<u8>,
}

/// Bytes of a command's output that are kept with `--quiet`, for its failure.
const LAST_LIMIT: usize = 64 << 10;

impl Watcher for Shown {
    fn told(&mut self, what: BuildEvent<'_>) {
        match what {
            BuildEvent::Step { stage, number, count, text, cached } => {
                self.last.clear();
                if !self.quiet {
                    let stage = stage.map_or_else(String::new, |stage| format!("{stage} "));
                    let cached = if cached { "  (cached)" } else { "" };
                    output::progress(format!("[{stage}{number}/{count}] {text}{cached}"));
                }
            }
            BuildEvent::Output(bytes) if self.quiet => {
                self.last.extend_from_slice(bytes);
                let more = self.last.len().saturating_sub(LAST_LIMIT);
                self.last.drain(..more);
            }
            BuildEvent::Output(bytes) => output::write_stderr(bytes),
            BuildEvent::Note(text) => output::note(text),
        }
    }
}

/// Values for ARG; one without a value is taken from the environment, if that has it.
fn arguments(given: &[String]) -> Result<BTreeMap<String, String>> {
    let mut arguments = BTreeMap::new();
    for one in given {
        let (name, value) = match one.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (one.as_str(), std::env::var(one).ok()),
        };
        if name.is_empty() {
            return Err(Error::invalid(format!("a build argument without a name: `{one}`"))
                .hint("write it as `--build-arg NAME=VALUE`"));
        }
        if let Some(value) = value {
            arguments.insert(name.to_owned(), value);
        }
    }
    Ok(arguments)
}

fn recipe(file: Option<PathBuf>) -> Result<Option<ContainerfileSource>> {
    let Some(file) = file else {
        return Ok(None);
    };
    if file.as_os_str() != "-" {
        return Ok(Some(ContainerfileSource::File(file)));
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().take(msb_engine::build::LIMIT).read_to_string(&mut text);
    read.map_err(|error| Error::host("cannot read the Containerfile from stdin", error))?;
    Ok(Some(ContainerfileSource::Text(text)))
}

/// The time that the image is to bear.
fn epoch(arguments: &BTreeMap<String, String>) -> Result<Option<i64>> {
    let name = env::SOURCE_DATE_EPOCH;
    let given = arguments.get(name).cloned().or_else(|| std::env::var(name).ok());
    let Some(text) = given.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let seconds = text.parse::<i64>().ok().filter(|seconds| *seconds >= 0);
    seconds.map(Some).ok_or_else(|| {
        Error::invalid(format!("not a time: {name}=`{text}`"))
            .hint("it is a number of seconds since 1970, as `date +%s` prints it")
    })
}
