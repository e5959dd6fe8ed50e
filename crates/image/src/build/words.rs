//! Words of a Containerfile: quotes, escapes and variables, as its reference says.
//!
//! The rules are a shell's with less: `$x`, `${x}` and its forms with a default, no commands, no
//! arithmetic. What is not set is empty.

use super::glob::Glob;
use std::iter::Peekable;
use std::str::Chars;

/// Why a word cannot be understood, without its place.
pub(crate) type Wrong = String;

/// Turns raw words into what they mean.
pub(crate) struct Lexer<'a> {
    escape: char,
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

/// A letter, and whether a space of this sort may end a word.
type Letter = (char, bool);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quotes {
    Mean,
    /// Inside a here-document quotes are letters, and an escape is one before `$` and itself only.
    AreLetters,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(escape: char, lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { escape, lookup }
    }

    /// One word; spaces are part of it.
    pub(crate) fn word(&self, text: &str) -> Result<String, Wrong> {
        Ok(self.letters(text, Quotes::Mean)?.into_iter().map(|(letter, _)| letter).collect())
    }

    /// Words between spaces, also of those that a variable without quotes holds.
    pub(crate) fn words(&self, text: &str) -> Result<Vec<String>, Wrong> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        for (letter, splits) in self.letters(text, Quotes::Mean)? {
            if splits && letter.is_whitespace() {
                words.extend(word.take());
            } else {
                word.get_or_insert_default().push(letter);
            }
        }
        words.extend(word);
        Ok(words)
    }

    /// A here-document whose delimiter was not quoted.
    pub(crate) fn document(&self, text: &str) -> Result<String, Wrong> {
        let letters = self.letters(text, Quotes::AreLetters)?;
        Ok(letters.into_iter().map(|(letter, _)| letter).collect())
    }

    fn letters(&self, text: &str, quotes: Quotes) -> Result<Vec<Letter>, Wrong> {
        let mut reader = Reader {
            rest: text.chars().peekable(),
            escape: self.escape,
            lookup: self.lookup,
            depth: 0,
        };
        reader.until(None, quotes)
    }
}

/// Defaults within defaults deeper than this are nobody's.
const DEPTH_LIMIT: usize = 32;

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    escape: char,
    lookup: &'a dyn Fn(&str) -> Option<String>,
    depth: usize,
}

impl Reader<'_> {
    /// Reads to the end or past the stop.
    fn until(&mut self, stop: Option<char>, quotes: Quotes) -> Result<Vec<Letter>, Wrong> {
        let mut out = Vec::new();
        while let Some(letter) = self.rest.next() {
            match letter {
                _ if Some(letter) == stop => return Ok(out),
                '\'' if quotes == Quotes::Mean => self.single_quoted(&mut out)?,
                '"' if quotes == Quotes::Mean => self.double_quoted(&mut out)?,
                '$' => {
                    let value = self.variable(quotes)?;
                    out.extend(value.chars().map(|letter| (letter, true)));
                }
                _ if letter == self.escape => match (self.rest.peek(), quotes) {
                    (None, _) => out.push((letter, false)),
                    (Some(_), Quotes::Mean) => out.extend(self.rest.next().map(|l| (l, false))),
                    (Some(_), Quotes::AreLetters) => {
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

    fn single_quoted(&mut self, out: &mut Vec<Letter>) -> Result<(), Wrong> {
        for letter in self.rest.by_ref() {
            if letter == '\'' {
                return Ok(());
            }
            out.push((letter, false));
        }
        Err("a quote is not closed".to_owned())
    }

    fn double_quoted(&mut self, out: &mut Vec<Letter>) -> Result<(), Wrong> {
        while let Some(letter) = self.rest.next() {
            match letter {
                '"' => return Ok(()),
                '$' => {
                    let value = self.variable(Quotes::Mean)?;
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

    /// The value of a variable whose `$` has been read.
    fn variable(&mut self, quotes: Quotes) -> Result<String, Wrong> {
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
        // A shell's own parameters are variables that nobody has set.
        if "@*#?-$!".contains(first) {
            name.extend(self.rest.next());
            return name;
        }
        while let Some(letter) = self.rest.next_if(|letter| belongs(*letter)) {
            name.push(letter);
        }
        name
    }

    fn braced(&mut self, quotes: Quotes) -> Result<String, Wrong> {
        let name = self.name();
        if name.is_empty() {
            return Err("`${` is not followed by a name".to_owned());
        }
        let value = (self.lookup)(&name);
        let Some(next) = self.rest.next() else {
            return Err(format!("`}}` is missing after `${{{name}`"));
        };
        // With a colon an empty value counts as none.
        let (operator, set) = match next {
            ':' => {
                let operator = self.rest.next().unwrap_or(' ');
                if !"-+?".contains(operator) {
                    return Err(format!("not known: `${{{name}:{operator}`"));
                }
                (operator, value.clone().filter(|value| !value.is_empty()))
            }
            other => (other, value.clone()),
        };
        match operator {
            '}' => Ok(value.unwrap_or_default()),
            '-' => {
                let other = self.inner(quotes)?;
                Ok(set.unwrap_or(other))
            }
            '+' => {
                let other = self.inner(quotes)?;
                Ok(set.map(|_| other).unwrap_or_default())
            }
            '?' => {
                let message = self.inner(quotes)?;
                set.ok_or_else(|| match message.as_str() {
                    "" => format!("`{name}` is not set"),
                    message => format!("`{name}`: {message}"),
                })
            }
            '#' | '%' => {
                let longest = self.rest.next_if_eq(&operator).is_some();
                let pattern = self.inner(quotes)?;
                without(&value.unwrap_or_default(), &pattern, operator == '#', longest)
            }
            '/' => {
                let all = self.rest.next_if_eq(&'/').is_some();
                let text = self.inner(quotes)?;
                let (pattern, new) = text.split_once('/').unwrap_or((&text, ""));
                replaced(&value.unwrap_or_default(), pattern, new, all)
            }
            other => Err(format!("not known: `${{{name}{other}`")),
        }
    }

    fn inner(&mut self, quotes: Quotes) -> Result<String, Wrong> {
        Ok(self.until(Some('}'), quotes)?.into_iter().map(|(letter, _)| letter).collect())
    }
}

/// Removes what a pattern matches from the beginning or the end.
fn without(value: &str, pattern: &str, front: bool, longest: bool) -> Result<String, Wrong> {
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
fn replaced(value: &str, pattern: &str, new: &str, all: bool) -> Result<String, Wrong> {
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

fn pattern_of(text: &str) -> Result<Glob, Wrong> {
    Glob::text(text).map_err(|why| format!("not a pattern: {why}: `{text}`"))
}

/// Splits at spaces outside of quotes; quotes and escapes stay.
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
            // Nothing escapes in single quotes.
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

    fn word(text: &str) -> Result<String, Wrong> {
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
