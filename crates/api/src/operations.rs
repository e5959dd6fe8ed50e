//! The table of Operations: one row for each that is a request with one answer.
//!
//! A row has a doc comment, the name of the method, its arguments and its answer. Then come the type
//! of the HTTP request, the HTTP method and the path:
//!
//! ```text
//! /// Renames a stopped sandbox.
//! sandbox_rename(
//!     /// The name of a stopped sandbox.
//!     name: Name,
//!     /// The new name of the sandbox.
//!     to: Name,
//! ) -> () as Done = SandboxRename Post "/api/v1/sandboxes/{name}/rename";
//! ```
//!
//! It generates the method of the trait, the request with its schema, the method of the client, the
//! method of the server that is restricted to a namespace, and the method of the recorder in tests.
//!
//! - `watch` after the arguments: the caller gets progress reports.
//! - `-> VALUE as RESPONSE`: the type of the HTTP response, where it differs from the value.
//! - `= REQUEST { … }`: the members of the request, where they differ from the arguments.
//! - `, secrets`: the request carries values of secrets.
//! - `, operator "…"`: keys of one namespace may not use it, with the reason.
//! - `, each_namespace`: the restriction to a namespace is written by hand.
//! - `, host_files`: a client uses the files of its own host, so its method is written by hand.
//!
//! Operations that are streams (commands, logs, events, file contents, archives, sockets) are
//! written by hand in the traits.

