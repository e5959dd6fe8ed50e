//! What was said, line by line, in the order in which the lines began.

use serde::Serialize;

/// What is kept of the output of one call; more is counted and thrown away.
const LIMIT: usize = 1 << 20;
/// What a line costs beside its bytes, so that a million empty ones are as much as they are.
const LINE: usize = 32;

/// Which stream something was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// What is asked for.
    Stdout,
    /// What is said about it.
    Stderr,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Where it was written to.
    pub stream: Stream,
    /// What it says, without its end.
    pub text: String,
}

/// Lines as they come.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lines: Vec<(Stream, Vec<u8>)>,
    /// The line of each stream that has no end yet.
    open: [Option<usize>; 2],
    cost: usize,
    dropped: u64,
}

impl Lines {
    /// Takes what was written to a stream.
    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) {
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

    fn begin(&mut self, stream: Stream, room: usize) -> Option<usize> {
        if room < LINE {
            return None;
        }
        self.cost += LINE;
        self.lines.push((stream, Vec::new()));
        Some(self.lines.len() - 1)
    }

    /// Everything, and at its end that something is missing.
    pub(crate) fn finish(self) -> Vec<Line> {
        let text = |bytes: Vec<u8>| match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        };
        let line = |(stream, bytes)| {
            let mut text = text(bytes);
            if text.ends_with('\r') {
                text.pop();
            }
            Line { stream, text }
        };
        let mut lines: Vec<Line> = self.lines.into_iter().map(line).collect();
        if self.dropped > 0 {
            let text = format!("[{} more bytes of output were left out]", self.dropped);
            lines.push(Line { stream: Stream::Stderr, text });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(stream: Stream, text: &str) -> Line {
        Line { stream, text: text.to_owned() }
    }

    #[test]
    fn lines_stand_where_they_began() {
        let mut lines = Lines::default();
        for (stream, text) in [
            (Stream::Stdout, "a"),
            (Stream::Stderr, "oh\nno"),
            (Stream::Stdout, "b\r\n\nc"),
            (Stream::Stderr, "\n"),
        ] {
            lines.push(stream, text.as_bytes());
        }
        let out = |text| line(Stream::Stdout, text);
        let err = |text| line(Stream::Stderr, text);
        assert_eq!(lines.finish(), [out("ab"), err("oh"), err("no"), out(""), out("c")]);
    }

    #[test]
    fn too_much_is_counted_and_left_out() {
        let mut lines = Lines::default();
        lines.push(Stream::Stdout, &vec![b'x'; 2 * LIMIT]);
        lines.push(Stream::Stdout, b"y\nz\n");
        lines.push(Stream::Stderr, &[b'\n'; 10]);
        let kept = lines.finish();
        assert_eq!(kept[0].text.len(), LIMIT - LINE);
        assert_eq!(kept.len(), 2);
        // The end of the first line is not missing.
        let missing = LIMIT + LINE + 1 + 2 + 10;
        assert_eq!(kept[1].text, format!("[{missing} more bytes of output were left out]"));

        let mut lines = Lines::default();
        lines.push(Stream::Stderr, &vec![b'\n'; LIMIT]);
        assert_eq!(lines.finish().len(), LIMIT / LINE + 1);
    }

    #[test]
    fn what_is_no_text_is_shown_as_far_as_it_is() {
        let mut lines = Lines::default();
        lines.push(Stream::Stdout, b"a\xffb\n");
        assert_eq!(lines.finish(), [line(Stream::Stdout, "a\u{fffd}b")]);
    }
}
