//! One source file as the rules see it.

use std::ops::Range;

use super::Finding;
use super::lexer::{self, Kind, Token};

pub(super) struct Source {
    /// Relative to the root of the repository.
    pub(super) path: String,
    pub(super) lines: usize,
    /// All tokens but comments.
    pub(super) code: Vec<Token>,
    pub(super) comments: Vec<Token>,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let (comments, code) = lexer::tokens(text)
            .into_iter()
            .partition(|token| matches!(token.kind, Kind::Comment | Kind::Documentation));
        Source { path: path.to_owned(), lines: text.lines().count(), code, comments }
    }

    pub(super) fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    pub(super) fn is_in(&self, dir: &str) -> bool {
        self.path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Whether one of the directories on the way to the file has this name.
    pub(super) fn is_below(&self, name: &str) -> bool {
        let mut parts: Vec<&str> = self.path.split('/').collect();
        parts.pop();
        parts.contains(&name)
    }

    pub(super) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, message: message.into() }
    }

    /// Calls of macros with these names.
    pub(super) fn macros<'a>(&'a self, names: &'a [&str]) -> impl Iterator<Item = &'a Token> {
        self.code.windows(2).filter_map(move |pair| {
            let called = pair[0].is_word_of(names) && pair[1].is_sign("!");
            called.then_some(&pair[0])
        })
    }

    /// What stands between the brackets of each `#[…]` and `#![…]`.
    pub(super) fn attributes(&self) -> impl Iterator<Item = &[Token]> {
        self.attribute_ranges().map(|range| &self.code[range])
    }

    /// Whether a token of the code belongs to a test: an item under `#[cfg(test)]`.
    pub(super) fn is_test(&self, index: usize) -> bool {
        self.test_ranges().any(|range| range.contains(&index))
    }

    /// The items under `#[cfg(test)]`.
    pub(super) fn test_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.attribute_ranges().filter_map(|attribute| {
            let words: Vec<&str> =
                self.code[attribute.clone()].iter().map(|token| token.text.as_str()).collect();
            (words == ["cfg", "(", "test", ")"]).then(|| self.item(attribute.end + 1))
        })
    }

    /// From `start` to the end of the item there: its closing brace or its semicolon.
    pub(super) fn item(&self, start: usize) -> Range<usize> {
        let mut parentheses = 0;
        let mut braces = 0;
        for (index, token) in self.code.iter().enumerate().skip(start) {
            if token.kind != Kind::Sign {
                continue;
            }
            match token.text.as_str() {
                "(" | "[" => parentheses += 1,
                ")" | "]" => parentheses -= 1,
                "{" => braces += 1,
                "}" => braces -= 1,
                ";" => {}
                _ => continue,
            }
            let closes = matches!(token.text.as_str(), "}" | ";");
            // The brace of `[u8; { N }]` in a signature is not the body's.
            if closes && braces <= 0 && parentheses <= 0 {
                return start..index + 1;
            }
        }
        start..self.code.len()
    }

    fn attribute_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.code.len()).filter_map(|index| {
            if !self.code[index].is_sign("#") {
                return None;
            }
            let inner = self.code.get(index + 1).is_some_and(|token| token.is_sign("!"));
            let bracket = index + 1 + usize::from(inner);
            if !self.code.get(bracket)?.is_sign("[") {
                return None;
            }
            let mut depth = 0;
            for (end, token) in self.code.iter().enumerate().skip(bracket) {
                if token.is_sign("[") {
                    depth += 1;
                } else if token.is_sign("]") {
                    depth -= 1;
                }
                if depth == 0 {
                    return Some(bracket + 1..end);
                }
            }
            None
        })
    }
}

impl Token {
    pub(super) fn is_word(&self, name: &str) -> bool {
        self.kind == Kind::Word && self.text == name
    }

    pub(super) fn is_word_of(&self, names: &[&str]) -> bool {
        self.kind == Kind::Word && names.contains(&self.text.as_str())
    }

    pub(super) fn is_sign(&self, sign: &str) -> bool {
        self.kind == Kind::Sign && self.text == sign
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tested(text: &str) -> Vec<String> {
        let source = Source::new("a.rs", text);
        (0..source.code.len())
            .filter(|&index| source.code[index].kind == Kind::Text && source.is_test(index))
            .map(|index| source.code[index].text.clone())
            .collect()
    }

    #[test]
    fn only_what_is_under_cfg_test_is_a_test() {
        let text = r#"
            fn a() { "a"; }
            #[cfg(test)]
            use b::c;
            fn d() { "d"; }
            #[cfg(test)]
            mod tests { fn e() { "e"; } fn f() { "f"; } }
            fn g() { "g"; }
        "#;
        assert_eq!(tested(text), ["e", "f"]);
    }

    #[test]
    fn an_item_ends_at_its_own_brace() {
        let source = Source::new("a.rs", "fn a(b: [u8; { 1 }]) { { } } fn c() {}");
        let text: String =
            source.code[source.item(0)].iter().map(|token| token.text.as_str()).collect();
        assert_eq!(text, "fna(b:[u8;{1}]){{}}");
    }

    #[test]
    fn attributes_are_found_inside_and_outside() {
        let source = Source::new("a.rs", "#![a(b)] #[c = \"]\"] fn d() { e[0]; }");
        let words: Vec<usize> = source.attributes().map(<[Token]>::len).collect();
        assert_eq!(words, [4, 3]);
    }

    #[test]
    fn directories_match_whole_names() {
        let source = Source::new("crates/sys/src/a.rs", "");
        assert!(source.is_in("crates/sys"));
        assert!(!source.is_in("crates/s"));
        assert!(source.is_below("src"));
        assert!(!source.is_below("a.rs"));
    }
}
