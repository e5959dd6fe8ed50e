//! Where the workspace is, and how programs are run in it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package is a directory of the workspace root")
        .to_owned()
}

pub(crate) fn target() -> PathBuf {
    let dir = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root().join(dir)
}

/// How a cargo for these arguments is made.
pub(crate) type Cargo = fn(&[&str]) -> Command;

/// The cargo that runs us, so that a `+toolchain` on the command line also holds here.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    // Cargo tells xtask what it is. Build scripts that look at these variables would run again,
    // and most crates be compiled again, whenever xtask and plain cargo alternate.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// A cargo for builds that begin with nothing: it keeps no incremental state, which would cost an
/// eighth of its time, and lets tests and labs that run beside it go first.
pub(crate) fn background_cargo(arguments: &[&str]) -> Command {
    let cargo = cargo(arguments);
    let mut command = Command::new("nice");
    command.args(["-n", "10"]).arg(cargo.get_program()).args(arguments);
    for (name, value) in cargo.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(root()).env("CARGO_INCREMENTAL", "0");
    command
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| cannot_run(command))?;
    ensure!(status.success(), "{} ended with {status}", name(command));
    Ok(())
}

/// The standard output of a program that must succeed; what it says on stderr goes to ours.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| cannot_run(command))?;
    ensure!(output.status.success(), "{} ended with {}", name(command), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn build_msb() -> Result<PathBuf> {
    build(&["--profile", "ci"], "msb")
}

/// Builds an executable and asks cargo where it lies: the path depends on host, profile and
/// target directory.
pub(crate) fn build(arguments: &[&str], name: &str) -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Artefact {
        target: Option<Target>,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }

    let messages =
        output(cargo(&["build", "--message-format", "json-render-diagnostics"]).args(arguments))?;
    for message in messages.lines() {
        let artefact: Artefact =
            serde_json::from_str(message).context("cannot read cargo's messages")?;
        if artefact.target.is_some_and(|target| target.name == name)
            && let Some(executable) = artefact.executable
        {
            return Ok(executable);
        }
    }
    bail!("cargo built no executable named `{name}`")
}

fn cannot_run(command: &Command) -> String {
    format!("cannot run `{}`", name(command))
}

fn name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The path of this program. A build of the workspace may have replaced the file while it runs; the
/// kernel marks its path as deleted then.
pub(crate) fn own_program() -> Result<PathBuf> {
    let path = env::current_exe().context("cannot find this program")?;
    let replaced = path.to_str().and_then(|text| text.strip_suffix(" (deleted)"));
    Ok(replaced.map(PathBuf::from).unwrap_or(path))
}
