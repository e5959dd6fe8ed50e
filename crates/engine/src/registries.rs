//! Logins to registries: store, remove, list.

pub use msb_image::{Login, Secret};

use crate::Engine;
use msb_image::{Credential, Credentials, RegistryOptions, Settings};
use msb_spec::{Error, Kind, Result};
use std::path::PathBuf;

impl Engine {
    /// Stores a user and a password for a registry, after the registry has accepted them.
    pub fn login(
        &self,
        registry: &str,
        user: &str,
        secret: &Secret,
        reach: &RegistryOptions,
    ) -> Result<()> {
        let registry = msb_spec::registry(registry)?;
        let about = |error: Error| error.under(format!("cannot log in to `{registry}`"));
        let credentials = self.credentials();
        let settings = Settings::read(self.home().path())?;
        let given = Credential::Password { user: user.to_owned(), secret: secret.clone() };
        msb_image::check_login(&registry, &settings, reach, &credentials.giving(&registry, given))
            .map_err(about)?;
        credentials.login(&registry, user, secret).map_err(about)
    }

    /// Removes the user and the password for a registry.
    pub fn logout(&self, registry: &str) -> Result<()> {
        let registry = msb_spec::registry(registry)?;
        let credentials = self.credentials();
        if credentials.logout(&registry)? {
            return Ok(());
        }
        let error = Error::new(Kind::NotFound, format!("not logged in to `{registry}`"));
        let others = credentials.list()?.into_iter().find(|login| login.registry == registry);
        Err(match others {
            Some(login) => error.hint(format!(
                "`{}` has a login for it, which the tool that wrote it can remove",
                login.file.display()
            )),
            None => error.hint("`msb registry ls` lists the logins"),
        })
    }

    /// All logins that pulls and pushes use, including those of other tools.
    pub fn logins(&self) -> Result<Vec<Login>> {
        self.credentials().list()
    }

    /// The file with the logins that msb stores.
    pub fn login_file(&self) -> PathBuf {
        self.credentials().own_file()
    }

    fn credentials(&self) -> Credentials {
        Credentials::open(self.home().path())
    }
}
