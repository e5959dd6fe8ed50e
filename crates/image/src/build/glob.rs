//! Patterns for file names, as Containerfiles and `.dockerignore` files write them.
//!
//! `*`, `?` and `[a-z]` never match a slash; `**` matches any number of directories where it is
//! allowed. Every other letter, braces too, means itself, which is why no glob crate fits.

/// A pattern, taken apart once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    tokens: Vec<Token>,
    slash: Slash,
}

/// What a slash is to a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slash {
    /// An end that nothing but itself and `**` goes across.
    Ends,
    /// A letter like others.
    Letter,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Letter(char),
    AnyLetter,
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    Letters,
    /// Whole directories with their slashes, or nothing: `**/`.
    Directories,
    /// Everything, slashes too: `**` at the end or inside a name.
    Everything,
}

impl Glob {
    /// A pattern for one component of a path: `**` is no more than `*`.
    pub(crate) fn component(text: &str) -> Result<Self, &'static str> {
        parse(text, false, Slash::Ends)
    }

    /// A pattern for a whole path, in which `**` crosses slashes.
    pub(crate) fn path(text: &str) -> Result<Self, &'static str> {
        parse(text, true, Slash::Ends)
    }

    /// A pattern for a text that is no path.
    pub(crate) fn text(text: &str) -> Result<Self, &'static str> {
        parse(text, false, Slash::Letter)
    }

    /// Whether text has letters that mean more than themselves.
    pub(crate) fn is_pattern(text: &str) -> bool {
        text.contains(['*', '?', '[', '\\'])
    }

    /// Whether the pattern matches all of the text.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let letters: Vec<char> = text.chars().collect();
        self.ends(&letters).last() == Some(&true)
    }

    /// Every length of a beginning of the text that the pattern matches, shortest first.
    pub(crate) fn prefixes(&self, letters: &[char]) -> Vec<usize> {
        let ends = self.ends(letters);
        ends.iter().enumerate().filter(|(_, ends)| **ends).map(|(at, _)| at).collect()
    }

    /// For every position whether the pattern can end there. One pass a token, so that no pattern
    /// takes longer than its length times the text's.
    fn ends(&self, letters: &[char]) -> Vec<bool> {
        let mut reached = vec![false; letters.len() + 1];
        reached[0] = true;
        for token in &self.tokens {
            let mut next = vec![false; letters.len() + 1];
            let mut open = false;
            for at in 0..=letters.len() {
                match token {
                    Token::Letters => {
                        open = reached[at] || (open && self.goes_across(letters[at - 1]));
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

    fn goes_across(&self, letter: char) -> bool {
        letter != '/' || self.slash == Slash::Letter
    }

    fn is(&self, token: &Token, letter: char) -> bool {
        match token {
            Token::Letter(own) => *own == letter,
            Token::AnyLetter => self.goes_across(letter),
            Token::Class { negated, ranges } => {
                let inside = ranges.iter().any(|(low, high)| (*low..=*high).contains(&letter));
                self.goes_across(letter) && inside != *negated
            }
            Token::Letters | Token::Directories | Token::Everything => false,
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
                    1 => Token::Letters,
                    _ if !crosses => Token::Letters,
                    _ if letters.next_if_eq(&'/').is_some() => Token::Directories,
                    _ => Token::Everything,
                }
            }
            '?' => Token::AnyLetter,
            '[' => class(&mut letters)?,
            '\\' => Token::Letter(letters.next().ok_or("it ends in a backslash")?),
            other => Token::Letter(other),
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
