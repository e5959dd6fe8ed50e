//! Credentials for registries: a user and a password, or a token.
//!
//! Logins of msb are stored in `auth.json` of the state directory, in the format of Docker. Without
//! one, the logins of Docker and podman and their credential helpers are used. A secret is never
//! printed: not by `Debug`, not in an error, not on a command line.

mod auth_file;
mod credential_helper;

use auth_file::AuthFile;
use msb_spec::{Error, Result, env};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// A secret. It has no `Display`, and `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps the text of a secret.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, to send it to the registry.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// How to authenticate at a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// A user and a password.
    Password {
        /// Name of the user.
        user: String,
        /// The password, or an access token in its place.
        secret: Secret,
    },
    /// A token that is exchanged for an access token, like a refresh token of OAuth2.
    IdentityToken(Secret),
}

/// One line of `msb registry ls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Login {
    /// Host of the registry.
    pub registry: String,
    /// The user; none for a token, and if a credential helper has it.
    pub user: Option<String>,
    /// Name of the credential helper that has the secret, if the file does not.
    pub program: Option<String>,
    /// Path of the file with this login.
    pub file: PathBuf,
}

/// All logins that msb can use.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// Path of the state directory.
    home: PathBuf,
    /// Files of Docker and podman, in order of preference.
    other_files: Vec<PathBuf>,
    /// PATH that credential helpers are searched in.
    path: OsString,
    /// Credential that takes precedence, with its registry.
    given: Option<(String, Credential)>,
    /// Whether stored logins are used in addition to `given`.
    stored: bool,
}

impl Credentials {
    /// The logins of a state directory, and those of Docker and podman at the paths that the
    /// environment sets.
    pub fn open(home: &Path) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            home: home.to_owned(),
            other_files: docker_and_podman_files(variable),
            path,
            given: None,
            stored: true,
        }
    }

    /// No stored logins; only a credential that is given later.
    pub(crate) fn none() -> Self {
        Self {
            home: PathBuf::new(),
            other_files: Vec::new(),
            path: OsString::new(),
            given: None,
            stored: false,
        }
    }

    /// A copy with a credential for one registry that takes precedence.
    #[must_use]
    pub fn giving(&self, registry: &str, credential: Credential) -> Self {
        Self { given: Some((registry.to_owned(), credential)), ..self.clone() }
    }

    /// Path of the file with the logins of msb.
    pub fn own_file(&self) -> PathBuf {
        self.home.join(auth_file::OWN)
    }

    /// The credential for a registry; none if there is no login.
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

    /// Stores a user and a password in the file of msb.
    pub fn login(&self, registry: &str, user: &str, secret: &Secret) -> Result<()> {
        if user.is_empty() || user.contains(':') {
            return Err(Error::invalid(format!("not the name of a user: `{user}`")).hint(
                "a user name is not empty and has no `:`, which separates it from the password",
            ));
        }
        auth_file::change(&self.home, |auths| {
            auth_file::remove(auths, registry);
            auth_file::add(auths, registry, user, secret);
            true
        })?;
        Ok(())
    }

    /// Removes the login of a registry from the file of msb. Returns false if there was none.
    pub fn logout(&self, registry: &str) -> Result<bool> {
        auth_file::change(&self.home, |auths| auth_file::remove(auths, registry))
    }

    /// Every login, sorted by registry. Of several for one registry, the one that is used.
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

    /// The existing files, the one of msb first.
    fn files(&self) -> impl Iterator<Item = Result<AuthFile>> {
        let own = AuthFile::own(&self.home).transpose();
        let others = self.other_files.iter().filter_map(|path| AuthFile::foreign(path).transpose());
        own.into_iter().chain(others)
    }

    fn in_file(&self, file: &AuthFile, registry: &str) -> Result<Option<Credential>> {
        if let Some(program) = file.program(registry) {
            let found =
                credential_helper::get(program, registry, &self.path, credential_helper::LIMIT)?;
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

/// Paths of the logins of Docker and podman, in order of preference.
fn docker_and_podman_files(variable: impl Fn(&'static str) -> Option<OsString>) -> Vec<PathBuf> {
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

/// Key of docker.io in files and for credential helpers.
const DOCKER_KEY: &str = "https://index.docker.io/v1/";
const DOCKER: &str = "docker.io";

/// Key of a registry in files and for credential helpers.
fn key_of(registry: &str) -> &str {
    if registry == DOCKER { DOCKER_KEY } else { registry }
}

/// The registry of a key; none for a key that names a repository.
fn registry_of(key: &str) -> Option<String> {
    let rest = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    let (host, path) = rest.unwrap_or(key).split_once('/').unwrap_or((rest.unwrap_or(key), ""));
    let whole = matches!(path.trim_end_matches('/'), "" | "v1" | "v2");
    whole.then(|| msb_spec::registry(host).ok()).flatten()
}

#[cfg(test)]
mod tests;
