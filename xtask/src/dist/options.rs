//! What `cargo xtask dist` was asked to do.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The executable to package; one of the profile `dist` where none is named.
    pub(crate) msb: Option<PathBuf>,
    /// Where the files go; `target/dist` where nothing is named.
    pub(crate) out: Option<PathBuf>,
    /// The tag of the release. It must be that of the version, and CHANGELOG.md must have been cut.
    pub(crate) tag: Option<String>,
    /// Leaves the guest kernel out.
    pub(crate) no_kernel: bool,
    /// Compresses little: for tests.
    pub(crate) quick: bool,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("no value for `{word}`"));
            match word {
                "--msb" => options.msb = Some(value()?.into()),
                "--out" => options.out = Some(value()?.into()),
                "--tag" => options.tag = Some(value()?.into()),
                "--no-kernel" => options.no_kernel = true,
                "--quick" => options.quick = true,
                _ => bail!("no such option `{word}`"),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_others_refused() {
        let read = Options::parse(&["--msb", "m", "--no-kernel", "--tag", "v1"]).unwrap();

        let (msb, tag) = (Some("m".into()), Some("v1".to_owned()));
        assert_eq!(read, Options { msb, tag, no_kernel: true, ..Options::default() });
        assert!(Options::parse(&["--msb"]).is_err());
        assert!(Options::parse(&["x"]).is_err());
    }
}
