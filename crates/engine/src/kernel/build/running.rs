//! Running the programs that make a kernel: what they say goes to a log, and the end of it into
//! the error when they fail.

use super::Said;
use super::tools::Tools;
use crate::kernel::Step;
use msb_spec::{Error, Kind, Result, shown};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// What all programs of one build have said.
pub(super) struct Log {
    path: PathBuf,
}

impl Log {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    fn open(&self) -> Result<File> {
        let file = File::options().append(true).create(true).open(&self.path);
        file.map_err(|error| Error::host(format!("cannot write `{}`", self.path.display()), error))
    }

    /// Runs a program to its end.
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
                let error = self.last_words().iter().fold(error, Error::cause);
                Err(error.hint(format!("all that was said is in `{}`", self.path.display())))
            }
            Err(error) => Err(Error::host(format!("cannot run {program}"), error)),
        }
    }

    /// Those that complain, or simply the last.
    fn last_words(&self) -> Vec<String> {
        let mut end = Vec::new();
        let read = File::open(&self.path).and_then(|mut file| {
            let length = file.seek(SeekFrom::End(0))?;
            file.seek(SeekFrom::Start(length.saturating_sub(END)))?;
            file.take(END).read_to_end(&mut end)
        });
        if read.is_err() {
            return Vec::new();
        }
        complaints(&String::from_utf8_lossy(&end))
    }
}

/// As much of a log as is searched for what went wrong.
const END: u64 = 64 << 10;
/// Lines of it that are shown.
const COMPLAINTS: usize = 4;

fn complaints(said: &str) -> Vec<String> {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let complains =
        |line: &&&str| ["error:", "Error ", "E: ", "fatal"].iter().any(|sign| line.contains(sign));
    let mut told: Vec<&str> = lines.iter().filter(complains).copied().collect();
    if told.is_empty() {
        told = lines;
    }
    told.dedup();
    let first = told.len().saturating_sub(COMPLAINTS);
    told[first..].iter().map(|line| shown(&line.chars().take(300).collect::<String>())).collect()
}

/// `make` in the kernel's tree, in an environment that says nothing about this machine.
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

/// What a whole build compiles, about; it is only shown.
const OBJECTS: u64 = 1500;

/// Compiles the kernel, or what is left to be compiled of it.
pub(super) fn compile(
    tree: &Path,
    tools: &Tools,
    lock: &File,
    log: &Log,
    said: Said<'_>,
) -> Result<()> {
    let failed = |error| Error::host("the kernel cannot be built", error);
    let mut done = objects(tree);
    let tell = |done: u64| said(Step::Compiling { done, total: OBJECTS.max(done) });
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

/// What an interrupted build has left.
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
    fn of_all_that_was_said_the_complaints_are_shown() {
        let said = "  CC a.o\na.c:1: error: no\n  CC b.o\nmake: *** [a.o] Error 1\n\n";
        assert_eq!(complaints(said), ["a.c:1: error: no", "make: *** [a.o] Error 1"]);
        assert_eq!(complaints("one\ntwo\n"), ["one", "two"]);
        assert_eq!(complaints("1\n2\n3\n4\n5\n"), ["2", "3", "4", "5"]);
        assert_eq!(complaints("x\u{1b}[2J error: y"), ["x\\u{1b}[2J error: y"]);
    }

    #[test]
    fn compiled_files_are_counted_and_nothing_else() {
        assert!(is_object(b"  CC      kernel/fork.o") && is_object(b"  AS      a.o"));
        assert!(!is_object(b"  CC_x") && !is_object(b"  LD      vmlinux") && !is_object(b"CC a"));
    }
}
