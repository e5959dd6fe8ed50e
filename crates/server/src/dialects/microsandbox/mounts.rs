//! Mounts of host directories, volumes and tmpfs.

use super::Microsandbox;
use super::create::{SandboxRequest, mebibytes};
use super::envelope::ToolFailure;
use super::files::volume;
use msb_spec::{GuestPath, Mount, MountSource, Tmpfs, VolumeSpec};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MountParams {
    kind: MountKind,
    guest_path: String,
    host_path: Option<String>,
    name: Option<String>,
    source: Option<String>,
    #[serde(default)]
    readonly: bool,
    #[serde(default)]
    noexec: bool,
    nosuid: Option<bool>,
    nodev: Option<bool>,
    size_mib: Option<u64>,
    format: Option<String>,
    fstype: Option<String>,
    stat_virtualization: Option<String>,
    host_permissions: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum MountKind {
    Bind,
    Named,
    Tmpfs,
    Disk,
}

impl MountParams {
    /// Refuses options that are unsupported, or meaningless for the kind of mount.
    fn check(&self) -> Result<(), ToolFailure> {
        let at = &self.guest_path;
        let unsupported = |what: &str, hint: &str| {
            Err(ToolFailure::unsupported(format!("{what} of the mount at {at}"), hint))
        };
        let foreign = |what: &str| {
            Err(ToolFailure::new(format!("{what} has no meaning for the mount at {at}")))
        };
        match self.stat_virtualization.as_deref() {
            Some("strict") => {
                let hint = "owners and modes are those of the host: say `off` or `relaxed`";
                return unsupported("strict statVirtualization", hint);
            }
            Some(_) if self.kind != MountKind::Bind => return foreign("statVirtualization"),
            _ => {}
        }
        match self.host_permissions.as_deref() {
            Some("private") => {
                let hint = "modes that are set inside are set on the host: say `mirror`";
                return unsupported("private hostPermissions", hint);
            }
            Some(_) if self.kind != MountKind::Bind => return foreign("hostPermissions"),
            _ => {}
        }
        match self.kind {
            MountKind::Disk => {
                let hint =
                    "create a volume of kind disk with volume_create and mount it as `named`";
                unsupported("a disk image of the host", hint)
            }
            _ if self.format.is_some() => foreign("format"),
            _ if self.fstype.is_some() => foreign("fstype"),
            MountKind::Bind if self.name.is_some() => foreign("name"),
            MountKind::Bind if self.size_mib.is_some() => foreign("sizeMib"),
            MountKind::Named if self.host_path.is_some() => foreign("hostPath"),
            MountKind::Tmpfs if self.host_path.is_some() || self.source.is_some() => {
                foreign("hostPath or source")
            }
            MountKind::Tmpfs if self.name.is_some() => foreign("name"),
            _ => Ok(()),
        }
    }
}

impl Microsandbox {
    pub(super) fn mount(
        &self,
        request: &mut SandboxRequest,
        params: &MountParams,
    ) -> Result<(), ToolFailure> {
        params.check()?;
        if params.nosuid == Some(false) || params.nodev == Some(false) {
            request.warnings.push(format!(
                "the mount at {} is nosuid and nodev, as every mount of a sandbox",
                params.guest_path
            ));
        }
        let missing = |what: &str| {
            ToolFailure::new(format!("the mount at {} needs {what}", params.guest_path))
        };
        let source = match params.kind {
            MountKind::Tmpfs => {
                let guest = GuestPath::parse(&params.guest_path)?;
                let size = params.size_mib.map_or(Tmpfs::DEFAULT_SIZE, mebibytes);
                let (read_only, no_exec) = (params.readonly, params.noexec);
                let tmpfs = Tmpfs { guest, size, read_only, no_exec };
                // Parsed again, which checks it.
                request.spec.tmpfs.push(Tmpfs::parse(&tmpfs.to_string())?);
                return Ok(());
            }
            MountKind::Named => {
                let name = params.name.as_ref().or(params.source.as_ref());
                let name = volume(name.ok_or_else(|| missing("a name"))?)?;
                if params.size_mib.is_some() {
                    let size = params.size_mib.map(mebibytes);
                    request.volumes.push(VolumeSpec { size, ..VolumeSpec::new(name.clone()) });
                }
                MountSource::Volume(name)
            }
            MountKind::Bind | MountKind::Disk => {
                let path = params.host_path.as_ref().or(params.source.as_ref());
                MountSource::Path(self.host_path(path.ok_or_else(|| missing("hostPath"))?)?)
            }
        };
        let mount = Mount::new(source, &params.guest_path, params.readonly)?;
        request.spec.mounts.push(mount.no_exec(params.noexec));
        Ok(())
    }
}
