//! The command line of `cargo xtask bench`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

/// A median of fewer moves with the neighbours of the machine.
const ROUNDS: usize = 50;

/// Each takes half a minute with everybody in it, and the differences are large.
const PULLS: usize = 3;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// None: make a release build.
    pub(super) msb: Option<PathBuf>,
    pub(super) rounds: usize,
    /// Rounds of pulling a large image.
    pub(super) pulls: usize,
    /// None: only where it is always written.
    pub(super) json: Option<PathBuf>,
    /// MicroVMs beside those of microsandbox, in the nested lab, and nothing else.
    pub(super) lab: bool,
}

impl Options {
    pub(super) fn parse(mut words: &[&str]) -> Result<Self> {
        let mut options =
            Options { msb: None, rounds: ROUNDS, pulls: PULLS, json: None, lab: false };
        while let [name, rest @ ..] = words {
            if *name == "--lab" {
                options.lab = true;
                words = rest;
                continue;
            }
            let [value, rest @ ..] = rest else {
                bail!("no value after `{name}`");
            };
            match *name {
                "--msb" => options.msb = Some(value.into()),
                "--json" => options.json = Some(value.into()),
                "--rounds" => options.rounds = number(value)?,
                "--pulls" => options.pulls = number(value)?,
                _ => bail!("no such option: `{name}`"),
            }
            words = rest;
        }
        Ok(options)
    }

    /// The `msb` to measure.
    pub(super) fn build(&self) -> Result<PathBuf> {
        match &self.msb {
            Some(msb) => fs::canonicalize(msb).with_context(|| format!("no `{}`", msb.display())),
            None => workspace::build(&["--release"], "msb"),
        }
    }
}

fn number(value: &str) -> Result<usize> {
    let number = value.parse().with_context(|| format!("not a number: `{value}`"))?;
    ensure!(number > 0, "no rounds, no medians");
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_options_there_are_fifty_rounds_of_a_release_build() {
        let options = Options::parse(&[]).unwrap();
        assert_eq!(options, Options { msb: None, rounds: 50, pulls: 3, json: None, lab: false });
    }

    #[test]
    fn options_are_read_in_any_order() {
        let words = ["--json", "a", "--lab", "--pulls", "2", "--rounds", "7", "--msb", "b"];
        let options = Options::parse(&words).unwrap();
        let (msb, json) = (Some("b".into()), Some("a".into()));
        assert_eq!(options, Options { msb, rounds: 7, pulls: 2, json, lab: true });
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for words in [&["--rounds", "0"][..], &["--pulls", "x"], &["--msb"], &["fast", "1"]] {
            assert!(Options::parse(words).is_err(), "{words:?}");
        }
    }
}
