//! The command line of `cargo xtask bench`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

/// A median of fewer moves with the neighbours of the machine.
const ROUNDS: usize = 50;

/// A round of all contenders takes half a minute, and the differences are large.
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
    /// Chapters to measure; all if there are none.
    pub(super) only: Vec<String>,
}

impl Options {
    pub(super) fn parse(mut words: &[&str]) -> Result<Self> {
        let (msb, json, only) = (None, None, Vec::new());
        let mut options = Options { msb, rounds: ROUNDS, pulls: PULLS, json, lab: false, only };
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
                "--only" => options.only = chapters(value)?,
                "--pulls" => options.pulls = number(value)?,
                _ => bail!("no such option: `{name}`"),
            }
            words = rest;
        }
        Ok(options)
    }

    pub(super) fn wants(&self, chapter: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == chapter)
    }

    /// The `msb` to measure.
    pub(super) fn build(&self) -> Result<PathBuf> {
        match &self.msb {
            Some(msb) => fs::canonicalize(msb).with_context(|| format!("no `{}`", msb.display())),
            None => workspace::build(&["--profile", "dist"], "msb"),
        }
    }
}

fn chapters(value: &str) -> Result<Vec<String>> {
    let known = || super::CHAPTERS.iter().map(|(name, _)| *name);
    for name in value.split(',') {
        ensure!(
            known().any(|one| one == name),
            "no chapter `{name}`; {:?}",
            known().collect::<Vec<_>>()
        );
    }
    Ok(value.split(',').map(str::to_owned).collect())
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
        assert_eq!(
            options,
            Options { msb: None, rounds: 50, pulls: 3, json: None, lab: false, only: Vec::new() }
        );
        assert!(options.wants("storage"));
    }

    #[test]
    fn options_are_read_in_any_order() {
        let words = [
            "--json",
            "a",
            "--lab",
            "--pulls",
            "2",
            "--only",
            "start,sync",
            "--rounds",
            "7",
            "--msb",
            "b",
        ];
        let options = Options::parse(&words).unwrap();
        let (msb, json) = (Some("b".into()), Some("a".into()));
        let only = vec!["start".to_owned(), "sync".to_owned()];
        assert_eq!(options, Options { msb, rounds: 7, pulls: 2, json, lab: true, only });
        assert!(options.wants("sync") && !options.wants("copy"));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for words in [
            &["--rounds", "0"][..],
            &["--pulls", "x"],
            &["--msb"],
            &["fast", "1"],
            &["--only", "speed"],
        ] {
            assert!(Options::parse(words).is_err(), "{words:?}");
        }
    }
}
