//! Safe wrappers over Linux system calls: the only crate with `unsafe` besides `*_unsafe.rs` files.
//!
//! What rustix offers is used from rustix directly; this crate has only what it lacks.
#![expect(
    unsafe_code,
    reason = "this crate wraps unsafe calls: every block states why it is sound"
)]

pub mod draft_file;
pub mod files;
pub mod id_map;
pub mod init;
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
