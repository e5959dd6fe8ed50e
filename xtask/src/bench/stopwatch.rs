//! The small process that starts contenders and times them, mostly as the ordinary user.
//!
//! It is a process of its own because the caller is root, has more memory, and may not stand in
//! the mount namespace that a contender needs. It decides nothing: one request a line, one answer
//! a line, both JSON.

use std::fs::File;
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Program and arguments. The program is a full path: a search along PATH would be timed too.
pub(super) type Argv = Vec<String>;

#[derive(Serialize, Deserialize)]
pub(super) enum Request {
    /// Start it and wait for its end.
    Run(Argv),
    /// Start them all, then wait for all.
    ConcurrentRuns(Vec<Argv>),
    /// Start it and keep it until this process ends.
    Keep(Argv),
}

#[derive(Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) nanoseconds: u64,
    /// How many of the programs did not succeed.
    pub(super) failures: usize,
    /// What they said on stderr.
    pub(super) said: String,
}

/// Answers requests from stdin until it closes; then ends what it has kept.
pub(crate) fn serve(stderr: &str) -> Result<ExitCode> {
    // A file and not a pipe: what a contender leaves running would hold a pipe open.
    let stderr = File::options()
        .read(true)
        .append(true)
        .create(true)
        .open(stderr)
        .with_context(|| format!("cannot open `{stderr}`"))?;
    let mut stopwatch = Stopwatch { stderr, kept: Vec::new() };
    for line in io::stdin().lock().lines() {
        let request = serde_json::from_str(&line?).context("cannot read a request")?;
        let answer = stopwatch.answer(&request).unwrap_or_else(|error| Answer {
            nanoseconds: 0,
            failures: 1,
            said: format!("{error:#}"),
        });
        println!("{}", serde_json::to_string(&answer)?);
        io::stdout().flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Stopwatch {
    stderr: File,
    kept: Vec<Child>,
}

impl Stopwatch {
    fn answer(&mut self, request: &Request) -> Result<Answer> {
        self.stderr.set_len(0)?;
        let (nanoseconds, failures) = match request {
            Request::Run(argv) => time(&mut [self.command(argv)?])?,
            Request::ConcurrentRuns(all) => {
                let commands: Result<Vec<Command>> =
                    all.iter().map(|argv| self.command(argv)).collect();
                time(&mut commands?)?
            }
            Request::Keep(argv) => {
                let child = self.command(argv)?.spawn()?;
                self.kept.push(child);
                (0, 0)
            }
        };
        self.stderr.seek(SeekFrom::Start(0))?;
        let mut said = Vec::new();
        self.stderr.read_to_end(&mut said)?;
        Ok(Answer { nanoseconds, failures, said: String::from_utf8_lossy(&said).into_owned() })
    }

    /// Sets neither directory nor environment nor hooks, so that `std` takes `posix_spawn`.
    fn command(&self, argv: &[String]) -> Result<Command> {
        let [program, arguments @ ..] = argv else {
            bail!("a request without a program");
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.stderr.try_clone()?);
        Ok(command)
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        for child in &mut self.kept {
            // Fails only for one that has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn time(commands: &mut [Command]) -> Result<(u64, usize)> {
    let mut children = Vec::with_capacity(commands.len());
    let mut failures = 0;
    let start = Instant::now();
    for command in commands {
        children.push(command.spawn()?);
    }
    for child in &mut children {
        if !child.wait()?.success() {
            failures += 1;
        }
    }
    let nanoseconds = start.elapsed().as_nanos();
    Ok((u64::try_from(nanoseconds).context("a run of centuries")?, failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(name: &str, request: &Request) -> Answer {
        let path = std::env::temp_dir().join(format!("msb-xtask-{}-{name}", std::process::id()));
        let stderr = File::options().read(true).append(true).create(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        Stopwatch { stderr, kept: Vec::new() }.answer(request).unwrap()
    }

    fn shell(script: &str) -> Argv {
        ["/bin/sh", "-c", script].map(str::to_owned).to_vec()
    }

    #[test]
    fn the_whole_run_is_timed() {
        let answer = answer("timed", &Request::Run(shell("sleep 0.1")));
        assert_eq!(answer.failures, 0);
        assert!(answer.nanoseconds >= 100_000_000, "{}", answer.nanoseconds);
    }

    #[test]
    fn a_failure_comes_with_what_was_said() {
        let answer = answer("failure", &Request::Run(shell("echo no >&2; exit 3")));
        assert_eq!((answer.failures, answer.said.as_str()), (1, "no\n"));
    }

    #[test]
    fn concurrent_commands_run_at_once_and_its_failures_are_counted() {
        let mut commands = vec![shell("sleep 0.2"); 10];
        commands.push(shell("exit 1"));
        let answer = answer("crowd", &Request::ConcurrentRuns(commands));
        assert_eq!(answer.failures, 1);
        assert!(answer.nanoseconds < 2_000_000_000, "{}", answer.nanoseconds);
    }
}
