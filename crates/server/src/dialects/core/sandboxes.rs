//! Tools for long-lived sandboxes and their ports.

use super::Core;
use crate::dialect::ToolCall;
use msb_api::{Child, ChildSpec, Create, Summary};
use msb_spec::{
    Bytes, Cpus, Decision, Direction, Error, ImageRef, Mount, MountSource, Name, NetworkSpec,
    Protocol, PublishedPort, Reach, Result, Rule, SpawnPolicy, Spec, Target, Traffic, Workspace,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

/// Time between SIGTERM and SIGKILL when a sandbox is stopped.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateArguments {
    name: Option<Name>,
    image: Option<ImageRef>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    workdir: Option<String>,
    memory: Option<Bytes>,
    cpus: Option<f64>,
    network: Option<NetworkAccess>,
    #[serde(default)]
    allow_hosts: Vec<String>,
    #[serde(default)]
    ports: Vec<PublishedPort>,
    #[serde(default)]
    mounts: Vec<Mount>,
    workspace: Option<std::path::PathBuf>,
    spawn: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpawnArguments {
    parent: Name,
    name: Option<Name>,
    image: Option<ImageRef>,
    memory: Option<Bytes>,
    cpus: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {
    parent: Option<Name>,
}

/// The network access of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NetworkAccess {
    Public,
    None,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StopArguments {
    sandbox: Name,
    #[serde(default)]
    remove: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PortArguments {
    sandbox: Name,
    port: NonZeroU16,
    host_port: Option<u16>,
}

impl Core {
    pub(super) fn sandbox_create(
        &self,
        call: &ToolCall,
        arguments: CreateArguments,
    ) -> Result<Value> {
        let mut spec = self.spec(arguments.image, arguments.network)?;
        spec.name = arguments.name;
        spec.env = arguments.env;
        spec.workdir = arguments.workdir.or(spec.workdir);
        spec.memory = arguments.memory.or(spec.memory);
        spec.cpus = cpus(arguments.cpus)?.or(spec.cpus);
        for mut mount in arguments.mounts {
            if let MountSource::Path(path) = &mut mount.source {
                *path = self.config.paths.check(path)?;
            }
            spec.mounts.push(mount);
        }
        if let Some(path) = arguments.workspace {
            let path = self.config.paths.check(&path)?;
            spec.workspace = Some(Workspace::parse(&format!("{}:/workspace", path.display()))?);
            spec.workdir.get_or_insert_with(|| "/workspace".to_owned());
        }
        let network = spec.network.get_or_insert_with(NetworkSpec::default);
        network.ports.extend(arguments.ports);
        if !arguments.allow_hosts.is_empty() {
            network.reach = None;
            network.default = Some(Decision::Deny);
            for host in &arguments.allow_hosts {
                network.rules.push(Rule {
                    decision: Decision::Allow,
                    direction: Direction::Egress,
                    target: Target::Name(host.parse()?),
                    traffic: Traffic::Any,
                });
            }
        }
        if let Some(text) = arguments.spawn {
            let mut policy = SpawnPolicy::parse(&text)?;
            let images = policy.images.into_iter().map(|image| self.allowed(image));
            policy.images = images.collect::<Result<_>>()?;
            spec.spawn = Some(policy);
        }
        let ask = Create { spec, ..Create::default() };
        let created = self.config.api.sandbox_create(&ask, call.watch.as_ref())?;
        Ok(shown(&created))
    }

    /// The Spec of a new sandbox, with the settings that all tools share.
    pub(super) fn spec(
        &self,
        image: Option<ImageRef>,
        network: Option<NetworkAccess>,
    ) -> Result<Spec> {
        let mut spec = self.config.defaults.clone();
        if let Some(image) = image {
            spec.image = self.allowed(image)?;
        }
        let reach = match network {
            Some(NetworkAccess::Public) => Some(Reach::Public),
            Some(NetworkAccess::None) => Some(Reach::None),
            None => None,
        };
        if let Some(reach) = reach {
            spec.network.get_or_insert_with(NetworkSpec::default).reach = Some(reach);
        }
        Ok(spec)
    }

    /// Checks that a directory or disk of the host is allowed.
    fn allowed(&self, image: ImageRef) -> Result<ImageRef> {
        match image {
            ImageRef::Path(path) => self.config.paths.check(&path).map(ImageRef::Path),
            other => Ok(other),
        }
    }

    pub(super) fn child_spawn(&self, call: &ToolCall, arguments: SpawnArguments) -> Result<Value> {
        let SpawnArguments { parent, name, image, memory, cpus: requested } = arguments;
        let image = image.map(|image| self.allowed(image)).transpose()?;
        let ask = ChildSpec { image, name, cpus: cpus(requested)?, memory };
        let child = self.config.api.child_spawn(&parent, &ask, call.watch.as_ref())?;
        Ok(shown_child(&child))
    }

    pub(super) fn sandbox_list(&self, arguments: &ListArguments) -> Result<Value> {
        if let Some(parent) = &arguments.parent {
            let list = self.config.api.child_list(parent)?;
            let children: Vec<Value> = list.children.iter().map(shown_child).collect();
            return Ok(json!({ "sandboxes": children }));
        }
        let all = self.config.api.sandbox_list()?;
        Ok(json!({"sandboxes": all.iter().map(shown).collect::<Vec<_>>()}))
    }

    pub(super) fn sandbox_stop(&self, arguments: StopArguments) -> Result<Value> {
        let StopArguments { sandbox, remove } = arguments;
        match remove {
            true => self.config.api.sandbox_remove(&sandbox, true)?,
            false => drop(self.config.api.sandbox_stop(&sandbox, GRACE)?),
        }
        Ok(json!({"sandbox": sandbox, "removed": remove}))
    }

    pub(super) fn port_publish(&self, arguments: &PortArguments) -> Result<Value> {
        let requested = PublishedPort {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            host: arguments.host_port.unwrap_or(0),
            guest: arguments.port,
            protocol: Protocol::Tcp,
        };
        let port = self.config.api.port_publish(&arguments.sandbox, &requested)?;
        let address = SocketAddr::new(port.address, port.host);
        Ok(json!({"address": address.to_string(), "url": format!("http://{address}")}))
    }

    /// Starts a stopped sandbox, so that a tool can use it. Returns a note about that.
    pub(super) fn awake(&self, name: &Name) -> Result<Option<&'static str>> {
        let started = self.config.api.sandbox_start(name).map_err(|error| {
            match error.kind() == msb_spec::Kind::NotFound {
                true => Error::new(msb_spec::Kind::NotFound, format!("no sandbox `{name}`"))
                    .hint("sandbox_list shows those there are; sandbox_create makes one"),
                false => error,
            }
        })?;
        Ok(started.then_some("the sandbox was stopped and has been started"))
    }
}

fn cpus(requested: Option<f64>) -> Result<Option<Cpus>> {
    requested.map(|cpus| cpus.to_string().parse()).transpose()
}

fn shown_child(child: &Child) -> Value {
    json!({
        "name": child.name,
        "status": child.status,
        "image": child.image,
        "isolation": child.isolation,
    })
}

pub(super) fn shown(sandbox: &Summary) -> Value {
    let mut shown = json!({
        "name": sandbox.name,
        "status": sandbox.status,
        "image": sandbox.image,
        "isolation": sandbox.isolation,
    });
    if let Some(reason) = &sandbox.isolation_reason {
        shown["isolation_reason"] = json!(reason);
    }
    shown
}
