//! Where lines of the log go, and how many bytes more.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

/// The output of the log of one process.
#[derive(Debug)]
pub(crate) struct Destination {
    output: LogOutput,
    /// The process that may write. A child inherits this value and not the number.
    owner: u32,
}

#[derive(Debug)]
enum LogOutput {
    Stderr,
    /// The file of `MSB_LOG_FILE`, which the user bounds.
    NamedFile(&'static File),
    /// The file of a sandbox, with the bytes that this process may still write; none
    /// after the last line.
    Bounded {
        file: &'static File,
        left: Option<u64>,
        limit: u64,
    },
}

/// The last line of a process that has used up its bytes.
const FULL: &str = "this process logs no more until the next start: the file is bounded\n";

impl Destination {
    pub(crate) fn stderr() -> Self {
        Self { output: LogOutput::Stderr, owner: std::process::id() }
    }

    // Both files stay open until the process exits: events may be emitted up to the last line of
    // `main`, and a descriptor that a fork has closed must not be closed again by a drop.
    pub(crate) fn named_file(file: File) -> Self {
        let output = LogOutput::NamedFile(Box::leak(Box::new(file)));
        Self { output, owner: std::process::id() }
    }

    pub(crate) fn bounded(file: File, limit: u64) -> Self {
        let file = Box::leak(Box::new(file));
        Self {
            output: LogOutput::Bounded { file, left: Some(limit), limit },
            owner: std::process::id(),
        }
    }

    pub(crate) fn is_named_file(&self) -> bool {
        matches!(self.output, LogOutput::NamedFile(_))
    }

    /// Lets this process write, and as much as the one before it.
    pub(crate) fn adopt(&mut self) {
        self.owner = std::process::id();
        if let LogOutput::Bounded { left, limit, .. } = &mut self.output {
            *left = Some(*limit);
        }
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'static>> {
        match self.output {
            LogOutput::Stderr => None,
            LogOutput::NamedFile(file) | LogOutput::Bounded { file, .. } => Some(file.as_fd()),
        }
    }

    /// Writes one line. Failures are ignored: there is no other place to report them.
    pub(crate) fn write(&mut self, line: &str) {
        if self.owner != std::process::id() {
            return;
        }
        let _ = match &mut self.output {
            LogOutput::Stderr => std::io::stderr().write_all(line.as_bytes()),
            LogOutput::NamedFile(file) => file.write_all(line.as_bytes()),
            LogOutput::Bounded { file, left, .. } => {
                let Some(before) = *left else { return };
                *left = before.checked_sub(line.len() as u64);
                file.write_all(if left.is_some() { line } else { FULL }.as_bytes())
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_file_ends_with_the_reason() {
        let path = std::env::temp_dir().join(format!("msb-log-bounded-{}", std::process::id()));
        let mut destination = Destination::bounded(File::create(&path).unwrap(), 10);
        for line in ["1234\n", "5678\n", "90\n", "more\n"] {
            destination.write(line);
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("1234\n5678\n{FULL}"));
        destination.adopt();
        destination.write("again\n");
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("again\n"));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn another_process_writes_nothing() {
        let path = std::env::temp_dir().join(format!("msb-log-owner-{}", std::process::id()));
        let mut destination = Destination::bounded(File::create(&path).unwrap(), 10);
        destination.owner += 1;
        destination.write("a\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        std::fs::remove_file(path).unwrap();
    }
}
