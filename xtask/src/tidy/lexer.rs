//! Cuts Rust source into code and comments, well enough to never take one for the other.
//!
//! A parser would throw the comments away and not look into macros; the rules need both. Input
//! is what rustc has accepted or is about to judge, so nothing here is an error.

use std::iter;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// Strings and comments without what encloses them; escapes are left as they are.
    pub(super) text: String,
    pub(super) line: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    /// One character: a long operator is several of them.
    Sign,
    Text,
    Character,
    Lifetime,
    /// One line of a comment, also of a `/* */` one.
    Comment,
    /// One line of a comment that is documentation.
    Documentation,
}

pub(super) fn tokens(source: &str) -> Vec<Token> {
    let characters: Vec<char> = source.chars().collect();
    let mut lexer = Lexer { characters: &characters, at: 0, line: 1, tokens: Vec::new() };
    while lexer.step() {}
    lexer.tokens
}

struct Lexer<'a> {
    characters: &'a [char],
    at: usize,
    line: usize,
    tokens: Vec<Token>,
}

impl Lexer<'_> {
    fn step(&mut self) -> bool {
        let Some(first) = self.peek(0) else {
            return false;
        };
        match (first, self.peek(1)) {
            ('/', Some('/')) => self.line_comment(),
            ('/', Some('*')) => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', _) => self.quote(),
            _ if first.is_whitespace() => {
                self.take();
            }
            _ if is_word(first) => self.word(),
            _ => {
                let line = self.line;
                let sign = self.take();
                self.push(Kind::Sign, sign.into_iter().collect(), line);
            }
        }
        true
    }

    fn line_comment(&mut self) {
        let line = self.line;
        let text = self.take_while(|character| character != '\n');
        let kind = match text.as_str() {
            // Four slashes are a plain comment.
            text if text.starts_with("////") => Kind::Comment,
            text if text.starts_with("///") || text.starts_with("//!") => Kind::Documentation,
            _ => Kind::Comment,
        };
        self.push(kind, text.trim_start_matches(['/', '!']).to_owned(), line);
    }

    fn block_comment(&mut self) {
        let start = self.line;
        let mut text = String::new();
        let mut depth = 0;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                (None, _) => break,
                _ => {
                    text.extend(self.take());
                    continue;
                }
            }
            self.take();
            self.take();
            if depth == 0 {
                break;
            }
        }
        let documents = text.starts_with('!') || (text.starts_with('*') && text.len() > 1);
        let kind = if documents { Kind::Documentation } else { Kind::Comment };
        for (offset, part) in text.lines().enumerate() {
            let part = part.trim_start().trim_start_matches(['*', '!']);
            self.push(kind, part.to_owned(), start + offset);
        }
    }

    fn string(&mut self) {
        let line = self.line;
        let text = self.take_quoted('"');
        self.push(Kind::Text, text, line);
    }

    /// A character or a lifetime: `'a'` or `'a`.
    fn quote(&mut self) {
        let line = self.line;
        let is_character = self.peek(1) == Some('\\') || self.peek(2) == Some('\'');
        if is_character {
            let text = self.take_quoted('\'');
            self.push(Kind::Character, text, line);
        } else {
            self.take();
            let text = self.take_while(is_word);
            self.push(Kind::Lifetime, text, line);
        }
    }

    /// A name, a keyword or a number; or the prefix of a string.
    fn word(&mut self) {
        let line = self.line;
        let text = self.take_while(is_word);
        let raw = matches!(text.as_str(), "r" | "br" | "cr");
        match self.peek(0) {
            Some('"') if raw => self.raw_string(0),
            Some('"') if matches!(text.as_str(), "b" | "c") => self.string(),
            Some('\'') if text == "b" => self.quote(),
            Some('#') if raw => {
                let hashes = iter::successors(Some(0), |n| Some(n + 1))
                    .find(|&n| self.peek(n) != Some('#'))
                    .unwrap_or(0);
                if self.peek(hashes) == Some('"') {
                    self.raw_string(hashes);
                } else {
                    self.take();
                    let name = self.take_while(is_word);
                    self.push(Kind::Word, name, line);
                }
            }
            _ => self.push(Kind::Word, text, line),
        }
    }

    fn raw_string(&mut self, hashes: usize) {
        let line = self.line;
        let mut text = String::new();
        for _ in 0..=hashes {
            self.take();
        }
        while let Some(character) = self.take() {
            if character == '"' && (0..hashes).all(|n| self.peek(n) == Some('#')) {
                for _ in 0..hashes {
                    self.take();
                }
                break;
            }
            text.push(character);
        }
        self.push(Kind::Text, text, line);
    }

    /// From one delimiter to the next that is not escaped.
    fn take_quoted(&mut self, delimiter: char) -> String {
        let mut text = String::new();
        self.take();
        while let Some(character) = self.take() {
            if character == delimiter {
                break;
            }
            text.push(character);
            if character == '\\' {
                text.extend(self.take());
            }
        }
        text
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(character) = self.peek(0).filter(|&character| wanted(character)) {
            text.push(character);
            self.take();
        }
        text
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.characters.get(self.at + ahead).copied()
    }

    fn take(&mut self) -> Option<char> {
        let character = self.peek(0)?;
        self.at += 1;
        if character == '\n' {
            self.line += 1;
        }
        Some(character)
    }

    fn push(&mut self, kind: Kind, text: String, line: usize) {
        self.tokens.push(Token { kind, text, line });
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &str) -> Vec<(Kind, String, usize)> {
        tokens(source).into_iter().map(|token| (token.kind, token.text, token.line)).collect()
    }

    fn one(kind: Kind, text: &str) -> Vec<(Kind, String, usize)> {
        vec![(kind, text.to_owned(), 1)]
    }

    #[test]
    fn strings_of_every_kind_are_one_token() {
        assert_eq!(read(r#""a \" // b""#), one(Kind::Text, r#"a \" // b"#));
        assert_eq!(read(r##"r#"a " b"#"##), one(Kind::Text, "a \" b"));
        assert_eq!(read(r#"b"a""#), one(Kind::Text, "a"));
        assert_eq!(read(r#"cr"a\""#), one(Kind::Text, r"a\"));
    }

    #[test]
    fn characters_are_not_lifetimes() {
        assert_eq!(read("'\"'"), one(Kind::Character, "\""));
        assert_eq!(read(r"'\''"), one(Kind::Character, r"\'"));
        assert_eq!(read("b'a'"), one(Kind::Character, "a"));
        assert_eq!(read("'a"), one(Kind::Lifetime, "a"));
        assert_eq!(read("'static"), one(Kind::Lifetime, "static"));
    }

    #[test]
    fn a_raw_name_is_a_word() {
        assert_eq!(read("r#type"), one(Kind::Word, "type"));
    }

    #[test]
    fn comments_nest_and_keep_their_lines() {
        assert_eq!(
            read("/* a\n /* b */\n c */ d"),
            vec![
                (Kind::Comment, "a".to_owned(), 1),
                (Kind::Comment, "b ".to_owned(), 2),
                (Kind::Comment, "c ".to_owned(), 3),
                (Kind::Word, "d".to_owned(), 3),
            ]
        );
    }

    #[test]
    fn documentation_is_told_from_comments() {
        assert_eq!(read("// a"), one(Kind::Comment, " a"));
        assert_eq!(read("/// a"), one(Kind::Documentation, " a"));
        assert_eq!(read("//! a"), one(Kind::Documentation, " a"));
        assert_eq!(read("//// a"), one(Kind::Comment, " a"));
        assert_eq!(read("/** a */"), one(Kind::Documentation, " a "));
    }

    #[test]
    fn lines_are_counted_through_strings() {
        assert_eq!(
            read("\"a\nb\"\nc"),
            vec![(Kind::Text, "a\nb".to_owned(), 1), (Kind::Word, "c".to_owned(), 3)]
        );
    }
}
