//! Measures microVMs beside those of microsandbox, in one boot of the nested lab, where time is a
//! count of instructions: the same within a few per cent whatever else this machine does.
//!
//! The part that measures runs inside, as this very program, and says what it found on the console.

mod inside;
mod peer;
mod timeline;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use super::options::Options;
use crate::lab::{Kind, Lab, Nested};
use crate::packages::{self, Need};
use crate::workspace;
pub(crate) use inside::command as inside;

const NEEDS: &[Need] = &[Need::Command("python3", "python3"), Need::Package("python3-pip")];

/// Before each table for machines; people get it first.
const MARK: &str = "TABLE ";

/// Counted instructions hardly differ between rounds, and each takes seconds.
const ROUNDS: usize = 5;

/// All that a run gave.
#[derive(Serialize)]
struct Record {
    tables: Vec<Value>,
}

pub(super) fn command(options: &Options) -> Result<ExitCode> {
    packages::install(NEEDS)?;
    let msb = options.build()?;
    let lab = Lab::ready()?.context("this machine can have no lab")?;
    let peer = peer::fetched(lab.dir())?;
    let itself = workspace::own_program()?;
    let with = [peer, itself];
    let nested = Nested::new(&lab, &msb, &with);

    let name = with[1].file_name().unwrap_or_default().to_string_lossy();
    let job = format!("/lab/with/{name} bench-inside {}\n", options.rounds.min(ROUNDS));
    let mut record = Record { tables: Vec::new() };
    let code = nested.run(Kind::Counted, &job, |line| match line.strip_prefix(MARK) {
        Some(table) => record.tables.extend(serde_json::from_str::<Value>(table)),
        None => println!("{line}"),
    })?;
    let always = workspace::target().join("bench-lab.json");
    let json = serde_json::to_string_pretty(&record)? + "\n";
    for path in [Some(&always), options.json.as_ref()].into_iter().flatten() {
        fs::write(path, &json).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    ensure!(code == 0, "the part inside ended with {code}");
    Ok(ExitCode::SUCCESS)
}
