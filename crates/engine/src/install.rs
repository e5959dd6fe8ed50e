//! Images as commands of the host: small shell scripts in `bin/` of the state directory.
//!
//! A script executes `msb` with the recorded arguments. Its second line is a marker; a file without
//! it is neither overwritten nor removed.

use crate::Engine;
use msb_spec::{Error, Kind, Name, Result, env};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The content of an installed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledCommand<'a> {
    /// The `msb` executable that the script runs.
    pub program: &'a Path,
    /// The arguments after `msb`; those of the caller are appended.
    pub words: &'a [std::ffi::OsString],
    /// Whether the script exports `MSB_HOME`, because the state directory is not the default one.
    pub keep_home: bool,
}

/// The start of the second line of every script.
const MARKER: &str = "# Made by `msb install`";

/// Bytes that are read to find the marker in the first two lines.
const HEAD: u64 = 256;

impl Engine {
    /// The directory of installed commands.
    pub fn commands(&self) -> PathBuf {
        self.home().path().join("bin")
    }

    /// Installs a command, replacing an installed one, and returns its path.
    pub fn install(&self, name: &str, command: &InstalledCommand<'_>) -> Result<PathBuf> {
        let name = command_name(name)?;
        let path = self.commands().join(name.as_str());
        let about = |error| Error::host(format!("cannot install `{}`", path.display()), error);
        if fs::symlink_metadata(&path).is_ok() && !is_ours(&path) {
            let message = format!("`{}` was not made by `msb install`", path.display());
            return Err(Error::new(Kind::Exists, message)
                .hint("`--name` gives the command another name; or move that file away"));
        }
        let script = script(&name, command, self.home().path());
        self.write_script(&name, &path, &script).map_err(about)?;
        Ok(path)
    }

    /// Removes an installed command. Fails if the file was not made by `msb install`.
    pub fn uninstall(&self, name: &str) -> Result<()> {
        let name = command_name(name)?;
        let path = self.commands().join(name.as_str());
        if fs::symlink_metadata(&path).is_err() {
            let error = Error::new(Kind::NotFound, format!("no installed command `{name}`"));
            let names = self.installed();
            return Err(match msb_spec::nearest(name.as_str(), names.iter().map(Name::as_str)) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            });
        }
        if !is_ours(&path) {
            let message = format!("`{}` was not made by `msb install`", path.display());
            return Err(
                Error::invalid(message).hint("remove the file yourself if it is not needed")
            );
        }
        fs::remove_file(&path)
            .map_err(|error| Error::host(format!("cannot remove `{}`", path.display()), error))
    }

    fn installed(&self) -> Vec<Name> {
        let entries = fs::read_dir(self.commands()).into_iter().flatten().flatten();
        let ours = entries.filter(|entry| is_ours(&entry.path()));
        ours.filter_map(|entry| Name::parse(entry.file_name().to_str()?).ok()).collect()
    }

    /// Writes the script to a temporary file and renames it, so that no caller runs a partial
    /// script.
    fn write_script(&self, name: &Name, path: &Path, script: &[u8]) -> io::Result<()> {
        let directory = self.commands();
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let temp = directory.join(format!(".{name}-{}", std::process::id()));
        let written = || -> io::Result<()> {
            let mut file = File::options().write(true).create_new(true).mode(0o755).open(&temp)?;
            file.write_all(script)?;
            file.sync_all()?;
            drop(file);
            fs::rename(&temp, path)
        };
        written().inspect_err(|_| drop(fs::remove_file(&temp)))
    }
}

/// Checks a command name: a plain name, and not `msb`, which it would shadow.
fn command_name(text: &str) -> Result<Name> {
    let plain = Name::parse(text).ok().filter(|name| name.as_str() != "msb");
    plain.ok_or_else(|| {
        Error::invalid(format!("not a name for a command: `{}`", msb_spec::shown(text)))
            .hint("`--name` gives one: letters, digits, `.`, `_` and `-`, and not `msb`")
    })
}

/// Whether a file is an installed script. A symlink is not.
fn is_ours(path: &Path) -> bool {
    let regular = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
    let mut head = Vec::new();
    let read =
        regular && File::open(path).is_ok_and(|f| f.take(HEAD).read_to_end(&mut head).is_ok());
    let second = head.split(|byte| *byte == b'\n').nth(1).unwrap_or_default();
    read && second.starts_with(MARKER.as_bytes())
}

fn script(name: &Name, command: &InstalledCommand<'_>, home: &Path) -> Vec<u8> {
    let mut text =
        format!("#!/bin/sh\n{MARKER}; `msb uninstall {name}` removes it.\n").into_bytes();
    if command.keep_home {
        text.extend_from_slice(format!("export {}=", env::HOME).as_bytes());
        text.extend(shell_quoted(home.as_os_str()));
        text.push(b'\n');
    }
    text.extend_from_slice(b"exec ");
    text.extend(shell_quoted(command.program.as_os_str()));
    for word in command.words {
        text.push(b' ');
        text.extend(shell_quoted(word));
    }
    text.extend_from_slice(b" \"$@\"\n");
    text
}

/// Quotes a word for sh, whatever bytes it has.
fn shell_quoted(word: &OsStr) -> Vec<u8> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:=,@+%".contains(byte);
    let bytes = word.as_bytes();
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return bytes.to_vec();
    }
    let mut text = vec![b'\''];
    for byte in bytes {
        match byte {
            b'\'' => text.extend_from_slice(b"'\\''"),
            other => text.push(*other),
        }
    }
    text.push(b'\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    #[test]
    fn sh_parses_every_quoted_word_unchanged() {
        let words: Vec<OsString> = [
            "", " ", "a b", "'", "''", "\"", "$HOME", "`id`", "$(id)", "\\", "\n", "a'b\"c", "*",
            "~", "#x", "-e", "!", ";", "&", "|", "é", "\t", "%s", "=x",
        ]
        .map(OsString::from)
        .into_iter()
        .chain([OsString::from_vec(vec![0xff, b'\'', 0x01])])
        .collect();
        let mut printf = vec![OsString::from("%s\\0")];
        printf.extend(words.iter().cloned());
        let program = Path::new("/usr/bin/printf");
        let command = InstalledCommand { program, words: &printf, keep_home: true };
        let whole = script(&Name::parse("x").unwrap(), &command, Path::new("/a b/'c"));
        let output = Command::new("sh")
            .arg("-c")
            .arg(OsString::from_vec(whole))
            // Arguments of the caller.
            .args(["x", "last one", "$1"])
            .output()
            .unwrap();
        let read: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
        let mut expected: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        expected.extend([b"last one".as_slice(), b"$1", b""]);
        assert_eq!(read, expected);
    }

    #[test]
    fn only_plain_names_are_accepted_as_commands() {
        for bad in ["", ".", "..", "../x", "a/b", "-x", "a b", "a\n", "msb", "ä"] {
            assert!(command_name(bad).is_err(), "{bad:?}");
        }
        for good in ["ubuntu", "python3.13", "A_b"] {
            assert!(command_name(good).is_ok(), "{good:?}");
        }
    }
}
