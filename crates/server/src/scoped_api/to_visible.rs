//! Answers of the wrapped `Api` as clients see them, once for each type.
//!
//! Names become visible names. What belongs to another namespace is left out of lists, and is an error
//! elsewhere. An Operation whose answer has a type without an implementation does not compile, so
//! that no Operation can show a name of another namespace.

use super::ScopedApi;
use msb_api::operation_types::*;
use msb_api::{Event, EventKind};
use msb_spec::{Error, ImageRef, Kind, Result};

/// The type of an answer that clients of one namespace may see.
pub(super) trait ToVisible: Sized {
    /// Translates the names; fails if it belongs to another namespace.
    fn to_visible(self, scope: &ScopedApi) -> Result<Self>;

    /// Translates a list without the items of other namespaces.
    fn list_to_visible(list: Vec<Self>, scope: &ScopedApi) -> Result<Vec<Self>> {
        Ok(list.into_iter().filter_map(|item| item.to_visible(scope).ok()).collect())
    }
}

/// Types without names of sandboxes, volumes and snapshots.
macro_rules! unchanged {
    ($($type:ty),* $(,)?) => {$(
        impl ToVisible for $type {
            fn to_visible(self, _: &ScopedApi) -> Result<Self> {
                Ok(self)
            }
        }
    )*};
}

unchanged!(
    (),
    bool,
    u8,
    u64,
    usize,
    ApplyReport,
    Change,
    CopyCount,
    DiskUsage,
    ExecEntry,
    Exit,
    Meta,
    NetRecord,
    NetTable,
    Policy,
    PruneReport,
    PublishedPort,
    Reference,
    Sample,
    SettingChange,
    StopResult,
    VerifyReport,
);

impl<T: ToVisible> ToVisible for Vec<T> {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        T::list_to_visible(self, scope)
    }
}

impl<T: ToVisible> ToVisible for Option<T> {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        self.map(|value| value.to_visible(scope)).transpose()
    }
}

/// The name of a sandbox.
impl ToVisible for Name {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        scope.visible_name(&self).ok_or_else(|| foreign("sandbox"))
    }
}

impl ToVisible for VolumeName {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        let Some(namespace) = &scope.namespace else { return Ok(self) };
        let visible = namespace.to_visible(self.as_str());
        visible.and_then(|visible| Self::parse(visible).ok()).ok_or_else(|| foreign("volume"))
    }
}

impl ToVisible for ImageRef {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        match self {
            Self::Snapshot(name) => name.to_visible(scope).map(Self::Snapshot),
            other => Ok(other),
        }
    }
}

impl ToVisible for Summary {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        let (name, image) = (self.name.to_visible(scope)?, scope.text(&self.image));
        Ok(Self { name, image, ..self })
    }
}

impl ToVisible for Inspection {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        let (name, plan) = (self.name.to_visible(scope)?, self.plan.to_visible(scope)?);
        let reason = self.reason.map(|reason| scope.text(&reason));
        Ok(Self { name, plan, reason, ..self })
    }
}

impl ToVisible for Metrics {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        Ok(Self { name: scope.visible_text(self.name)?, ..self })
    }
}

impl ToVisible for Audit {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        Ok(Self { name: scope.visible_text(self.name)?, ..self })
    }
}

impl ToVisible for Event {
    fn to_visible(mut self, scope: &ScopedApi) -> Result<Self> {
        if let EventKind::Renamed { from } = &mut self.happened
            && let Some(visible) = scope.visible_name(from)
        {
            *from = visible;
        }
        Ok(self)
    }
}

impl ToVisible for ImageSummary {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        Ok(Self { sandboxes: self.sandboxes.to_visible(scope)?, ..self })
    }
}

impl ToVisible for ImageInspection {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        Ok(Self { sandboxes: self.sandboxes.to_visible(scope)?, ..self })
    }
}

impl ToVisible for Volume {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        let (name, sandboxes) = (self.name.to_visible(scope)?, self.sandboxes.to_visible(scope)?);
        Ok(Self { name, sandboxes, ..self })
    }
}

impl ToVisible for SyncSummary {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        Ok(Self { sandbox: self.sandbox.to_visible(scope)?, ..self })
    }
}

impl ToVisible for Child {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        let (name, parent) = (self.name.to_visible(scope)?, self.parent.to_visible(scope)?);
        Ok(Self { name, parent, image: self.image.to_visible(scope)?, ..self })
    }
}

impl ToVisible for ChildListing {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        Ok(Self { children: self.children.to_visible(scope)?, ..self })
    }
}

/// Snapshots have global ids; one belongs to a namespace if one of its names does.
impl ToVisible for Snapshot {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        let mut all = scope.redact(scope.api.snapshot_list())?;
        all.retain(|snapshot| scope.has_snapshot(snapshot));
        Ok(scope.snapshot(self, &ids(&all)))
    }

    fn list_to_visible(mut list: Vec<Self>, scope: &ScopedApi) -> Result<Vec<Self>> {
        list.retain(|snapshot| scope.has_snapshot(snapshot));
        let known = ids(&list);
        Ok(list.into_iter().map(|snapshot| scope.snapshot(snapshot, &known)).collect())
    }
}

fn ids(snapshots: &[Snapshot]) -> Vec<String> {
    snapshots.iter().map(|snapshot| snapshot.id.clone()).collect()
}

impl ScopedApi {
    /// The visible form of a stored name; none if it belongs to another namespace.
    pub(super) fn visible_name(&self, name: &Name) -> Option<Name> {
        let Some(namespace) = &self.namespace else { return Some(name.clone()) };
        namespace.to_visible(name.as_str()).and_then(|visible| Name::parse(visible).ok())
    }

    /// A name that an answer has as text.
    fn visible_text(&self, name: String) -> Result<String> {
        let Some(namespace) = &self.namespace else { return Ok(name) };
        namespace.to_visible(&name).map(str::to_owned).ok_or_else(|| foreign("sandbox"))
    }

    /// Whether the snapshot belongs to the namespace.
    pub(super) fn has_snapshot(&self, snapshot: &Snapshot) -> bool {
        self.namespace.is_none()
            || snapshot.names.iter().any(|name| self.visible_name(name).is_some())
    }

    /// A snapshot with visible names; `known` are the ids that it may mention as relatives.
    fn snapshot(&self, snapshot: Snapshot, known: &[String]) -> Snapshot {
        let names: Vec<Name> =
            snapshot.names.iter().filter_map(|name| self.visible_name(name)).collect();
        // A snapshot of another namespace's sandbox: the operator has tagged it for this one.
        let sandbox = self.visible_name(&snapshot.sandbox).or_else(|| names.first().cloned());
        let sandbox = sandbox.unwrap_or(snapshot.sandbox);
        let parent = snapshot.parent.filter(|id| known.contains(id));
        let children = snapshot.children.into_iter().filter(|id| known.contains(id)).collect();
        Snapshot { names, sandbox, parent, children, ..snapshot }
    }
}

fn foreign(what: &str) -> Error {
    Error::new(Kind::Protocol, format!("the response is about another {what}"))
}
