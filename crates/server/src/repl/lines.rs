//! Splits output into lines, in the order in which the lines began.

use serde::Serialize;

/// Bytes of output kept for one call; the rest is counted and dropped.
const LIMIT: usize = 1 << 20;
/// Overhead of a line in bytes, so that a million empty lines count as well.
const LINE: usize = 32;

/// The output stream of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// The standard output stream.
    Stdout,
    /// The standard error output.
    Stderr,
}

/// One line of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutputLine {
    /// The stream that it was written to.
    pub stream: OutputStream,
    /// The text, without its line feed.
    pub text: String,
}

/// Collects output as lines.
#[derive(Debug, Default)]
pub(crate) struct OutputLines {
    lines: Vec<(OutputStream, Vec<u8>)>,
    /// The unfinished line of each stream.
    open: [Option<usize>; 2],
    cost: usize,
    dropped: u64,
}

impl OutputLines {
    /// Adds output of a stream.
    pub(crate) fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            let open = self.open[stream as usize].take();
            let room = LIMIT.saturating_sub(self.cost);
            let Some(at) = open.or_else(|| self.begin(stream, room)) else {
                self.dropped += piece.len() as u64;
                continue;
            };
            let kept = text.len().min(LIMIT.saturating_sub(self.cost));
            self.dropped += (text.len() - kept) as u64;
            self.cost += kept;
            self.lines[at].1.extend_from_slice(&text[..kept]);
            self.open[stream as usize] = (!ends).then_some(at);
        }
    }

    fn begin(&mut self, stream: OutputStream, room: usize) -> Option<usize> {
        if room < LINE {
            return None;
        }
        self.cost += LINE;
        self.lines.push((stream, Vec::new()));
        Some(self.lines.len() - 1)
    }

    /// All lines, with a last one that says how much is missing.
    pub(crate) fn finish(self) -> Vec<OutputLine> {
        let text = |bytes: Vec<u8>| match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        };
        let line = |(stream, bytes)| {
            let mut text = text(bytes);
            if text.ends_with('\r') {
                text.pop();
            }
            OutputLine { stream, text }
        };
        let mut lines: Vec<OutputLine> = self.lines.into_iter().map(line).collect();
        if self.dropped > 0 {
            let text = format!("[{} more bytes of output were left out]", self.dropped);
            lines.push(OutputLine { stream: OutputStream::Stderr, text });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(stream: OutputStream, text: &str) -> OutputLine {
        OutputLine { stream, text: text.to_owned() }
    }

    #[test]
    fn lines_are_ordered_by_their_start() {
        let mut lines = OutputLines::default();
        for (stream, text) in [
            (OutputStream::Stdout, "a"),
            (OutputStream::Stderr, "oh\nno"),
            (OutputStream::Stdout, "b\r\n\nc"),
            (OutputStream::Stderr, "\n"),
        ] {
            lines.push(stream, text.as_bytes());
        }
        let out = |text| line(OutputStream::Stdout, text);
        let err = |text| line(OutputStream::Stderr, text);
        assert_eq!(lines.finish(), [out("ab"), err("oh"), err("no"), out(""), out("c")]);
    }

    #[test]
    fn output_beyond_the_limit_is_counted_and_dropped() {
        let mut lines = OutputLines::default();
        lines.push(OutputStream::Stdout, &vec![b'x'; 2 * LIMIT]);
        lines.push(OutputStream::Stdout, b"y\nz\n");
        lines.push(OutputStream::Stderr, &[b'\n'; 10]);
        let kept = lines.finish();
        assert_eq!(kept[0].text.len(), LIMIT - LINE);
        assert_eq!(kept.len(), 2);
        // The end of the first line is not missing.
        let missing = LIMIT + LINE + 1 + 2 + 10;
        assert_eq!(kept[1].text, format!("[{missing} more bytes of output were left out]"));

        let mut lines = OutputLines::default();
        lines.push(OutputStream::Stderr, &vec![b'\n'; LIMIT]);
        assert_eq!(lines.finish().len(), LIMIT / LINE + 1);
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        let mut lines = OutputLines::default();
        lines.push(OutputStream::Stdout, b"a\xffb\n");
        assert_eq!(lines.finish(), [line(OutputStream::Stdout, "a\u{fffd}b")]);
    }
}
