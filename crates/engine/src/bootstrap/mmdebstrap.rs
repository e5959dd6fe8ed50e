//! Running mmdebstrap: how it is called, what it says, and how its failure is told.

use super::sources::Origin;
use msb_spec::{Error, Kind, Result, shown};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What mmdebstrap is to make.
#[derive(Debug)]
pub(super) struct Recipe<'a> {
    pub(super) origin: Origin,
    pub(super) suite: &'a str,
    pub(super) packages: &'a [String],
    /// Whether it runs as an ordinary user.
    pub(super) rootless: bool,
}

/// It removes what it has unpacked before it ends; on a slow disk that takes a while.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Lines of complaint that are shown.
const COMPLAINTS: usize = 4;

/// What mmdebstrap takes over from this host would say where the image was made, and Debian's
/// mark that only apt may install Python packages is not for a sandbox.
const FORGET: &str =
    "rm -f \"$1\"/etc/hostname \"$1\"/etc/resolv.conf \"$1\"/usr/lib/python3*/EXTERNALLY-MANAGED";

impl Recipe<'_> {
    /// Runs it and hands its archive on while it is written.
    pub(super) fn run<T>(
        &self,
        said: &(dyn Fn(&str) + Sync),
        keep: impl FnOnce(&mut dyn Read) -> Result<T>,
    ) -> Result<T> {
        let mut child = self.command().spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::unsupported("mmdebstrap is not installed")
                .hint("`apt install mmdebstrap` brings it"),
            _ => Error::host("cannot run mmdebstrap", error),
        })?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        if let (Some(mut stdin), Origin::Sources { text, .. }) = (stdin, &self.origin) {
            // Some hundred bytes, which fit the pipe; whoever fails to read them says so.
            let _ = stdin.write_all(text.as_bytes());
        }
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            return Err(Error::host(
                "cannot run mmdebstrap",
                io::Error::from(io::ErrorKind::BrokenPipe),
            ));
        };
        let mut archive = Archive { child, stdout, ended: None };
        std::thread::scope(|scope| {
            let listener = scope.spawn(move || listen(stderr, said));
            let kept = keep(&mut archive);
            let ended = archive.end();
            let complaints = listener.join().unwrap_or_default();
            match (kept, ended) {
                (_, Some(status)) if !status.success() => Err(failure(status, &complaints)),
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
        command.arg(format!("--customize-hook={FORGET}"));
        if let Origin::Sources { keys, .. } = &self.origin {
            for key in keys {
                // Where the release's own package of keys has not put it already.
                let bring = format!("[ -e \"$1{key}\" ] || install -D -m 644 {key} \"$1{key}\"");
                command.arg(format!("--customize-hook={bring}"));
            }
        }
        if let Origin::Mirror { components, .. } = &self.origin {
            command.arg(format!("--components={components}"));
        }
        as_apt_does(&mut command);
        let source = match &self.origin {
            Origin::Sources { .. } => "-",
            Origin::Mirror { url, .. } => url,
        };
        command.args(["--", self.suite, "-", source]);
        command.env("LC_ALL", "C.UTF-8").stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// mmdebstrap does not read this host's apt.conf, which may have what it takes to reach a mirror.
fn as_apt_does(command: &mut Command) {
    let dump = ["dump", "--no-empty", "--format", "%f %v%n"];
    let output = Command::new("apt-config").args(dump).stdin(Stdio::null()).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    for (name, value) in String::from_utf8_lossy(&text).lines().filter_map(|l| l.split_once(' ')) {
        let proxy = match name {
            "Acquire::http::Proxy" => Some("http_proxy"),
            "Acquire::https::Proxy" => Some("https_proxy"),
            _ => None,
        };
        // The caller's own word counts more.
        if let Some(variable) = proxy.filter(|variable| std::env::var_os(variable).is_none()) {
            command.env(variable, value);
        }
        // For the mirror of a day long past, also in the image, whose source it is.
        if name == "Acquire::Check-Valid-Until" && matches!(value, "false" | "no" | "0") {
            command.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
        }
    }
}

/// What mmdebstrap writes. Its end is that of the archive only if it succeeded.
struct Archive {
    child: Child,
    stdout: ChildStdout,
    ended: Option<ExitStatus>,
}

impl Read for Archive {
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

impl Archive {
    /// How it ended; none if it had to be told to, because nobody wants its archive any more.
    fn end(&mut self) -> Option<ExitStatus> {
        if self.ended.is_some() {
            return self.ended;
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // Asked first, so that it can clean up.
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

/// Hands on what is being done, and gives the last complaints.
fn listen(stderr: ChildStderr, said: &(dyn Fn(&str) + Sync)) -> Vec<String> {
    let mut complaints: Vec<String> = Vec::new();
    for line in BufReader::new(stderr).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        if let Some(step) = line.strip_prefix("I: ") {
            said(&shown(step.trim_end_matches('.')));
        } else if let Some(complaint) = complaint(line) {
            if complaints.len() == COMPLAINTS {
                complaints.remove(0);
            }
            if !complaints.contains(&complaint) {
                complaints.push(complaint);
            }
        }
    }
    complaints
}

/// A line that says what went wrong, without what every failure ends with.
fn complaint(line: &str) -> Option<String> {
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

fn failure(status: ExitStatus, complaints: &[String]) -> Error {
    let all = complaints.join("\n");
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
    match complaints {
        [] => error.cause(status),
        complaints => complaints.iter().fold(error, Error::cause),
    }
}
