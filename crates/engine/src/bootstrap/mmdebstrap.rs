//! Runs mmdebstrap: arguments, progress and errors.

use super::apt_sources::PackageOrigin;
use msb_spec::{Error, Kind, Result, shown};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// One run of mmdebstrap.
#[derive(Debug)]
pub(super) struct MmdebstrapRun<'a> {
    pub(super) origin: PackageOrigin,
    pub(super) suite: &'a str,
    pub(super) packages: &'a [String],
    /// Whether it runs as an ordinary user, in a user namespace.
    pub(super) rootless: bool,
}

/// How long mmdebstrap may take to end: it removes its chroot first.
const END_LIMIT: Duration = Duration::from_secs(60);

/// The most error lines that are shown.
const MAX_ERROR_LINES: usize = 4;

/// The hook that removes host-specific files, and the marker that forbids pip to install system
/// packages.
const CLEANUP_HOOK: &str =
    "rm -f \"$1\"/etc/hostname \"$1\"/etc/resolv.conf \"$1\"/usr/lib/python3*/EXTERNALLY-MANAGED";

impl MmdebstrapRun<'_> {
    /// Runs mmdebstrap; `keep` reads its tar output while it is written.
    pub(super) fn run<T>(
        &self,
        report: &(dyn Fn(&str) + Sync),
        keep: impl FnOnce(&mut dyn Read) -> Result<T>,
    ) -> Result<T> {
        let mut child = self.command().spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::unsupported("mmdebstrap is not installed")
                .hint("`apt install mmdebstrap` installs it"),
            _ => Error::host("cannot run mmdebstrap", error),
        })?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        if let (Some(mut stdin), PackageOrigin::Sources { text, .. }) = (stdin, &self.origin) {
            // Some hundred bytes fit the pipe; a failed read is reported by mmdebstrap.
            let _ = stdin.write_all(text.as_bytes());
        }
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(Error::host(
                "cannot run mmdebstrap",
                io::Error::from(io::ErrorKind::BrokenPipe),
            ));
        };
        let mut archive = TarOutput { child, stdout, ended: None };
        std::thread::scope(|scope| {
            let listener = scope.spawn(move || read_stderr(stderr, report));
            let kept = keep(&mut archive);
            let ended = archive.end();
            let error_lines = listener.join().unwrap_or_default();
            match (kept, ended) {
                (_, Some(status)) if !status.success() => Err(failure(status, &error_lines)),
                (kept, _) => kept,
            }
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new("mmdebstrap");
        command.args(["--variant=minbase", "--format=tar"]);
        command.arg(if self.rootless { "--mode=unshare" } else { "--mode=auto" });
        command.arg("--aptopt=Acquire::Languages \"none\"");
        if !self.packages.is_empty() {
            command.arg(format!("--include={}", self.packages.join(",")));
        }
        command.arg(format!("--customize-hook={CLEANUP_HOOK}"));
        if let PackageOrigin::Sources { keys, .. } = &self.origin {
            for key in keys {
                // Unless the keyring package of the release has installed it.
                let bring = format!("[ -e \"$1{key}\" ] || install -D -m 644 {key} \"$1{key}\"");
                command.arg(format!("--customize-hook={bring}"));
            }
        }
        if let PackageOrigin::Mirror { components, .. } = &self.origin {
            command.arg(format!("--components={components}"));
        }
        apply_apt_config(&mut command);
        let source = match &self.origin {
            PackageOrigin::Sources { .. } => "-",
            PackageOrigin::Mirror { url, .. } => url,
        };
        command.args(["--", self.suite, "-", source]);
        command.env("LC_ALL", "C.UTF-8").stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Passes proxies and validity checks of the host configuration of apt, which mmdebstrap does not
/// read.
fn apply_apt_config(command: &mut Command) {
    let dump = ["dump", "--no-empty", "--format", "%f %v%n"];
    let output = Command::new("apt-config").args(dump).stdin(Stdio::null()).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    for (name, value) in String::from_utf8_lossy(&text).lines().filter_map(|l| l.split_once(' ')) {
        let proxy = match name {
            "Acquire::http::Proxy" => Some("http_proxy"),
            "Acquire::https::Proxy" => Some("https_proxy"),
            _ => None,
        };
        // Variables of the caller take precedence.
        if let Some(variable) = proxy.filter(|variable| std::env::var_os(variable).is_none()) {
            command.env(variable, value);
        }
        // For a mirror of old snapshots; the image keeps the option with its source.
        if name == "Acquire::Check-Valid-Until" && matches!(value, "false" | "no" | "0") {
            command.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
        }
    }
}

/// The tar output. It is complete only if mmdebstrap succeeded.
struct TarOutput {
    child: Child,
    stdout: ChildStdout,
    ended: Option<ExitStatus>,
}

impl Read for TarOutput {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.stdout.read(into)?;
        if count > 0 || into.is_empty() {
            return Ok(count);
        }
        let status = self.child.wait()?;
        self.ended = Some(status);
        if status.success() { Ok(0) } else { Err(io::Error::other("mmdebstrap failed")) }
    }
}

impl TarOutput {
    /// Ends mmdebstrap and returns its status; `None` if it had to be stopped because the reader
    /// failed.
    fn end(&mut self) -> Option<ExitStatus> {
        if self.ended.is_some() {
            return self.ended;
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // SIGTERM first, so that it removes its chroot.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > END_LIMIT {
                let _ = self.child.kill();
                let _ = self.child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }
}

/// Reports progress lines, and returns the last error lines.
fn read_stderr(stderr: ChildStderr, report: &(dyn Fn(&str) + Sync)) -> Vec<String> {
    let mut error_lines: Vec<String> = Vec::new();
    for line in BufReader::new(stderr).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        if let Some(step) = line.strip_prefix("I: ") {
            report(&shown(step.trim_end_matches('.')));
        } else if let Some(error_line) = error_line(line) {
            if error_lines.len() == MAX_ERROR_LINES {
                error_lines.remove(0);
            }
            if !error_lines.contains(&error_line) {
                error_lines.push(error_line);
            }
        }
    }
    error_lines
}

/// The text of an error line; `None` for lines that follow every failure.
fn error_line(line: &str) -> Option<String> {
    const NOISE: [&str; 5] = [
        "run_chroot failed",
        "mmdebstrap failed to run",
        "setup failed",
        "-oAPT::Status-Fd",
        "Some index files failed",
    ];
    let text = line.strip_prefix("E: ")?;
    let told: String = shown(text).chars().take(300).collect();
    (!NOISE.iter().any(|noise| text.contains(noise))).then_some(told)
}

fn failure(status: ExitStatus, error_lines: &[String]) -> Error {
    let all = error_lines.join("\n");
    let error = if all.contains("Unable to locate package") {
        Error::new(Kind::NotFound, "there is no such package")
            .hint("`--packages` takes names as `apt install` does, separated by commas")
    } else if all.contains("does not have a Release file") {
        Error::new(Kind::NotFound, "there is no such release where packages come from")
            .hint("`--suite` takes a name such as `bookworm`; `--mirror URL` names another place")
    } else {
        Error::new(Kind::Host, "mmdebstrap failed")
            .hint("packages come from where apt has them; `--mirror URL` names another place")
    };
    match error_lines {
        [] => error.cause(status),
        error_lines => error_lines.iter().fold(error, Error::cause),
    }
}
