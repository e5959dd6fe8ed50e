//! File name patterns of Containerfiles and `.dockerignore`.
//!
//! `*`, `?` and `[a-z]` never match a slash. `**` matches any number of directories where it is
//! allowed. All other characters, braces too, are literal; glob crates differ in this.

/// A parsed file name pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    tokens: Vec<Token>,
    slash: Slash,
}

/// How a pattern treats slashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slash {
    /// A separator that only a slash and `**` match.
    Separator,
    /// A character like any other.
    Char,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Char(char),
    AnyChar,
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    AnyChars,
    /// `**/`: any number of directories, or none.
    Directories,
    /// `**` at the end or inside a name: everything, slashes too.
    Everything,
}

impl Glob {
    /// A pattern for one path component: `**` is the same as `*`.
    pub(crate) fn component(text: &str) -> Result<Self, &'static str> {
        parse(text, false, Slash::Separator)
    }

    /// A pattern for a whole path, in which `**` matches slashes.
    pub(crate) fn path(text: &str) -> Result<Self, &'static str> {
        parse(text, true, Slash::Separator)
    }

    /// A pattern for text that is not a path.
    pub(crate) fn text(text: &str) -> Result<Self, &'static str> {
        parse(text, false, Slash::Char)
    }

    /// Whether a text has special characters.
    pub(crate) fn is_pattern(text: &str) -> bool {
        text.contains(['*', '?', '[', '\\'])
    }

    /// Whether the pattern matches the whole text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let letters: Vec<char> = text.chars().collect();
        self.ends(&letters).last() == Some(&true)
    }

    /// Length of every prefix that the pattern matches, shortest first.
    pub(crate) fn prefixes(&self, letters: &[char]) -> Vec<usize> {
        let ends = self.ends(letters);
        ends.iter().enumerate().filter(|(_, ends)| **ends).map(|(at, _)| at).collect()
    }

    /// For each position, whether the pattern can end there. One pass per token: the time is at
    /// most pattern length times text length.
    fn ends(&self, letters: &[char]) -> Vec<bool> {
        let mut reached = vec![false; letters.len() + 1];
        reached[0] = true;
        for token in &self.tokens {
            let mut next = vec![false; letters.len() + 1];
            let mut open = false;
            for at in 0..=letters.len() {
                match token {
                    Token::AnyChars => {
                        open = reached[at] || (open && self.can_match(letters[at - 1]));
                        next[at] = open;
                    }
                    Token::Everything => {
                        open |= reached[at];
                        next[at] = open;
                    }
                    Token::Directories => {
                        next[at] = reached[at] || (open && letters[at - 1] == '/');
                        open |= reached[at];
                    }
                    one => {
                        let matched = letters.get(at).is_some_and(|letter| self.is(one, *letter));
                        if reached[at] && matched {
                            next[at + 1] = true;
                        }
                    }
                }
            }
            reached = next;
        }
        reached
    }

    fn can_match(&self, letter: char) -> bool {
        letter != '/' || self.slash == Slash::Char
    }

    fn is(&self, token: &Token, letter: char) -> bool {
        match token {
            Token::Char(own) => *own == letter,
            Token::AnyChar => self.can_match(letter),
            Token::Class { negated, ranges } => {
                let inside = ranges.iter().any(|(low, high)| (*low..=*high).contains(&letter));
                self.can_match(letter) && inside != *negated
            }
            Token::AnyChars | Token::Directories | Token::Everything => false,
        }
    }
}

fn parse(text: &str, crosses: bool, slash: Slash) -> Result<Glob, &'static str> {
    let mut tokens = Vec::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        tokens.push(match letter {
            '*' => {
                let mut stars = 1;
                while letters.next_if_eq(&'*').is_some() {
                    stars += 1;
                }
                match stars {
                    1 => Token::AnyChars,
                    _ if !crosses => Token::AnyChars,
                    _ if letters.next_if_eq(&'/').is_some() => Token::Directories,
                    _ => Token::Everything,
                }
            }
            '?' => Token::AnyChar,
            '[' => class(&mut letters)?,
            '\\' => Token::Char(letters.next().ok_or("it ends in a backslash")?),
            other => Token::Char(other),
        });
    }
    Ok(Glob { tokens, slash })
}

fn class(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Token, &'static str> {
    const OPEN: &str = "a `[` is not closed";
    let negated = letters.next_if_eq(&'^').is_some();
    let mut one = |first: bool| -> Result<Option<char>, &'static str> {
        match letters.next().ok_or(OPEN)? {
            ']' if !first => Ok(None),
            '\\' => letters.next().ok_or(OPEN).map(Some),
            other => Ok(Some(other)),
        }
    };
    let mut members = Vec::new();
    while let Some(member) = one(members.is_empty())? {
        members.push(member);
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < members.len() {
        if let (Some('-'), Some(high)) = (members.get(at + 1), members.get(at + 2)) {
            ranges.push((members[at], *high));
            at += 3;
        } else {
            ranges.push((members[at], members[at]));
            at += 1;
        }
    }
    Ok(Token::Class { negated, ranges })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_matched_as_a_shell_would() {
        let cases = [
            ("*", "a.txt", true),
            ("*.txt", "a.txt", true),
            ("*.txt", "a/b.txt", false),
            ("hom?.txt", "home.txt", true),
            ("hom?.txt", "hom.txt", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("arr[[]0].txt", "arr[0].txt", true),
            (r"\*", "*", true),
            (r"\*", "a", false),
            ("{a,b}", "a", false),
            ("{a,b}", "{a,b}", true),
            ("**", "a/b", false),
            ("", "", true),
            ("*", "", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXbY", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(Glob::component(pattern).unwrap().matches(text), expected, "{pattern}");
        }
    }

    #[test]
    fn two_stars_cross_directories() {
        let cases = [
            ("**/foo", "foo", true),
            ("**/foo", "a/b/foo", true),
            ("**/foo", "a/xfoo", false),
            ("a/**", "a/b/c", true),
            ("a/**", "a", false),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("**", "a/b", true),
            ("**/*.go", "x/y.go", true),
            ("*/*.go", "y.go", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(Glob::path(pattern).unwrap().matches(text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_broken_pattern_says_why() {
        assert!(Glob::path("[a").is_err());
        assert!(Glob::path("a\\").is_err());
    }

    #[test]
    fn no_pattern_takes_longer_than_its_length_times_the_text() {
        let pattern = Glob::path(&"**/*a".repeat(200)).unwrap();
        assert!(!pattern.matches(&"a/".repeat(2000)));
    }
}
