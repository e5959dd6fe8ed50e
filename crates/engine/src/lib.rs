//! Plans, starts and keeps sandboxes on this machine.
//!
//! The registry of sandboxes is the file system: no daemon, no database. Whoever finds what a
//! dead worker has left cleans it up and says so.

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
pub mod files;
mod hardware;
mod host;
pub mod images;
mod installed;
pub mod kernel;
mod launch;
mod layers;
mod links;
pub mod logs;
mod looking;
mod metrics;
mod modify;
mod network;
mod planning;
mod pull;
mod push;
pub mod registries;
mod rename;
mod repair;
mod sandboxes;
mod secrets;
pub mod snapshots;
mod ssh;
mod store;
mod sync;
mod volumes;
pub mod workspace;

pub use connection::Connection;
pub use ctl::{CTL_ARGUMENT, serve_ctl};
pub use installed::Recipe;
pub use launch::{Caller, Launcher, WORKER_ARGUMENT, WorkerStart, raise_file_limit, receive_start};
pub use msb_api::{
    Accepted, Brood, Child, ChildSpec, DEFAULT_EXCLUDES, ExecEntry, Holds, Inspection,
    LinkListener, Links, Metrics, Modified, PrunedVolumes, Status, Summary, SyncSpec, SyncState,
    SyncStatus, SyncSummary, Volume,
};
pub use msb_image::SandboxProfile;
pub use network::Lines;
pub use sandboxes::{Awake, Engine};
pub use secrets::{Value as SecretValue, value_of as secret_value};
pub use ssh::{SshFile, SshFiles};
pub use store::Home;
pub use sync::{Observer, SYNC_ARGUMENT, SyncEnd, SyncEvent, serve_sync};
