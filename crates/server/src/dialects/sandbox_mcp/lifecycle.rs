//! Creates, resets and removes sandboxes.

use super::SandboxMcpState;
use super::active::{DEFAULT, LABEL, ListedSandbox, OURS, container, name_of};
use super::base_image::ImageChoice;
use super::records::Incarnation;
use super::settings::SandboxMcpProfile;
use super::shell::WORKSPACE;
use crate::dialect::ToolCall;
use msb_api::{Create, Place, Registry};
use msb_spec::{
    Bytes, Cpus, Error, ImageRef, IsolationChoice, Kind, Mount, Name, NetworkSpec, Peers, Result,
    Span, SpawnPolicy, Spec, Stage, VolumeKind, VolumeName, VolumeSpec, WayOut,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Resources of a sandbox without a profile.
const USUAL_CPUS: Cpus = Cpus::whole(2);
const USUAL_MEMORY: Bytes = Bytes::mib(512);
/// The named network that all sandboxes of this dialect join.
pub(super) const NETWORK: &str = "sandbox-mcp";
/// The label with the reason why a sandbox has no network.
pub(super) const OFFLINE: &str = "msb.dialect.offline";
/// An unused sandbox is removed after this time, except `default`.
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(1800);
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_millis(500);

/// Volumes for package caches: kind and mount point.
const CACHES: [(&str, &str); 3] =
    [("apk", "/var/cache/apk"), ("pip", "/root/.cache/pip"), ("npm", "/root/.npm")];

#[derive(Debug, Deserialize)]
pub(super) struct ResetArgs {
    wipe_workspace: bool,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct DestroyArgs {
    sandbox: String,
}

/// What a sandbox is created from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SandboxSource {
    /// The default image; an existing sandbox is kept.
    First,
    /// The default image, replacing an existing sandbox.
    Fresh,
    /// A snapshot, replacing an existing sandbox.
    From(Name),
}

impl SandboxMcpState {
    pub(super) fn reset(&self, call: &ToolCall, args: &ResetArgs) -> Result<String> {
        let name = name_of(&args.sandbox)?;
        let handle = self.active.of(&name);
        let _making = handle.lifecycle_lock();
        handle.touch();
        let found = self.find(&name)?;
        if found.as_ref().is_some_and(|found| found.parent.is_some()) {
            return Ok("Error: reset not permitted on child sandboxes (use destroy_child instead)"
                .to_owned());
        }
        handle.close();
        let container = self.reset_in_place(call, &name, found, args.wipe_workspace)?;
        let workspace = if args.wipe_workspace { "wiped" } else { "preserved" };
        Ok(format!("Fresh sandbox '{name}' ready: {container} (workspace {workspace})"))
    }

    /// Discards the changes of a sandbox and starts it. Returns its new container name.
    fn reset_in_place(
        &self,
        call: &ToolCall,
        name: &Name,
        found: Option<ListedSandbox>,
        wipe: bool,
    ) -> Result<String> {
        let chosen = self.base.choose(self.api(), call);
        let same = |found: &ListedSandbox| found.summary.image == chosen.image.to_string();
        let Some(found) = found.filter(same) else {
            // The default image has changed, or there is no sandbox: it is created again.
            if wipe {
                let _ = self.api().sandbox_stop(name, GRACE);
                self.wipe(name)?;
            }
            return self.create(call, name, SandboxSource::Fresh);
        };
        self.api().sandbox_stop(name, GRACE)?;
        if wipe {
            self.wipe(name)?;
        }
        self.api().sandbox_reset(name, false)?;
        self.api().sandbox_start(name)?;
        let created = found.summary.created;
        Ok(self.new_incarnation(name, created))
    }

    /// Deletes the contents of the workspace.
    fn wipe(&self, name: &Name) -> Result<()> {
        let at = Place::Volume(workspace_of(name)?);
        let entries = match self.api().file_list(&at, b"/") {
            Ok(entries) => entries,
            Err(error) if error.kind() == Kind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let path = [b"/", entry.name.as_slice()].concat();
            self.api().file_remove(&at, &path, true)?;
        }
        Ok(())
    }

    pub(super) fn destroy(&self, args: &DestroyArgs) -> Result<String> {
        let none = || Ok(format!("Error: no active sandbox '{}'", args.sandbox));
        let Ok(name) = name_of(&args.sandbox) else { return none() };
        let Some(found) = self.find(&name)? else { return none() };
        if found.parent.is_some() {
            return Ok("Error: use destroy_child to destroy child sandboxes".to_owned());
        }
        self.remove(&name)?;
        Ok(format!("Destroyed sandbox '{name}' ({})", found.incarnation.container))
    }

    /// Removes a sandbox with its children; its volumes stay.
    pub(super) fn remove(&self, name: &Name) -> Result<()> {
        let handle = self.active.of(name);
        let _making = handle.lifecycle_lock();
        handle.close();
        self.api().sandbox_remove(name, true)?;
        self.records.set_incarnation(name, None);
        self.active.forget(name);
        Ok(())
    }

    /// Creates a sandbox, replacing one of that name. Returns its container name.
    pub(super) fn create(
        &self,
        call: &ToolCall,
        name: &Name,
        from: SandboxSource,
    ) -> Result<String> {
        let chosen = self.base.choose(self.api(), call);
        let replace = from != SandboxSource::First;
        let image = match from {
            SandboxSource::First | SandboxSource::Fresh => chosen.image.clone(),
            SandboxSource::From(snapshot) => ImageRef::Snapshot(snapshot),
        };
        let mut spec = self.spec(name, &chosen)?;
        spec.image = image;
        for mount in &spec.mounts {
            self.make_volume(mount)?;
        }
        let ask = |spec: Spec| Create { spec, replace, registry: Registry::default() };
        let created = self.api().sandbox_create(&ask(spec.clone()), call.watch.as_ref());
        let summary = match created {
            // If the network fails, the sandbox is created without one, and results say so.
            Err(error) if error.stage() == Some(Stage::Network) => {
                let why = error.message().to_owned();
                spec.network = None;
                spec.labels.insert(OFFLINE.to_owned(), why);
                self.api().sandbox_create(&ask(spec), call.watch.as_ref())?
            }
            created => created?,
        };
        Ok(self.new_incarnation(name, summary.created))
    }

    /// Records a new incarnation of a sandbox. Returns its container name.
    pub(super) fn new_incarnation(&self, name: &Name, created: u64) -> String {
        let incarnation = Incarnation { container: container(), created, processes: Vec::new() };
        let container = incarnation.container.clone();
        self.records.set_incarnation(name, Some(incarnation));
        container
    }

    fn spec(&self, name: &Name, chosen: &ImageChoice) -> Result<Spec> {
        let usual = SandboxMcpProfile::default();
        let profile = self.config.sandbox_mcp.profiles.get(name.as_str()).unwrap_or(&usual);
        let mut spec = self.config.defaults.clone();
        spec.name = Some(name.clone());
        spec.cpus = Some(profile.cpus.unwrap_or(USUAL_CPUS));
        spec.memory = Some(profile.memory.unwrap_or(USUAL_MEMORY));
        if profile.virtualization {
            spec.isolation = IsolationChoice::Vm;
        }
        spec.labels.insert(LABEL.to_owned(), OURS.to_owned());
        spec.workdir = Some(WORKSPACE.to_owned());
        let network = spec.network.take().unwrap_or_default();
        spec.network = match network.is_wanted() {
            true => Some(NetworkSpec { join: Some(Name::parse(NETWORK)?), ..network }),
            false => {
                spec.labels.insert(OFFLINE.to_owned(), "networks are switched off".to_owned());
                None
            }
        };
        spec.mounts = mounts(name, chosen)?;
        if name.as_str() == DEFAULT {
            let usual = || SpawnPolicy {
                images: vec![chosen.image.clone()],
                peers: Peers::All,
                net: WayOut::Parent,
                ..SpawnPolicy::default()
            };
            let settled = self.config.sandbox_mcp.children.clone();
            spec.spawn = Some(settled.unwrap_or_else(usual));
        } else {
            // If no server runs, the worker of the sandbox applies the timeout.
            spec.idle_timeout = Some(Span(IDLE_LIMIT));
        }
        Ok(spec)
    }

    fn make_volume(&self, mount: &Mount) -> Result<()> {
        let msb_spec::MountSource::Volume(name) = &mount.source else { return Ok(()) };
        let labels = BTreeMap::from([(LABEL.to_owned(), OURS.to_owned())]);
        let spec = VolumeSpec { name: name.clone(), kind: VolumeKind::Dir, size: None, labels };
        match self.api().volume_create(&spec) {
            Err(error) if error.kind() == Kind::Exists => Ok(()),
            created => created.map(drop),
        }
    }
}

/// The workspace, and the caches of the package managers that the image has.
fn mounts(name: &Name, chosen: &ImageChoice) -> Result<Vec<Mount>> {
    let caches = CACHES.iter().filter(|(kind, _)| *kind != "apk" || chosen.has_apk());
    let caches =
        caches.map(|(kind, place)| Mount::parse(&format!("mcp-cache-{kind}-{name}:{place}")));
    let workspace = Mount::parse(&format!("{}:{WORKSPACE}", workspace_of(name)?));
    std::iter::once(workspace).chain(caches).collect()
}

fn workspace_of(name: &Name) -> Result<VolumeName> {
    VolumeName::parse(&format!("mcp-workspace-{name}")).map_err(|error: Error| {
        error.under(format!("not a sandbox name in this dialect: `{name}`"))
    })
}
