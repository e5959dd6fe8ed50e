//! What a command has said, and how it ended.

use msb_spec::{Ending, Error, Exit, Result};

/// A command that is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) exit: Exit,
}

impl Output {
    /// Its stdout, if that is UTF-8.
    pub fn stdout(&self) -> Result<&str> {
        text(&self.stdout, "stdout")
    }

    /// Its stderr, if that is UTF-8.
    pub fn stderr(&self) -> Result<&str> {
        text(&self.stderr, "stderr")
    }

    /// Its stdout as it was written.
    pub fn stdout_bytes(&self) -> &[u8] {
        &self.stdout
    }

    /// Its stderr as it was written.
    pub fn stderr_bytes(&self) -> &[u8] {
        &self.stderr
    }

    /// Its stdout and stderr, to keep.
    pub fn into_bytes(self) -> (Vec<u8>, Vec<u8>) {
        (self.stdout, self.stderr)
    }

    /// How it ended, and why.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// The code a shell would show: its own, 124 after a timeout, 128+n after signal n.
    pub fn status(&self) -> i32 {
        self.exit.status()
    }

    /// Whether it exited with zero.
    pub fn success(&self) -> bool {
        self.exit.success()
    }

    /// Whether it was killed because its timeout passed.
    pub fn timed_out(&self) -> bool {
        self.exit.ending == Ending::Timeout
    }
}

fn text<'a>(bytes: &'a [u8], stream: &str) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|error| {
        Error::invalid(format!("the command's {stream} is not UTF-8"))
            .cause(error)
            .hint(format!("`{stream}_bytes` gives it as it is"))
    })
}
