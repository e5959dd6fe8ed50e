//! What a sandbox starts from.

use super::Microsandbox;
use super::create::{Wanted, mebibytes};
use super::envelope::Failure;
use crate::dialect::Call;
use msb_api::{Login, Registry};
use msb_spec::{ImageRef, Kind, PullWhen, Reference};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(super) enum Rootfs {
    Oci {
        reference: String,
        pull_policy: Option<PullWhen>,
        upper_size_mib: Option<u64>,
        registry: Option<RegistryAsked>,
    },
    Bind {
        path: String,
    },
    Disk {
        path: String,
        fstype: Option<String>,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RegistryAsked {
    insecure: bool,
    ca_certs_path: Option<String>,
    auth: Option<Auth>,
}

#[derive(Debug, Deserialize)]
struct Auth {
    kind: String,
    username: Option<String>,
    password: Option<String>,
}

impl Auth {
    fn login(&self) -> Result<Option<Login>, Failure> {
        match (self.kind.as_str(), &self.username, &self.password) {
            ("basic", Some(user), Some(password)) => {
                Ok(Some(Login { user: user.clone(), password: password.clone() }))
            }
            ("basic", ..) => Err(Failure::new("auth of kind basic needs username and password")),
            (_, None, None) => Ok(None),
            _ => Err(Failure::new("auth of kind anonymous has neither username nor password")),
        }
    }
}

impl Microsandbox {
    pub(super) fn rootfs(
        &self,
        wanted: &mut Wanted,
        image: Option<&str>,
        rootfs: Option<&Rootfs>,
        call: &Call,
    ) -> Result<(), Failure> {
        match (rootfs, image) {
            (Some(Rootfs::Bind { path }), _) => {
                let path = self.host_path(path)?;
                if !path.is_dir() {
                    return Err(Failure::new(format!(
                        "rootfs is not a directory: {}",
                        path.display()
                    )));
                }
                wanted.spec.image = ImageRef::Path(path);
            }
            (Some(Rootfs::Disk { path, fstype }), _) => {
                let path = self.host_path(path)?;
                if !path.is_file() {
                    return Err(Failure::new(format!("rootfs is not a disk: {}", path.display())));
                }
                wanted.spec.image = ImageRef::Path(path);
                wanted.fstype.clone_from(fstype);
            }
            (Some(Rootfs::Oci { reference, pull_policy, upper_size_mib, registry }), _) => {
                let reference = Reference::parse(reference)?;
                wanted.spec.pull = pull_policy.unwrap_or(wanted.spec.pull);
                wanted.spec.disk = upper_size_mib.map(mebibytes).or(wanted.spec.disk);
                if let Some(registry) = registry {
                    self.fetch(wanted, &reference, registry, call)?;
                }
                wanted.spec.image = ImageRef::Name(reference);
            }
            (None, Some(image)) => wanted.spec.image = self.image(image)?,
            (None, None) => {
                let image = &wanted.spec.image;
                wanted.warnings.push(format!("no image was named, so `{image}` was taken"));
            }
        }
        Ok(())
    }

    /// Fetches an image in a way that holds for this call alone.
    fn fetch(
        &self,
        wanted: &mut Wanted,
        reference: &Reference,
        asked: &RegistryAsked,
        call: &Call,
    ) -> Result<(), Failure> {
        let registry = Registry {
            insecure: asked.insecure,
            ca: asked.ca_certs_path.as_deref().map(|path| self.host_path(path)).transpose()?,
            login: asked.auth.as_ref().map(Auth::login).transpose()?.flatten(),
        };
        let api = self.world.api.as_ref();
        let missing = || match api.image_inspect(reference) {
            Err(error) if error.kind() == Kind::NotFound => Ok(true),
            other => other.map(|_| false),
        };
        if match wanted.spec.pull {
            PullWhen::Always => true,
            PullWhen::IfMissing => missing()?,
            PullWhen::Never => false,
        } {
            api.image_pull_from(reference, &registry, call.watch.as_ref())?;
        }
        // It is here now, and would be fetched without its login.
        wanted.spec.pull = PullWhen::Never;
        Ok(())
    }

    /// The name of an image, or a path that clients may name.
    fn image(&self, image: &str) -> Result<ImageRef, Failure> {
        match looks_like_path(image) {
            true => Ok(ImageRef::Path(self.host_path(image)?)),
            false => Ok(ImageRef::parse(image)?),
        }
    }
}

pub(super) fn looks_like_path(text: &str) -> bool {
    ["/", "./", "../", "~"].iter().any(|start| text.starts_with(start))
        || text == "."
        || text == ".."
}
