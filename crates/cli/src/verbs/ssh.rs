//! `msb ssh`: a login in a sandbox, and what ssh and its friends need for theirs.

mod config;
mod keys;
mod serve;

pub(crate) use config::SshConfigArgs;
pub(crate) use keys::{SshAuthorizeArgs, SshKeysArgs, SshRevokeArgs};
pub(crate) use serve::SshServeArgs;

use super::{bare_engine, finished, say_detached};
use crate::arguments;
use crate::local_attach::{AttachOptions, AttachResult, ClosedOutput, attach};
use crate::output::Outcome;
use crate::terminal;
use crate::verb_table::LocalVerb;
use clap::Parser;
use msb_api::Account;
use msb_engine::{Engine, SshFile, SshFiles};
use msb_spec::{Name, Plan, Result, Stdin, UserRef};
use msb_ssh::HostKey;

/// Logs in to a running sandbox: a shell of its user, or a command line for that shell.
///
/// No keys are needed, and no sshd inside.
#[derive(Debug, Parser)]
#[command(override_usage = "msb ssh [OPTIONS] NAME [-- COMMAND...]")]
pub(crate) struct SshArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// User that logs in; the sandbox's own if none is named
    #[arg(long, short, value_name = "USER")]
    user: Option<UserRef>,
    /// Give the command a terminal
    #[arg(long, short, conflicts_with = "no_tty")]
    tty: bool,
    /// Give the shell or the command pipes, even at a terminal
    #[arg(long, short = 'T')]
    no_tty: bool,
    /// Say nothing but results and errors
    #[arg(long, short)]
    quiet: bool,
    /// Command line; its words are joined by spaces, as ssh does
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl LocalVerb for SshArgs {
    fn run(self) -> Outcome {
        let name = Name::parse(&self.name)?;
        let engine = bare_engine()?;
        let user =
            self.user.map_or_else(|| login_name(&engine, &name), |user| Ok(user.to_string()));
        let account = Account::find(&engine, &name, &user?)?;
        let line = (!self.command.is_empty()).then(|| self.command.join(" "));
        // A command gets a terminal only when it is asked for: its output may be for a program.
        let tty = !self.no_tty && (self.tty || (line.is_none() && terminal::is_there()));
        let mut env = Vec::new();
        arguments::pass_term(tty, &mut env);
        let command = account.command(line.as_deref(), tty.then(terminal::size), env);
        let part = AttachOptions {
            stdin: Stdin::Streamed,
            tty,
            leave_at_once: false,
            closed_output: ClosedOutput::ClosePipe,
        };
        match attach(engine.exec(&name, command)?.into_stream(), part)? {
            AttachResult::Exited(exit) if self.quiet => Ok(exit.status()),
            AttachResult::Exited(exit) => Ok(finished(&exit)),
            AttachResult::Detached { exec } => {
                say_detached(&name, exec);
                Ok(0)
            }
        }
    }
}

/// The default user of a login.
fn login_name(engine: &Engine, name: &Name) -> Result<String> {
    let plan: Plan = engine.existing(name)?;
    Ok(plan.user.map_or_else(|| "root".to_owned(), |user| user.user().to_owned()))
}

/// The key by which a sandbox is known; made when it is first needed.
fn host_key(files: &SshFiles) -> Result<HostKey> {
    let text = match files.read(SshFile::HostKey)? {
        Some(text) => text,
        None => files.write_once(SshFile::HostKey, &HostKey::generate()?.to_text())?,
    };
    HostKey::parse(&text)
        .map_err(|error| error.hint(format!("remove `{}`", files.path(SshFile::HostKey).display())))
}

/// What ssh calls the sandbox, wherever it listens.
fn known_as(name: &Name) -> String {
    format!("msb-{name}")
}

/// Writes down for ssh by which key the sandbox is known.
fn make_known(files: &SshFiles, name: &Name, key: &HostKey) -> Result<()> {
    let line = key.known_as(&known_as(name));
    match files.read(SshFile::KnownHosts)?.is_some_and(|known| known == line) {
        true => Ok(()),
        false => files.replace(SshFile::KnownHosts, &line),
    }
}
