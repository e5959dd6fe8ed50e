//! The kernel configuration: the fragments of the repository on top of `tinyconfig`, and the check
//! that Kconfig accepted them.

use super::Progress;
use super::commands::{self, BuildLog};
use crate::{Step, short_hash};
use msb_spec::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[cfg(target_arch = "x86_64")]
const FRAGMENTS: &[(&str, &str, &str)] = &[
    (
        "6.12",
        include_str!("../../config/x86_64.fragment"),
        include_str!("../../config/x86_64-6.12.fragment"),
    ),
    (
        "6.1",
        include_str!("../../config/x86_64.fragment"),
        include_str!("../../config/x86_64-6.1.fragment"),
    ),
];
#[cfg(not(target_arch = "x86_64"))]
const FRAGMENTS: &[(&str, &str, &str)] = &[];

/// The required options, one `CONFIG_` line each.
#[derive(Debug)]
pub(super) struct KernelConfig {
    text: String,
}

impl KernelConfig {
    /// The options for a series of Linux on this architecture.
    pub(super) fn of(series: &str) -> Result<Self> {
        let found = FRAGMENTS.iter().find(|(known, _, _)| *known == series);
        let text = found.map(|(_, all, own)| [*all, *own].concat());
        text.map(|text| Self { text }).ok_or_else(|| {
            let arch = std::env::consts::ARCH;
            Error::unsupported(format!("kernels for microVMs are not built on `{arch}` yet"))
        })
    }

    /// The hash of all options.
    pub(super) fn hash(&self) -> String {
        short_hash(Sha256::new_with_prefix(&self.text))
    }

    /// Configures the source tree, once.
    pub(super) fn configure(
        &self,
        tree: &Path,
        log: &BuildLog,
        progress: Progress<'_>,
    ) -> Result<()> {
        let done = tree.join(".msb-configured");
        if done.exists() {
            return Ok(());
        }
        progress(Step::Configuring);
        let failed = |error| Error::host("the kernel cannot be configured", error);
        let config = tree.join(".config");
        log.run(commands::make(tree).arg("tinyconfig"))?;
        let smallest = fs::read_to_string(&config).map_err(failed)?;
        // The last line about an option wins.
        fs::write(&config, smallest + &self.text).map_err(failed)?;
        log.run(commands::make(tree).arg("olddefconfig"))?;
        self.check(&fs::read_to_string(&config).map_err(failed)?)?;
        fs::write(done, "").map_err(failed)
    }

    /// Fails if Kconfig dropped a required option or enabled a refused one.
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
        let mut error = Error::unsupported("this version of Linux does not accept our options");
        if !dropped.is_empty() {
            error = error.cause(format!("it dropped `{}`", dropped.join(" ")));
        }
        if !forced.is_empty() {
            error = error.cause(format!("it insists on `{}`", forced.join(" ")));
        }
        Err(error)
    }
}

/// Options with their values; comments such as `# CONFIG_X is not set` are skipped.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with("CONFIG_"));
    lines.filter_map(|line| line.split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(asked: &str, config: &str) -> Vec<String> {
        let options = KernelConfig { text: asked.to_owned() };
        options.check(config).err().map(|error| error.causes().to_vec()).unwrap_or_default()
    }

    #[test]
    fn missing_and_forced_options_are_reported() {
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
    fn no_option_is_listed_twice() {
        for (series, _, _) in FRAGMENTS {
            let options = KernelConfig::of(series).unwrap();
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
    fn different_options_have_different_hashes() {
        let hash = |text: &str| KernelConfig { text: text.to_owned() }.hash();
        assert_ne!(hash("CONFIG_A=y"), hash("CONFIG_A=n"));
        assert_eq!(hash("CONFIG_A=y"), hash("CONFIG_A=y"));
    }
}
