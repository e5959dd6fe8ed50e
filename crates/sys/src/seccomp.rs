//! Installing a filter of system calls.

use std::io;

/// One instruction, as the kernel defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// How many instructions to skip if a comparison holds.
    pub jump_true: u8,
    /// How many to skip if it does not.
    pub jump_false: u8,
    /// The operand.
    pub operand: u32,
}

#[repr(C)]
struct Program {
    length: u16,
    instructions: *const Instruction,
}

/// Filters every system call of this process and its children from now on, for good.
pub fn install(instructions: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(instructions.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = Program { length, instructions: instructions.as_ptr() };
    // SAFETY: `Instruction` and `Program` have the layout of sock_filter and sock_fprog; the
    // kernel copies `length` instructions before the call returns.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
