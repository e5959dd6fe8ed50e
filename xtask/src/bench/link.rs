//! A child that answers each line with a line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::processes;

/// Fifty at once on a loaded machine stay far below; a hung contender is noticed.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) struct Link {
    child: Child,
    /// Taken to hang up.
    requests: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Link {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start what measures")?;
        let requests = child.stdin.take();
        let stdout = child.stdout.take().expect("stdout is a pipe since a few lines above");
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Link { child, requests, answers })
    }

    pub(super) fn ask(&self, request: &str) -> Result<String> {
        let mut requests = self.requests.as_ref().context("we have hung up")?;
        requests.write_all(format!("{request}\n").as_bytes()).context("what measures has ended")?;
        match self.answers.recv_timeout(LIMIT) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Disconnected) => bail!("what measures has ended"),
            Err(RecvTimeoutError::Timeout) => {
                // The child then reports their failure, which is not read any more, and can be
                // used again.
                processes::kill_descendants(self.child.id());
                let _ = self.answers.recv_timeout(LIMIT);
                bail!("no end after {} s", LIMIT.as_secs())
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.requests.take();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_answered() {
        let link = Link::start(&mut Command::new("cat")).unwrap();
        assert_eq!(link.ask("a").unwrap(), "a");
        assert_eq!(link.ask("b c").unwrap(), "b c");
    }

    #[test]
    fn the_end_of_the_child_is_an_error() {
        let link = Link::start(&mut Command::new("true")).unwrap();
        assert!(link.ask("a").is_err());
    }
}
