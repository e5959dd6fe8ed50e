//! Whether this host's processor really runs virtual machines.

use std::io;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as local;

/// Whether the processor says that it can run virtual machines.
pub fn is_claimed() -> bool {
    #[cfg(target_arch = "x86_64")]
    return local::is_claimed();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Enters a virtual machine that halts at once, and sees that it did.
///
/// A device that only looks like KVM fails here, or is found to be one by [`is_claimed`].
pub fn enter_once() -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    return local::enter_once();
    #[cfg(not(target_arch = "x86_64"))]
    return Err(io::ErrorKind::Unsupported.into());
}
