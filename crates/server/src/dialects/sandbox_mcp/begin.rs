//! Making sandboxes, beginning them anew, and removing them.

use super::Surface;
use super::base::Chosen;
use super::ledger::Life;
use super::live::{DEFAULT, Found, LABEL, OURS, container, name_of};
use super::settings::Profile;
use super::shell::WORKSPACE;
use crate::dialect::Call;
use msb_api::{Create, Place, Registry};
use msb_spec::{
    Bytes, Cpus, Error, ImageRef, IsolationChoice, Kind, Mount, Name, NetworkSpec, Peers, Result,
    Span, SpawnPolicy, Spec, Stage, VolumeKind, VolumeName, VolumeSpec, WayOut,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a sandbox has whose profile does not say.
const USUAL_CPUS: Cpus = Cpus::whole(2);
const USUAL_MEMORY: Bytes = Bytes::mib(512);
/// The network that all of them are on.
pub(super) const NETWORK: &str = "sandbox-mcp";
/// Why a sandbox has no network, kept with it.
pub(super) const OFFLINE: &str = "msb.dialect.offline";
/// One that nobody has used for this long ends, `default` excepted.
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(1800);
/// How long commands have to end before they are killed.
const GRACE: Duration = Duration::from_millis(500);

/// Package caches: their kind and their place.
const CACHES: [(&str, &str); 3] =
    [("apk", "/var/cache/apk"), ("pip", "/root/.cache/pip"), ("npm", "/root/.npm")];

#[derive(Debug, Deserialize)]
pub(super) struct Reset {
    wipe_workspace: bool,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Destroy {
    sandbox: String,
}

/// What a sandbox is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Made {
    /// The default image, for the first time: what is there by then stays.
    First,
    /// The default image.
    Fresh,
    /// A snapshot.
    From(Name),
}

impl Surface {
    pub(super) fn reset(&self, call: &Call, asked: &Reset) -> Result<String> {
        let name = name_of(&asked.sandbox)?;
        let live = self.lives.of(&name);
        let _making = live.making();
        live.touch();
        let found = self.find(&name)?;
        if found.as_ref().is_some_and(|found| found.parent.is_some()) {
            return Ok("Error: reset not permitted on child sandboxes (use destroy_child instead)"
                .to_owned());
        }
        live.close();
        let container = self.anew(call, &name, found, asked.wipe_workspace)?;
        let workspace = if asked.wipe_workspace { "wiped" } else { "preserved" };
        Ok(format!("Fresh sandbox '{name}' ready: {container} (workspace {workspace})"))
    }

    /// Throws away what a sandbox has written, and starts it. What it is called from now on.
    fn anew(&self, call: &Call, name: &Name, found: Option<Found>, wipe: bool) -> Result<String> {
        let chosen = self.base.choose(self.api(), call);
        let same = |found: &Found| found.summary.image == chosen.image.to_string();
        let Some(found) = found.filter(same) else {
            // Another image, or none at all: it is made again.
            if wipe {
                let _ = self.api().sandbox_stop(name, GRACE);
                self.wipe(name)?;
            }
            return self.make(call, name, Made::Fresh);
        };
        self.api().sandbox_stop(name, GRACE)?;
        if wipe {
            self.wipe(name)?;
        }
        self.api().sandbox_reset(name, false)?;
        self.api().sandbox_start(name)?;
        let created = found.summary.created;
        Ok(self.new_life(name, created))
    }

    /// Empties the workspace.
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

    pub(super) fn destroy(&self, asked: &Destroy) -> Result<String> {
        let none = || Ok(format!("Error: no active sandbox '{}'", asked.sandbox));
        let Ok(name) = name_of(&asked.sandbox) else { return none() };
        let Some(found) = self.find(&name)? else { return none() };
        if found.parent.is_some() {
            return Ok("Error: use destroy_child to destroy child sandboxes".to_owned());
        }
        self.remove(&name)?;
        Ok(format!("Destroyed sandbox '{name}' ({})", found.life.container))
    }

    /// Removes a sandbox with its children; its volumes stay.
    pub(super) fn remove(&self, name: &Name) -> Result<()> {
        let live = self.lives.of(name);
        let _making = live.making();
        live.close();
        self.api().sandbox_remove(name, true)?;
        self.ledger.set_life(name, None);
        self.lives.forget(name);
        Ok(())
    }

    /// Makes a sandbox in place of what has that name. How it is called in answers.
    pub(super) fn make(&self, call: &Call, name: &Name, from: Made) -> Result<String> {
        let chosen = self.base.choose(self.api(), call);
        let replace = from != Made::First;
        let image = match from {
            Made::First | Made::Fresh => chosen.image.clone(),
            Made::From(snapshot) => ImageRef::Snapshot(snapshot),
        };
        let mut spec = self.spec(name, &chosen)?;
        spec.image = image;
        for mount in &spec.mounts {
            self.make_volume(mount)?;
        }
        let ask = |spec: Spec| Create { spec, replace, registry: Registry::default() };
        let made = self.api().sandbox_create(&ask(spec.clone()), call.watch.as_ref());
        let summary = match made {
            // No network is better than no sandbox, and it is said.
            Err(error) if error.stage() == Some(Stage::Network) => {
                let why = error.message().to_owned();
                spec.network = None;
                spec.labels.insert(OFFLINE.to_owned(), why);
                self.api().sandbox_create(&ask(spec), call.watch.as_ref())?
            }
            made => made?,
        };
        Ok(self.new_life(name, summary.created))
    }

    /// Begins another life of a sandbox.
    pub(super) fn new_life(&self, name: &Name, created: u64) -> String {
        let life = Life { container: container(), created, processes: Vec::new() };
        let container = life.container.clone();
        self.ledger.set_life(name, Some(life));
        container
    }

    fn spec(&self, name: &Name, chosen: &Chosen) -> Result<Spec> {
        let usual = Profile::default();
        let profile = self.world.sandbox_mcp.profiles.get(name.as_str()).unwrap_or(&usual);
        let mut spec = self.world.defaults.clone();
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
            let settled = self.world.sandbox_mcp.children.clone();
            spec.spawn = Some(settled.unwrap_or_else(usual));
        } else {
            // A server that is gone ends nothing; the sandbox does that by itself.
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
            made => made.map(drop),
        }
    }
}

/// The workspace, and the caches of those package managers that the image has.
fn mounts(name: &Name, chosen: &Chosen) -> Result<Vec<Mount>> {
    let caches = CACHES.iter().filter(|(kind, _)| *kind != "apk" || chosen.has_apk());
    let caches =
        caches.map(|(kind, place)| Mount::parse(&format!("mcp-cache-{kind}-{name}:{place}")));
    let workspace = Mount::parse(&format!("{}:{WORKSPACE}", workspace_of(name)?));
    std::iter::once(workspace).chain(caches).collect()
}

fn workspace_of(name: &Name) -> Result<VolumeName> {
    VolumeName::parse(&format!("mcp-workspace-{name}"))
        .map_err(|error: Error| error.under(format!("not a name for a sandbox here: `{name}`")))
}
