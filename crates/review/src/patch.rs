//! Line diffs that are safe to print on a terminal.

use imara_diff::{Algorithm, Diff, Hunk, InternedInput, Token};
use msb_api::Patch;
use std::fmt::{self, Write};

/// A unified diff of two texts.
pub fn between(before: &[u8], after: &[u8]) -> Patch {
    unified(before, after).0
}

/// A unified diff of two texts, and whether its lines are those of the texts: none was escaped.
pub(crate) fn unified(before: &[u8], after: &[u8]) -> (Patch, bool) {
    let mut input: InternedInput<&[u8]> = InternedInput::default();
    input.update_before(lines(before));
    input.update_after(lines(after));
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_no_heuristic(&input);
    let hunks: Vec<Hunk> = diff.hunks().collect();
    let mut text = String::new();
    for near in hunks.chunk_by(|one, next| next.before.start - one.before.end <= 2 * CONTEXT) {
        // Writing to a String never fails.
        let _ = piece(&mut text, &input, near);
    }
    let is_exact = hunks.iter().all(|hunk| {
        let part = |lines: &[Token], range: std::ops::Range<u32>| {
            let context = range.start.saturating_sub(CONTEXT) as usize;
            let end = (range.end.saturating_add(CONTEXT) as usize).min(lines.len());
            lines[context..end].iter().all(|token| is_plain(input.interner[*token]))
        };
        part(&input.before, hunk.before.clone()) && part(&input.after, hunk.after.clone())
    });
    (Patch { added: diff.count_additions(), removed: diff.count_removals(), text }, is_exact)
}

/// Context lines around a change.
const CONTEXT: u32 = 3;

/// Writes one hunk: changes that share context lines.
fn piece(out: &mut String, input: &InternedInput<&[u8]>, hunks: &[Hunk]) -> fmt::Result {
    let (Some(first), Some(last)) = (hunks.first(), hunks.last()) else { return Ok(()) };
    let lead = first.before.start.min(first.after.start).min(CONTEXT);
    let total = u32::try_from(input.before.len()).unwrap_or(u32::MAX);
    let tail = (total - last.before.end).min(CONTEXT);
    let (before, after) = (first.before.start - lead, first.after.start - lead);
    let (before_end, after_end) = (last.before.end + tail, last.after.end + tail);
    // An empty range names the line before it, as in other tools.
    let range = |start: u32, end: u32| match end - start {
        0 => format!("{start},0"),
        length => format!("{},{length}", start + 1),
    };
    writeln!(out, "@@ -{} +{} @@", range(before, before_end), range(after, after_end))?;
    let mut at = before;
    for hunk in hunks {
        show(out, ' ', input, &input.before[at as usize..hunk.before.start as usize])?;
        show(out, '-', input, &input.before[hunk.before.start as usize..hunk.before.end as usize])?;
        show(out, '+', input, &input.after[hunk.after.start as usize..hunk.after.end as usize])?;
        at = hunk.before.end;
    }
    show(out, ' ', input, &input.before[at as usize..before_end as usize])
}

fn show(
    out: &mut String,
    sign: char,
    input: &InternedInput<&[u8]>,
    tokens: &[Token],
) -> fmt::Result {
    tokens.iter().try_for_each(|token| line(out, sign, input.interner[*token]))
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n')
}

/// Whether a line is written as it is. The carriage return of a line end is, too.
fn is_plain(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line);
    text.is_ok_and(|text| !text.contains(|c| c != '\t' && msb_spec::disturbs(c)))
}

/// Writes one line with its sign. Control and bidi characters are escaped, except tabs and the
/// carriage return of a line end.
fn line(out: &mut String, sign: char, line: &[u8]) -> fmt::Result {
    let (line, ended) = match line.strip_suffix(b"\n") {
        Some(line) => (line, true),
        None => (line, false),
    };
    let (line, returns) = match line.strip_suffix(b"\r") {
        Some(line) => (line, true),
        None => (line, false),
    };
    out.push(sign);
    for chunk in line.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter != '\t' && msb_spec::disturbs(letter) {
                write!(out, "{}", letter.escape_default())?;
            } else {
                out.push(letter);
            }
        }
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}")?;
        }
    }
    if returns {
        out.push('\r');
    }
    out.push_str(if ended { "\n" } else { "\n\\ No newline at end of file\n" });
    Ok(())
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

    #[test]
    fn every_piece_begins_where_it_says() {
        let before: Vec<String> = (1..=30).map(|number| format!("{number}\n")).collect();
        for changed in [vec![1], vec![5], vec![7], vec![30], vec![4, 11], vec![4, 12], vec![2, 20]]
        {
            let mut after = before.clone();
            for line in &changed {
                after[line - 1] = "x\n".to_owned();
            }
            let text = between(before.concat().as_bytes(), after.concat().as_bytes()).text;
            let mut pieces = 0;
            let mut lines = text.lines().peekable();
            while let Some(header) = lines.next() {
                let Some(rest) = header.strip_prefix("@@ -") else { continue };
                let first = rest.split(',').next().unwrap();
                assert_eq!(&lines.peek().unwrap()[1..], first, "{changed:?}:\n{text}");
                pieces += 1;
            }
            let together = changed.len() < 2 || changed[1] - changed[0] <= 7;
            assert_eq!(pieces, if together { 1 } else { 2 }, "{changed:?}:\n{text}");
        }
    }

    /// Escape sequences of a file never reach the terminal (attack 28).
    #[test]
    fn nothing_in_a_difference_disturbs_a_terminal() {
        let text = between(b"", b"\x1b[2J\x9b\xc2\x9b\r\xe2\x80\xae\x00z\n").text;
        assert!(text.chars().all(|c| c == '\n' || !msb_spec::disturbs(c)), "{text:?}");
    }

    #[test]
    fn a_difference_is_exact_if_no_line_of_it_was_escaped() {
        assert!(unified(b"a\r\n\tb", b"a\r\nb\r").1);
        assert_eq!(between(b"", b"a\r\n").text, "@@ -0,0 +1,1 @@\n+a\r\n");
        for other in [&b"\x1b[2J\n"[..], b"a\rb\n", b"\xff\n", b"a\r\r\n"] {
            assert!(!unified(b"x\n", other).1, "{other:?}");
        }
        // One that is only near the change, and one that is far from it.
        assert!(!unified(b"\x07\nb\n", b"\x07\nc\n").1);
        assert!(unified(b"\x07\n1\n2\n3\n4\n5\n", b"\x07\n1\n2\n3\n4\n6\n").1);
    }
}
