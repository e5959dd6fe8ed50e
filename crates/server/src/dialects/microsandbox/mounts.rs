//! Host directories, volumes and memory shown inside.

use super::Microsandbox;
use super::create::{Wanted, mebibytes};
use super::envelope::Failure;
use super::files::volume;
use msb_spec::{GuestPath, Mount, MountSource, Tmpfs, VolumeSpec};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MountAsked {
    kind: Kind,
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
enum Kind {
    Bind,
    Named,
    Tmpfs,
    Disk,
}

impl MountAsked {
    /// What cannot be given, or has no meaning for its kind.
    fn check(&self) -> Result<(), Failure> {
        let at = &self.guest_path;
        let unsupported = |what: &str, hint: &str| {
            Err(Failure::unsupported(format!("{what} of the mount at {at}"), hint))
        };
        let foreign =
            |what: &str| Err(Failure::new(format!("{what} has no meaning for the mount at {at}")));
        if self.noexec {
            let hint = "leave noexec out: programs on mounts can be executed";
            return unsupported("noexec", hint);
        }
        if self.nosuid == Some(false) || self.nodev == Some(false) {
            let hint = "leave them out: mounts have neither setuid programs nor devices";
            return unsupported("nosuid and nodev cannot be switched off", hint);
        }
        match self.stat_virtualization.as_deref() {
            Some("strict") => {
                let hint = "owners and modes are those of the host: say `off` or `relaxed`";
                return unsupported("strict statVirtualization", hint);
            }
            Some(_) if self.kind != Kind::Bind => return foreign("statVirtualization"),
            _ => {}
        }
        match self.host_permissions.as_deref() {
            Some("private") => {
                let hint = "modes that are set inside are set on the host: say `mirror`";
                return unsupported("private hostPermissions", hint);
            }
            Some(_) if self.kind != Kind::Bind => return foreign("hostPermissions"),
            _ => {}
        }
        match self.kind {
            Kind::Disk => {
                let hint = "make a volume of kind disk with volume_create and mount it as `named`";
                unsupported("a disk image of the host", hint)
            }
            _ if self.format.is_some() => foreign("format"),
            _ if self.fstype.is_some() => foreign("fstype"),
            Kind::Bind if self.name.is_some() => foreign("name"),
            Kind::Bind if self.size_mib.is_some() => foreign("sizeMib"),
            Kind::Named if self.host_path.is_some() => foreign("hostPath"),
            Kind::Tmpfs if self.host_path.is_some() || self.source.is_some() => {
                foreign("hostPath or source")
            }
            Kind::Tmpfs if self.name.is_some() => foreign("name"),
            Kind::Tmpfs if self.readonly => foreign("readonly"),
            _ => Ok(()),
        }
    }
}

impl Microsandbox {
    pub(super) fn mount(&self, wanted: &mut Wanted, asked: &MountAsked) -> Result<(), Failure> {
        asked.check()?;
        let missing =
            |what: &str| Failure::new(format!("the mount at {} needs {what}", asked.guest_path));
        let source = match asked.kind {
            Kind::Tmpfs => {
                let guest = GuestPath::parse(&asked.guest_path)?;
                let size = asked.size_mib.map_or(Tmpfs::DEFAULT_SIZE, mebibytes);
                let tmpfs = Tmpfs::parse(&Tmpfs { guest, size }.to_string())?;
                wanted.spec.tmpfs.push(tmpfs);
                return Ok(());
            }
            Kind::Named => {
                let name = asked.name.as_ref().or(asked.source.as_ref());
                let name = volume(name.ok_or_else(|| missing("a name"))?)?;
                if asked.size_mib.is_some() {
                    let size = asked.size_mib.map(mebibytes);
                    wanted.volumes.push(VolumeSpec { size, ..VolumeSpec::new(name.clone()) });
                }
                MountSource::Volume(name)
            }
            Kind::Bind | Kind::Disk => {
                let path = asked.host_path.as_ref().or(asked.source.as_ref());
                MountSource::Path(self.host_path(path.ok_or_else(|| missing("hostPath"))?)?)
            }
        };
        wanted.spec.mounts.push(Mount::new(source, &asked.guest_path, asked.readonly)?);
        Ok(())
    }
}
