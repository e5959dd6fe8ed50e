//! Confines a process: namespaces, mounts, cgroups, seccomp, Landlock.
//!
//! [`start`] is the boot order of the `process` tier from top to bottom. What the host lacks is
//! an error; nothing is skipped silently.

mod beside;
mod calls;
mod capabilities;
mod ceilings;
pub mod cgroup;
mod devices;
mod disk;
mod filter;
mod freezer;
mod gateway;
mod idmap;
mod inside;
mod landlock;
mod layers;
mod machine;
mod machine_calls;
mod network;
mod own;
mod storage;
mod syscalls;
mod workspace;

pub use beside::{BecomeInit, Beside};
pub use gateway::confine_gateway;
pub use inside::{Become, Confined, start};
pub use machine::{Ids as ShownIds, Shown, start as start_machine};
pub use network::Outward;
pub use own::{WorkerNeeds, confine_worker};
pub use storage::serve as serve_volume;
