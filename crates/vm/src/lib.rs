//! Runs exactly one microVM: the process that calls [`enter`] is the VMM until it exits.
//!
//! This is the only crate that names the VMM. [`Machine`] describes the microVM: a kernel, disks,
//! shares, and one vsock port with connections to the worker. The VMM has no jail of its own, so
//! the caller of [`enter`] confines the process before.

mod arch;
mod kernel_unsafe;
mod link;
mod machine;
mod network;
mod share;
mod vsock;

pub use link::{Link, Order, Report};
pub use machine::{Disk, Machine, Share, enter};
