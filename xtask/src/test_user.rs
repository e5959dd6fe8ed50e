//! The ordinary user that tests become when they are started as root.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{packages, workspace};

const NAME: &str = "msb-test";

/// The user's name; none when we are not root, because then we are an ordinary user ourselves
/// and could not become another.
pub(crate) fn ensure() -> Result<Option<&'static str>> {
    if !packages::is_root()? {
        return Ok(None);
    }
    if !exists()? {
        workspace::run(Command::new("useradd").args(["--create-home", NAME]))?;
    }
    for file in ["/etc/subuid", "/etc/subgid"] {
        ensure!(
            has_range(&fs::read_to_string(file).unwrap_or_default()),
            "user {NAME} has no subordinate ids in `{file}`"
        );
    }
    Ok(Some(NAME))
}

fn exists() -> Result<bool> {
    let status = Command::new("id")
        .arg(NAME)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("cannot run `id`")?;
    Ok(status.success())
}

fn has_range(ranges: &str) -> bool {
    ranges.lines().any(|line| line.split(':').next() == Some(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_another_user_is_not_ours() {
        assert!(has_range("a:100000:65536\nmsb-test:165536:65536\n"));
        assert!(!has_range("msb-tester:100000:65536\n"));
    }
}
