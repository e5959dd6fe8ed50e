//! The caller's terminal: its size, its raw mode, and the keys that leave it.

use crate::output;
use msb_spec::{Error, Result, TermSize, env};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{OptionalActions, Termios};
use std::io::{BufRead, IsTerminal, Read, stdin, stdout};

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

/// A text behind a head, broken between words where stdout is a terminal; further lines begin
/// below the text. Elsewhere it stays one line, so that programs can search it.
pub(crate) fn wrapped(head: &str, text: &str) -> String {
    match stdout().is_terminal() {
        true => wrap(head, text, usize::from(size().cols)),
        false => format!("{head}{text}"),
    }
}

fn wrap(head: &str, text: &str, cols: usize) -> String {
    /// A column narrower than this is worse to read than a broken word.
    const NARROWEST: usize = 20;
    let indent = head.chars().count();
    let room = cols.saturating_sub(indent).max(NARROWEST);
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        let longer = line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && longer > room {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    format!("{head}{}", lines.join(&format!("\n{}", " ".repeat(indent))))
}

/// Longer than any name or password that a person types.
const LINE_LIMIT: usize = 4096;

/// Asks for a line that may be seen.
pub(crate) fn line(prompt: &str) -> Result<String> {
    output::prompt(prompt);
    let mut text = String::new();
    let read = stdin().lock().take(LINE_LIMIT as u64).read_line(&mut text);
    read.map_err(|error| Error::host("cannot read from the terminal", error))?;
    Ok(text.trim().to_owned())
}

/// Asks for one key, without Enter; none if the answer is to leave: Ctrl-C, Ctrl-D or the end of
/// what can be typed. A key that is no letter or sign is a space.
pub(crate) fn key(prompt: &str) -> Result<Option<char>> {
    const CTRL_C: u8 = 3;
    const CTRL_D: u8 = 4;
    const ESCAPE: u8 = 27;
    output::prompt(prompt);
    let raw = Raw::enter()?;
    let typed = byte();
    if typed == Ok(Some(ESCAPE)) {
        skip_sequence();
    }
    drop(raw);
    let typed = typed.map_err(|error| Error::host("cannot read from the terminal", error))?;
    let key = match typed {
        None | Some(CTRL_C | CTRL_D) => None,
        Some(byte) if byte.is_ascii_graphic() => Some(char::from(byte.to_ascii_lowercase())),
        Some(_) => Some(' '),
    };
    output::prompt(&format!("{}\n", key.unwrap_or(' ')));
    Ok(key)
}

/// One byte that was typed; none at the end.
fn byte() -> rustix::io::Result<Option<u8>> {
    let mut byte = [0];
    loop {
        match rustix::io::read(stdin(), &mut byte) {
            Err(rustix::io::Errno::INTR) => {}
            read => return read.map(|count| (count > 0).then_some(byte[0])),
        }
    }
}

/// Skips the rest of what an arrow or another key sends: `[`, parameters and a final byte, or `O`
/// and one byte. They arrive together; nothing follows the Escape key itself.
fn skip_sequence() {
    let next = || is_more_typed().then(byte).and_then(|read| read.ok().flatten());
    match next() {
        Some(b'[') => while next().is_some_and(|byte| !(0x40..=0x7e).contains(&byte)) {},
        Some(b'O') => {
            next();
        }
        _ => {}
    }
}

fn is_more_typed() -> bool {
    let stdin = stdin();
    let mut wait = [PollFd::new(&stdin, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut wait, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Asks for a line that is not shown while it is typed.
pub(crate) fn secret(prompt: &str) -> Result<String> {
    output::prompt(prompt);
    // Raw, so that an interrupt does not leave the terminal without its echo.
    let raw = Raw::enter()?;
    let mut typing = Typing::default();
    let answer = loop {
        let mut byte = [0];
        match rustix::io::read(stdin(), &mut byte) {
            Ok(0) => break None,
            Ok(_) => match typing.key(byte[0]) {
                Key::More => {}
                Key::Done => break Some(typing.line),
                Key::GaveUp => break None,
            },
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::host("cannot read from the terminal", error)),
        }
    };
    drop(raw);
    output::prompt("\n");
    let line = answer.ok_or_else(|| Error::invalid("nothing was typed"))?;
    String::from_utf8(line).map_err(|_| Error::invalid("what was typed is not text"))
}

/// A line as it is typed at a terminal that does nothing about it itself.
#[derive(Default)]
struct Typing {
    line: Vec<u8>,
}

/// What a key does to the line.
#[derive(Debug, PartialEq, Eq)]
enum Key {
    More,
    Done,
    GaveUp,
}

impl Typing {
    fn key(&mut self, byte: u8) -> Key {
        const CTRL_C: u8 = 3;
        const CTRL_D: u8 = 4;
        const BACKSPACE: u8 = 8;
        const CTRL_U: u8 = 21;
        const DELETE: u8 = 127;
        match byte {
            b'\r' | b'\n' => return Key::Done,
            CTRL_C => return Key::GaveUp,
            CTRL_D if self.line.is_empty() => return Key::GaveUp,
            CTRL_U => self.line.clear(),
            BACKSPACE | DELETE => {
                // A letter may have several bytes, of which only the first is not 10xxxxxx.
                while self.line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            _ if self.line.len() < LINE_LIMIT => self.line.push(byte),
            _ => {}
        }
        Key::More
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
pub(crate) enum TypedInput {
    /// Send these bytes to the command.
    Send(Vec<u8>),
    /// Send these bytes, then detach from the command.
    SendAndDetach(Vec<u8>),
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
    pub(crate) fn filter(&mut self, typed: &[u8]) -> TypedInput {
        let mut send = Vec::with_capacity(typed.len());
        for byte in typed {
            if *byte == self.keys[self.seen] {
                self.seen += 1;
                if self.seen == self.keys.len() {
                    return TypedInput::SendAndDetach(send);
                }
                continue;
            }
            send.extend_from_slice(&self.keys[..self.seen]);
            self.seen = usize::from(*byte == self.keys[0]);
            if self.seen == 0 {
                send.push(*byte);
            }
        }
        TypedInput::Send(send)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_continue_below_the_text() {
        let text = "one two three four five six seven";
        assert_eq!(wrap("  ok  ", text, 80), format!("  ok  {text}"));
        assert_eq!(wrap("  ok  ", text, 30), "  ok  one two three four five\n      six seven");
        let long = "x".repeat(50);
        assert_eq!(wrap("a ", &format!("b {long} c"), 30), format!("a b\n  {long}\n  c"));
    }

    #[test]
    fn the_keys_leave_and_everything_else_is_typed() {
        let mut keys = DetachKeys::parse("ctrl-p,ctrl-q").unwrap();
        assert_eq!(keys.filter(b"ls\r"), TypedInput::Send(b"ls\r".to_vec()));
        assert_eq!(keys.filter(b"a\x10"), TypedInput::Send(b"a".to_vec()));
        assert_eq!(keys.filter(b"b"), TypedInput::Send(b"\x10b".to_vec()));
        assert_eq!(keys.filter(b"c\x10\x10\x11"), TypedInput::SendAndDetach(b"c\x10".to_vec()));
    }

    #[test]
    fn a_secret_can_be_corrected_while_it_is_typed() {
        let typed = |keys: &[u8]| {
            let mut typing = Typing::default();
            let last = keys.iter().map(|byte| typing.key(*byte)).last();
            (last, String::from_utf8(typing.line).unwrap())
        };
        assert_eq!(typed(b"hunter2\r"), (Some(Key::Done), "hunter2".to_owned()));
        assert_eq!(typed("aéß\x7f\x7fb\n".as_bytes()), (Some(Key::Done), "ab".to_owned()));
        assert_eq!(typed(b"wrong\x15\x7fright\r"), (Some(Key::Done), "right".to_owned()));
        assert_eq!(typed(b"abc\x03").0, Some(Key::GaveUp));
        assert_eq!(typed(b"\x04").0, Some(Key::GaveUp));
    }

    #[test]
    fn a_single_letter_can_be_a_key() {
        assert_eq!(
            DetachKeys::parse("x").unwrap().filter(b"ax"),
            TypedInput::SendAndDetach(b"a".to_vec())
        );
        for bad in ["", "ctrl-", "ctrl-ab", "ab"] {
            assert!(DetachKeys::parse(bad).is_err(), "{bad}");
        }
    }
}
