//! Plans, starts and stores sandboxes on this machine.
//!
//! The registry of sandboxes is the file system: no daemon, no database. Any command that finds the
//! leftovers of a dead worker cleans them up and reports it.

mod api;
mod audit;
pub mod bootstrap;
pub mod build;
mod children;
mod clients;
pub mod conf;
mod connection;
mod ctl;
mod disk;
pub mod doctor;
mod failpoint;
pub mod files;
mod hardware;
mod host;
pub mod images;
mod inspect;
mod install;
mod launch;
mod layers;
mod links;
pub mod logs;
mod metrics;
mod modify;
mod network;
mod planning;
mod pull;
mod push;
pub mod registries;
mod relay;
mod rename;
mod repair;
mod sandboxes;
mod secrets;
pub mod snapshots;
mod ssh;
mod start;
mod store;
mod sync;
mod volumes;
pub mod workspace;

pub use api::SandboxTie;
pub use children::ChildSandboxes;
pub use connection::Connection;
pub use ctl::{CTL_ARGUMENT, serve_ctl};
#[cfg(feature = "fixture")]
pub use failpoint::{LaunchFault, LaunchStep};
pub use files::SymlinkPolicy;
pub use install::InstalledCommand;
pub use launch::{Launcher, WORKER_ARGUMENT, WorkerStart, raise_file_limit, receive_start};
pub use msb_api::{
    AcceptedConn, Child, ChildListing, ChildSpec, DEFAULT_EXCLUDES, ExecEntry, Holds, Inspection,
    LinkListener, Links, Metrics, PrunedVolumes, SettingChange, Status, Summary, SyncSpec,
    SyncState, SyncStatus, SyncSummary, Volume,
};
pub use msb_image::SandboxProfile;
pub use msb_kernel as kernel;
pub use network::Lines;
pub use sandboxes::Engine;
pub use secrets::{SecretValue, value_of as secret_value};
pub use snapshots::SnapshotStore;
pub use ssh::{SshFile, SshFiles};
pub use start::{Launch, LaunchUntil, RunningSandbox};
pub use store::Home;
pub use sync::{Observer, SYNC_ARGUMENT, SyncEnd, SyncEvent, serve_sync};
pub use volumes::VolumeStore;
