//! The options of the kernel: those of the repository on top of the smallest there are, and the
//! proof that the kernel has taken them.

use super::Said;
use super::running::{self, Log};
use crate::kernel::{Step, hashed};
use msb_spec::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[cfg(target_arch = "x86_64")]
const FRAGMENTS: &[(&str, &str, &str)] = &[
    (
        "6.12",
        include_str!("../../../kernel/x86_64.fragment"),
        include_str!("../../../kernel/x86_64-6.12.fragment"),
    ),
    (
        "6.1",
        include_str!("../../../kernel/x86_64.fragment"),
        include_str!("../../../kernel/x86_64-6.1.fragment"),
    ),
];
#[cfg(not(target_arch = "x86_64"))]
const FRAGMENTS: &[(&str, &str, &str)] = &[];

/// What is asked of a kernel: a line for each option.
#[derive(Debug)]
pub(super) struct Options {
    text: String,
}

impl Options {
    /// For a version of Linux on this machine.
    pub(super) fn of(series: &str) -> Result<Self> {
        let found = FRAGMENTS.iter().find(|(known, _, _)| *known == series);
        let text = found.map(|(_, all, own)| [*all, *own].concat());
        text.map(|text| Self { text }).ok_or_else(|| {
            let arch = std::env::consts::ARCH;
            Error::unsupported(format!("kernels for microVMs are not built on `{arch}` yet"))
        })
    }

    /// Stands for all of them.
    pub(super) fn hash(&self) -> String {
        hashed(Sha256::new_with_prefix(&self.text))
    }

    /// Writes the configuration of a kernel, once.
    pub(super) fn configure(&self, tree: &Path, log: &Log, said: Said<'_>) -> Result<()> {
        let done = tree.join(".msb-configured");
        if done.exists() {
            return Ok(());
        }
        said(Step::Configuring);
        let failed = |error| Error::host("the kernel cannot be configured", error);
        let config = tree.join(".config");
        log.run(running::make(tree).arg("tinyconfig"))?;
        let smallest = fs::read_to_string(&config).map_err(failed)?;
        // Of two lines about one option, the last counts.
        fs::write(&config, smallest + &self.text).map_err(failed)?;
        log.run(running::make(tree).arg("olddefconfig"))?;
        self.check(&fs::read_to_string(&config).map_err(failed)?)?;
        fs::write(done, "").map_err(failed)
    }

    /// Whether a configuration has everything that was asked for and nothing that was refused.
    fn check(&self, config: &str) -> Result<()> {
        let taken: BTreeMap<&str, &str> = lines(config).collect();
        let (mut dropped, mut forced) = (Vec::new(), Vec::new());
        for (option, wanted) in lines(&self.text) {
            match (wanted, taken.get(option).copied()) {
                ("n", None | Some("n")) => {}
                ("n", Some(_)) => forced.push(option),
                (wanted, Some(value)) if wanted == value => {}
                _ => dropped.push(option),
            }
        }
        if dropped.is_empty() && forced.is_empty() {
            return Ok(());
        }
        let mut error = Error::unsupported("this source of Linux does not take our options");
        if !dropped.is_empty() {
            error = error.cause(format!("it dropped `{}`", dropped.join(" ")));
        }
        if !forced.is_empty() {
            error = error.cause(format!("it insists on `{}`", forced.join(" ")));
        }
        Err(error)
    }
}

/// Options with their values; what is a comment, or `# CONFIG_X is not set`, is none.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with("CONFIG_"));
    lines.filter_map(|line| line.split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(asked: &str, config: &str) -> Vec<String> {
        let options = Options { text: asked.to_owned() };
        options.check(config).err().map(|error| error.causes().to_vec()).unwrap_or_default()
    }

    #[test]
    fn what_was_asked_for_must_be_there() {
        let asked = "# why\nCONFIG_A=y\nCONFIG_N=64\nCONFIG_S=\"a b\"\nCONFIG_OFF=n\n";
        let config = "CONFIG_A=y\nCONFIG_N=64\nCONFIG_S=\"a b\"\n# CONFIG_OFF is not set\n";
        assert!(checked(asked, config).is_empty());
        assert_eq!(checked(asked, ""), ["it dropped `CONFIG_A CONFIG_N CONFIG_S`"]);
        let other = "CONFIG_A=m\nCONFIG_N=6\nCONFIG_S=\"a\"\nCONFIG_OFF=y\n";
        assert_eq!(
            checked(asked, other),
            ["it dropped `CONFIG_A CONFIG_N CONFIG_S`", "it insists on `CONFIG_OFF`"]
        );
    }

    #[test]
    fn one_option_is_not_taken_for_another_with_a_longer_name() {
        assert_eq!(checked("CONFIG_A=y", "CONFIG_AB=y\nCONFIG_XA=y"), ["it dropped `CONFIG_A`"]);
        assert!(checked("CONFIG_A=n", "CONFIG_AB=y\n# CONFIG_A=y").is_empty());
    }

    #[test]
    fn nothing_is_asked_for_twice() {
        for (series, _, _) in FRAGMENTS {
            let options = Options::of(series).unwrap();
            let mut asked: Vec<&str> = lines(&options.text).map(|(option, _)| option).collect();
            let count = asked.len();
            asked.sort_unstable();
            asked.dedup();
            assert_eq!(asked.len(), count, "{series}");
            let strange = options.text.lines().filter(|line| {
                !line.is_empty() && !line.starts_with("# ") && lines(line).count() != 1
            });
            assert_eq!(strange.filter(|line| *line != "#").collect::<Vec<_>>(), [""; 0]);
        }
    }

    #[test]
    fn other_options_are_another_kernel() {
        let hash = |text: &str| Options { text: text.to_owned() }.hash();
        assert_ne!(hash("CONFIG_A=y"), hash("CONFIG_A=n"));
        assert_eq!(hash("CONFIG_A=y"), hash("CONFIG_A=y"));
    }
}
