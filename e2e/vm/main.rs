//! The vm tier, in the nested lab: `cargo xtask lab --nested [FILTER]`.
//!
//! Outside the lab no test does anything. On a host with KVM it is enough to say that it is one:
//! `MSB_LAB` names a directory with the program `inside`, `MSB_TEST_ISOLATION` is `vm`.

mod attacks;
mod children;
mod execs;
mod files;
mod idle;
mod init;
mod inspect;
mod lab;
mod lifecycle;
mod limits;
mod mounts;
mod network;
mod root_filesystems;
mod served;
mod snapshots;
mod ssh;
