//! What differs between processor architectures.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{PARAMETERS, SHARED_INTERRUPTS};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("microVMs run on x86_64 only so far");
