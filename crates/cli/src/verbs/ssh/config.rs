//! `msb ssh config`: what belongs into `~/.ssh/config`.

use super::{host_key, known_as, login_name, make_known};
use crate::output::{self, Outcome};
use crate::target::bare_engine;
use crate::verb_table::LocalVerb;
use clap::Parser;
use msb_engine::SshFile;
use msb_spec::{Error, Name, Result, UserRef, env};
use std::path::Path;

/// Prints a block for `~/.ssh/config`, so that `ssh NAME`, `scp`, `sftp`, `rsync` and editors reach the sandbox.
///
/// No port is opened and no key is needed: ssh starts `msb ssh serve --stdio` as its way there.
#[derive(Debug, Parser)]
#[command(override_usage = "msb ssh config [OPTIONS] NAME")]
pub(crate) struct SshConfigArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// What ssh is to call it, instead of its name
    #[arg(long, value_name = "HOST")]
    alias: Option<String>,
    /// User that logs in; the sandbox's own if none is named
    #[arg(long, short, value_name = "USER")]
    user: Option<UserRef>,
}

impl LocalVerb for SshConfigArgs {
    fn run(self) -> Outcome {
        let name = Name::parse(&self.name)?;
        let engine = bare_engine()?;
        let files = engine.ssh_files(&name)?;
        let key = host_key(&files)?;
        make_known(&files, &name, &key)?;
        let user = match &self.user {
            Some(user) => user.user().to_owned(),
            None => login_name(&engine, &name)?,
        };
        let program = std::env::current_exe()
            .map_err(|error| Error::host("cannot tell which program this is", error))?;
        let home = std::env::var_os(env::HOME).filter(|home| !home.is_empty());
        let home = home.map(|_| engine.home().path());
        let block = Block {
            alias: alias(self.alias.as_deref().unwrap_or(name.as_str()))?,
            name: &name,
            user: &user,
            known_hosts: known_hosts(&files.path(SshFile::KnownHosts))?,
            program: text(&program)?,
            home: home.map(text).transpose()?,
        };
        output::write_stdout(block.to_string().as_bytes());
        Ok(0)
    }
}

/// A name that is not a pattern, nor several.
fn alias(text: &str) -> Result<&str> {
    let well = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    match !text.is_empty() && !text.starts_with('-') && text.bytes().all(well) {
        true => Ok(text),
        false => Err(Error::invalid(format!("not a name for ssh: `{text}`"))
            .hint("letters, digits, `.`, `_` and `-` can be in one")),
    }
}

/// A path as it can stand on a line of ssh.
fn text(path: &Path) -> Result<&str> {
    let text = path.to_str().filter(|text| !text.contains(|c: char| c.is_control() || c == '"'));
    text.ok_or_else(|| untellable(path))
}

/// Where the list of known hosts is, as ssh reads it on a line or behind `-o`.
pub(super) fn known_hosts(path: &Path) -> Result<String> {
    // Here a per cent sign begins a word of ssh's own, and a backslash takes the meaning from what follows. Nothing
    // takes it from the beginning of a variable.
    match text(path)? {
        text if text.contains("${") => Err(untellable(path)
            .hint(format!("ssh takes `${{` for a variable; set `{}` to another path", env::HOME))),
        text => {
            let text = text.replace('\\', "\\\\").replace('%', "%%");
            Ok(if text.chars().all(is_plain) { text } else { format!("\"{text}\"") })
        }
    }
}

fn untellable(path: &Path) -> Error {
    Error::unsupported(format!("ssh cannot be told of this path: `{}`", path.display()))
}

struct Block<'a> {
    alias: &'a str,
    name: &'a Name,
    user: &'a str,
    known_hosts: String,
    program: &'a str,
    home: Option<&'a str>,
}

impl std::fmt::Display for Block<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let home = match &self.home {
            Some(home) => format!("env {}={} ", env::HOME, quoted(home)),
            None => String::new(),
        };
        writeln!(f, "Host {}", self.alias)?;
        writeln!(f, "    HostName {}", self.name)?;
        writeln!(f, "    User {}", self.user)?;
        writeln!(f, "    HostKeyAlias {}", known_as(self.name))?;
        writeln!(f, "    UserKnownHostsFile {}", self.known_hosts)?;
        writeln!(f, "    StrictHostKeyChecking yes")?;
        writeln!(f, "    ForwardAgent no")?;
        let command = format!("{home}{} ssh serve {} --stdio", quoted(self.program), self.name);
        writeln!(f, "    ProxyCommand {}", command.replace('%', "%%"))
    }
}

/// A word for a shell. Without quotes, because ssh wants to see them in pairs, and sees those behind a backslash
/// otherwise than a shell.
pub(super) fn quoted(word: &str) -> String {
    let escaped = |c: char| [(!is_plain(c)).then_some('\\'), Some(c)].into_iter().flatten();
    word.chars().flat_map(escaped).collect()
}

/// Whether it means itself, to ssh and to a shell.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_right_for_odd_paths() {
        let block = Block {
            alias: "dev",
            name: &Name::parse("box").unwrap(),
            user: "ann",
            known_hosts: known_hosts(Path::new("/a b/100%\\/known_hosts")).unwrap(),
            program: "/opt/it's here/msb",
            home: Some("/a b/100%\\"),
        };
        assert_eq!(
            block.to_string(),
            "Host dev\n    HostName box\n    User ann\n    HostKeyAlias msb-box\n    \
             UserKnownHostsFile \"/a b/100%%\\\\/known_hosts\"\n    StrictHostKeyChecking yes\n    \
             ForwardAgent no\n    ProxyCommand env MSB_HOME=/a\\ b/100%%\\\\ /opt/it\\'s\\ here/msb \
             ssh serve box --stdio\n"
        );
        for bad in ["/a${HOME}/x", "/a\nb", "/a\"b"] {
            assert!(known_hosts(Path::new(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_alias_is_one_name() {
        assert!(alias("dev.box-1").is_ok());
        for bad in ["", "a b", "*", "-x", "a\nProxyCommand x"] {
            assert!(alias(bad).is_err(), "{bad:?}");
        }
    }
}
