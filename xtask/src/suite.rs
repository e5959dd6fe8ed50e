//! The test programs of the workspace: built by one call of cargo, run without it.
//!
//! Everything that CI runs is built together, so that each crate is compiled once, with one set of
//! features. `-p PACKAGE` would give its dependencies other features and compile them again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::scratch::Scratch;
use crate::tally::{self, Tally};
use crate::workspace::{self, Cargo};

/// The server that the conformance suite of MCP is held against needs this feature. It adds a module
/// that msb itself does not use.
pub(crate) const FEATURES: &[&str] = &["--features", "msb-server/fixture"];

/// Executables by the name of their cargo target.
pub(crate) struct Suite {
    programs: BTreeMap<String, PathBuf>,
    tests: Vec<TestProgram>,
}

/// A program with the tests of one cargo target.
#[derive(Debug, Clone)]
pub(crate) struct TestProgram {
    pub(crate) package: String,
    pub(crate) target: String,
    executable: PathBuf,
    /// The directory of its package, where cargo would run it.
    directory: PathBuf,
}

/// How test programs are run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Run<'a> {
    /// Only tests with names that contain it.
    pub(crate) filter: Option<&'a str>,
    /// Tests at once in one program; by default as many as there are processors.
    pub(crate) threads: Option<usize>,
}

#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Suite {
    /// Builds these targets of the workspace, as in `--all-targets` or `--bin msb --test cli`.
    pub(crate) fn build(targets: &[&str]) -> Result<Self> {
        Self::built_by(workspace::cargo, targets)
    }

    /// Builds these targets with a cargo of the caller's choice.
    pub(crate) fn built_by(cargo: Cargo, targets: &[&str]) -> Result<Self> {
        let format = ["--message-format", "json-render-diagnostics"];
        let mut command = cargo(&["build", "--workspace", "--profile", "ci"]);
        let messages = workspace::output(command.args(targets).args(FEATURES).args(format))?;
        let mut suite = Self { programs: BTreeMap::new(), tests: Vec::new() };
        for line in messages.lines() {
            let message = serde_json::from_str(line).context("cannot read cargo's messages")?;
            suite.add(message)?;
        }
        Ok(suite)
    }

    fn add(&mut self, message: Message) -> Result<()> {
        let Message { manifest_path, target, profile, executable } = message;
        let (Some(manifest), Some(target), Some(executable)) = (manifest_path, target, executable)
        else {
            return Ok(());
        };
        if !profile.is_some_and(|profile| profile.test) {
            self.programs.insert(target.name, executable);
            return Ok(());
        }
        let directory = manifest.parent().context("a manifest lies in a directory")?.to_owned();
        let package = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.tests.push(TestProgram { package, target: target.name, executable, directory });
        Ok(())
    }

    /// An executable that is no test.
    pub(crate) fn program(&self, name: &str) -> Result<&Path> {
        let found = self.programs.get(name).map(PathBuf::as_path);
        found.with_context(|| format!("cargo built no executable named `{name}`"))
    }

    /// Runs the test programs that `chosen` names, one after the other.
    pub(crate) fn run(
        &self,
        chosen: impl Fn(&TestProgram) -> bool,
        run: Run<'_>,
        variables: &[(&str, &Path)],
    ) -> Result<Tally> {
        let scratch = Scratch::find();
        let mut tally = Tally::default();
        for test in self.tests.iter().filter(|test| chosen(test)) {
            let mut command = scratch.command(&test.executable);
            command.current_dir(&test.directory).env("CARGO_MANIFEST_DIR", &test.directory);
            command.envs(variables.iter().map(|(name, value)| (name, value.as_os_str())));
            if let Some(threads) = run.threads {
                command.arg(format!("--test-threads={threads}"));
            }
            report_times(&mut command);
            command.arg("--show-output").args(run.filter);
            println!("     Running {} ({})", test.target, test.package);
            tally.add(tally::test_program(&mut command, &test.target)?);
        }
        Ok(tally)
    }

    /// The test program of a target.
    pub(crate) fn tests_named(&self, target: &str) -> Result<&Path> {
        let test = self.tests.iter().find(|test| test.target == target);
        let executable = test.map(|test| test.executable.as_path());
        executable.with_context(|| format!("cargo built no tests named `{target}`"))
    }
}

/// Has the test runner tell how long each test took. That is an unstable option of a stable runner,
/// which this variable allows for the runner alone: nothing is compiled with it.
fn report_times(command: &mut Command) {
    command.env("RUSTC_BOOTSTRAP", "1").args(["-Zunstable-options", "--report-time"]);
}
