//! `msb registry`: logins to registries.

use super::bare_engine;
use crate::listing::{self, Listing};
use crate::output::{self, Outcome};
use crate::terminal;
use crate::verb_table::LocalVerb;
use clap::Parser;
use msb_engine::images::RegistryOptions;
use msb_engine::registries::{Login as StoredLogin, Secret};
use msb_spec::{Error, Result};
use std::io::{IsTerminal, Read, stdin};
use std::path::PathBuf;

/// Keeps a user and a password for a registry, once it has let them in.
#[derive(Debug, Parser)]
#[command(override_usage = "msb registry login [OPTIONS] HOST")]
pub(crate) struct RegistryLoginArgs {
    /// Registry, as in `ghcr.io` or `localhost:5000`
    #[arg(value_name = "HOST")]
    host: String,
    /// User name; asked for at a terminal
    #[arg(long, short, value_name = "USER")]
    user: Option<String>,
    /// Read the password from stdin instead of asking for it
    #[arg(long)]
    password_stdin: bool,
    /// Accept plain HTTP, and TLS certificates of an unknown CA
    #[arg(long)]
    insecure: bool,
    /// File with CA certificates for the registry
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Only there to say why it is not
    #[arg(long = "password", short = 'p', hide = true, value_name = "PASSWORD", num_args = 0..=1)]
    exposed: Option<Option<String>>,
}

impl LocalVerb for RegistryLoginArgs {
    fn run(self) -> Outcome {
        if self.exposed.is_some() {
            return Err(Error::invalid("a password on the command line is not taken")
                .cause("every user of this machine can read it there, and shells keep it in their history")
                .hint("leave it out to be asked, or pipe it in with `--password-stdin`")
                .into());
        }
        let host = msb_spec::registry(&self.host)?;
        let engine = bare_engine()?;
        let (user, secret) = self.ask()?;
        let reach =
            RegistryOptions { insecure: self.insecure, ca: self.ca, ..RegistryOptions::default() };
        engine.login(&host, &user, &secret, &reach)?;
        let file = engine.login_file();
        output::note(format!("logged in to `{host}` as `{user}`, kept in `{}`", file.display()));
        Ok(0)
    }
}

impl RegistryLoginArgs {
    fn ask(&self) -> Result<(String, Secret)> {
        let asked = !self.password_stdin && stdin().is_terminal();
        let user = match &self.user {
            Some(user) => user.clone(),
            None if asked => terminal::line("User: ")?,
            None => {
                return Err(Error::invalid("no user to log in as").hint("`-u USER` names one"));
            }
        };
        let secret = if self.password_stdin {
            from_stdin()?
        } else if asked {
            terminal::secret("Password: ")?
        } else {
            return Err(Error::invalid("no terminal to ask for a password at")
                .hint("`--password-stdin` reads it from stdin"));
        };
        if secret.is_empty() {
            return Err(Error::invalid("the password is empty"));
        }
        Ok((user, Secret::new(secret)))
    }
}

/// The tokens of large clouds are a few kilobytes.
const PASSWORD_LIMIT: u64 = 64 << 10;

/// A password is a line, with or without its end.
fn from_stdin() -> Result<String> {
    let mut text = String::new();
    stdin()
        .take(PASSWORD_LIMIT + 1)
        .read_to_string(&mut text)
        .map_err(|error| Error::host("cannot read the password from stdin", error))?;
    if text.len() as u64 > PASSWORD_LIMIT {
        return Err(Error::invalid("what stdin has is too long for a password"));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.contains(['\n', '\r', '\0']) {
        return Err(Error::invalid("what stdin has is more than a line, so not a password"));
    }
    Ok(line.to_owned())
}

/// Forgets the user and the password for a registry.
#[derive(Debug, Parser)]
#[command(override_usage = "msb registry logout HOST")]
pub(crate) struct RegistryLogoutArgs {
    /// Registry, as in `ghcr.io` or `localhost:5000`
    #[arg(value_name = "HOST")]
    host: String,
}

impl LocalVerb for RegistryLogoutArgs {
    fn run(self) -> Outcome {
        bare_engine()?.logout(&self.host)?;
        Ok(0)
    }
}

/// Lists logins: those of msb, Docker and podman that would be used. Secrets are not shown.
#[derive(Debug, Parser)]
#[command(override_usage = "msb registry ls [OPTIONS]")]
pub(crate) struct RegistryLsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl LocalVerb for RegistryLsArgs {
    fn run(self) -> Outcome {
        let logins = bare_engine()?.logins()?;
        if self.json {
            listing::json(&logins);
            return Ok(0);
        }
        let mut table = Listing::new(&["REGISTRY", "USER", "FROM"]);
        for StoredLogin { registry, user, program, file } in logins {
            let file = file.display().to_string();
            let from = program.map_or(file.clone(), |program| format!("{program} ({file})"));
            table.row(&[registry, user.unwrap_or_else(|| "-".to_owned()), from]);
        }
        table.print();
        Ok(0)
    }
}