/// Calls the macro `$callback` with each Operation of a noun; see [`each_operation`].
#[macro_export]
macro_rules! operations {
    (all $callback:ident) => {
        $crate::operations!(sandboxes $callback);
        $crate::operations!(execs $callback);
        $crate::operations!(files $callback);
        $crate::operations!(images $callback);
        $crate::operations!(volumes $callback);
        $crate::operations!(snapshots $callback);
        $crate::operations!(networks $callback);
        $crate::operations!(workspaces $callback);
        $crate::operations!(syncs $callback);
        $crate::operations!(children $callback);
    };
    (sandboxes $callback:ident) => { $crate::each_operation! { $callback
        /// Decides every setting of a sandbox without creating it. Missing image layers are pulled.
        sandbox_plan(
            /// The specification of the sandbox.
            spec: Spec,
        ) watch -> Plan = SandboxPlan Post "/api/v1/plan", secrets;

        /// Creates a sandbox and starts it.
        sandbox_create(create: Create) watch -> Summary = SandboxCreate {
            /// The specification of the sandbox.
            spec: Spec,
            /// Removes an existing sandbox of this name first, even a running one. Default false.
            #[serde(default)]
            replace: bool,
            /// How to reach the registry of the image.
            #[serde(default)]
            registry: Registry,
        } Post "/api/v1/sandboxes", secrets;

        /// Lists all sandboxes, sorted by name.
        sandbox_list() -> Vec<Summary> = SandboxList Get "/api/v1/sandboxes";

        /// Shows all details of a sandbox.
        sandbox_inspect(
            /// The name of the sandbox.
            name: Name,
        ) -> Inspection = SandboxInspect Get "/api/v1/sandboxes/{name}";

        /// Shows a summary of a sandbox.
        sandbox_summary(
            /// The name of the sandbox.
            name: Name,
        ) -> Summary = SandboxSummary Get "/api/v1/sandboxes/{name}/summary";

        /// Starts a stopped sandbox.
        sandbox_start(
            /// The name of a stopped sandbox.
            name: Name,
        ) -> bool as Changed = SandboxStart Post "/api/v1/sandboxes/{name}/start", secrets;

        /// Stops a sandbox: sends SIGTERM to its commands, waits, then kills them.
        sandbox_stop(
            /// The name of the sandbox.
            name: Name,
            /// Milliseconds between SIGTERM and SIGKILL. Default 0.
            #[serde(rename = "grace_ms", default)]
            grace: Millis,
        ) -> bool as Changed = SandboxStop Post "/api/v1/sandboxes/{name}/stop";

        /// Removes a sandbox with its files and logs.
        sandbox_remove(
            /// The name of the sandbox.
            name: Name,
            /// Removes it even if it is running. Default false.
            #[serde(default)]
            force: bool,
        ) -> () as Done = SandboxRemove Delete "/api/v1/sandboxes/{name}";

        /// Refuses new commands; the sandbox stops when its last command has ended.
        sandbox_drain(
            /// The name of the sandbox.
            name: Name,
        ) -> bool as Changed = SandboxDrain Post "/api/v1/sandboxes/{name}/drain";

        /// Pauses all processes of a sandbox.
        sandbox_pause(
            /// The name of a running sandbox.
            name: Name,
        ) -> () as Done = SandboxPause Post "/api/v1/sandboxes/{name}/pause";

        /// Resumes all processes of a paused sandbox.
        sandbox_resume(
            /// The name of a running sandbox.
            name: Name,
        ) -> () as Done = SandboxResume Post "/api/v1/sandboxes/{name}/resume";

        /// Sets the expiry of a running sandbox, relative to now.
        sandbox_renew(
            /// The name of a running sandbox.
            name: Name,
            /// Milliseconds from now until it is stopped. Default null: no expiry.
            #[serde(rename = "left_ms", default)]
            left: Option<Millis>,
        ) -> Option<u64> as Expires = SandboxRenew Post "/api/v1/sandboxes/{name}/renew";

        /// Changes the settings of a sandbox, or reports what a change would do.
        sandbox_modify(
            /// The name of the sandbox.
            name: Name,
            /// The settings to change.
            change: Modify,
        ) -> Vec<SettingChange> = SandboxModify Post "/api/v1/sandboxes/{name}/modify";

        /// Renames a stopped sandbox.
        sandbox_rename(
            /// The name of a stopped sandbox.
            name: Name,
            /// The new name of the sandbox.
            to: Name,
        ) -> () as Done = SandboxRename Post "/api/v1/sandboxes/{name}/rename";

        /// Waits until a sandbox has stopped.
        sandbox_wait(
            /// The name of the sandbox.
            name: Name,
            /// Longest wait in milliseconds. Default null: no limit.
            #[serde(rename = "limit_ms", default)]
            limit: Option<Millis>,
        ) -> Option<StopResult> as Waited = SandboxWait Post "/api/v1/sandboxes/{name}/wait";

        /// Shows the current resource usage of a running sandbox.
        sandbox_metrics(
            /// The name of a running sandbox.
            name: Name,
        ) -> Metrics = SandboxMetrics Get "/api/v1/sandboxes/{name}/metrics";

        /// Lists resource usage samples of the last hour, the oldest first.
        sandbox_history(
            /// The name of a running sandbox.
            name: Name,
        ) -> Vec<Sample> = SandboxHistory Get "/api/v1/sandboxes/{name}/history";

        /// Verifies the hash chain of the event log of a sandbox.
        sandbox_audit(
            /// The name of the sandbox.
            name: Name,
        ) -> Audit = SandboxAudit Get "/api/v1/sandboxes/{name}/audit";
    } };
    (execs $callback:ident) => { $crate::each_operation! { $callback
        /// Sends a signal to a command and to the processes that it started.
        exec_signal(
            /// The name of a running sandbox.
            name: Name,
            /// The id of the Exec.
            id: u64,
            /// The signal number, such as 15 for SIGTERM.
            signal: i32,
        ) -> () as Done = ExecSignal Post "/api/v1/sandboxes/{name}/execs/{#id}/signal";

        /// Waits until a command has ended.
        exec_wait(
            /// The name of the sandbox.
            name: Name,
            /// The id of the Exec.
            id: u64,
            /// Longest wait in milliseconds. Default 0: returns at once.
            #[serde(rename = "limit_ms", default)]
            limit: Millis,
        ) -> Option<Exit> as Ended = ExecWait Post "/api/v1/sandboxes/{name}/execs/{#id}/wait";

        /// Lists all recorded commands of a sandbox, the oldest first.
        exec_list(
            /// The name of the sandbox.
            name: Name,
        ) -> Vec<ExecEntry> = ExecList Get "/api/v1/sandboxes/{name}/execs";
    } };
    (files $callback:ident) => { $crate::each_operation! { $callback
        /// Shows the type, size, owner and permissions of a path.
        file_stat(
            at: Place,
            /// The path of the file or directory.
            path: InsidePath,
            /// Follows a symbolic link. Default false.
            #[serde(default)]
            follow: bool,
        ) -> Meta as FileMeta = FileStat Get "/api/v1/files/stat";

        /// Resolves a path to an absolute one without symbolic links.
        file_real(
            at: Place,
            /// The path. A relative one starts at the user's home directory.
            path: InsidePath,
        ) -> Vec<u8> as RealPath = FileReal Get "/api/v1/files/real";

        /// Lists the entries of a directory, sorted by name.
        file_list(
            at: Place,
            /// The path of the directory.
            path: InsidePath,
        ) -> Vec<Meta> as Vec<FileMeta> = FileList Get "/api/v1/files/list";

        /// Creates a new directory.
        file_mkdir(
            at: Place,
            /// The path of the new directory.
            path: InsidePath,
            /// Also creates missing parents; an existing directory is no error. Default false.
            #[serde(default)]
            parents: bool,
        ) -> () as Done = FileMkdir Post "/api/v1/files/mkdir";

        /// Removes a file or an empty directory.
        file_remove(
            at: Place,
            /// The path of the file or directory.
            path: InsidePath,
            /// Removes directories with their contents; a missing path is no error. Default false.
            #[serde(default)]
            recursive: bool,
        ) -> () as Done = FileRemove Delete "/api/v1/files";

        /// Renames a file or directory, replacing an existing one.
        file_rename(
            at: Place,
            /// The current path of the file or directory.
            from: InsidePath,
            /// The new path of the file or directory.
            to: InsidePath,
        ) -> () as Done = FileRename Post "/api/v1/files/rename";

        /// Copies a file or directory tree within one sandbox or volume.
        file_copy(
            at: Place,
            /// The path of the source.
            from: InsidePath,
            /// The path of the copy.
            to: InsidePath,
        ) -> () as Done = FileCopy Post "/api/v1/files/copy";

        /// Creates a symbolic link, replacing an existing link or file.
        file_symlink(
            at: Place,
            /// The path of the link.
            path: InsidePath,
            /// The target text of the link.
            target: InsidePath,
        ) -> () as Done = FileSymlink Post "/api/v1/files/symlink";

        /// Changes the owner and permissions of a file or directory; symbolic links are followed.
        file_set(
            at: Place,
            /// The path of the file or directory.
            path: InsidePath,
            /// The attributes to change; absent ones stay as they are.
            attributes: Attributes,
        ) -> () as Done = FileSet Post "/api/v1/files/attributes";

        /// Copies a file or tree of the server's host into a sandbox or volume. The host path must
        /// be allowed.
        file_push(
            at: Place,
            /// The path on the server's host.
            from: PathBuf,
            /// The destination inside. In an existing directory, the copy keeps its name.
            to: InsidePath,
        ) -> CopyCount = FilePush Post "/api/v1/files/push", host_files;

        /// Copies a file or tree to the server's host. The host path must be allowed.
        file_pull(
            at: Place,
            /// The path inside the sandbox or volume.
            from: InsidePath,
            /// The destination on the server's host. In an existing directory, the copy keeps its
            /// name.
            to: PathBuf,
        ) -> CopyCount = FilePull Post "/api/v1/files/pull", host_files;
    } };
    (images $callback:ident) => { $crate::each_operation! { $callback
        /// Lists all images, sorted by name.
        image_list() -> Vec<ImageSummary> = ImageList Get "/api/v1/images";

        /// Shows all details of an image.
        image_inspect(
            /// The image reference, such as `alpine:3.20`.
            name: Reference,
        ) -> ImageInspection = ImageInspect Get "/api/v1/images/inspect";

        /// Pulls an image, even if it is already stored.
        image_pull(
            /// The image reference, such as `alpine:3.20`.
            name: Reference,
            /// How to reach the registry. Default: the settings of the server.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            registry: Option<Registry>,
        ) watch -> ImageInspection = ImagePull Post "/api/v1/images/pull";

        /// Builds an image from the text of a Containerfile, without a build context.
        image_build(
            /// The reference for the new image.
            name: Reference,
            /// The text of the Containerfile. `COPY` from the context fails.
            containerfile: String,
        ) watch -> ImageInspection = ImageBuild Post "/api/v1/images/build",
            operator "cannot build images: other namespaces would use them";

        /// Removes an image and returns its reference.
        image_remove(
            /// The reference of the image.
            name: Reference,
            /// Removes it even if sandboxes use it. Default false.
            #[serde(default)]
            force: bool,
        ) -> Reference = ImageRemove Delete "/api/v1/images",
            operator "cannot remove images: other namespaces use them";

        /// Removes layers that no image and no sandbox uses.
        image_prune(
            /// Also removes images that no sandbox uses. Default false.
            #[serde(default)]
            all: bool,
            /// Only images unused for this many milliseconds.
            #[serde(rename = "older_than_ms", default, skip_serializing_if = "Option::is_none")]
            older_than: Option<Millis>,
            /// Only reports what would be removed. Default false.
            #[serde(default)]
            dry_run: bool,
        ) -> PruneReport = ImagePrune Post "/api/v1/prune/images",
            operator "cannot remove images: other namespaces use them";

        /// Shows disk usage, and how much can be reclaimed.
        disk_usage() -> DiskUsage = DiskUsed Get "/api/v1/disk",
            operator "cannot see the disk usage of other namespaces";
    } };
    (volumes $callback:ident) => { $crate::each_operation! { $callback
        /// Creates a new volume.
        volume_create(spec: VolumeSpec) -> Volume = VolumeCreate {
            /// The name of the volume.
            name: VolumeName,
            /// The storage of the volume. Default `dir`.
            #[serde(default)]
            kind: VolumeKind,
            /// Capacity in bytes, 16 MiB or more. Default: no limit for `dir`, 2 GiB for `disk`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            size: Option<Bytes>,
            /// Labels, for filters. Default: none.
            #[serde(default)]
            labels: BTreeMap<String, String>,
        } Post "/api/v1/volumes";

        /// Lists all volumes, sorted by name.
        volume_list() -> Vec<Volume> = VolumeList Get "/api/v1/volumes";

        /// Shows details of a volume.
        volume_inspect(
            /// The name of the volume.
            name: VolumeName,
        ) -> Volume = VolumeInspect Get "/api/v1/volumes/{name}";

        /// Removes a volume that no sandbox uses.
        volume_remove(
            /// The name of the volume.
            name: VolumeName,
            /// Removes it even if stopped sandboxes use it. Default false.
            #[serde(default)]
            force: bool,
        ) -> () as Done = VolumeRemove Delete "/api/v1/volumes/{name}";

        /// Removes all volumes that no sandbox uses.
        volume_prune(
            /// Only reports what would be removed. Default false.
            #[serde(default)]
            dry_run: bool,
        ) -> PrunedVolumes = VolumePrune Post "/api/v1/prune/volumes", each_namespace;
    } };
    (snapshots $callback:ident) => { $crate::each_operation! { $callback
        /// Copies a sandbox. The copy is not started.
        sandbox_clone(
            /// The name of the sandbox.
            name: Name,
            /// The name of the copy.
            to: Name,
        ) -> () as Done = SandboxClone Post "/api/v1/sandboxes/{name}/clone";

        /// Resets the files of a stopped sandbox to those of a snapshot.
        sandbox_rollback(
            /// The name of a stopped sandbox.
            name: Name,
            /// A name or the id of the snapshot.
            snapshot: SnapshotName,
        ) -> () as Done = SandboxRollback Post "/api/v1/sandboxes/{name}/rollback";

        /// Resets the files of a stopped sandbox to those of its image.
        sandbox_reset(
            /// The name of a stopped sandbox.
            name: Name,
            /// Keeps the changes in its workspace. Default false.
            #[serde(default)]
            keep_workspace: bool,
        ) -> () as Done = SandboxReset Post "/api/v1/sandboxes/{name}/reset";

        /// Saves the file system of a sandbox as a snapshot.
        snapshot_create(
            /// The name of the snapshot.
            name: NewSnapshotName,
            /// The name of the sandbox.
            of: Name,
            /// A description. Default: none.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            note: Option<String>,
        ) -> Snapshot = SnapshotCreate Post "/api/v1/snapshots";

        /// Lists all snapshots, the oldest first.
        snapshot_list() -> Vec<Snapshot> = SnapshotList Get "/api/v1/snapshots";

        /// Shows details of a snapshot.
        snapshot_inspect(
            /// A name or the id of the snapshot.
            name: SnapshotName,
        ) -> Snapshot = SnapshotInspect Get "/api/v1/snapshots/{name}";

        /// Compares a snapshot with the digests recorded at its creation.
        snapshot_verify(
            /// A name or the id of the snapshot.
            name: SnapshotName,
        ) -> VerifyReport = SnapshotVerify Post "/api/v1/snapshots/{name}/verify";

        /// Adds a name to a snapshot.
        snapshot_tag(
            /// A name or the id of the snapshot.
            name: SnapshotName,
            /// The additional name of the snapshot.
            to: NewSnapshotName,
        ) -> () as Done = SnapshotTag Post "/api/v1/snapshots/{name}/tag";

        /// Removes a name of a snapshot; removing the last name deletes it.
        snapshot_remove(
            /// A name or the id of the snapshot.
            name: SnapshotName,
            /// Removes it even if other snapshots are based on it. Default false.
            #[serde(default)]
            force: bool,
        ) -> () as Done = SnapshotRemove Delete "/api/v1/snapshots/{name}";

        /// Creates a sandbox from a snapshot, with the settings of its source. It is not started.
        snapshot_restore(
            /// A name or the id of the snapshot.
            name: SnapshotName,
            /// The name of the new sandbox.
            to: Name,
            /// Settings that replace those of the source.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            changes: Option<Changes>,
        ) -> () as Done = SnapshotRestore Post "/api/v1/snapshots/{name}/restore";
    } };
    (networks $callback:ident) => { $crate::each_operation! { $callback
        /// Lists the flows, published ports and rules of a running sandbox.
        network_table(
            /// The name of a running sandbox.
            name: Name,
        ) -> NetTable = NetworkTable Get "/api/v1/sandboxes/{name}/network";

        /// Inserts network rules before those of a running sandbox.
        network_allow(
            /// The name of a running sandbox.
            name: Name,
            /// The rules, in the order in which they are matched.
            rules: Vec<Rule>,
        ) -> Policy = NetworkAllow Post "/api/v1/sandboxes/{name}/network/rules";

        /// Lists the network decisions recorded for a sandbox.
        network_events(
            /// The name of the sandbox.
            name: Name,
        ) -> Vec<NetRecord> = NetworkEvents Get "/api/v1/sandboxes/{name}/network/events";

        /// Publishes a port of a running sandbox on the host.
        port_publish(
            /// The name of a running sandbox.
            name: Name,
            /// The port, such as `127.0.0.1:8080:80/tcp`.
            port: PublishedPort,
        ) -> PublishedPort = PortPublish Post "/api/v1/sandboxes/{name}/ports";

        /// Stops publishing a port of a running sandbox.
        port_withdraw(
            /// The name of a running sandbox.
            name: Name,
            /// The port, as it was published.
            port: PublishedPort,
        ) -> () as Done = PortWithdraw Delete "/api/v1/sandboxes/{name}/ports";
    } };
    (workspaces $callback:ident) => { $crate::each_operation! { $callback
        /// Lists the changes of a sandbox in its workspace.
        workspace_diff(
            /// The name of the sandbox.
            name: Name,
            /// Only changes at or below these paths. Default: all.
            #[serde(default)]
            below: Vec<RelPath>,
            /// Whether digests and text differences are computed as well. Default: neither.
            #[serde(default)]
            depth: Depth,
        ) -> Vec<Change> = WorkspaceDiff Post "/api/v1/sandboxes/{name}/workspace/diff";

        /// Copies changes of a workspace to the host.
        workspace_apply(
            /// The name of the sandbox.
            name: Name,
            /// Which changes to apply. Default: all that need not be named explicitly.
            #[serde(default)]
            selection: Selection,
            /// Only checks, and changes nothing. Default false.
            #[serde(default)]
            dry_run: bool,
        ) -> ApplyReport = WorkspaceApply Post "/api/v1/sandboxes/{name}/workspace/apply";

        /// Discards changes in the workspace of a stopped sandbox.
        workspace_discard(
            /// The name of a stopped sandbox.
            name: Name,
            /// Discards changes at and below these paths. Default: all.
            #[serde(default)]
            paths: Vec<RelPath>,
        ) -> usize as Count = WorkspaceDiscard Post "/api/v1/sandboxes/{name}/workspace/discard";
    } };
    (syncs $callback:ident) => { $crate::each_operation! { $callback
        /// Starts a sync between a directory of the sandbox and an allowed host directory.
        sync_start(
            /// The two directories and the direction.
            spec: SyncSpec,
        ) watch -> SyncSummary = SyncStart Post "/api/v1/syncs";

        /// Lists all directory syncs.
        sync_list() -> Vec<SyncSummary> = SyncList Get "/api/v1/syncs";

        /// Shows details of a sync.
        sync_inspect(
            /// The id of the sync.
            id: SyncId,
        ) -> SyncSummary = SyncInspect Get "/api/v1/syncs/{id}";

        /// Stops a directory sync.
        sync_stop(
            /// The id of the sync.
            id: SyncId,
        ) -> () as Done = SyncStop Delete "/api/v1/syncs/{id}";
    } };
    (children $callback:ident) => { $crate::each_operation! { $callback
        /// Creates a child of a running sandbox, within its spawn policy.
        child_spawn(
            /// The name of the parent sandbox.
            name: Name,
            /// The requested child. Default: the settings of the policy.
            #[serde(default, deserialize_with = "by_name")]
            spec: ChildSpec,
        ) watch -> Child = ChildSpawn Post "/api/v1/sandboxes/{name}/children";

        /// Lists the children of a sandbox, and what its spawn policy leaves.
        child_list(
            /// The name of the parent sandbox.
            name: Name,
        ) -> ChildListing = ChildList Get "/api/v1/sandboxes/{name}/children";

        /// Removes a child and its own children.
        child_remove(
            /// The name of the parent sandbox.
            name: Name,
            /// The name of the child.
            child: Name,
        ) -> () as Done = ChildRemove Delete "/api/v1/sandboxes/{name}/children/{child}";
    } };
}

