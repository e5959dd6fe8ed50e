//! Client of credential helpers, with the protocol of Docker.
//!
//! `docker-credential-NAME get` reads the registry from stdin and writes JSON. The program is not
//! trusted: its time and output are limited, and errors never quote its output, which may be the
//! secret.

use super::{Credential, Secret, key_of};
use msb_spec::{Bytes, Error, Kind, Result, Span};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest run: a keyring may ask the user for a password first.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// Largest output. Tokens of large clouds are a few kilobytes.
const OUTPUT_LIMIT: usize = 64 << 10;

/// Output of a helper without a login for the registry; part of the protocol.
const NOT_FOUND: &[u8] = b"credentials not found";

/// User name that marks the secret as a token.
const TOKEN_USER: &str = "<token>";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperOutput {
    username: String,
    secret: String,
}

/// Name of the executable of a helper.
pub(super) fn full_name(name: &str) -> String {
    format!("docker-credential-{name}")
}

/// Asks a helper for the credential of a registry; none if it has none.
pub(super) fn get(
    name: &str,
    registry: &str,
    path: &OsStr,
    limit: Duration,
) -> Result<Option<Credential>> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if !plain || name.is_empty() {
        let shown = msb_spec::shown(name);
        return Err(Error::invalid(format!("not the name of a credential helper: `{shown}`")));
    }
    let program = full_name(name);
    let failed = |error: Error| {
        error.under(format!("cannot ask the credential helper `{program}`")).hint(
            "`msb registry login` stores a login for msb; DOCKER_CONFIG names another directory \
             than ~/.docker",
        )
    };
    let host = |error: io::Error| Error::host("it cannot be run", error);
    let mut child = Command::new(&program)
        .arg("get")
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(host(error)))?;
    let answered = exchange(&mut child, key_of(registry), limit);
    if answered.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| failed(host(error)))?;
    let output = answered.map_err(failed)?;
    parse_output(status, &output).map_err(failed)
}

/// Sends the registry to the helper and reads its output until it exits.
fn exchange(child: &mut Child, registry: &str, limit: Duration) -> Result<Vec<u8>> {
    let host = |error: io::Error| Error::host("it cannot be communicated with", error);
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
        return Err(host(io::ErrorKind::BrokenPipe.into()));
    };
    // A pipe buffer is larger than a host name. A helper that does not read it may still answer.
    let _ = stdin.write_all(registry.as_bytes());
    drop(stdin);
    read_output(child, stdout, Instant::now() + limit)
        .map_err(host)?
        .ok_or_else(|| Error::new(Kind::Timeout, format!("no response within {}", Span(limit))))
}

/// The output of the helper; none after a timeout. Ends when the process exits, not when the pipe
/// closes: an agent that the helper started may keep the pipe open for hours.
fn read_output(
    child: &Child,
    mut stdout: ChildStdout,
    end: Instant,
) -> io::Result<Option<Vec<u8>>> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    let mut output = Vec::new();
    let mut open = true;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let wanted = if open { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&ended, PollFlags::IN), PollFd::new(&stdout, wanted)];
        // A closed pipe is always ready; polling it would spin.
        let count = if open { 2 } else { 1 };
        let time = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut fds[..count], Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let (over, ready) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if open && ready {
            let mut piece = [0; 4096];
            let count = stdout.read(&mut piece)?;
            open = count > 0;
            output.extend_from_slice(&piece[..count]);
            if output.len() > OUTPUT_LIMIT {
                let message = format!("its output is larger than {}", Bytes(OUTPUT_LIMIT as u64));
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
            }
        } else if over {
            return Ok(Some(output));
        }
    }
}

fn parse_output(status: ExitStatus, output: &[u8]) -> Result<Option<Credential>> {
    if !status.success() {
        let nothing = output.windows(NOT_FOUND.len()).any(|part| part == NOT_FOUND);
        return if nothing { Ok(None) } else { Err(Error::host("it failed", status)) };
    }
    let answer: HelperOutput = serde_json::from_slice(output)
        .map_err(|_| Error::new(Kind::Protocol, "its output cannot be parsed"))?;
    let secret = Secret::new(answer.secret);
    Ok(Some(match answer.username {
        user if user == TOKEN_USER => Credential::IdentityToken(secret),
        user => Credential::Password { user, secret },
    }))
}
