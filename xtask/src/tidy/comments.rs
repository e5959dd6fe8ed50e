//! Comments carry reasons, not decoration and not wishes.

use super::Finding;
use super::lexer::Kind;
use super::source::Source;

/// Shorter runs occur in arrows and dashes.
const BANNER_LENGTH: usize = 8;

/// If a file needs chapters, it is two files.
pub(super) fn banner_rule(source: &Source) -> Vec<Finding> {
    let banners = source.comments.iter().filter(|comment| match comment.kind {
        // Tables and diagrams in documentation also hold long lines, but start with a corner
        // or a bar.
        Kind::Documentation => leading_run(comment.text.trim_start()) >= BANNER_LENGTH,
        _ => longest_run(&comment.text) >= BANNER_LENGTH,
    });
    banners
        .map(|comment| source.finding(comment.line, "banner comment: split the file instead"))
        .collect()
}

/// A wish without an issue is forgotten.
pub(super) fn todo_rule(source: &Source) -> Vec<Finding> {
    let wishes = source
        .comments
        .iter()
        .filter(|comment| has_word(&comment.text, "TODO") && !has_issue(&comment.text));
    wishes.map(|comment| source.finding(comment.line, "TODO without its issue, `#N`")).collect()
}

fn is_rule(character: char) -> bool {
    matches!(character, '-' | '=' | '─' | '═')
}

fn leading_run(text: &str) -> usize {
    text.chars().take_while(|&character| is_rule(character)).count()
}

fn longest_run(text: &str) -> usize {
    text.split(|character| !is_rule(character)).map(|run| run.chars().count()).max().unwrap_or(0)
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|character: char| !character.is_alphanumeric() && character != '_')
        .any(|part| part == word)
}

fn has_issue(text: &str) -> bool {
    text.split('#').skip(1).any(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_diagrams_and_arrows_are_good() {
        let text = "\
//! | a         | b |
//! |-----------|---|
//! ┌───────────┐
// a --> b ==> c
const RULE: &str = \"----------\";
";
        assert_eq!(banner_rule(&Source::new("a.rs", text)), []);
    }

    #[test]
    fn banners_are_found() {
        for text in [
            "// ---------- types ----------",
            "// ========",
            "/// ────────",
            "/* ═════════ */",
            "//--------",
        ] {
            assert_eq!(banner_rule(&Source::new("a.rs", text)).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_todo_with_its_issue_is_good() {
        let text = "// TODO(#12): later\n// TODOS\nconst A: &str = \"TODO\";\n";
        assert_eq!(todo_rule(&Source::new("a.rs", text)), []);
    }

    #[test]
    fn a_todo_without_an_issue_is_found() {
        let findings = todo_rule(&Source::new("a.rs", "\n// TODO: later, in C#\n/* TODO */\n"));
        let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 3]);
    }
}
