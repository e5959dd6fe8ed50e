//! Lexer of a Containerfile: quotes, escapes and variables, as in its reference.
//!
//! The rules are a subset of a shell: `$x`, `${x}` and its modifiers, no commands, no arithmetic.
//! An unset variable is empty.

use super::glob::Glob;
use std::iter::Peekable;
use std::str::Chars;

/// Why a word is invalid, without its position.
pub(crate) type LexError = String;

/// Expands quotes, escapes and variables in raw words.
pub(crate) struct Lexer<'a> {
    escape: char,
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

/// A character, and whether whitespace ends a word here.
type LexedChar = (char, bool);

#[derive(Clone, Copy, PartialEq, Eq)]
enum QuoteMode {
    Special,
    /// Inside of a here-document quotes are literal, and an escape works before `$` and itself
    /// only.
    Literal,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(escape: char, lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { escape, lookup }
    }

    /// Expands one word; spaces are part of it.
    pub(crate) fn word(&self, text: &str) -> Result<String, LexError> {
        Ok(self.letters(text, QuoteMode::Special)?.into_iter().map(|(letter, _)| letter).collect())
    }

    /// Expands and splits at spaces, also inside of the value of an unquoted variable.
    pub(crate) fn words(&self, text: &str) -> Result<Vec<String>, LexError> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        for (letter, splits) in self.letters(text, QuoteMode::Special)? {
            if splits && letter.is_whitespace() {
                words.extend(word.take());
            } else {
                word.get_or_insert_default().push(letter);
            }
        }
        words.extend(word);
        Ok(words)
    }

    /// Expands a here-document whose delimiter was not quoted.
    pub(crate) fn document(&self, text: &str) -> Result<String, LexError> {
        let letters = self.letters(text, QuoteMode::Literal)?;
        Ok(letters.into_iter().map(|(letter, _)| letter).collect())
    }

    fn letters(&self, text: &str, quotes: QuoteMode) -> Result<Vec<LexedChar>, LexError> {
        let mut expander = Expander {
            rest: text.chars().peekable(),
            escape: self.escape,
            lookup: self.lookup,
            depth: 0,
        };
        expander.until(None, quotes)
    }
}

/// Deepest nesting of `${a:-${b:-…}}`.
const DEPTH_LIMIT: usize = 32;

struct Expander<'a> {
    rest: Peekable<Chars<'a>>,
    escape: char,
    lookup: &'a dyn Fn(&str) -> Option<String>,
    depth: usize,
}

