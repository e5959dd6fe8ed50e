//! Sandboxes for code that you did not write: the Rust SDK of `msb`.
//!
//! ```no_run
//! use microsandbox::{Result, Sandbox};
//!
//! #[tokio::main]
//! async fn main() -> Result<()> {
//!     let sandbox = Sandbox::builder("my-sandbox").image("host").cpus(1).memory(512).create().await?;
//!     let output = sandbox.exec("python3", ["-c", "print('Hello!')"]).await?;
//!     println!("{}", output.stdout()?);
//!     sandbox.stop_and_wait().await?;
//!     Sandbox::remove("my-sandbox").await
//! }
//! ```
//!
//! There is no server and no daemon: each sandbox is one process of the `msb` executable, which
//! is found by `MSB_PATH`, beside the program, on PATH, or in `~/.msb/bin`. A sandbox that is not
//! [detached](Sandbox::detach) ends with its handle and with this process, also when the process
//! is killed.
//!
//! - [`Sandbox`] runs commands: [`exec`](Sandbox::exec), [`shell`](Sandbox::shell),
//!   [`exec_with`](Sandbox::exec_with) capture what they say, [`exec_stream`](Sandbox::exec_stream)
//!   gives it as it comes.
//! - [`Fs`] reads, writes and copies files inside, whole or in pieces.
//! - [`Workspace`] shows a directory of the host copy-on-write, and brings changes to it once they
//!   were looked at.
//! - [`DirectorySync`] keeps a directory of the host in step inside.
//! - [`Volume`] keeps files beyond a sandbox and shares them between several.
//! - [`Isolation`] says what a sandbox is: a microVM where the host runs them, or namespaces,
//!   seccomp and Landlock. Everything here is the same for both, but that snapshots of
//!   microVMs cannot be saved to files yet.
//! - [`Sandboxes`] is for another state directory than the user's own.
//! - [`Error`] has a [`Kind`] to decide on, a message, causes, and a hint.
//!
//! Everything needs a tokio runtime with I/O and time enabled. No future blocks its thread.

mod builder;
mod children;
mod command;
mod exec;
mod file_stream;
mod fs;
mod log_stream;
mod network;
mod output;
mod sandbox;
mod sandboxes;
mod snapshots;
mod sync;
mod volume;
mod worker;
mod workspace;

pub use builder::SandboxBuilder;
pub use command::{Command, Stdin};
pub use exec::{Exec, ExecEvent, ExecInput};
pub use file_stream::{FileReader, FileWriter};
pub use fs::{FileKind, Fs, Meta};
pub use log_stream::LogStream;
pub use output::Output;
pub use sandbox::Sandbox;
pub use sandboxes::Sandboxes;
pub use sync::{DirectorySync, SyncOptions};
pub use volume::{Volume, VolumeBuilder};
pub use workspace::Workspace;

pub use msb_engine::files::CopyCount;
pub use msb_engine::logs::{Filter as LogFilter, Line as LogLine};
pub use msb_engine::snapshots::{Snapshot, VerifyReport};
pub use msb_engine::workspace::{
    ApplyReport, Change, Conflict, Depth, Item, ItemKind, LeftOut, Patch as LineDiff, RelPath,
    Risk, Selection, What,
};
pub use msb_engine::{
    Child, ChildListing, ChildSpec, ExecEntry, Holds, Inspection, Metrics, SettingChange, Status,
    Summary, SyncState, SyncStatus, SyncSummary,
};
pub use msb_spec::{
    Bytes, Cpus, Ending, Error, Exit, GuestPath, Health, HealthStatus, ImageRef,
    IsolationChoice as Isolation, Kind, Modify, Name, Patch, Peers, Plan, Policy,
    Profile as Security, PublishedPort, PullWhen, Reach, Restart, Result, SecretPlace, Span,
    SpawnPolicy, Stage, VolumeKind, WayOut,
};
pub use msb_wire::record::Source as LogSource;
pub use msb_wire::{NetFlow, NetTable, StopResult, Verdict, WorkerStatus};
