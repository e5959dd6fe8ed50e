//! A documentation comment says something: the unit, the range, the default, the failure.

use std::ops::RangeInclusive;

use super::Finding;
use super::lexer::Kind;
use super::prose;
use super::source::Source;

/// Fewer words than this repeat the name of the item.
const FEWEST_WORDS: usize = 4;

/// Documentation comments of fewer than four words, and those that only point at another one.
pub(super) fn findings(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut comments = source.comments.iter().filter(|token| token.kind == Kind::Documentation);
    let Some(first) = comments.next() else { return findings };
    let (mut start, mut last, mut text) = (first.line, first.line, first.text.clone());
    for token in comments {
        if token.line == last + 1 {
            text.push(' ');
            text.push_str(&token.text);
        } else {
            findings.extend(judge(source, start..=last, &text));
            (start, text) = (token.line, token.text.clone());
        }
        last = token.line;
    }
    findings.extend(judge(source, start..=last, &text));
    findings
}

fn judge(source: &Source, lines: RangeInclusive<usize>, text: &str) -> Option<Finding> {
    let line = *lines.start();
    // Examples are code.
    let text = text.split("```").next().unwrap_or(text).trim();
    if text.starts_with("The same") {
        return Some(source.finding(line, "`The same …`: say what it is or does"));
    }
    let words = prose::words(text).count();
    let message = format!("`{text}` says too little: the unit, range, default or failure");
    let short = words < FEWEST_WORDS && !is_help(source, *lines.end());
    short.then(|| source.finding(line, message))
}

/// Whether a comment that ends at this line is the help text of a flag, which is as short as it can be.
fn is_help(source: &Source, last: usize) -> bool {
    let next = source.code.iter().position(|token| token.line > last);
    let next = next.map(|index| &source.code[index..]);
    matches!(next, Some([hash, open, word, ..])
        if hash.is_sign("#") && open.is_sign("[") && word.is_word("arg"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        findings(&Source::new("a.rs", text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn short_ones_and_pointers_are_found() {
        let text = "/// Which.\na: u8,\n/// The same for the group of it.\nb: u8,\n";
        assert_eq!(lines(text), [1, 3]);
    }

    #[test]
    fn the_help_of_a_flag_may_be_short() {
        assert_eq!(lines("/// Print JSON\n#[arg(long)]\njson: bool,\n"), [0; 0]);
    }

    #[test]
    fn several_lines_are_one_comment() {
        assert_eq!(lines("/// Seconds until\n/// it is stopped.\na: u8,\n"), [0; 0]);
    }

    #[test]
    fn other_comments_may_be_short() {
        assert_eq!(lines("// As above.\nfn a() {}\n"), [0; 0]);
    }
}