impl Expander<'_> {
    /// Reads to the end, or past the stop character.
    fn until(&mut self, stop: Option<char>, quotes: QuoteMode) -> Result<Vec<LexedChar>, LexError> {
        let mut out = Vec::new();
        while let Some(letter) = self.rest.next() {
            match letter {
                _ if Some(letter) == stop => return Ok(out),
                '\'' if quotes == QuoteMode::Special => self.single_quoted(&mut out)?,
                '"' if quotes == QuoteMode::Special => self.double_quoted(&mut out)?,
                '$' => {
                    let value = self.variable(quotes)?;
                    out.extend(value.chars().map(|letter| (letter, true)));
                }
                _ if letter == self.escape => match (self.rest.peek(), quotes) {
                    (None, _) => out.push((letter, false)),
                    (Some(_), QuoteMode::Special) => {
                        out.extend(self.rest.next().map(|l| (l, false)))
                    }
                    (Some(_), QuoteMode::Literal) => {
                        let escape = self.escape;
                        let next = self.rest.next_if(|next| *next == '$' || *next == escape);
                        out.push((next.unwrap_or(letter), false));
                    }
                },
                other => out.push((other, true)),
            }
        }
        match stop {
            Some(stop) => Err(format!("`{stop}` is missing")),
            None => Ok(out),
        }
    }

    fn single_quoted(&mut self, out: &mut Vec<LexedChar>) -> Result<(), LexError> {
        for letter in self.rest.by_ref() {
            if letter == '\'' {
                return Ok(());
            }
            out.push((letter, false));
        }
        Err("a quote is not closed".to_owned())
    }

    fn double_quoted(&mut self, out: &mut Vec<LexedChar>) -> Result<(), LexError> {
        while let Some(letter) = self.rest.next() {
            match letter {
                '"' => return Ok(()),
                '$' => {
                    let value = self.variable(QuoteMode::Special)?;
                    out.extend(value.chars().map(|letter| (letter, false)));
                }
                _ if letter == self.escape => {
                    let next = self.rest.peek().copied();
                    let escaped =
                        next.filter(|next| ['"', '$'].contains(next) || *next == self.escape);
                    if escaped.is_some() {
                        self.rest.next();
                    }
                    out.push((escaped.unwrap_or(letter), false));
                }
                other => out.push((other, false)),
            }
        }
        Err("a quote is not closed".to_owned())
    }

    /// Expands a variable; its `$` has been read.
    fn variable(&mut self, quotes: QuoteMode) -> Result<String, LexError> {
        if self.rest.next_if_eq(&'{').is_none() {
            let name = self.name();
            return Ok(match name.as_str() {
                "" => "$".to_owned(),
                name => (self.lookup)(name).unwrap_or_default(),
            });
        }
        if self.depth >= DEPTH_LIMIT {
            return Err("variables are nested too deep".to_owned());
        }
        self.depth += 1;
        let value = self.braced(quotes);
        self.depth -= 1;
        value
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        let first = self.rest.peek().copied().unwrap_or(' ');
        let belongs = |letter: char| match first {
            '0'..='9' => letter.is_ascii_digit(),
            _ => letter.is_ascii_alphanumeric() || letter == '_',
        };
        // Special parameters of a shell are unset here.
        if "@*#?-$!".contains(first) {
            name.extend(self.rest.next());
            return name;
        }
        while let Some(letter) = self.rest.next_if(|letter| belongs(*letter)) {
            name.push(letter);
        }
        name
    }

    fn braced(&mut self, quotes: QuoteMode) -> Result<String, LexError> {
        let name = self.name();
        if name.is_empty() {
            return Err("`${` is not followed by a name".to_owned());
        }
        let value = (self.lookup)(&name);
        let Some(next) = self.rest.next() else {
            return Err(format!("`}}` is missing after `${{{name}`"));
        };
        // With a colon, an empty value counts as unset.
        let (operator, set) = match next {
            ':' => {
                let operator = self.rest.next().unwrap_or(' ');
                if !"-+?".contains(operator) {
                    return Err(format!("unknown modifier: `${{{name}:{operator}`"));
                }
                (operator, value.clone().filter(|value| !value.is_empty()))
            }
            other => (other, value.clone()),
        };
        match operator {
            '}' => Ok(value.unwrap_or_default()),
            '-' => {
                let other = self.until_brace(quotes)?;
                Ok(set.unwrap_or(other))
            }
            '+' => {
                let other = self.until_brace(quotes)?;
                Ok(set.map(|_| other).unwrap_or_default())
            }
            '?' => {
                let message = self.until_brace(quotes)?;
                set.ok_or_else(|| match message.as_str() {
                    "" => format!("`{name}` is not set"),
                    message => format!("`{name}`: {message}"),
                })
            }
            '#' | '%' => {
                let longest = self.rest.next_if_eq(&operator).is_some();
                let pattern = self.until_brace(quotes)?;
                trim_match(&value.unwrap_or_default(), &pattern, operator == '#', longest)
            }
            '/' => {
                let all = self.rest.next_if_eq(&'/').is_some();
                let text = self.until_brace(quotes)?;
                let (pattern, new) = text.split_once('/').unwrap_or((&text, ""));
                replace_match(&value.unwrap_or_default(), pattern, new, all)
            }
            other => Err(format!("unknown modifier: `${{{name}{other}`")),
        }
    }

    fn until_brace(&mut self, quotes: QuoteMode) -> Result<String, LexError> {
        Ok(self.until(Some('}'), quotes)?.into_iter().map(|(letter, _)| letter).collect())
    }
}

/// Removes the match of a pattern from the beginning or the end.
fn trim_match(value: &str, pattern: &str, front: bool, longest: bool) -> Result<String, LexError> {
    let glob = pattern_of(pattern)?;
    let letters: Vec<char> = value.chars().collect();
    let cut = |at: usize| {
        if front { letters[at..].iter().collect() } else { letters[..at].iter().collect() }
    };
    let ends: Vec<usize> = match front {
        true => glob.prefixes(&letters),
        false => (0..=letters.len())
            .filter(|at| glob.prefixes(&letters[*at..]).last() == Some(&(letters.len() - at)))
            .collect(),
    };
    let chosen = if longest == front { ends.last() } else { ends.first() };
    Ok(chosen.map_or_else(|| value.to_owned(), |at| cut(*at)))
}

/// Replaces the first or every longest match of a pattern.
fn replace_match(value: &str, pattern: &str, new: &str, all: bool) -> Result<String, LexError> {
    let glob = pattern_of(pattern)?;
    let letters: Vec<char> = value.chars().collect();
    let (mut out, mut at, mut done) = (String::new(), 0, false);
    while at < letters.len() {
        let length = glob.prefixes(&letters[at..]).last().copied().unwrap_or(0);
        if length == 0 || (done && !all) {
            out.push(letters[at]);
            at += 1;
        } else {
            out.push_str(new);
            at += length;
            done = true;
        }
    }
    Ok(out)
}

