//! What `cargo xtask lab` was asked to do.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// The `msb` to test; a fresh build where none is named.
    pub(super) msb: Option<PathBuf>,
    pub(super) part: Part,
    /// Files and directories for `/lab/with` on the disk.
    pub(super) with: Vec<PathBuf>,
}

/// Which of the lab's machines, and what for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Part {
    #[default]
    Everything,
    Cgroups,
    /// The tests of the vm tier with names that contain this, or all.
    Nested(Option<String>),
    /// A script of the developer's own on the machine with KVM.
    Script(PathBuf),
    /// A prompt on the machine with KVM.
    Shell,
}

impl Options {
    pub(super) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        let mut words = words.iter().copied().peekable();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("no value for `{word}`"));
            let part = match word {
                "--msb" => {
                    options.msb = Some(value()?.into());
                    continue;
                }
                "--with" => {
                    options.with.push(value()?.into());
                    continue;
                }
                "--cgroups" => Part::Cgroups,
                "--script" => Part::Script(value()?.into()),
                "--shell" => Part::Shell,
                "--nested" => {
                    let filter = words.next_if(|word| !word.starts_with('-'));
                    Part::Nested(filter.map(str::to_owned))
                }
                _ => bail!("no such option `{word}`"),
            };
            ensure!(
                matches!(options.part, Part::Everything | Part::Nested(None)),
                "`{word}` does not go with the options before it"
            );
            options.part = part;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_options_everything_runs_with_a_fresh_build() {
        assert_eq!(Options::parse(&[]).unwrap(), Options::default());
    }

    #[test]
    fn the_nested_machine_takes_a_filter_or_none() {
        let part = |words: &[&str]| Options::parse(words).unwrap().part;

        assert_eq!(part(&["--nested"]), Part::Nested(None));
        assert_eq!(part(&["--nested", "exec"]), Part::Nested(Some("exec".into())));
        assert_eq!(part(&["--nested", "--msb", "m"]), Part::Nested(None));
        assert_eq!(part(&["--nested", "--script", "s.sh"]), Part::Script("s.sh".into()));
    }

    #[test]
    fn two_parts_at_once_and_unknown_words_are_refused() {
        assert!(Options::parse(&["--cgroups", "--shell"]).is_err());
        assert!(Options::parse(&["--msb"]).is_err());
        assert!(Options::parse(&["x"]).is_err());
    }
}
