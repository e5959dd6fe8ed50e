//! Runs exactly one microVM: the process that calls [`enter`] is the machine until it ends.
//!
//! This is the only crate that names the VMM. Around it stands what [`Machine`] describes: a
//! kernel, disks, shares, and one vsock port whose connections are handed to the worker. The VMM
//! has no jail of its own, so whoever calls [`enter`] has confined the process before.

mod arch;
mod connections;
mod kernel_unsafe;
mod link;
mod machine;
mod network;
mod share;

pub use link::{Link, Order, Report};
pub use machine::{Disk, Machine, Share, enter};
