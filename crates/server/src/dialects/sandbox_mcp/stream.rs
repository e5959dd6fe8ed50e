//! One stream of the shell: what a command says, up to the mark that ends it.

use super::text::MOST_BYTES;

/// Longer than a mark with a status behind it: what may be the beginning of one is held back.
const HELD: usize = 64;

/// Output on its way.
#[derive(Debug)]
pub(super) struct Stream {
    mark: Vec<u8>,
    prompt: Vec<u8>,
    /// The prompt after the command before, which is nobody's.
    stale: Vec<u8>,
    /// What belongs to the command, as far as it is kept.
    kept: Vec<u8>,
    total: u64,
    /// What may be the beginning of a mark.
    held: Vec<u8>,
    over: bool,
    prompted: bool,
    status: i32,
}

impl Stream {
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

    /// Goes on with another mark.
    pub(super) fn again(&mut self, mark: &str, prompt: &str) {
        self.mark = mark.as_bytes().to_vec();
        self.stale = std::mem::take(&mut self.prompt);
        self.prompt = prompt.as_bytes().to_vec();
        (self.over, self.prompted) = (false, false);
    }

    /// Takes what was said.
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
                    self.keep(mark);
                    self.held.drain(..status);
                    self.over = true;
                }
                (_, Some(prompt)) => {
                    self.keep(prompt);
                    self.held.drain(..self.prompt.len());
                    self.prompted = true;
                }
                _ => break,
            }
        }
        let settled = self.held.len().saturating_sub(HELD);
        self.keep(settled);
    }

    /// How long the mark and the status behind it are, once they are whole; the status is read on the way.
    fn status_at(&mut self, after: usize) -> Option<usize> {
        let rest = &self.held[after..];
        let end = rest.iter().position(|byte| *byte == b'.')?;
        let digits = std::str::from_utf8(&rest[..end]).ok();
        self.status = digits.and_then(|digits| digits.parse().ok()).unwrap_or(-1);
        Some(self.mark.len() + end + 1)
    }

    /// Takes this much of what was held as said by the command; after its end it is nobody's.
    fn keep(&mut self, length: usize) {
        let said = self.held.drain(..length);
        if self.over {
            return;
        }
        self.total += said.len() as u64;
        let room = MOST_BYTES.saturating_sub(self.kept.len());
        self.kept.extend(said.take(room));
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

    /// The first bytes of what was said, and how many there were.
    pub(super) fn kept(&self) -> &[u8] {
        &self.kept
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Forgets this at the end of what was said.
    pub(super) fn drop_end(&mut self, end: &[u8]) {
        if self.kept.ends_with(end) {
            self.kept.truncate(self.kept.len() - end.len());
            self.total -= end.len() as u64;
        }
    }

    /// Nothing more will come: what was held back was said by the command.
    pub(super) fn finish(&mut self) {
        self.keep(self.held.len());
    }
}

fn position(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(pieces: &[&[u8]]) -> Stream {
        let mut stream = Stream::new("MARKMARKMARK", "PROMPTPROMPT", "STALESTALE");
        pieces.iter().for_each(|piece| stream.push(piece));
        stream
    }

    #[test]
    fn the_mark_ends_it_however_it_is_cut() {
        let bytes = b"\xff\x00 no MARK here\nMARKMARKMARK12.PROMPTPROMPTlater";
        for piece in [1, 5, bytes.len()] {
            let stream = said(&bytes.chunks(piece).collect::<Vec<_>>());
            assert_eq!(stream.kept(), b"\xff\x00 no MARK here\n", "{piece}");
            assert_eq!(
                (stream.is_over(), stream.was_prompted(), stream.status()),
                (true, true, 12)
            );
        }
    }

    #[test]
    fn a_prompt_without_a_mark_is_noticed() {
        let mut stream = said(&[b"syntax error\nPROMPTPROMPT"]);
        assert!(stream.was_prompted() && !stream.is_over());
        stream.again("SECONDSECOND", "OTHEROTHER");
        stream.push(b"SECONDSECOND2.OTHEROTHER");
        assert_eq!((stream.kept(), stream.status()), (&b"syntax error\n"[..], 2));
        assert!(stream.is_over() && stream.was_prompted());
    }

    #[test]
    fn the_prompt_of_the_command_before_is_nobodys() {
        let stream = said(&[b"STALEST", b"ALEnew\nMARKMARKMARK0."]);
        assert_eq!((stream.kept(), stream.was_prompted()), (&b"new\n"[..], false));
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let mut stream = said(&[&[b'x'; MOST_BYTES + 7]]);
        stream.push(b"MARKMARKMARK0.");
        assert_eq!((stream.kept().len(), stream.total()), (MOST_BYTES, MOST_BYTES as u64 + 7));
    }

    #[test]
    fn what_was_held_back_belongs_to_a_command_that_ends_the_shell() {
        let mut stream = said(&[b"bye\nexit\n"]);
        stream.finish();
        stream.drop_end(b"exit\n");
        assert_eq!((stream.kept(), stream.total()), (&b"bye\n"[..], 4));
    }
}
