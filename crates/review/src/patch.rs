//! The difference between two texts, line by line, fit to be read on a terminal.

use crate::change::Patch;
use imara_diff::{
    Algorithm, Diff, InternedInput, Interner, Token, UnifiedDiffConfig, UnifiedDiffPrinter,
};
use std::fmt::{self, Write};

/// The difference of two texts in unified form.
pub fn between(before: &[u8], after: &[u8]) -> Patch {
    let mut input: InternedInput<&[u8]> = InternedInput::default();
    input.update_before(lines(before));
    input.update_after(lines(after));
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_no_heuristic(&input);
    let printer = Lines(&input.interner);
    let text = diff.unified_diff(&printer, UnifiedDiffConfig::default(), &input).to_string();
    Patch { added: diff.count_additions(), removed: diff.count_removals(), text }
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n')
}

struct Lines<'a>(&'a Interner<&'a [u8]>);

impl Lines<'_> {
    /// One line with its sign. What would move the cursor or turn the text is written as its
    /// number; tabs stay.
    fn line(&self, mut f: impl Write, sign: char, token: Token) -> fmt::Result {
        let line = self.0[token];
        let (line, ended) = match line.strip_suffix(b"\n") {
            Some(line) => (line, true),
            None => (line, false),
        };
        f.write_char(sign)?;
        for chunk in line.utf8_chunks() {
            for letter in chunk.valid().chars() {
                if letter != '\t' && msb_spec::disturbs(letter) {
                    write!(f, "{}", letter.escape_default())?;
                } else {
                    f.write_char(letter)?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        f.write_str(if ended { "\n" } else { "\n\\ No newline at end of file\n" })
    }
}

impl UnifiedDiffPrinter for Lines<'_> {
    fn display_header(
        &self,
        mut f: impl Write,
        start_before: u32,
        start_after: u32,
        len_before: u32,
        len_after: u32,
    ) -> fmt::Result {
        // As everybody else counts: of nothing, the line before it.
        let first = |start: u32, length: u32| if length == 0 { start } else { start + 1 };
        let (before, after) = (first(start_before, len_before), first(start_after, len_after));
        writeln!(f, "@@ -{before},{len_before} +{after},{len_after} @@")
    }

    fn display_context_token(&self, f: impl Write, token: Token) -> fmt::Result {
        self.line(f, ' ', token)
    }

    fn display_hunk(&self, mut f: impl Write, before: &[Token], after: &[Token]) -> fmt::Result {
        before.iter().try_for_each(|token| self.line(&mut f, '-', *token))?;
        after.iter().try_for_each(|token| self.line(&mut f, '+', *token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_reads_as_everywhere() {
        let patch = between(b"a\nb\nc\n", b"a\nB\tx\nc");
        let text = "@@ -1,3 +1,3 @@\n a\n-b\n-c\n+B\tx\n+c\n\\ No newline at end of file\n";
        assert_eq!(patch, Patch { added: 2, removed: 2, text: text.to_owned() });
        assert_eq!(between(b"", b"x\n").text, "@@ -0,0 +1,1 @@\n+x\n");
    }

    /// Attack 28.
    #[test]
    fn nothing_in_a_difference_disturbs_a_terminal() {
        let text = between(b"", b"\x1b[2J\x9b\xc2\x9b\r\xe2\x80\xae\x00z\n").text;
        assert!(text.chars().all(|c| c == '\n' || !msb_spec::disturbs(c)), "{text:?}");
    }
}
