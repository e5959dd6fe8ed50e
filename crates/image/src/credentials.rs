//! Who we are to a registry: a user and a password, or a token.
//!
//! Own logins are kept in `auth.json` of the state directory, in Docker's format. Where there is
//! none, the logins of Docker and of podman are used, and the programs that keep them (Docker
//! calls those credential helpers). A secret is never shown: not by `Debug`, not in an error, not
//! on a command line.

mod file;
mod program;

use file::AuthFile;
use msb_spec::{Error, Result, env};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// Something that must not be seen. It has no `Display`, and its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a secret in.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The secret itself, for the one who is to be told.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What a registry is told to let us in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A user and a password.
    Password {
        /// Who.
        user: String,
        /// The password, or what stands for one.
        secret: Secret,
    },
    /// A token that is exchanged for one to use, as OAuth2's refresh tokens are.
    IdentityToken(Secret),
}

/// One line of a list of logins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Login {
    /// Where one is logged in.
    pub registry: String,
    /// As whom; none for a token, and where a program keeps it.
    pub user: Option<String>,
    /// The program that keeps the secret, if the file does not.
    pub program: Option<String>,
    /// The file that says so.
    pub file: PathBuf,
}

/// All logins that can be found.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The state directory.
    home: PathBuf,
    /// Files of others, in the order they are looked at.
    foreign: Vec<PathBuf>,
    /// Where programs that keep credentials are searched.
    path: OsString,
    /// What is tried before anything is kept.
    given: Option<(String, Credential)>,
    /// Whether logins that are kept are used, and not only what is given.
    stored: bool,
}

impl Credentials {
    /// The logins of a state directory, and those of Docker and podman where the environment
    /// says they are.
    pub fn open(home: &Path) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self { home: home.to_owned(), foreign: foreign(variable), path, given: None, stored: true }
    }

    /// No logins at all, but for what is given.
    pub(crate) fn none() -> Self {
        Self {
            home: PathBuf::new(),
            foreign: Vec::new(),
            path: OsString::new(),
            given: None,
            stored: false,
        }
    }

    /// The same with a credential for one registry that is not kept yet.
    #[must_use]
    pub fn giving(&self, registry: &str, credential: Credential) -> Self {
        Self { given: Some((registry.to_owned(), credential)), ..self.clone() }
    }

    /// The file that our own logins are kept in.
    pub fn own_file(&self) -> PathBuf {
        self.home.join(file::OWN)
    }

    /// What to tell a registry; none if one is not logged in there.
    pub fn find(&self, registry: &str) -> Result<Option<Credential>> {
        if let Some((_, given)) = self.given.as_ref().filter(|(host, _)| host == registry) {
            return Ok(Some(given.clone()));
        }
        if !self.stored {
            return Ok(None);
        }
        for file in self.files() {
            let file = file?;
            let found = self
                .in_file(&file, registry)
                .map_err(|error| error.under(format!("cannot use the login for `{registry}`")))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Keeps a user and a password in our own file.
    pub fn login(&self, registry: &str, user: &str, secret: &Secret) -> Result<()> {
        if user.is_empty() || user.contains(':') {
            return Err(Error::invalid(format!("not the name of a user: `{user}`"))
                .hint("it is not empty and has no `:`, which ends it in what a registry is told"));
        }
        file::change(&self.home, |auths| {
            file::remove(auths, registry);
            file::add(auths, registry, user, secret);
            true
        })?;
        Ok(())
    }

    /// Forgets what our own file has for a registry; false if it has nothing.
    pub fn logout(&self, registry: &str) -> Result<bool> {
        file::change(&self.home, |auths| file::remove(auths, registry))
    }

    /// Every login, by registry: of several for one, the one that is used.
    pub fn list(&self) -> Result<Vec<Login>> {
        let mut logins: Vec<Login> = Vec::new();
        for file in self.files() {
            for login in file?.logins()? {
                if !logins.iter().any(|known| known.registry == login.registry) {
                    logins.push(login);
                }
            }
        }
        logins.sort_by(|a, b| a.registry.cmp(&b.registry));
        Ok(logins)
    }

    /// The files that there are, ours first.
    fn files(&self) -> impl Iterator<Item = Result<AuthFile>> {
        let own = AuthFile::own(&self.home).transpose();
        let foreign = self.foreign.iter().filter_map(|path| AuthFile::foreign(path).transpose());
        own.into_iter().chain(foreign)
    }

    fn in_file(&self, file: &AuthFile, registry: &str) -> Result<Option<Credential>> {
        if let Some(program) = file.program(registry) {
            let found = program::ask(program, registry, &self.path, program::LIMIT)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        match file.entry(registry) {
            Some(entry) => file.credential(registry, entry),
            None => Ok(None),
        }
    }
}

/// Where Docker and podman keep their logins, the one that is used first in front.
fn foreign(variable: impl Fn(&'static str) -> Option<OsString>) -> Vec<PathBuf> {
    let home = variable("HOME").map(PathBuf::from);
    let below_home = |path: &str| home.as_ref().map(|home| home.join(path));
    let docker = variable(env::DOCKER_CONFIG).map(PathBuf::from);
    let docker = docker.or_else(|| below_home(".docker")).map(|dir| dir.join("config.json"));
    let podman = match variable(env::REGISTRY_AUTH_FILE) {
        Some(file) => vec![Some(PathBuf::from(file))],
        None => {
            let running = variable("XDG_RUNTIME_DIR").map(PathBuf::from);
            let config = variable("XDG_CONFIG_HOME").map(PathBuf::from);
            let config = config.or_else(|| below_home(".config"));
            [running, config].map(|dir| Some(dir?.join("containers/auth.json"))).to_vec()
        }
    };
    [docker].into_iter().chain(podman).flatten().collect()
}

/// What Docker calls its own registry in its files and to programs.
const DOCKER_KEY: &str = "https://index.docker.io/v1/";
const DOCKER: &str = "docker.io";

/// What a registry is called in a file, and by programs that keep credentials.
fn key_of(registry: &str) -> &str {
    if registry == DOCKER { DOCKER_KEY } else { registry }
}

/// The registry that a key means; none for one that is about some of its repositories only.
fn registry_of(key: &str) -> Option<String> {
    let rest = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    let (host, path) = rest.unwrap_or(key).split_once('/').unwrap_or((rest.unwrap_or(key), ""));
    let whole = matches!(path.trim_end_matches('/'), "" | "v1" | "v2");
    whole.then(|| msb_spec::registry(host).ok()).flatten()
}

#[cfg(test)]
mod tests;
