//! The files of the skill, and which of them lie somewhere as they were installed.
//!
//! What was installed is written down in a list of digests, as `sha256sum` has it: a later version
//! knows by it which files are unchanged. In a project the list may come from others, so it is
//! believed only about plain names below the skill, and only where the digest is right.

use crate::settings_file::FileContents;
use msb_spec::encoding::hex;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Every file by its name.
pub(super) const FILES: [(&str, &str); 5] = [
    ("SKILL.md", include_str!("../../../../../skills/msb/SKILL.md")),
    ("references/cli.md", include_str!("../../../../../skills/msb/references/cli.md")),
    ("references/mcp.md", include_str!("../../../../../skills/msb/references/mcp.md")),
    ("references/network.md", include_str!("../../../../../skills/msb/references/network.md")),
    ("references/storage.md", include_str!("../../../../../skills/msb/references/storage.md")),
];

/// The list's name.
pub(super) const LIST: &str = ".installed";

/// More files than any version has had.
const MOST: usize = 64;

/// How a file compares with what was installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Missing,
    /// As this version has it.
    Same,
    /// As another version has installed it.
    Old,
    /// No file of ours has this digest.
    Changed,
}

/// What a list says.
#[derive(Debug)]
pub(super) struct InstalledFiles {
    text: Option<String>,
    digests: BTreeMap<String, String>,
}

impl InstalledFiles {
    pub(super) fn of(list: Option<&FileContents>) -> Self {
        let text = list.map(|found| String::from_utf8_lossy(&found.bytes).into_owned());
        let lines = text.as_deref().unwrap_or_default().lines().take(MOST);
        let known = lines.filter_map(|line| line.split_once("  "));
        let known = known.filter(|(_, name)| is_plain(name));
        let digests = known.map(|(digest, name)| (name.to_owned(), digest.to_owned()));
        let digests = digests.collect();
        Self { text, digests }
    }

    pub(super) fn has_list(&self) -> bool {
        self.text.is_some()
    }

    /// Whether it lists what this version installs.
    pub(super) fn is_current(&self) -> bool {
        self.text.as_deref() == Some(&list())
    }

    /// What is or was part of the skill.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        FILES.iter().map(|(name, _)| *name).chain(self.no_longer_ours())
    }

    /// What another version has installed and this one does not have.
    pub(super) fn no_longer_ours(&self) -> impl Iterator<Item = &str> {
        let names = self.digests.keys().map(String::as_str);
        names.filter(|name| FILES.iter().all(|(own, _)| own != name))
    }

    pub(super) fn state(&self, name: &str, found: Option<&FileContents>) -> State {
        let Some(found) = found else { return State::Missing };
        let own = FILES.iter().find(|(known, _)| *known == name);
        if own.is_some_and(|(_, text)| text.as_bytes() == found.bytes) {
            return State::Same;
        }
        match self.digests.get(name) {
            Some(known) if *known == digest(&found.bytes) => State::Old,
            _ => State::Changed,
        }
    }
}

/// What this version writes down.
pub(super) fn list() -> String {
    FILES.iter().map(|(name, text)| format!("{}  {name}\n", digest(text.as_bytes()))).collect()
}

fn digest(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}

/// Names below the skill's directory and no way out of it.
fn is_plain(name: &str) -> bool {
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
    };
    name.len() <= 128 && name.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_skill() {
        assert!(FILES.iter().all(|(name, _)| is_plain(name)));
        for name in ["", "/x", "../x", "a/../x", "a//b", ".git/config", "a/.x", "a b", LIST] {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn the_head_is_as_the_format_has_it() {
        let (_, text) = FILES[0];
        let head = text.strip_prefix("---\nname: msb\ndescription: >-\n").unwrap();
        let (head, body) = head.split_once("\n---\n").unwrap();
        let described = head.lines().take_while(|line| line.starts_with("  "));
        let length: usize = described.map(|line| line.trim().len() + 1).sum();
        assert!((100..=1024).contains(&length), "{length}");
        assert!(body.lines().count() < 500);
        for (name, _) in &FILES[1..] {
            assert!(body.contains(name), "{name} is not named");
        }
    }
}
