//! What a server is asked for, seen from a machine that is not its own.
//!
//! Host paths of a Spec are those of the server's machine; the values of Secrets, files that
//! describe a sandbox and variables are those of the caller.

use msb_api::{Api, Registry, Watch};
use msb_engine::secret_value;
use msb_spec::{Error, ImageRef, MountSource, Patch, PullWhen, Result, SecretSource, Spec};
use std::path::Path;
use std::sync::Arc;

/// A path that means the same here and on the server's machine.
pub(crate) fn absolute(path: &Path) -> Result<()> {
    if path.is_absolute() {
        return Ok(());
    }
    let message =
        format!("a path of the server's machine has to be absolute: `{}`", path.display());
    Err(Error::invalid(message)
        .hint("with `--remote` the host is the machine of the server; `msb cp` copies from here"))
}

/// The Spec as a server can take it, and Operations that bring the values of its Secrets.
pub(crate) fn spec_for_server(api: Arc<dyn Api>, mut spec: Spec) -> Result<(Arc<dyn Api>, Spec)> {
    if let ImageRef::Path(path) = &spec.image {
        absolute(path)?;
    }
    for mount in &spec.mounts {
        if let MountSource::Path(path) = &mount.source {
            absolute(path)?;
        }
    }
    if let Some(workspace) = &spec.workspace {
        absolute(&workspace.host)?;
    }
    for patch in &spec.patches {
        if let Patch::Copy { from, .. } = patch {
            absolute(from)?;
        }
    }
    let mut values = Vec::new();
    for secret in spec.network.iter_mut().flat_map(|network| &mut network.secrets) {
        values.push((secret.name.clone(), secret_value(secret, &[])?.to_vec()));
        secret.source = SecretSource::Given;
    }
    let api = if values.is_empty() { api } else { api.with_secrets(values) };
    Ok((api, spec))
}

/// Has a server fetch the image of a Spec where its registry is reached in a way for this once.
pub(crate) fn fetch(
    api: &dyn Api,
    spec: &mut Spec,
    registry: &Registry,
    watch: &dyn Watch,
) -> Result<()> {
    let ImageRef::Name(name) = &spec.image else { return Ok(()) };
    let missing = match spec.pull {
        PullWhen::Always => true,
        PullWhen::IfMissing => api.image_inspect(name).is_err(),
        PullWhen::Never => false,
    };
    if *registry == Registry::default() || !missing {
        return Ok(());
    }
    if spec.platform.is_some() {
        let both = "`--platform` and `--insecure` cannot both be done through a server";
        return Err(Error::unsupported(both).hint("pull the image where the server is"));
    }
    api.image_pull(name, Some(registry), watch)?;
    spec.pull = PullWhen::IfMissing;
    Ok(())
}
