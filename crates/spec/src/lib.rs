//! The nouns of msb and their validation.
//!
//! Input of users, images and clients is parsed here once and passed on as types that cannot be
//! invalid. No I/O, no async, no unsafe: the guest shares this crate.

/// Implements conversions from and to text for types with `parse` and `Display`.
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

mod ceiling;
pub mod clock;
pub mod ctl;
mod destination;
pub mod encoding;
pub mod env;
mod error;
mod exec;
mod file_mistake;
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
mod origin;
mod patch;
mod plan;
mod platform;
mod public_address;
mod quantity;
mod reference;
mod rule;
mod sandbox_defaults;
mod service;
mod spawn;
mod spec;
pub mod state;
mod volume;
mod workspace;

pub use ceiling::{Authority, Ceiling, WithinCeiling};
pub use destination::Destination;
pub use error::{Error, Kind, Result, Stage};
pub use exec::{
    Command, CommandStreams, Ending, Exit, LimitReached, Rlimit, RlimitName, Stdin, TermSize,
    UserRef,
};
pub use file_mistake::file_mistake;
pub use ids::{IdRange, Ids};
pub use image::ImageRef;
pub use image_record::{History, Prune, PruneReport, RunConfig, Space};
pub use init::{Init, InitProgram, PlannedInit};
pub use limits::{By, Cgroup, Freezer, Limit, Limits};
pub use modify::{Modification, Modify};
pub use mount::{GuestPath, Mount, MountSource, Tmpfs};
pub use name::{Hostname, Name, disturbs, nearest, shown};
pub use network::{
    DEFAULT_CONNECTIONS, GATEWAY_MEMORY, Network, NetworkSpec, PlannedSecret, Protocol,
    PublishedPort, Reach, Resolver, Secret, SecretPlace, SecretSource, gateway_memory,
};
pub use origin::{CallOrigin, Surface};
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
pub use sandbox_defaults::SandboxDefaults;
pub use service::{Health, HealthStatus, Restart};
pub use spawn::{DEEPEST, Family, FamilyNetwork, Peers, SpawnPolicy, WayOut};
pub use spec::{IsolationChoice, Profile, Spec, check_env};
pub use volume::{PlannedVolume, VolumeKind, VolumeName, VolumeSpec, VolumeStorage};
pub use workspace::{PlannedWorkspace, Workspace};
