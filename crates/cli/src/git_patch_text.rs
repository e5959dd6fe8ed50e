//! Changes of a workspace as one patch that `git apply` takes.
//!
//! What git cannot know is written in lines with `#` before a section, which git skips. Sections
//! come from a process that has read a hostile tree, so they are escaped as everything else.

use crate::change_text;
use msb_api::{Change, GitGap, GitPatch};
use msb_spec::{disturbs, shown};
use std::collections::BTreeSet;

/// A patch, and the changes that are not in it.
pub(crate) struct GitPatchText<'a> {
    pub(crate) text: String,
    pub(crate) missing: Vec<(&'a Change, GitGap)>,
}

impl<'a> GitPatchText<'a> {
    pub(crate) fn of(changes: &'a [Change]) -> Self {
        let told = change_text::reportable(changes);
        let told: BTreeSet<_> = told.into_iter().map(|change| &change.path).collect();
        let (mut text, mut missing) = (String::new(), Vec::new());
        for change in changes {
            let is_told = told.contains(&change.path);
            let mut remark = |line: String| text.push_str(&format!("# {line}\n"));
            match &change.git {
                Some(GitPatch::Sections(sections)) => {
                    if let Some(conflict) = change.conflict.filter(|_| is_told) {
                        remark(format!("conflict: {}", conflict.reason()));
                    }
                    if let Some(risk) = change.risk.as_ref().filter(|_| is_told) {
                        remark(format!("needs --include: {}", shown(&risk.reason)));
                    }
                    text.push_str(&safe(sections));
                }
                Some(GitPatch::Missing(gap)) if is_told => {
                    remark(format!(
                        "not in this patch, {}: {}",
                        reason(*gap),
                        change_text::plain_line(change)
                    ));
                    missing.push((change, *gap));
                }
                Some(GitPatch::Missing(_)) | None => {}
            }
        }
        Self { text, missing }
    }
}

fn reason(gap: GitGap) -> &'static str {
    match gap {
        GitGap::Directory => "git keeps no directories",
        GitGap::Special => "git keeps no special files",
        GitGap::Mode => "git keeps only the bit to execute",
        GitGap::Refused => "git takes no patch for this path",
        GitGap::TooLarge => "too large",
    }
}

/// The text without anything that disturbs a terminal. An honest section has nothing of the kind.
fn safe(sections: &str) -> String {
    let harmless = |c: char| matches!(c, '\n' | '\t') || !disturbs(c);
    sections.split_inclusive('\n').fold(String::new(), |mut text, line| {
        let (line, end) = match line.strip_suffix("\r\n") {
            Some(line) => (line, "\r\n"),
            None => (line, ""),
        };
        for letter in line.chars() {
            match harmless(letter) {
                true => text.push(letter),
                false => text.extend(letter.escape_default()),
            }
        }
        text.push_str(end);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_cannot_disturb_a_terminal() {
        assert_eq!(safe("+a\tb\r\n+\x1b[2J\n \\x\rend"), "+a\tb\r\n+\\u{1b}[2J\n \\x\\rend");
    }
}
