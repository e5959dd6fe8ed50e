//! Reads the values of Secrets at each start of a sandbox. None is stored on disk: the caller passes
//! them to the gateway, and memory is wiped afterwards.
//!
//! A value that the calling program gave stays in the memory of this process, so that it can start
//! the sandbox again. It is wiped when the sandbox is removed.

use msb_spec::{Error, Kind, Network, Plan, PlannedSecret, Result, Secret, SecretSource, Stage};
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// The value of a Secret, wiped on drop.
pub type SecretValue = Zeroizing<Vec<u8>>;

/// The longest value in bytes; headers and environment variables do not take more.
const MAX_LENGTH: usize = 64 << 10;

/// The shortest value in bytes. A shorter one could occur in a response by chance and would be
/// masked there.
const MIN_LENGTH: usize = 8;

/// Given values that one process remembers; the oldest is wiped for a new one.
const MAX_REMEMBERED: usize = 1024;

/// Values that callers of this process gave, by the placeholder of their Secret. A placeholder is
/// random: it belongs to one sandbox, whatever the name of that becomes.
#[derive(Clone, Default)]
pub(crate) struct GivenValues(Arc<Mutex<Vec<(String, SecretValue)>>>);

impl fmt::Debug for GivenValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenValues")
    }
}

impl GivenValues {
    fn with<T>(&self, act: impl FnOnce(&mut Vec<(String, SecretValue)>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn remember(&self, placeholder: &str, value: &SecretValue) {
        self.with(|values| {
            values.retain(|(other, _)| other != placeholder);
            if values.len() >= MAX_REMEMBERED {
                values.remove(0);
            }
            values.push((placeholder.to_owned(), value.clone()));
        });
    }

    fn find(&self, placeholder: &str) -> Option<SecretValue> {
        self.with(|values| {
            let found = values.iter().find(|(other, _)| other == placeholder);
            found.map(|(_, value)| value.clone())
        })
    }

    /// Wipes the values of a sandbox that is removed.
    pub(crate) fn forget(&self, plan: &Plan) {
        for planned in planned(plan) {
            self.with(|values| values.retain(|(other, _)| *other != planned.placeholder));
        }
    }
}

fn planned(plan: &Plan) -> &[PlannedSecret] {
    plan.network.as_ref().map(|network: &Network| network.secrets.as_slice()).unwrap_or_default()
}

/// The values of all Secrets of a Plan, in its order. `given` are those that the calling program
/// provides now, `remembered` those that it provided before.
pub(crate) fn read(
    plan: &Plan,
    given: &[(String, SecretValue)],
    remembered: &GivenValues,
) -> Result<Vec<SecretValue>> {
    let value = |planned: &PlannedSecret| {
        let (secret, placeholder) = (&planned.secret, planned.placeholder.as_str());
        if secret.source != SecretSource::Given || plan.ephemeral {
            return value_of(secret, given);
        }
        if given.iter().all(|(name, _)| *name != secret.name)
            && let Some(value) = remembered.find(placeholder)
        {
            return Ok(value);
        }
        let value = value_of(secret, given)?;
        remembered.remember(placeholder, &value);
        Ok(value)
    };
    planned(plan).iter().map(value).collect()
}

/// The value of one Secret. A client of a server uses it to send the value along.
pub fn value_of(secret: &Secret, given: &[(String, SecretValue)]) -> Result<SecretValue> {
    value(secret, given).map_err(|error| {
        error.under(format!("cannot read the secret `{}`", secret.name)).at(Stage::Network)
    })
}

fn value(secret: &Secret, given: &[(String, SecretValue)]) -> Result<SecretValue> {
    let name = &secret.name;
    let mut value = match &secret.source {
        SecretSource::Variable(variable) => Zeroizing::new(
            std::env::var_os(variable)
                .ok_or_else(|| {
                    Error::new(Kind::NotFound, format!("the variable `{variable}` is not set"))
                        .hint("set it where msb is called; `--secret-file` and `--secret-command` need none")
                })?
                .into_vec(),
        ),
        SecretSource::File(path) => of_file(path)?,
        SecretSource::Command(command) => of_command(command)?,
        SecretSource::Given => given
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| value.clone())
            .ok_or_else(|| {
                Error::new(Kind::NotFound, "its value must come from the program that starts the sandbox")
                    .hint("start it from that program, or make it again with `--secret`")
            })?,
    };
    while value.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        value.pop();
    }
    let printable = value.iter().all(|byte| (0x20..0x7f).contains(byte) || *byte >= 0x80);
    match value.len() {
        MIN_LENGTH..=MAX_LENGTH if printable => Ok(value),
        MIN_LENGTH..=MAX_LENGTH => Err(Error::invalid("it holds control characters")),
        0 => Err(Error::invalid("it is empty")),
        length if length < MIN_LENGTH => Err(Error::invalid(format!(
            "it is shorter than {MIN_LENGTH} bytes"
        ))
        .hint("a shorter value could occur in a response by chance and would be masked there")),
        _ => Err(Error::invalid("it is longer than 64 KiB")),
    }
}

fn of_file(path: &Path) -> Result<SecretValue> {
    let about = |error| Error::host(format!("cannot read `{}`", path.display()), error);
    read_limited(std::fs::File::open(path).map_err(about)?).map_err(about)
}

/// Reads into one allocation, so that no unwiped copy is left behind.
fn read_limited(mut from: impl Read) -> std::io::Result<SecretValue> {
    let mut value = Zeroizing::new(vec![0; MAX_LENGTH + 1]);
    let mut length = 0;
    while length < value.len() {
        match from.read(&mut value[length..])? {
            0 => break,
            read => length += read,
        }
    }
    value.truncate(length);
    Ok(value)
}

/// Runs a shell command; it inherits the terminal, so it can prompt for a password.
fn of_command(command: &str) -> Result<SecretValue> {
    let failed = |error| Error::host("cannot run the command", error);
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let output = child.stdout.take().map(read_limited).transpose().map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    match status.success() {
        true => Ok(output.unwrap_or_default()),
        false => Err(Error::new(Kind::Host, format!("the command ended with {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Secret;

    fn read_one(text: &str) -> Result<SecretValue> {
        let secret = Secret::parse_command(text).unwrap();
        value(&secret, &[])
    }

    #[test]
    fn a_value_is_what_a_command_prints_without_its_line_end() {
        assert_eq!(*read_one("KEY=echo value-123@example.com").unwrap(), b"value-123");
    }

    #[test]
    fn invalid_values_are_refused() {
        for text in [
            "KEY=true@example.com",
            "KEY=false@example.com",
            "KEY=echo short@example.com",
            "KEY=printf 'line one\\nline two'@example.com",
            "KEY=head -c 70000 /dev/zero | tr '\\\\0' x@example.com",
        ] {
            assert!(read_one(text).is_err(), "{text}");
        }
    }
}
