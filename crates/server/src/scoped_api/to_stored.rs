//! Arguments of clients as the wrapped `Api` takes them, once for each type.
//!
//! Names become stored names, and host paths are checked. An Operation whose argument has a type
//! without an implementation does not compile, so that no Operation can forget a name.

use super::{LABEL, ScopedApi};
use msb_api::operation_types::*;
use msb_api::{Arg, Param};
use msb_spec::{Error, ImageRef, Kind, Mount, MountSource, Result};

/// The type of an argument that clients of one namespace may give.
pub(super) trait ToStored: Param + Sized {
    /// Translates the argument, or refuses it.
    fn to_stored(arg: Arg<'_, Self>, scope: &ScopedApi) -> Result<Self>;
}

/// Types without names of sandboxes, volumes and snapshots, and without paths of the host.
macro_rules! unchanged {
    ($($type:ty),* $(,)?) => {$(
        impl ToStored for $type {
            fn to_stored(arg: Arg<'_, Self>, _: &ScopedApi) -> Result<Self> {
                Ok(Self::of(arg))
            }
        }
    )*};
}

unchanged!(
    bool,
    i32,
    u64,
    Attributes,
    Depth,
    InsidePath,
    Millis,
    PublishedPort,
    Reference,
    Selection,
    // Text that is not a name: the note of a snapshot, the text of a Containerfile.
    String,
    Vec<RelPath>,
    Vec<Rule>,
);

impl<T: ToStored> ToStored for Option<T> {
    fn to_stored(arg: Arg<'_, Self>, scope: &ScopedApi) -> Result<Self> {
        arg.map(|arg| T::to_stored(arg, scope)).transpose()
    }
}

/// The name of a sandbox.
impl ToStored for Name {
    fn to_stored(name: &Self, scope: &ScopedApi) -> Result<Self> {
        match &scope.namespace {
            Some(namespace) => namespace.to_stored(name.as_str()),
            None => Ok(name.clone()),
        }
    }
}

impl ToStored for VolumeName {
    fn to_stored(name: &Self, scope: &ScopedApi) -> Result<Self> {
        let Some(namespace) = &scope.namespace else { return Ok(name.clone()) };
        let stored = namespace.to_stored(name.as_str());
        stored.and_then(|stored| Self::parse(stored.as_str())).map_err(|error| match error.kind() {
            Kind::Invalid => Error::invalid(error.message().replace("sandbox", "volume")),
            _ => error,
        })
    }
}

/// The stored name or the id of a snapshot of this namespace.
impl ToStored for SnapshotName {
    fn to_stored(name: &Name, scope: &ScopedApi) -> Result<Self> {
        if scope.namespace.is_none() {
            return Ok(Self::of(name));
        }
        if let Ok(stored) = Name::to_stored(name, scope)
            && scope.api.snapshot_inspect(&stored).is_ok_and(|found| scope.has_snapshot(&found))
        {
            return Ok(Self(stored));
        }
        match scope.api.snapshot_inspect(name) {
            Ok(found) if found.id == name.as_str() && scope.has_snapshot(&found) => {
                Ok(Self::of(name))
            }
            _ => Err(Error::new(Kind::NotFound, format!("no snapshot `{name}`"))),
        }
    }
}

/// Hexadecimal digits of a snapshot id.
const ID: usize = 16;

/// A stored name for a new snapshot. A name that looks like an id could hide another snapshot.
impl ToStored for NewSnapshotName {
    fn to_stored(name: &Name, scope: &ScopedApi) -> Result<Self> {
        let text = name.as_str();
        let is_id = text.len() == ID && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match is_id && scope.namespace.is_some() {
            true => Err(Error::invalid(format!("the name looks like a snapshot id: `{name}`"))),
            false => Name::to_stored(name, scope).map(Self),
        }
    }
}

/// The id of a sync of a sandbox of this namespace.
impl ToStored for SyncId {
    fn to_stored(id: &str, scope: &ScopedApi) -> Result<Self> {
        // An error of another namespace's sync could reveal that it exists.
        let found = scope.api.sync_inspect(id).ok();
        match found.filter(|sync| scope.visible_name(&sync.sandbox).is_some()) {
            Some(sync) => Ok(Self(sync.id)),
            None => Err(Error::new(Kind::NotFound, format!("no sync `{}`", msb_spec::shown(id)))),
        }
    }
}

/// A path of the host, which the operator must have allowed.
impl ToStored for PathBuf {
    fn to_stored(path: Arg<'_, Self>, scope: &ScopedApi) -> Result<Self> {
        match &scope.paths {
            Some(paths) => paths.check(path),
            None => Err(scope.denied("cannot name files of the host")),
        }
    }
}

impl ToStored for Place {
    fn to_stored(at: &Self, scope: &ScopedApi) -> Result<Self> {
        Ok(match at {
            Self::Sandbox { name, user } => {
                Self::Sandbox { name: Name::to_stored(name, scope)?, user: user.clone() }
            }
            Self::Volume(name) => Self::Volume(VolumeName::to_stored(name, scope)?),
        })
    }
}

impl ToStored for Create {
    fn to_stored(create: &Self, scope: &ScopedApi) -> Result<Self> {
        let Self { spec, replace, registry } = create;
        let registry = Registry::to_stored(registry, scope)?;
        Ok(Self { spec: Spec::to_stored(spec, scope)?, replace: *replace, registry })
    }
}

/// The registry settings that a client may use. Images that one namespace pulls are used by others,
/// so a client of one namespace cannot turn off TLS verification.
impl ToStored for Registry {
    fn to_stored(registry: &Self, scope: &ScopedApi) -> Result<Self> {
        if registry.insecure {
            scope.require_all_namespaces(
                "cannot pull without TLS verification: other namespaces use the images",
            )?;
        }
        let ca = Option::<PathBuf>::to_stored(registry.ca.as_deref(), scope)?;
        Ok(Self { ca, ..registry.clone() })
    }
}

/// Clients cannot change the label with the namespace.
impl ToStored for Modify {
    fn to_stored(change: &Self, scope: &ScopedApi) -> Result<Self> {
        let mut change = change.clone();
        if scope.namespace.is_some() {
            change.labels.remove(LABEL);
            change.unlabel.retain(|key| key != LABEL);
        }
        Ok(change)
    }
}

impl ToStored for VolumeSpec {
    fn to_stored(spec: &Self, scope: &ScopedApi) -> Result<Self> {
        let Self { name, kind, size, mut labels } = spec.clone();
        scope.add_label(&mut labels);
        Ok(Self { name: VolumeName::to_stored(&name, scope)?, kind, size, labels })
    }
}

impl ToStored for Changes {
    fn to_stored(changes: &Self, scope: &ScopedApi) -> Result<Self> {
        let mut changes = changes.clone();
        for mount in &mut changes.mounts {
            *mount = scope.mount(mount)?;
        }
        scope.add_label(&mut changes.labels);
        Ok(changes)
    }
}

impl ToStored for SyncSpec {
    fn to_stored(spec: &Self, scope: &ScopedApi) -> Result<Self> {
        let Self { source, sandbox, target, excludes, default_excludes } = spec.clone();
        let source = PathBuf::to_stored(&source, scope)?;
        let sandbox = Name::to_stored(&sandbox, scope)?;
        Ok(Self { source, sandbox, target, excludes, default_excludes })
    }
}

impl ToStored for ChildSpec {
    fn to_stored(spec: &Self, scope: &ScopedApi) -> Result<Self> {
        let Self { image, name, cpus, memory } = spec.clone();
        let image = image.map(|image| scope.image(image)).transpose()?;
        Ok(Self { image, name: Option::to_stored(name.as_ref(), scope)?, cpus, memory })
    }
}

impl ScopedApi {
    /// Adds the label with the namespace.
    pub(super) fn add_label(&self, labels: &mut std::collections::BTreeMap<String, String>) {
        if let Some(namespace) = &self.namespace {
            labels.insert(LABEL.to_owned(), namespace.to_string());
        }
    }

    pub(super) fn image(&self, image: ImageRef) -> Result<ImageRef> {
        Ok(match image {
            ImageRef::Host => ImageRef::Host,
            ImageRef::Name(reference) => ImageRef::Name(reference),
            ImageRef::Path(path) => ImageRef::Path(PathBuf::to_stored(&path, self)?),
            ImageRef::Snapshot(name) => ImageRef::Snapshot(SnapshotName::to_stored(&name, self)?.0),
        })
    }

    pub(super) fn mount(&self, mount: &Mount) -> Result<Mount> {
        let source = match &mount.source {
            MountSource::Path(path) => MountSource::Path(PathBuf::to_stored(path, self)?),
            MountSource::Volume(name) => MountSource::Volume(VolumeName::to_stored(name, self)?),
        };
        Ok(Mount { source, ..mount.clone() })
    }
}
