//! Safe wrappers over the Linux calls we need: the fence around `unsafe`.
//!
//! Whatever rustix offers safely is used from rustix directly; only what it lacks is here.
#![expect(unsafe_code, reason = "this crate is the fence: every block states why it is sound")]

pub mod files;
pub mod intrusion;
pub mod kvm;
pub mod lock;
pub mod loopback_disk;
pub mod machine;
pub mod mount;
pub mod net;
pub mod netlink;
pub mod process;
pub mod root_dir;
pub mod seccomp;
pub mod signal;
pub mod socket;
pub mod sparse;
pub mod spawn;
pub mod tree;
