//! A sandbox with the host's own programs, and ssh pointed at it.

use msb_e2e::{CmdOutput, Msb, ends};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running sandbox `box`, and a file of settings by which ssh reaches it.
pub(crate) struct SshFixture {
    pub(crate) msb: Msb,
    pub(crate) config: PathBuf,
}

impl SshFixture {
    /// With no network.
    pub(crate) fn new(msb: Msb) -> Self {
        Self::with(msb, &["--no-net"])
    }

    /// With these flags for the sandbox.
    pub(crate) fn with(msb: Msb, flags: &[&str]) -> Self {
        let words = ["create", "-q", "--name", "box"].iter().chain(flags).chain(&["host"]);
        msb.run(words).ok();
        let block = msb.words("ssh config box").ok().stdout;
        let config = msb.file("ssh_config", block);
        Self { msb, config }
    }

    /// Each user that there is to test as.
    pub(crate) fn each() -> Vec<Self> {
        Msb::each().into_iter().map(Self::new).collect()
    }

    /// A program of OpenSSH that knows the sandbox as `box`.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = self.msb.user_command(name);
        command.arg("-F").arg(&self.config);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs ssh with these arguments.
    #[track_caller]
    pub(crate) fn ssh<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> CmdOutput {
        ends(self.program("ssh").args(args).spawn().expect("ssh is installed"))
    }

    /// Runs a line of a shell of the host, where `$SSH` is ssh with the settings.
    #[track_caller]
    pub(crate) fn shell(&self, line: &str) -> CmdOutput {
        let mut command = self.msb.user_command("bash");
        command.args(["-o", "pipefail", "-euc", line]);
        command.env("SSH", format!("ssh -F {}", self.config.display()));
        command.env("CONFIG", &self.config);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        ends(command.spawn().expect("bash is installed"))
    }

    /// A new key of the user; its private half.
    pub(crate) fn key(&self, name: &str) -> PathBuf {
        let path = self.msb.scratch().join(name);
        let mut make = self.msb.user_command("ssh-keygen");
        make.args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(&path);
        ends(
            make.stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("ssh-keygen is installed"),
        )
        .ok();
        path
    }

    /// Serves the sandbox at a port.
    pub(crate) fn serve(&self) -> SshServer {
        let mut command = self.msb.command(["ssh", "serve", "box", "--port", "0"]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("msb is there");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let first = lines.next().expect("a line").expect("text");
        let port = first.rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port in `{first}`"));
        SshServer { child, port }
    }
}

/// A server at a port; ended when dropped.
pub(crate) struct SshServer {
    child: Child,
    pub(crate) port: u16,
}

impl SshServer {
    /// ssh to it with a key and nothing else of the user's.
    pub(crate) fn ssh(&self, fixture: &SshFixture, key: &Path) -> Command {
        let mut command = fixture.program("ssh");
        command.args(["-p", &self.port.to_string(), "-o", "ProxyCommand=none"]);
        command.args([
            "-o",
            "HostName=127.0.0.1",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "BatchMode=yes",
        ]);
        command.arg("-i").arg(key).arg("box");
        command
    }

    /// Ends it and gives what it has said.
    pub(crate) fn end(self) -> String {
        msb_e2e::signal_pid(self.child.id(), "TERM");
        self.said()
    }

    /// Waits for its end and gives what it has said.
    pub(crate) fn said(mut self) -> String {
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().expect("it is piped");
        stderr.read_to_string(&mut said).expect("text");
        let _ = self.child.wait();
        said
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
