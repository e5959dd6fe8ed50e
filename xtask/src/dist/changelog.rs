//! The section of CHANGELOG.md about one version.

use anyhow::{Context, Result, bail};

/// Heading of what was changed since the last release.
const UNRELEASED: &str = "Unreleased";

/// What a release says about itself: the section of its version. Until CHANGELOG.md is cut, and only
/// for a release without a tag, that of the unreleased changes.
pub(super) fn notes(changelog: &str, version: &str, tag: Option<&str>) -> Result<String> {
    if let Some(tag) = tag
        && tag != format!("v{version}")
    {
        bail!("the version of the workspace is {version}, which is not that of the tag `{tag}`");
    }
    if let Some(notes) = section(changelog, version) {
        return Ok(notes);
    }
    if tag.is_some() {
        bail!("CHANGELOG.md has no section `{version}`");
    }
    section(changelog, UNRELEASED).with_context(|| {
        format!("CHANGELOG.md has neither a section `{version}` nor `{UNRELEASED}`")
    })
}

/// What stands below `## HEADING` or `## HEADING - DATE`. None if there is nothing.
fn section(changelog: &str, heading: &str) -> Option<String> {
    let is_heading = |line: &str| {
        let rest = line.strip_prefix("## ").and_then(|line| line.strip_prefix(heading));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" - "))
    };
    let below = changelog.lines().skip_while(|line| !is_heading(line)).skip(1);
    let lines: Vec<&str> = below.take_while(|line| !line.starts_with("## ")).collect();
    let text = lines.join("\n").trim().to_owned();
    (!text.is_empty()).then(|| text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: &str = "# Changelog\n\n## Unreleased\n\n- c\n\n## 0.2.0 - 2026-01-02\n\n### Added\n- b\n\n## 0.1.0\n- a\n";

    #[test]
    fn each_version_has_its_own_section() {
        assert_eq!(notes(CUT, "0.2.0", Some("v0.2.0")).unwrap(), "### Added\n- b\n");
        assert_eq!(notes(CUT, "0.1.0", None).unwrap(), "- a\n");
    }

    #[test]
    fn unreleased_changes_are_taken_only_without_a_tag() {
        assert_eq!(notes(CUT, "0.3.0", None).unwrap(), "- c\n");
        assert!(notes(CUT, "0.3.0", Some("v0.3.0")).is_err());
        assert!(notes("# Changelog\n", "0.3.0", None).is_err());
    }

    #[test]
    fn the_tag_is_that_of_the_version() {
        assert!(notes(CUT, "0.2.0", Some("v0.1.0")).is_err());
        assert!(notes(CUT, "0.2.0", Some("0.2.0")).is_err());
    }

    #[test]
    fn a_version_is_not_taken_for_another_with_a_longer_name() {
        assert_eq!(section("## 0.1.0-rc.1\n- a\n## 0.1.0\n- b\n", "0.1.0").unwrap(), "- b\n");
        assert_eq!(section("## 0.1.0\n\n## Older\n", "0.1.0"), None);
    }
}
