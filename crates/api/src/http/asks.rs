//! Sandboxes and all that belongs to them.

use super::answers::{Changed, Count, Done, Ended, Executed, Expires, Logged, Waited};
use super::table;
use crate::children::{Brood, Child, ChildSpec};
use crate::execs::{self, ExecEntry};
use crate::images::{DiskUsage, ImageInspection, ImageSummary, Registry};
use crate::sandboxes::{Audit, Create, Inspection, LogFilter, Metrics, Modified, Summary};
use crate::snapshots::{Changes, Snapshot, Verified};
use crate::syncs::{SyncSpec, SyncSummary};
use crate::volumes::{PrunedVolumes, Volume};
use crate::workspaces::{Applied, Depth, Selection};
use crate::{Api, Change, RelPath, Unwatched, Watch};
use msb_spec::{
    Bytes, Command, Modify, Name, Plan, Policy, Prune, Pruned, Published, Reference, Result, Rule,
    Spec, Stdin, VolumeKind, VolumeName, VolumeSpec,
};
use msb_wire::record::{Event, Source};
use msb_wire::{NetRecord, NetTable, Sample};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Values of Secrets, by their names.
pub type Values = BTreeMap<String, String>;

/// Asks with these values.
fn giving<T>(api: &dyn Api, values: &Values, ask: impl FnOnce(&dyn Api) -> Result<T>) -> Result<T> {
    if values.is_empty() {
        return ask(api);
    }
    let values = values.iter().map(|(name, value)| (name.clone(), value.clone().into_bytes()));
    let api: Arc<dyn Api> = api.giving(values.collect());
    ask(api.as_ref())
}

/// Bytes of each stream that an answer has if it was not said how many.
const USUAL_OUTPUT: u64 = 1 << 20;
/// The most.
const MOST_OUTPUT: u64 = 16 << 20;

/// How much of each stream is kept.
fn limit(asked: Option<u64>) -> usize {
    usize::try_from(asked.unwrap_or(USUAL_OUTPUT).min(MOST_OUTPUT)).unwrap_or(usize::MAX)
}

fn executed(
    exec: &mut dyn execs::Exec,
    stdin: Option<&str>,
    kept: Option<u64>,
    watch: &dyn Watch,
) -> Result<Executed> {
    let input = exec.input();
    watch.running(&input);
    let id = exec.id();
    let captured = std::thread::scope(|scope| {
        // Beside it: a command may say much before it reads.
        scope.spawn(move || {
            let text = stdin.unwrap_or_default();
            if text.is_empty() {
                input.close()
            } else {
                input.write(text.as_bytes()).and_then(|()| input.close())
            }
        });
        execs::capture(exec, limit(kept))
    })?;
    Ok(Executed::of(id, &captured))
}

/// Members by their names alone: serde takes a list of them, too, and of those that may all be left
/// out it takes any.
fn by_name<'de, D, T>(from: D) -> std::result::Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de>,
{
    struct Members<T>(std::marker::PhantomData<T>);
    impl<'de, T: serde::Deserialize<'de>> serde::de::Visitor<'de> for Members<T> {
        type Value = T;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(
            self,
            members: A,
        ) -> std::result::Result<T, A::Error> {
            T::deserialize(serde::de::value::MapAccessDeserializer::new(members))
        }
    }
    from.deserialize_map(Members(std::marker::PhantomData))
}

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

