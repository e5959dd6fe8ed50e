//! Words that people read: comments, documentation, messages and Markdown.
//!
//! A sentence of this project has a thing of the system as its subject. Words for unnamed people hide
//! which process, client or user is meant, so they are counted.

use super::Finding;
use super::lexer::Kind;
use super::source::Source;

/// Words for unnamed people.
const PEOPLE: &[&str] = &["who", "whom", "whose", "whoever", "nobody", "somebody", "everybody"];

/// So many of them are allowed in this many words.
pub(super) const ALLOWED: usize = 1;
pub(super) const IN_WORDS: usize = 1000;

/// One line of text that people read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TextLine {
    pub(super) line: usize,
    pub(super) text: String,
}

/// How many words there are, and how many of them stand for unnamed people.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct WordCount {
    pub(super) words: usize,
    pub(super) people: usize,
}

impl WordCount {
    pub(super) fn add(&mut self, other: Self) {
        self.words += other.words;
        self.people += other.people;
    }

    /// Words for unnamed people in a thousand words.
    pub(super) fn per_thousand(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts of words are far below 2^52")]
        let share = self.people as f64 * IN_WORDS as f64 / self.words.max(1) as f64;
        share
    }

    pub(super) fn is_too_much(self) -> bool {
        self.people * IN_WORDS > self.words * ALLOWED
    }
}

/// Comments, documentation and messages of a Rust file. A string is a message if it has a space; those
/// of tests are data.
pub(super) fn lines_of_rust(source: &Source) -> Vec<TextLine> {
    let comments = source.comments.iter();
    let comments = comments.map(|token| TextLine { line: token.line, text: token.text.clone() });
    let tests: Vec<_> = source.test_ranges().collect();
    let messages = source.code.iter().enumerate().filter(|(index, token)| {
        let tested = || tests.iter().any(|range| range.contains(index));
        token.kind == Kind::Text && token.text.contains(' ') && !tested()
    });
    let messages =
        messages.map(|(_, token)| TextLine { line: token.line, text: token.text.clone() });
    comments.chain(messages).collect()
}

/// A Markdown page without its code blocks.
pub(super) fn lines_of_markdown(text: &str) -> Vec<TextLine> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push(TextLine { line: index + 1, text: line.to_owned() });
        }
    }
    lines
}

pub(super) fn count(lines: &[TextLine]) -> WordCount {
    let mut counted = WordCount::default();
    for line in lines {
        for word in words(&line.text) {
            counted.words += 1;
            counted.people += usize::from(is_person(word));
        }
    }
    counted
}

/// Each word for unnamed people, where a text has more of them than it may.
pub(super) fn findings(path: &str, lines: &[TextLine]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for line in lines {
        for word in words(&line.text).filter(|word| is_person(word)) {
            let message = format!("`{word}`: name the process, client, caller or user");
            findings.push(Finding { path: path.to_owned(), line: line.line, message });
        }
    }
    findings
}

pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|character: char| !character.is_alphanumeric() && character != '_');
    words.filter(|word| word.starts_with(char::is_alphabetic))
}

fn is_person(word: &str) -> bool {
    PEOPLE.iter().any(|person| word.eq_ignore_ascii_case(person))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_messages_are_read_and_data_is_not() {
        let text = r#"
            //! Who reads this?
            fn a() { fail("nobody is there"); key("nobody"); }
            #[cfg(test)]
            mod tests { fn b() { "somebody in a test"; } }
        "#;
        let lines = lines_of_rust(&Source::new("a.rs", text));
        let texts: Vec<&str> = lines.iter().map(|line| line.text.trim()).collect();
        assert_eq!(texts, ["Who reads this?", "nobody is there"]);
        assert_eq!(count(&lines), WordCount { words: 6, people: 2 });
    }

    #[test]
    fn code_blocks_of_markdown_are_not_read() {
        let lines = lines_of_markdown("one who\n```sh\nwho am i\n```\nthree\n");
        let numbers: Vec<usize> = lines.iter().map(|line| line.line).collect();
        assert_eq!(numbers, [1, 5]);
        assert_eq!(count(&lines), WordCount { words: 3, people: 1 });
    }

    #[test]
    fn one_in_a_thousand_words_is_allowed() {
        assert!(!WordCount { words: 2000, people: 2 }.is_too_much());
        assert!(WordCount { words: 1999, people: 2 }.is_too_much());
    }

    #[test]
    fn each_word_for_people_is_told_with_its_line() {
        let lines = lines_of_markdown("fine\nWhoever asks\n");
        let found = findings("a.md", &lines);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].path.as_str()), (2, "a.md"));
    }
}
