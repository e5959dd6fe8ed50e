//! The nouns of msb and their validation.
//!
//! Everything a user, an image or a client can ask for is parsed here once and passed on as a
//! type that cannot be wrong. No I/O, no async, no unsafe: the guest shares this crate.

/// Gives nouns that have `parse` and `Display` their way from and to text, in files and on flags.
macro_rules! written_as_text {
    ($($noun:ty),*) => {$(
        impl TryFrom<String> for $noun {
            type Error = $crate::Error;
            fn try_from(text: String) -> $crate::Result<Self> {
                Self::parse(&text)
            }
        }
        impl From<$noun> for String {
            fn from(noun: $noun) -> Self {
                noun.to_string()
            }
        }
        impl std::str::FromStr for $noun {
            type Err = $crate::Error;
            fn from_str(text: &str) -> $crate::Result<Self> {
                Self::parse(text)
            }
        }
    )*};
}

mod asker;
mod ceiling;
pub mod clock;
pub mod ctl;
mod destination;
pub mod env;
mod error;
mod exec;
mod ids;
mod image;
mod image_record;
mod init;
mod limits;
pub mod lookup;
mod modify;
mod mount;
mod name;
mod network;
mod patch;
mod plan;
mod platform;
mod public_address;
mod quantity;
mod reference;
mod rule;
mod service;
mod spawn;
mod spec;
pub mod state;
mod volume;
mod workspace;

pub use asker::{Asker, Surface};
pub use ceiling::{Authority, Ceiling, WithinCeiling};
pub use destination::Destination;
pub use error::{Error, Kind, Result, Stage};
pub use exec::{Command, Ending, Exit, Reached, Rlimit, RlimitName, Stdin, TermSize, UserRef};
pub use ids::{IdRange, Ids};
pub use image::ImageRef;
pub use image_record::{History, Prune, Pruned, RunConfig, Space};
pub use init::{Init, InitProgram, PlannedInit};
pub use limits::{By, Cgroup, Freezer, Limit, Limits};
pub use modify::{Modification, Modify};
pub use mount::{GuestPath, Mount, MountSource, Tmpfs};
pub use name::{Hostname, Name, disturbs, nearest, shown};
pub use network::{
    DEFAULT_CONNECTIONS, GATEWAY_MEMORY, Network, NetworkSpec, PlannedSecret, Protocol, Published,
    Reach, Resolver, Secret, SecretPlace, SecretSource, gateway_memory,
};
pub use patch::{Patch, Script};
pub use plan::{
    GuestKernel, Isolation, Lower, Machine, MachineBase, Overlay, PLAN_VERSION, Plan, PlannedMount,
    Rootfs, Security, Upper,
};
pub use platform::{Platform, PullWhen};
pub use public_address::is_public;
pub use quantity::{Bytes, Cpus, Span};
pub use reference::{Digest, Reference, registry};
pub use rule::{
    Decision, Direction, DomainName, Group, NamePattern, Policy, Ports, Range, Rule, Target,
    Traffic, addresses,
};
pub use service::{Health, HealthStatus, Restart};
pub use spawn::{DEEPEST, Family, FamilyNetwork, Peers, SpawnPolicy, WayOut};
pub use spec::{IsolationChoice, Profile, Spec, check_env};
pub use volume::{PlannedVolume, Stored, VolumeKind, VolumeName, VolumeSpec};
pub use workspace::{PlannedWorkspace, Workspace};
