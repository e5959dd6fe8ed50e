//! Checks that KVM works on this host, by running a one-instruction virtual machine.

use std::io;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

/// Whether CPUID reports VMX or SVM.
pub fn is_claimed() -> bool {
    #[cfg(target_arch = "x86_64")]
    return arch::is_claimed();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Runs a virtual machine that halts at once and checks the exit reason. A device that only looks
/// like KVM fails here or in [`is_claimed`].
pub fn enter_once() -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    return arch::enter_once();
    #[cfg(not(target_arch = "x86_64"))]
    return Err(io::ErrorKind::Unsupported.into());
}
