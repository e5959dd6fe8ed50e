//! The root file system of a new sandbox.

use super::Microsandbox;
use super::create::{SandboxRequest, mebibytes};
use super::envelope::ToolFailure;
use crate::dialect::ToolCall;
use msb_api::{Login, Registry};
use msb_spec::{ImageRef, Kind, PullWhen, Reference};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(super) enum RootfsParams {
    Oci {
        reference: String,
        pull_policy: Option<PullWhen>,
        upper_size_mib: Option<u64>,
        registry: Option<RegistryParams>,
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
pub(super) struct RegistryParams {
    insecure: bool,
    ca_certs_path: Option<String>,
    auth: Option<AuthParams>,
}

#[derive(Debug, Deserialize)]
struct AuthParams {
    kind: String,
    username: Option<String>,
    password: Option<String>,
}

impl AuthParams {
    fn login(&self) -> Result<Option<Login>, ToolFailure> {
        match (self.kind.as_str(), &self.username, &self.password) {
            ("basic", Some(user), Some(password)) => {
                Ok(Some(Login { user: user.clone(), password: password.clone() }))
            }
            ("basic", ..) => {
                Err(ToolFailure::new("auth of kind basic needs username and password"))
            }
            (_, None, None) => Ok(None),
            _ => Err(ToolFailure::new("auth of kind anonymous has neither username nor password")),
        }
    }
}

impl Microsandbox {
    pub(super) fn rootfs(
        &self,
        request: &mut SandboxRequest,
        image: Option<&str>,
        rootfs: Option<&RootfsParams>,
        call: &ToolCall,
    ) -> Result<(), ToolFailure> {
        match (rootfs, image) {
            (Some(RootfsParams::Bind { path }), _) => {
                let path = self.host_path(path)?;
                if !path.is_dir() {
                    return Err(ToolFailure::new(format!(
                        "rootfs is not a directory: {}",
                        path.display()
                    )));
                }
                request.spec.image = ImageRef::Path(path);
            }
            (Some(RootfsParams::Disk { path, fstype }), _) => {
                let path = self.host_path(path)?;
                if !path.is_file() {
                    return Err(ToolFailure::new(format!(
                        "rootfs is not a disk: {}",
                        path.display()
                    )));
                }
                request.spec.image = ImageRef::Path(path);
                request.fstype.clone_from(fstype);
            }
            (Some(RootfsParams::Oci { reference, pull_policy, upper_size_mib, registry }), _) => {
                request.spec.pull = pull_policy.unwrap_or(request.spec.pull);
                request.spec.disk = upper_size_mib.map(mebibytes).or(request.spec.disk);
                // The programs of this host come from no registry.
                if ImageRef::parse(reference) == Ok(ImageRef::Host) {
                    request.spec.image = ImageRef::Host;
                    return Ok(());
                }
                let reference = Reference::parse(reference)?;
                if let Some(registry) = registry {
                    self.fetch(request, &reference, registry, call)?;
                }
                request.spec.image = ImageRef::Name(reference);
            }
            (None, Some(image)) => request.spec.image = self.image(image)?,
            (None, None) => {
                let image = &request.spec.image;
                request.warnings.push(format!("no image was given; `{image}` is used"));
            }
        }
        Ok(())
    }

    /// Pulls an image with registry settings for this call only.
    fn fetch(
        &self,
        request: &mut SandboxRequest,
        reference: &Reference,
        params: &RegistryParams,
        call: &ToolCall,
    ) -> Result<(), ToolFailure> {
        let registry = Registry {
            insecure: params.insecure,
            ca: params.ca_certs_path.as_deref().map(|path| self.host_path(path)).transpose()?,
            login: params.auth.as_ref().map(AuthParams::login).transpose()?.flatten(),
        };
        let api = self.config.api.as_ref();
        let missing = || match api.image_inspect(reference) {
            Err(error) if error.kind() == Kind::NotFound => Ok(true),
            other => other.map(|_| false),
        };
        if match request.spec.pull {
            PullWhen::Always => true,
            PullWhen::IfMissing => missing()?,
            PullWhen::Never => false,
        } {
            api.image_pull(reference, Some(&registry), call.watch.as_ref())?;
        }
        // It is stored now; a second pull would lack the login.
        request.spec.pull = PullWhen::Never;
        Ok(())
    }

    /// Parses an image reference or an allowed host path.
    fn image(&self, image: &str) -> Result<ImageRef, ToolFailure> {
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
