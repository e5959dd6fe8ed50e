//! The Operations for the objects of one namespace: those of the table, and the streams by hand.

use super::ScopedApi;
use super::streams::VisibleEvents;
use super::to_stored::ToStored;
use super::to_visible::ToVisible;
use msb_api::operation_types::*;
use msb_api::{
    Api, Arg, Children, ClientScope, EventStream, Exec, Execs, Files, Images, LogFilter, LogStream,
    Networks, Param, Sandboxes, Snapshots, Syncs, Volumes, Watch, Workspaces, operations,
};
use msb_spec::{CallOrigin, Command, Kind, Result};
use std::io::{Read, Write};
use std::sync::Arc;

/// The method for one Operation of the table: the types of its arguments and of its answer say how
/// they are translated.
macro_rules! scoped_method {
    ($method:ident($($args:tt)*) $watch:tt -> $value:ty = $request:ident [each_namespace] $rest:tt) => {};
    (
        $method:ident($($arg:ident: $type:ty),*) [$($watch:ident)?]
        -> $value:ty = $request:ident [$($modifier:ident $($reason:literal)?)?] $rest:tt
    ) => {
        fn $method(&self, $($arg: Arg<'_, $type>,)* $($watch: &dyn Watch,)?) -> Result<$value> {
            $($( self.require_all_namespaces($reason)?; )?)?
            $( let $arg = <$type>::to_stored($arg, self)?; )*
            self.visible(self.api.$method($($arg.arg(),)* $($watch)?))
        }
    };
}

impl Sandboxes for ScopedApi {
    operations!(sandboxes scoped_method);

    fn with_secrets(&self, secrets: Vec<(String, Vec<u8>)>) -> Arc<dyn Api> {
        Arc::new(Self { api: self.api.with_secrets(secrets), ..self.clone() })
    }

    fn with_origin(&self, origin: CallOrigin) -> Arc<dyn Api> {
        Arc::new(Self { api: self.api.with_origin(origin), ..self.clone() })
    }

    fn sandbox_logs(&self, name: &Name, filter: &LogFilter) -> Result<Box<dyn LogStream>> {
        self.redact(self.api.sandbox_logs(&Name::to_stored(name, self)?, filter))
    }

    fn sandbox_events(&self, name: &Name) -> Result<Box<dyn EventStream>> {
        let events = self.redact(self.api.sandbox_events(&Name::to_stored(name, self)?))?;
        Ok(Box::new(VisibleEvents { events, scoped: self.clone() }))
    }
}

impl Execs for ScopedApi {
    operations!(execs scoped_method);

    fn exec_start(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        let name = Name::to_stored(name, self)?;
        self.redact(self.api.exec_start(&name, command))
    }

    fn exec_attach(&self, name: &Name, id: u64) -> Result<Box<dyn Exec>> {
        self.redact(self.api.exec_attach(&Name::to_stored(name, self)?, id))
    }

    fn exec_run(&self, spec: &Spec, watch: &dyn Watch) -> Result<(Name, Box<dyn Exec>)> {
        let spec = Spec::to_stored(spec, self)?;
        let (name, exec) = self.redact(self.api.exec_run(&spec, watch))?;
        Ok((name.to_visible(self)?, exec))
    }
}

impl Files for ScopedApi {
    operations!(files scoped_method);

    fn file_read(
        &self,
        at: &Place,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let at = Place::to_stored(at, self)?;
        self.redact(self.api.file_read(&at, path, offset, length, take))
    }

    fn file_write(
        &self,
        at: &Place,
        path: &[u8],
        mode: u32,
        append: bool,
        content: &mut dyn Read,
    ) -> Result<u64> {
        let at = Place::to_stored(at, self)?;
        self.redact(self.api.file_write(&at, path, mode, append, content))
    }
}

impl Images for ScopedApi {
    operations!(images scoped_method);

    fn for_client(self: Arc<Self>, scope: ClientScope) -> Arc<dyn Api> {
        let api = Arc::clone(&self.api).for_client(scope);
        Arc::new(Self { api, ..(*self).clone() })
    }
}

impl Volumes for ScopedApi {
    operations!(volumes scoped_method);

    /// Removes them one by one: the Operation would prune the volumes of all namespaces.
    fn volume_prune(&self, dry_run: bool) -> Result<PrunedVolumes> {
        let mut pruned = PrunedVolumes::default();
        for volume in self.redact(self.api.volume_list())? {
            let Ok(name) = volume.name.clone().to_visible(self) else { continue };
            if !volume.sandboxes.is_empty() {
                continue;
            }
            if !dry_run {
                match self.api.volume_remove(&volume.name, false) {
                    Ok(()) => {}
                    // Another client has begun to use it, or has removed it first.
                    Err(error) if matches!(error.kind(), Kind::State | Kind::NotFound) => continue,
                    Err(error) => return self.redact(Err(error)),
                }
            }
            pruned.volumes.push(name);
            pruned.volume_bytes += volume.used;
        }
        Ok(pruned)
    }
}

impl Snapshots for ScopedApi {
    operations!(snapshots scoped_method);

    fn snapshot_save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()> {
        let name = SnapshotName::to_stored(name, self)?;
        self.redact(self.api.snapshot_save(name.arg(), whole, out))
    }

    fn snapshot_load(&self, name: Option<&Name>, archive: &mut dyn Read) -> Result<Snapshot> {
        self.require_all_namespaces(
            "cannot load archives: other namespaces would use their images",
        )?;
        self.api.snapshot_load(name, archive)
    }
}

impl Networks for ScopedApi {
    operations!(networks scoped_method);
}

impl Workspaces for ScopedApi {
    operations!(workspaces scoped_method);
}

impl Syncs for ScopedApi {
    operations!(syncs scoped_method);
}

impl Children for ScopedApi {
    operations!(children scoped_method);
}
