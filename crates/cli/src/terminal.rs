//! The caller's terminal: its size, its raw mode, and the keys that leave it.

use msb_spec::{Error, Result, TermSize, env};
use rustix::termios::{OptionalActions, Termios};
use std::io::{IsTerminal, stdin, stdout};

/// The terminal in raw mode; put back when this is dropped.
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub(crate) fn enter() -> Result<Self> {
        let about = |error| Error::host("cannot set up the terminal", error);
        let before = rustix::termios::tcgetattr(stdin()).map_err(about)?;
        let mut raw = before.clone();
        raw.make_raw();
        rustix::termios::tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(about)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = rustix::termios::tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// Whether the caller sits at a terminal, for reading and writing.
pub(crate) fn is_there() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// How large it is.
pub(crate) fn size() -> TermSize {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            TermSize { rows: size.ws_row, cols: size.ws_col }
        }
        _ => TermSize { rows: 24, cols: 80 },
    }
}

/// The keys that leave an attached command running.
#[derive(Debug)]
pub(crate) struct DetachKeys {
    keys: Vec<u8>,
    seen: usize,
}

/// What to do with some typed bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    /// Send these.
    Send(Vec<u8>),
    /// Send these and leave.
    Leave(Vec<u8>),
}

impl DetachKeys {
    /// `ctrl-p,ctrl-q`, or what the environment says.
    pub(crate) fn configured() -> Result<Self> {
        let text = std::env::var(env::DETACH_KEYS).unwrap_or_else(|_| "ctrl-p,ctrl-q".to_owned());
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self> {
        let key = |word: &str| -> Option<u8> {
            match (word.strip_prefix("ctrl-").map(str::as_bytes), word.as_bytes()) {
                (Some([letter]), _) if letter.is_ascii_alphabetic() => {
                    Some(letter.to_ascii_lowercase() - b'a' + 1)
                }
                (None, [byte]) if byte.is_ascii_graphic() => Some(*byte),
                _ => None,
            }
        };
        let keys: Option<Vec<u8>> = text.split(',').map(key).collect();
        keys.filter(|keys| !keys.is_empty()).map(|keys| Self { keys, seen: 0 }).ok_or_else(|| {
            Error::invalid(format!("not keys to detach by: `{}`", text))
                .hint("write them as `ctrl-p,ctrl-q`")
        })
    }

    /// Looks through what was typed. A beginning of the keys is held back until it is clear.
    pub(crate) fn filter(&mut self, typed: &[u8]) -> Typed {
        let mut send = Vec::with_capacity(typed.len());
        for byte in typed {
            if *byte == self.keys[self.seen] {
                self.seen += 1;
                if self.seen == self.keys.len() {
                    return Typed::Leave(send);
                }
                continue;
            }
            send.extend_from_slice(&self.keys[..self.seen]);
            self.seen = usize::from(*byte == self.keys[0]);
            if self.seen == 0 {
                send.push(*byte);
            }
        }
        Typed::Send(send)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_leave_and_everything_else_is_typed() {
        let mut keys = DetachKeys::parse("ctrl-p,ctrl-q").unwrap();
        assert_eq!(keys.filter(b"ls\r"), Typed::Send(b"ls\r".to_vec()));
        assert_eq!(keys.filter(b"a\x10"), Typed::Send(b"a".to_vec()));
        assert_eq!(keys.filter(b"b"), Typed::Send(b"\x10b".to_vec()));
        assert_eq!(keys.filter(b"c\x10\x10\x11"), Typed::Leave(b"c\x10".to_vec()));
    }

    #[test]
    fn a_single_letter_can_be_a_key() {
        assert_eq!(DetachKeys::parse("x").unwrap().filter(b"ax"), Typed::Leave(b"a".to_vec()));
        for bad in ["", "ctrl-", "ctrl-ab", "ab"] {
            assert!(DetachKeys::parse(bad).is_err(), "{bad}");
        }
    }
}
