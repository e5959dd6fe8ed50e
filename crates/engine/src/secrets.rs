//! Reading the values of Secrets, each time a sandbox starts. They are kept nowhere: who asks for
//! them hands them to the gateway, and they are wiped from memory behind it.

use msb_spec::{Error, Kind, Network, Plan, Result, Secret, SecretSource, Stage};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Stdio};
use zeroize::Zeroizing;

/// A value, wiped when it is dropped.
pub type Value = Zeroizing<Vec<u8>>;

/// Headers and variables are no place for more.
const LONGEST: usize = 64 << 10;

/// Less could be found in any answer by accident, and would be scrubbed out of it.
const SHORTEST: usize = 8;

/// The values of all Secrets of a Plan, in order. `given` are those that the program which starts the
/// sandbox brings itself.
pub(crate) fn read(plan: &Plan, given: &[(String, Value)]) -> Result<Vec<Value>> {
    let secrets = plan.network.as_ref().map(|network: &Network| network.secrets.as_slice());
    let values = secrets.unwrap_or_default().iter().map(|secret| value_of(&secret.secret, given));
    values.collect()
}

/// The value of one Secret: also for a program that has to give it to a server, which cannot read
/// it itself.
pub fn value_of(secret: &Secret, given: &[(String, Value)]) -> Result<Value> {
    value(secret, given).map_err(|error| {
        error.under(format!("cannot read the secret `{}`", secret.name)).at(Stage::Network)
    })
}

fn value(secret: &Secret, given: &[(String, Value)]) -> Result<Value> {
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
                Error::new(Kind::NotFound, "it is given by the program that starts the sandbox")
                    .hint("start it from that program, or make it again with `--secret`")
            })?,
    };
    while value.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        value.pop();
    }
    let printable = value.iter().all(|byte| (0x20..0x7f).contains(byte) || *byte >= 0x80);
    match value.len() {
        SHORTEST..=LONGEST if printable => Ok(value),
        SHORTEST..=LONGEST => Err(Error::invalid("it holds control characters")),
        0 => Err(Error::invalid("it is empty")),
        length if length < SHORTEST => {
            Err(Error::invalid(format!("it is shorter than {SHORTEST} bytes"))
                .hint("so short a value would be taken out of answers that hold it by chance"))
        }
        _ => Err(Error::invalid("it is longer than 64 KiB")),
    }
}

fn of_file(path: &Path) -> Result<Value> {
    let about = |error| Error::host(format!("cannot read `{}`", path.display()), error);
    bounded(std::fs::File::open(path).map_err(about)?).map_err(about)
}

/// Read into one piece of memory, so that none is left behind unwiped.
fn bounded(mut from: impl Read) -> std::io::Result<Value> {
    let mut value = Zeroizing::new(vec![0; LONGEST + 1]);
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

/// The caller's terminal is there, for a program that asks for a password.
fn of_command(command: &str) -> Result<Value> {
    let failed = |error| Error::host("cannot run the command", error);
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let output = child.stdout.take().map(bounded).transpose().map_err(failed)?;
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

    fn read_one(text: &str) -> Result<Value> {
        let secret = Secret::parse_command(text).unwrap();
        value(&secret, &[])
    }

    #[test]
    fn a_value_is_what_a_command_prints_without_its_line_end() {
        assert_eq!(*read_one("KEY=echo value-123@example.com").unwrap(), b"value-123");
    }

    #[test]
    fn what_is_no_value_is_refused() {
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
