//! Installs a seccomp filter.

use std::io;

/// One BPF instruction (`sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Opcode: `BPF_*` constants combined.
    pub code: u16,
    /// Instructions to skip if the comparison holds.
    pub jump_true: u8,
    /// Instructions to skip if the comparison fails.
    pub jump_false: u8,
    /// Operand `k`: a constant, an offset or a return value.
    pub operand: u32,
}

#[repr(C)]
struct BpfProgram {
    length: u16,
    instructions: *const Instruction,
}

/// Filters all later system calls of this process and its children; cannot be removed.
pub fn install(instructions: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = BpfProgram { length, instructions: instructions.as_ptr() };
    // SAFETY: `Instruction` and `BpfProgram` have the layout of sock_filter and sock_fprog; the
    // kernel copies `length` instructions before the call returns.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