fn pattern_of(text: &str) -> Result<Glob, LexError> {
    Glob::text(text).map_err(|why| format!("not a pattern: {why}: `{text}`"))
}

/// Splits at spaces outside of quotes. Quotes and escapes are kept.
pub(crate) fn split(text: &str, escape: char) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut quote) = (None, None);
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        if letter.is_whitespace() && quote.is_none() {
            words.extend(start.take().map(|start: usize| &text[start..at]));
            continue;
        }
        start.get_or_insert(at);
        match (letter, quote) {
            ('"' | '\'', None) => quote = Some(letter),
            (_, Some(open)) if letter == open => quote = None,
            // No escapes in single quotes.
            (_, open) if letter == escape && open != Some('\'') => {
                letters.next();
            }
            _ => {}
        }
    }
    words.extend(start.map(|start| &text[start..]));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "foo" => Some("bar".to_owned()),
            "empty" => Some(String::new()),
            "two" => Some("a b".to_owned()),
            "path" => Some("/usr/local/lib.tar.gz".to_owned()),
            _ => None,
        }
    }

    fn word(text: &str) -> Result<String, LexError> {
        Lexer::new('\\', &lookup).word(text)
    }

    #[test]
    fn variables_are_replaced_as_the_reference_says() {
        let cases = [
            ("$foo", "bar"),
            ("a${foo}b", "abarb"),
            ("$foo/x", "bar/x"),
            ("$unset", ""),
            ("\\$foo", "$foo"),
            ("\\${foo}", "${foo}"),
            ("'$foo'", "$foo"),
            ("\"$foo\"", "bar"),
            ("\"\\$foo\"", "$foo"),
            ("\"a\\b\"", "a\\b"),
            ("a\\ b", "a b"),
            ("${unset:-x}", "x"),
            ("${empty:-x}", "x"),
            ("${empty-x}", ""),
            ("${foo:-x}", "bar"),
            ("${foo:+x}", "x"),
            ("${unset:+x}", ""),
            ("${empty+x}", "x"),
            ("${unset:-$foo}", "bar"),
            ("${unset:-${foo:+y}}", "y"),
            ("${unset:-\"a }\"}", "a }"),
            ("$", "$"),
            ("a$ b", "a$ b"),
            ("$$", ""),
            ("${path#*/}", "usr/local/lib.tar.gz"),
            ("${path##*/}", "lib.tar.gz"),
            ("${path%.*}", "/usr/local/lib.tar"),
            ("${path%%.*}", "/usr/local/lib"),
            ("${path/l/L}", "/usr/Local/lib.tar.gz"),
            ("${path//l/L}", "/usr/LocaL/Lib.tar.gz"),
        ];
        for (text, expected) in cases {
            assert_eq!(word(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_closed_or_known_is_an_error() {
        for text in ["'a", "\"a", "${foo", "${foo:-x", "${}", "${foo:=x}", "${unset:?}"] {
            assert!(word(text).is_err(), "{text}");
        }
        assert_eq!(word("${unset:?say it}").unwrap_err(), "`unset`: say it");
        let deep = format!("{}{}", "${a:-".repeat(10_000), "}".repeat(10_000));
        assert!(word(&deep).is_err());
    }

    #[test]
    fn a_variable_without_quotes_may_hold_many_words() {
        let lexer = Lexer::new('\\', &lookup);
        assert_eq!(lexer.words("80 $two").unwrap(), ["80", "a", "b"]);
        assert_eq!(lexer.words("\"$two\" c\\ d").unwrap(), ["a b", "c d"]);
    }

    #[test]
    fn documents_keep_quotes_and_backslashes() {
        let lexer = Lexer::new('\\', &lookup);
        assert_eq!(lexer.document("'$foo' \\$foo \"a\\n\"").unwrap(), "'bar' $foo \"a\\n\"");
    }

    #[test]
    fn another_escape_leaves_backslashes_alone() {
        let lexer = Lexer::new('`', &lookup);
        assert_eq!(lexer.word(r"c:\$foo`$foo").unwrap(), r"c:\bar$foo");
    }

    #[test]
    fn words_are_split_outside_of_quotes() {
        assert_eq!(
            split(r#"a="b c" d='e f' g\ h  i"#, '\\'),
            ["a=\"b c\"", "d='e f'", "g\\ h", "i"]
        );
        assert_eq!(split("", '\\'), [""; 0]);
    }
}
