//! Debian's docker-registry on loopback, for pulls.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Starts within a tenth of a second; a loaded machine may be slow to give it one.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Ends on drop, or when this program does.
pub(super) struct Registry {
    process: Child,
    address: String,
}

impl Registry {
    /// Keeps what it is given in a directory that does not exist yet.
    pub(super) fn start(dir: &str) -> Result<Self> {
        let dir = PathBuf::from(dir);
        fs::create_dir(&dir)?;
        let settings = dir.join("config.yml");
        let text = format!(
            "version: 0.1\n\
             storage:\n  filesystem: {{rootdirectory: {}}}\n\
             http:\n  addr: 127.0.0.1:0\n",
            dir.join("storage").display()
        );
        fs::write(&settings, text)?;
        let log = dir.join("log");
        // The registry ends when the pipe is closed; that includes the end of our process.
        let script = "docker-registry serve \"$0\" </dev/null & cat >/dev/null; kill $!; wait $!";
        let process = Command::new("sh")
            .args(["-c", script])
            .arg(&settings)
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()
            .context("cannot start a registry")?;
        let mut registry = Registry { process, address: String::new() };
        registry.address = listens_at(&log)?;
        Ok(registry)
    }

    /// Pushes the image of a layout as it is; its full name.
    pub(super) fn push(&self, layout: &Path, name: &str) -> Result<String> {
        let name = format!("{}/{name}", self.address);
        let copy = ["copy", "-q", "--preserve-digests", "--dest-tls-verify=false"];
        workspace::run(
            Command::new("skopeo")
                .arg("--insecure-policy")
                .args(copy)
                .arg(format!("oci:{}", layout.display()))
                .arg(format!("docker://{name}")),
        )?;
        Ok(name)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The port is the kernel's choice; the log says which.
fn listens_at(log: &Path) -> Result<String> {
    let start = Instant::now();
    loop {
        let said = fs::read_to_string(log)?;
        if let Some((_, rest)) = said.split_once("listening on 127.0.0.1:") {
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            return Ok(format!("127.0.0.1:{port}"));
        }
        ensure!(start.elapsed() < START_LIMIT, "the registry does not start: {said}");
        thread::sleep(Duration::from_millis(20));
    }
}
