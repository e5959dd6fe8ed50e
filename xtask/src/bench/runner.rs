//! The caller's half of the stopwatch: starts it as a user, and has it run commands.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::link::Link;
use super::stopwatch::{Answer, Argv, Request};

/// Covers cgroup v2 where the layout is hybrid, because crun refuses that; done once, before the
/// stopwatch starts, so that no timed run pays for it.
const COVER: &str = "\
    if [ -d /sys/fs/cgroup/unified ]; then mount -t tmpfs none /sys/fs/cgroup/unified; fi && \
    exec \"$@\"";

/// What a contender sees of the host.
#[derive(Clone, Copy)]
pub(super) enum View {
    /// What any program sees.
    Plain,
    /// No cgroup v2 beside v1.
    NoHybrid,
}

pub(super) struct Runner(Link);

/// A user and the whole environment of what he runs.
#[derive(Clone)]
pub(super) struct User {
    pub(super) name: &'static str,
    pub(super) variables: Vec<(&'static str, String)>,
}

impl User {
    /// This user with another value of an environment variable.
    pub(super) fn with(&self, variable: &'static str, value: &str) -> Self {
        let mut user = self.clone();
        user.variables.retain(|(name, _)| *name != variable);
        user.variables.push((variable, value.to_owned()));
        user
    }

    /// What follows as arguments is run by the user.
    pub(super) fn command(&self, view: View) -> Command {
        let mut command = match view {
            View::Plain => Command::new("setpriv"),
            View::NoHybrid => {
                let mut unshare = Command::new("unshare");
                unshare.args(["--mount", "--propagation", "private", "sh", "-c", COVER, "sh"]);
                unshare.arg("setpriv");
                unshare
            }
        };
        command
            .args(["--reuid", self.name, "--regid", self.name, "--init-groups", "env", "-i"])
            .args(self.variables.iter().map(|(name, value)| format!("{name}={value}")))
            .current_dir("/");
        command
    }
}

impl Runner {
    /// `xtask` is this program, where the user may run it; `stderr` a file that he may write.
    pub(super) fn start(user: &User, view: View, xtask: &Path, stderr: &Path) -> Result<Self> {
        let mut command = user.command(view);
        command.arg(xtask).arg("stopwatch").arg(stderr);
        Ok(Runner(Link::start(&mut command)?))
    }

    /// Runs it to its end; the time it took.
    pub(super) fn run(&self, argv: &Argv) -> Result<Duration> {
        let answer = self.ask(&Request::Run(argv.clone()))?;
        succeeded(&answer)?;
        Ok(Duration::from_nanos(answer.nanoseconds))
    }

    /// Runs all at once; the time until the last ended, and how many failed.
    pub(super) fn run_concurrently(&self, all: Vec<Argv>) -> Result<(Duration, usize)> {
        let answer = self.ask(&Request::ConcurrentRuns(all))?;
        Ok((Duration::from_nanos(answer.nanoseconds), answer.failures))
    }

    /// Starts it and leaves it running until the runner is dropped.
    pub(super) fn keep(&self, argv: &Argv) -> Result<()> {
        succeeded(&self.ask(&Request::Keep(argv.clone()))?)
    }

    fn ask(&self, request: &Request) -> Result<Answer> {
        let answer = self.0.ask(&serde_json::to_string(request)?)?;
        serde_json::from_str(&answer).context("cannot read the stopwatch's answer")
    }
}

fn succeeded(answer: &Answer) -> Result<()> {
    if answer.failures == 0 {
        return Ok(());
    }
    let said = answer.said.trim();
    if said.is_empty() { bail!("failed and said nothing") } else { bail!("{said}") }
}
