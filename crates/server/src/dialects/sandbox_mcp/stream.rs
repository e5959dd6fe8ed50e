//! One output stream of the shell: splits it at the mark that ends a command.

use super::format::MOST_BYTES;

/// Bytes held back because they may start a mark; more than a mark with its status has.
const HELD: usize = 64;

/// An output stream of one command.
#[derive(Debug)]
pub(super) struct MarkedStream {
    mark: Vec<u8>,
    prompt: Vec<u8>,
    /// The prompt after the previous command, which is dropped.
    stale: Vec<u8>,
    /// The first bytes of the output.
    kept: Vec<u8>,
    total: u64,
    /// Bytes that may be the start of a mark.
    held: Vec<u8>,
    over: bool,
    prompted: bool,
    status: i32,
}

impl MarkedStream {
    pub(super) fn new(mark: &str, prompt: &str, stale: &str) -> Self {
        Self {
            stale: stale.as_bytes().to_vec(),
            mark: mark.as_bytes().to_vec(),
            prompt: prompt.as_bytes().to_vec(),
            kept: Vec::new(),
            total: 0,
            held: Vec::new(),
            over: false,
            prompted: false,
            status: 0,
        }
    }

    /// Continues with another mark and prompt.
    pub(super) fn restart(&mut self, mark: &str, prompt: &str) {
        self.mark = mark.as_bytes().to_vec();
        self.stale = std::mem::take(&mut self.prompt);
        self.prompt = prompt.as_bytes().to_vec();
        (self.over, self.prompted) = (false, false);
    }

    /// Adds bytes from the shell.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        if let Some(at) = position(&self.held, &self.stale) {
            self.held.drain(at..at + self.stale.len());
        }
        loop {
            let mark = (!self.over).then(|| position(&self.held, &self.mark)).flatten();
            let prompt = position(&self.held, &self.prompt);
            match (mark, prompt) {
                (Some(mark), prompt) if prompt.is_none_or(|prompt| mark < prompt) => {
                    let after = mark + self.mark.len();
                    let Some(status) = self.status_at(after) else { return };
                    self.accept(mark);
                    self.held.drain(..status);
                    self.over = true;
                }
                (_, Some(prompt)) => {
                    self.accept(prompt);
                    self.held.drain(..self.prompt.len());
                    self.prompted = true;
                }
                _ => break,
            }
        }
        let settled = self.held.len().saturating_sub(HELD);
        self.accept(settled);
    }

    /// The length of a complete mark with its status; stores the status.
    fn status_at(&mut self, after: usize) -> Option<usize> {
        let rest = &self.held[after..];
        let end = rest.iter().position(|byte| *byte == b'.')?;
        let digits = std::str::from_utf8(&rest[..end]).ok();
        self.status = digits.and_then(|digits| digits.parse().ok()).unwrap_or(-1);
        Some(self.mark.len() + end + 1)
    }

    /// Counts held bytes as output; those after the end are dropped.
    fn accept(&mut self, length: usize) {
        let accepted = self.held.drain(..length);
        if self.over {
            return;
        }
        self.total += accepted.len() as u64;
        let room = MOST_BYTES.saturating_sub(self.kept.len());
        self.kept.extend(accepted.take(room));
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn was_prompted(&self) -> bool {
        self.prompted
    }

    pub(super) fn status(&self) -> i32 {
        self.status
    }

    /// The first bytes of the output.
    pub(super) fn kept(&self) -> &[u8] {
        &self.kept
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Removes a suffix of the output.
    pub(super) fn drop_end(&mut self, end: &[u8]) {
        if self.kept.ends_with(end) {
            self.kept.truncate(self.kept.len() - end.len());
            self.total -= end.len() as u64;
        }
    }

    /// Ends the stream: held bytes are output.
    pub(super) fn finish(&mut self) {
        self.accept(self.held.len());
    }
}

fn position(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream_of(pieces: &[&[u8]]) -> MarkedStream {
        let mut stream = MarkedStream::new("MARKMARKMARK", "PROMPTPROMPT", "STALESTALE");
        pieces.iter().for_each(|piece| stream.push(piece));
        stream
    }

    #[test]
    fn the_mark_ends_a_command_in_any_chunks() {
        let bytes = b"\xff\x00 no MARK here\nMARKMARKMARK12.PROMPTPROMPTlater";
        for piece in [1, 5, bytes.len()] {
            let stream = stream_of(&bytes.chunks(piece).collect::<Vec<_>>());
            assert_eq!(stream.kept(), b"\xff\x00 no MARK here\n", "{piece}");
            assert_eq!(
                (stream.is_over(), stream.was_prompted(), stream.status()),
                (true, true, 12)
            );
        }
    }

    #[test]
    fn a_prompt_without_a_mark_is_noticed() {
        let mut stream = stream_of(&[b"syntax error\nPROMPTPROMPT"]);
        assert!(stream.was_prompted() && !stream.is_over());
        stream.restart("SECONDSECOND", "OTHEROTHER");
        stream.push(b"SECONDSECOND2.OTHEROTHER");
        assert_eq!((stream.kept(), stream.status()), (&b"syntax error\n"[..], 2));
        assert!(stream.is_over() && stream.was_prompted());
    }

    #[test]
    fn the_prompt_of_the_previous_command_is_dropped() {
        let stream = stream_of(&[b"STALEST", b"ALEnew\nMARKMARKMARK0."]);
        assert_eq!((stream.kept(), stream.was_prompted()), (&b"new\n"[..], false));
    }

    #[test]
    fn output_beyond_the_limit_is_counted() {
        let mut stream = stream_of(&[&[b'x'; MOST_BYTES + 7]]);
        stream.push(b"MARKMARKMARK0.");
        assert_eq!((stream.kept().len(), stream.total()), (MOST_BYTES, MOST_BYTES as u64 + 7));
    }

    #[test]
    fn held_bytes_are_output_when_the_shell_ends() {
        let mut stream = stream_of(&[b"bye\nexit\n"]);
        stream.finish();
        stream.drop_end(b"exit\n");
        assert_eq!((stream.kept(), stream.total()), (&b"bye\n"[..], 4));
    }
}