table! {
    /// Decides everything about a sandbox and makes nothing but what of its image has to be fetched.
    SandboxPlan = "sandbox_plan" Post "/api/v1/plan" {
        /// What is asked for.
        spec: Spec,
        /// Values of secrets whose source is the caller.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        secrets: Values,
    } -> Plan = |it, api, watch| giving(api, &it.secrets, |api| api.sandbox_plan(&it.spec, watch));

    /// Makes a sandbox and leaves it running.
    SandboxCreate = "sandbox_create" Post "/api/v1/sandboxes" {
        /// What is asked for.
        spec: Spec,
        /// Whether one of the same name is removed first, even if it runs.
        #[serde(default)]
        replace: bool,
        /// How the registry of its image is reached.
        #[serde(default)]
        registry: Registry,
        /// Values of secrets whose source is the caller.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        secrets: Values,
    } -> Summary = |it, api, watch| giving(api, &it.secrets, |api| {
        let (spec, registry) = (it.spec.clone(), it.registry.clone());
        api.sandbox_create(&Create { spec, replace: it.replace, registry }, watch)
    });

    /// Every sandbox, sorted by name.
    SandboxList = "sandbox_list" Get "/api/v1/sandboxes" {} -> Vec<Summary>
        = |_it, api, _watch| api.sandbox_list();

    /// Everything about one sandbox.
    SandboxInspect = "sandbox_inspect" Get "/api/v1/sandboxes/{name}" {
        /// Which.
        name: Name,
    } -> Inspection = |it, api, _watch| api.sandbox_inspect(&it.name);

    /// One line about one sandbox.
    SandboxSummary = "sandbox_summary" Get "/api/v1/sandboxes/{name}/summary" {
        /// Which.
        name: Name,
    } -> Summary = |it, api, _watch| api.sandbox_summary(&it.name);

    /// Starts a sandbox that has stopped.
    SandboxStart = "sandbox_start" Post "/api/v1/sandboxes/{name}/start" {
        /// Which.
        name: Name,
        /// Values of secrets whose source is the caller.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        secrets: Values,
    } -> Changed = |it, api, _watch| giving(api, &it.secrets, |api| {
        Ok(Changed { changed: api.sandbox_start(&it.name)? })
    });

    /// Ends a sandbox: asks its commands to, waits, then kills.
    SandboxStop = "sandbox_stop" Post "/api/v1/sandboxes/{name}/stop" {
        /// Which.
        name: Name,
        /// How long it waits.
        #[serde(default)]
        grace_ms: u64,
    } -> Changed = |it, api, _watch| {
        Ok(Changed { changed: api.sandbox_stop(&it.name, milliseconds(it.grace_ms))? })
    };

    /// Removes a sandbox with its files and logs.
    SandboxRemove = "sandbox_remove" Delete "/api/v1/sandboxes/{name}" {
        /// Which.
        name: Name,
        /// Even if it runs.
        #[serde(default)]
        force: bool,
    } -> Done = |it, api, _watch| api.sandbox_remove(&it.name, it.force).map(|()| Done {});

    /// Has a sandbox take no new commands and end with the last one.
    SandboxDrain = "sandbox_drain" Post "/api/v1/sandboxes/{name}/drain" {
        /// Which.
        name: Name,
    } -> Changed = |it, api, _watch| Ok(Changed { changed: api.sandbox_drain(&it.name)? });

    /// Stops everything inside where it is.
    SandboxPause = "sandbox_pause" Post "/api/v1/sandboxes/{name}/pause" {
        /// Which.
        name: Name,
    } -> Done = |it, api, _watch| api.sandbox_pause(&it.name).map(|()| Done {});

    /// Lets everything inside go on.
    SandboxResume = "sandbox_resume" Post "/api/v1/sandboxes/{name}/resume" {
        /// Which.
        name: Name,
    } -> Done = |it, api, _watch| api.sandbox_resume(&it.name).map(|()| Done {});

    /// Has a running sandbox end this long from now, whatever was said before.
    SandboxRenew = "sandbox_renew" Post "/api/v1/sandboxes/{name}/renew" {
        /// Which.
        name: Name,
        /// How long; none is for ever.
        #[serde(default)]
        left_ms: Option<u64>,
    } -> Expires = |it, api, _watch| {
        Ok(Expires { at: api.sandbox_renew(&it.name, it.left_ms.map(milliseconds))? })
    };

    /// Changes a sandbox, or only tells what that would change.
    SandboxModify = "sandbox_modify" Post "/api/v1/sandboxes/{name}/modify" {
        /// Which.
        name: Name,
        /// What is to be changed.
        change: Modify,
    } -> Vec<Modified> = |it, api, _watch| api.sandbox_modify(&it.name, &it.change);

    /// Gives a sandbox that has stopped another name.
    SandboxRename = "sandbox_rename" Post "/api/v1/sandboxes/{name}/rename" {
        /// Which.
        name: Name,
        /// What it is to be called.
        to: Name,
    } -> Done = |it, api, _watch| api.sandbox_rename(&it.name, &it.to).map(|()| Done {});

    /// Waits until a sandbox has ended.
    SandboxWait = "sandbox_wait" Post "/api/v1/sandboxes/{name}/wait" {
        /// Which.
        name: Name,
        /// No longer than this.
        #[serde(default)]
        limit_ms: Option<u64>,
    } -> Waited = |it, api, _watch| {
        Ok(Waited { stopped: api.sandbox_wait(&it.name, it.limit_ms.map(milliseconds))? })
    };

    /// How much a running sandbox uses.
    SandboxMetrics = "sandbox_metrics" Get "/api/v1/sandboxes/{name}/metrics" {
        /// Which.
        name: Name,
    } -> Metrics = |it, api, _watch| api.sandbox_metrics(&it.name);

    /// How much a running sandbox has used, in the last hour, the oldest first.
    SandboxHistory = "sandbox_history" Get "/api/v1/sandboxes/{name}/history" {
        /// Which.
        name: Name,
    } -> Vec<Sample> = |it, api, _watch| api.sandbox_history(&it.name);

    /// What the commands of a sandbox have said so far.
    SandboxLogs = "sandbox_logs" Get "/api/v1/sandboxes/{name}/logs" {
        /// Which.
        name: Name,
        /// Only from this Exec.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exec: Option<u64>,
        /// Only from this stream.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<Source>,
        /// Not before this, in milliseconds since 1970.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<u64>,
        /// Not after this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<u64>,
        /// Only lines that hold this text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grep: Option<String>,
    } -> Logged = |it, api, _watch| {
        let mut logs = api.sandbox_logs(&it.name, &it.filter())?;
        Ok(Logged { lines: logs.more()?, rest: logs.rest() })
    };

    /// What happened to a sandbox so far.
    SandboxEvents = "sandbox_events" Get "/api/v1/sandboxes/{name}/events" {
        /// Which.
        name: Name,
    } -> Vec<Event> = |it, api, _watch| api.sandbox_events(&it.name)?.more();

    /// Checks that nothing of what happened to a sandbox was changed or removed.
    SandboxAudit = "sandbox_audit" Get "/api/v1/sandboxes/{name}/audit" {
        /// Which.
        name: Name,
    } -> Audit = |it, api, _watch| api.sandbox_audit(&it.name);

    /// Makes a second sandbox of one. It is not started.
    SandboxClone = "sandbox_clone" Post "/api/v1/sandboxes/{name}/clone" {
        /// Which.
        name: Name,
        /// What the second is called.
        to: Name,
    } -> Done = |it, api, _watch| api.sandbox_clone(&it.name, &it.to).map(|()| Done {});

    /// Puts the files of a stopped sandbox back to what a snapshot holds.
    SandboxRollback = "sandbox_rollback" Post "/api/v1/sandboxes/{name}/rollback" {
        /// Which.
        name: Name,
        /// To what.
        snapshot: Name,
    } -> Done = |it, api, _watch| api.sandbox_rollback(&it.name, &it.snapshot).map(|()| Done {});

    /// Puts the files of a stopped sandbox back to what its image holds.
    SandboxReset = "sandbox_reset" Post "/api/v1/sandboxes/{name}/reset" {
        /// Which.
        name: Name,
        /// Whether what it changed in its workspace stays.
        #[serde(default)]
        keep_workspace: bool,
    } -> Done = |it, api, _watch| {
        api.sandbox_reset(&it.name, it.keep_workspace).map(|()| Done {})
    };

    /// Runs a command in a running sandbox to its end.
    ExecStart = "exec_start" Post "/api/v1/sandboxes/{name}/execs" {
        /// Where.
        name: Name,
        /// What.
        command: Command,
        /// What it reads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stdin: Option<String>,
        /// How many bytes of each stream the answer may have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u64>,
    } -> Executed = |it, api, watch| {
        let command = Command { stdin: Stdin::Streamed, ..it.command.clone() };
        let watch = if command.detached { &Unwatched } else { watch };
        let mut exec = api.exec_start(&it.name, &command)?;
        executed(exec.as_mut(), it.stdin.as_deref(), it.limit, watch)
    };

    /// Makes a sandbox for one command, and removes it when that has ended.
    ExecRun = "exec_run" Post "/api/v1/run" {
        /// What is asked for, with its command.
        spec: Spec,
        /// What the command reads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stdin: Option<String>,
        /// How many bytes of each stream the answer may have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u64>,
        /// Values of secrets whose source is the caller.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        secrets: Values,
    } -> Executed = |it, api, watch| giving(api, &it.secrets, |api| {
        let (_, mut exec) = api.exec_run(&it.spec, watch)?;
        executed(exec.as_mut(), it.stdin.as_deref(), it.limit, watch)
    });

    /// Sends a signal to a command and to what it started.
    ExecSignal = "exec_signal" Post "/api/v1/sandboxes/{name}/execs/{#id}/signal" {
        /// Where.
        name: Name,
        /// Which.
        id: u64,
        /// The number of the signal.
        signal: i32,
    } -> Done = |it, api, _watch| api.exec_signal(&it.name, it.id, it.signal).map(|()| Done {});

    /// Waits until a command has ended.
    ExecWait = "exec_wait" Post "/api/v1/sandboxes/{name}/execs/{#id}/wait" {
        /// Where.
        name: Name,
        /// Which.
        id: u64,
        /// No longer than this.
        #[serde(default)]
        limit_ms: u64,
    } -> Ended = |it, api, _watch| {
        Ok(Ended { exit: api.exec_wait(&it.name, it.id, milliseconds(it.limit_ms))? })
    };

    /// Every command of a sandbox that is recorded, the oldest first.
    ExecList = "exec_list" Get "/api/v1/sandboxes/{name}/execs" {
        /// Which.
        name: Name,
    } -> Vec<ExecEntry> = |it, api, _watch| api.exec_list(&it.name);

    /// Flows, ports and rules of a running sandbox.
    NetworkTable = "network_table" Get "/api/v1/sandboxes/{name}/network" {
        /// Which.
        name: Name,
    } -> NetTable = |it, api, _watch| api.network_table(&it.name);

    /// Puts rules before those of a running sandbox.
    NetworkAllow = "network_allow" Post "/api/v1/sandboxes/{name}/network/rules" {
        /// Which.
        name: Name,
        /// The rules.
        rules: Vec<Rule>,
    } -> Policy = |it, api, _watch| api.network_allow(&it.name, &it.rules);

    /// What was decided on the network of a sandbox so far.
    NetworkEvents = "network_events" Get "/api/v1/sandboxes/{name}/network/events" {
        /// Which.
        name: Name,
    } -> Vec<NetRecord> = |it, api, _watch| api.network_events(&it.name);

    /// Publishes a port of a running sandbox.
    PortPublish = "port_publish" Post "/api/v1/sandboxes/{name}/ports" {
        /// Which.
        name: Name,
        /// The port, as in `127.0.0.1:8080:80/tcp`.
        port: Published,
    } -> Published = |it, api, _watch| api.port_publish(&it.name, &it.port);

    /// Takes a published port back.
    PortWithdraw = "port_withdraw" Delete "/api/v1/sandboxes/{name}/ports" {
        /// Which.
        name: Name,
        /// The port, as it was published.
        port: Published,
    } -> Done = |it, api, _watch| api.port_withdraw(&it.name, &it.port).map(|()| Done {});

    /// What a sandbox has changed in its workspace.
    WorkspaceDiff = "workspace_diff" Post "/api/v1/sandboxes/{name}/workspace/diff" {
        /// Which.
        name: Name,
        /// Only below these; all if there are none.
        #[serde(default)]
        below: Vec<RelPath>,
        /// What is to be found out beside the paths.
        #[serde(default)]
        depth: Depth,
    } -> Vec<Change> = |it, api, _watch| api.workspace_diff(&it.name, &it.below, it.depth);

    /// Brings changes of a workspace to the host.
    WorkspaceApply = "workspace_apply" Post "/api/v1/sandboxes/{name}/workspace/apply" {
        /// Which.
        name: Name,
        /// Which changes.
        #[serde(default)]
        selection: Selection,
        /// Whether everything is only checked.
        #[serde(default)]
        dry_run: bool,
    } -> Applied = |it, api, _watch| api.workspace_apply(&it.name, &it.selection, it.dry_run);

    /// Forgets changes in the workspace of a sandbox that has stopped.
    WorkspaceDiscard = "workspace_discard" Post "/api/v1/sandboxes/{name}/workspace/discard" {
        /// Which.
        name: Name,
        /// At and below these; all if there are none.
        #[serde(default)]
        paths: Vec<RelPath>,
    } -> Count = |it, api, _watch| {
        Ok(Count { count: api.workspace_discard(&it.name, &it.paths)? as u64 })
    };

    /// Keeps a directory inside in step with one of the host, which has to be allowed.
    SyncStart = "sync_start" Post "/api/v1/syncs" {
        /// What, where.
        spec: SyncSpec,
    } -> SyncSummary = |it, api, watch| api.sync_start(&it.spec, watch);

    /// Every sync.
    SyncList = "sync_list" Get "/api/v1/syncs" {} -> Vec<SyncSummary>
        = |_it, api, _watch| api.sync_list();

    /// One sync.
    SyncInspect = "sync_inspect" Get "/api/v1/syncs/{id}" {
        /// Which.
        id: String,
    } -> SyncSummary = |it, api, _watch| api.sync_inspect(&it.id);

    /// Ends a sync.
    SyncStop = "sync_stop" Delete "/api/v1/syncs/{id}" {
        /// Which.
        id: String,
    } -> Done = |it, api, _watch| api.sync_stop(&it.id).map(|()| Done {});

    /// Makes a child of a running sandbox, within the budget of that.
    ChildSpawn = "child_spawn" Post "/api/v1/sandboxes/{name}/children" {
        /// Whose.
        name: Name,
        /// What is asked for.
        #[serde(default, deserialize_with = "by_name")]
        spec: ChildSpec,
    } -> Child = |it, api, watch| api.child_spawn(&it.name, &it.spec, watch);

    /// The children of a sandbox, and what its policy leaves.
    ChildList = "child_list" Get "/api/v1/sandboxes/{name}/children" {
        /// Whose.
        name: Name,
    } -> Brood = |it, api, _watch| api.child_list(&it.name);

    /// Ends a child, and those of its own.
    ChildRemove = "child_remove" Delete "/api/v1/sandboxes/{name}/children/{child}" {
        /// Whose.
        name: Name,
        /// Which.
        child: Name,
    } -> Done = |it, api, _watch| api.child_remove(&it.name, &it.child).map(|()| Done {});

    /// Every image, sorted by name.
    ImageList = "image_list" Get "/api/v1/images" {} -> Vec<ImageSummary>
        = |_it, api, _watch| api.image_list();

    /// Everything about an image.
    ImageInspect = "image_inspect" Get "/api/v1/images/inspect" {
        /// Which.
        name: Reference,
    } -> ImageInspection = |it, api, _watch| api.image_inspect(&it.name);

    /// Fetches an image, whether it is there or not.
    ImagePull = "image_pull" Post "/api/v1/images/pull" {
        /// Which.
        name: Reference,
        /// How its registry is reached, beyond what the settings say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        registry: Option<Registry>,
    } -> ImageInspection = |it, api, watch| match &it.registry {
        Some(registry) => api.image_pull_from(&it.name, registry, watch),
        None => api.image_pull(&it.name, watch),
    };

    /// Makes an image from the text of a Containerfile; there is no directory to COPY from.
    ImageBuild = "image_build" Post "/api/v1/images/build" {
        /// What it is to be called.
        name: Reference,
        /// The text.
        containerfile: String,
    } -> ImageInspection =
        |it, api, watch| api.image_build(&it.name, &it.containerfile, watch);

    /// Removes an image. The name that it had comes back.
    ImageRemove = "image_remove" Delete "/api/v1/images" {
        /// Which.
        name: Reference,
        /// Even if sandboxes were made from it.
        #[serde(default)]
        force: bool,
    } -> Reference = |it, api, _watch| api.image_remove(&it.name, it.force);

    /// Removes what neither an image nor a sandbox needs.
    ImagePrune = "image_prune" Post "/api/v1/prune/images" {
        /// Also images that no sandbox uses.
        #[serde(default)]
        all: bool,
        /// Only images that were not used for this long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        older_than_ms: Option<u64>,
        /// Whether it is only told what.
        #[serde(default)]
        dry_run: bool,
    } -> Pruned = |it, api, _watch| {
        let older_than = it.older_than_ms.map(milliseconds);
        api.image_prune(&Prune { all: it.all, older_than, dry_run: it.dry_run })
    };

    /// What uses the disk, and how much of it could go.
    DiskUsed = "disk_usage" Get "/api/v1/disk" {} -> DiskUsage
        = |_it, api, _watch| api.disk_usage();

    /// Makes a volume.
    VolumeCreate = "volume_create" Post "/api/v1/volumes" {
        /// What it is called.
        name: VolumeName,
        /// What it is.
        #[serde(default)]
        kind: VolumeKind,
        /// Bytes that it may hold.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<Bytes>,
        /// For finding it.
        #[serde(default)]
        labels: BTreeMap<String, String>,
    } -> Volume = |it, api, _watch| {
        let (name, labels) = (it.name.clone(), it.labels.clone());
        api.volume_create(&VolumeSpec { name, kind: it.kind, size: it.size, labels })
    };

    /// Every volume, sorted by name.
    VolumeList = "volume_list" Get "/api/v1/volumes" {} -> Vec<Volume>
        = |_it, api, _watch| api.volume_list();

    /// One volume.
    VolumeInspect = "volume_inspect" Get "/api/v1/volumes/{name}" {
        /// Which.
        name: VolumeName,
    } -> Volume = |it, api, _watch| api.volume_inspect(&it.name);

    /// Removes a volume that no sandbox uses.
    VolumeRemove = "volume_remove" Delete "/api/v1/volumes/{name}" {
        /// Which.
        name: VolumeName,
        /// Even if sandboxes that have stopped use it.
        #[serde(default)]
        force: bool,
    } -> Done = |it, api, _watch| api.volume_remove(&it.name, it.force).map(|()| Done {});

    /// Removes the volumes that no sandbox uses.
    VolumePrune = "volume_prune" Post "/api/v1/prune/volumes" {
        /// Whether it is only told which.
        #[serde(default)]
        dry_run: bool,
    } -> PrunedVolumes = |it, api, _watch| api.volume_prune(it.dry_run);

    /// Saves the filesystem of a sandbox under a name.
    SnapshotCreate = "snapshot_create" Post "/api/v1/snapshots" {
        /// What it is called.
        name: Name,
        /// The sandbox.
        of: Name,
        /// What there is to know about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    } -> Snapshot = |it, api, _watch| api.snapshot_create(&it.name, &it.of, it.note.as_deref());

    /// Every snapshot, the oldest first.
    SnapshotList = "snapshot_list" Get "/api/v1/snapshots" {} -> Vec<Snapshot>
        = |_it, api, _watch| api.snapshot_list();

    /// One snapshot, by a name or its id.
    SnapshotInspect = "snapshot_inspect" Get "/api/v1/snapshots/{name}" {
        /// Which.
        name: Name,
    } -> Snapshot = |it, api, _watch| api.snapshot_inspect(&it.name);

    /// Compares a snapshot with what was written down when it was taken.
    SnapshotVerify = "snapshot_verify" Post "/api/v1/snapshots/{name}/verify" {
        /// Which.
        name: Name,
    } -> Verified = |it, api, _watch| api.snapshot_verify(&it.name);

    /// Gives a snapshot one more name.
    SnapshotTag = "snapshot_tag" Post "/api/v1/snapshots/{name}/tag" {
        /// Which.
        name: Name,
        /// The new name.
        to: Name,
    } -> Done = |it, api, _watch| api.snapshot_tag(&it.name, &it.to).map(|()| Done {});

    /// Takes a name from a snapshot, and removes it with the last one.
    SnapshotRemove = "snapshot_remove" Delete "/api/v1/snapshots/{name}" {
        /// Which.
        name: Name,
        /// Even if others lie on it.
        #[serde(default)]
        force: bool,
    } -> Done = |it, api, _watch| api.snapshot_remove(&it.name, it.force).map(|()| Done {});

    /// Makes a sandbox from a snapshot, with the settings of the one it was taken of. It is not
    /// started.
    SnapshotRestore = "snapshot_restore" Post "/api/v1/snapshots/{name}/restore" {
        /// Which.
        name: Name,
        /// What the sandbox is called.
        to: Name,
        /// Some settings that are to be others.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        changes: Option<Changes>,
    } -> Done = |it, api, _watch| match &it.changes {
        Some(changes) => api.snapshot_restore_with(&it.name, &it.to, changes).map(|()| Done {}),
        None => api.snapshot_restore(&it.name, &it.to).map(|()| Done {}),
    };
}

impl SandboxLogs {
    /// Which lines are wanted.
    pub fn filter(&self) -> LogFilter {
        LogFilter {
            exec: self.exec,
            source: self.source,
            since: self.since,
            until: self.until,
            grep: self.grep.clone(),
        }
    }
}
