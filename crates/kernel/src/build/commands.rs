//! Runs the programs of a build. Their output goes to a log, and its error lines into the error.

use super::Progress;
use super::tools::BuildTools;
use crate::Step;
use msb_spec::{Error, Kind, Result, shown};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// The log file of a build.
pub(super) struct BuildLog {
    path: PathBuf,
}

impl BuildLog {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    fn open(&self) -> Result<File> {
        let file = File::options().append(true).create(true).open(&self.path);
        file.map_err(|error| Error::host(format!("cannot write `{}`", self.path.display()), error))
    }

    /// Runs a program; fails if its exit status is not 0.
    pub(super) fn run(&self, command: &mut Command) -> Result<()> {
        let (out, err) = (self.open()?, self.open()?);
        let status = command.stdin(Stdio::null()).stdout(out).stderr(err).status();
        self.ended(command, status)
    }

    fn ended(&self, command: &Command, status: io::Result<ExitStatus>) -> Result<()> {
        let program = Path::new(command.get_program()).display().to_string();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let error = Error::new(Kind::Host, format!("{program} failed: {status}"));
                let error = self.error_lines().iter().fold(error, Error::cause);
                Err(error.hint(format!("the complete log is in `{}`", self.path.display())))
            }
            Err(error) => Err(Error::host(format!("cannot run {program}"), error)),
        }
    }

    /// The error lines at the end of the log, or the last lines.
    fn error_lines(&self) -> Vec<String> {
        let mut end = Vec::new();
        let read = File::open(&self.path).and_then(|mut file| {
            let length = file.seek(SeekFrom::End(0))?;
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
            file.take(LOG_TAIL).read_to_end(&mut end)
        });
        if read.is_err() {
            return Vec::new();
        }
        error_lines_of(&String::from_utf8_lossy(&end))
    }
}

/// Bytes at the end of the log that are searched for errors.
const LOG_TAIL: u64 = 64 << 10;
/// The most lines that are shown.
const MAX_ERROR_LINES: usize = 4;

fn error_lines_of(progress: &str) -> Vec<String> {
    let lines: Vec<&str> =
        progress.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let is_error =
        |line: &&&str| ["error:", "Error ", "E: ", "fatal"].iter().any(|sign| line.contains(sign));
    let mut errors: Vec<&str> = lines.iter().filter(is_error).copied().collect();
    if errors.is_empty() {
        errors = lines;
    }
    errors.dedup();
    let first = errors.len().saturating_sub(MAX_ERROR_LINES);
    errors[first..].iter().map(|line| shown(&line.chars().take(300).collect::<String>())).collect()
}

/// `make` in the source tree, with an environment that does not depend on this host.
pub(super) fn make(tree: &Path) -> Command {
    let mut command = Command::new("make");
    command.env_clear().env("LC_ALL", "C");
    for kept in ["PATH", "TMPDIR"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command.envs([
        ("KBUILD_BUILD_USER", "msb"),
        ("KBUILD_BUILD_HOST", "msb"),
        ("KBUILD_BUILD_TIMESTAMP", "1970-01-01"),
    ]);
    command.arg("-C").arg(tree);
    command
}

/// The estimated number of objects of a build; only for progress.
const OBJECTS: u64 = 1500;

/// Compiles the kernel, or the rest of an interrupted build.
pub(super) fn compile(
    tree: &Path,
    tools: &BuildTools,
    lock: &File,
    log: &BuildLog,
    progress: Progress<'_>,
) -> Result<()> {
    let failed = |error| Error::host("the kernel cannot be built", error);
    let mut done = objects(tree);
    let tell = |done: u64| progress(Step::Compiling { done, total: OBJECTS.max(done) });
    tell(done);
    let mut command = make(tree);
    command.arg(format!("-j{}", tools.processors)).arg("vmlinux");
    command.stdin(lock.try_clone().map_err(failed)?);
    command.stdout(Stdio::piped()).stderr(log.open()?);
    let mut child = command.spawn().map_err(|error| Error::host("cannot run make", error))?;
    let mut out = log.open()?;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let mut line = line.map_err(failed)?;
            if is_object(&line) {
                done += 1;
                tell(done);
            }
            line.push(b'\n');
            out.write_all(&line).map_err(failed)?;
        }
    }
    log.ended(&command, child.wait()).map_err(|error| error.under("the kernel cannot be built"))
}

/// `  CC      kernel/fork.o`
fn is_object(line: &[u8]) -> bool {
    line.starts_with(b"  CC ") || line.starts_with(b"  AS ")
}

/// The object files of an interrupted build.
fn objects(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let count = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => objects(&entry.path()),
        Ok(kind) if kind.is_file() => {
            u64::from(entry.path().extension().is_some_and(|extension| extension == "o"))
        }
        _ => 0,
    });
    count.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_lines_are_preferred_to_the_last_lines() {
        let progress = "  CC a.o\na.c:1: error: no\n  CC b.o\nmake: *** [a.o] Error 1\n\n";
        assert_eq!(error_lines_of(progress), ["a.c:1: error: no", "make: *** [a.o] Error 1"]);
        assert_eq!(error_lines_of("one\ntwo\n"), ["one", "two"]);
        assert_eq!(error_lines_of("1\n2\n3\n4\n5\n"), ["2", "3", "4", "5"]);
        assert_eq!(error_lines_of("x\u{1b}[2J error: y"), ["x\\u{1b}[2J error: y"]);
    }

    #[test]
    fn compiled_files_are_counted_and_nothing_else() {
        assert!(is_object(b"  CC      kernel/fork.o") && is_object(b"  AS      a.o"));
        assert!(!is_object(b"  CC_x") && !is_object(b"  LD      vmlinux") && !is_object(b"CC a"));
    }
}