/// Calls the macro `$callback` once for each row. First comes what most callers need, then the rest:
///
/// ```text
/// method(argument: Type, …) [watch] -> Value = Request [modifier] {
///     [/// Doc comment.] [members] [Response] [{ own members }] Method "/path"
/// }
/// ```
#[macro_export]
macro_rules! each_operation {
    ($callback:ident $(
        $(#[doc = $about:literal])+
        $method:ident( $( $(#[$meta:meta])* $arg:ident: $type:ty ),* $(,)? ) $($watch:ident)?
        -> $value:ty $(as $response:ty)?
        = $request:ident $({ $($members:tt)* })? $http:ident $path:literal
        $(, $modifier:ident $($reason:literal)?)?;
    )*) => {$(
        $callback! {
            $method($($arg: $type),*) [$($watch)?] -> $value = $request [$($modifier $($reason)?)?] {
                [$(#[doc = $about])+]
                [$($(#[$meta])* $arg: $type),*] [$($response)?] [$({ $($members)* })?] $http $path
            }
        }
    )*};
}

/// The method of a trait for one Operation.
macro_rules! trait_method {
    (
        $method:ident($($arg:ident: $type:ty),*) [$($watch:ident)?]
        -> $value:ty = $request:ident $modifier:tt { [$(#[doc = $about:literal])+] $($rest:tt)* }
    ) => {
        $(#[doc = $about])+
        fn $method(
            &self,
            $($arg: $crate::Arg<'_, $type>,)*
            $($watch: &dyn $crate::Watch,)?
        ) -> msb_spec::Result<$value>;
    };
}

/// Every type that the table names, for the files that expand it.
pub mod operation_types {
    pub use crate::change::Change;
    pub use crate::children::{Child, ChildListing, ChildSpec};
    pub use crate::execs::ExecEntry;
    pub use crate::files::{Attributes, CopyCount, Place};
    pub use crate::http::InsidePath;
    pub use crate::images::{DiskUsage, ImageInspection, ImageSummary, Registry};
    pub use crate::params::{Millis, NewSnapshotName, SnapshotName, SyncId};
    pub use crate::rel_path::RelPath;
    pub use crate::sandboxes::{Audit, Create, Inspection, Metrics, SettingChange, Summary};
    pub use crate::snapshots::{Changes, Snapshot, VerifyReport};
    pub use crate::syncs::{SyncSpec, SyncSummary};
    pub use crate::volumes::{PrunedVolumes, Volume};
    pub use crate::workspaces::{ApplyReport, Depth, Selection};
    pub use msb_spec::{
        Exit, Modify, Name, Plan, Policy, PruneReport, PublishedPort, Reference, Rule, Spec,
        VolumeName, VolumeSpec,
    };
    pub use msb_wire::{Meta, NetRecord, NetTable, Sample, StopResult};
    pub use std::path::PathBuf;
}
