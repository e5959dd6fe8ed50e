//! Runs a seccomp BPF program as the kernel would, for tests.
//!
//! It supports the instructions that our compiler and libseccomp emit.

use msb_sys::seccomp::Instruction;

/// The program's return value for a call with this number and these arguments.
pub(crate) fn interpret(
    program: &[Instruction],
    architecture: u32,
    number: u32,
    arguments: [u64; 6],
) -> u32 {
    let (mut at, mut loaded) = (0usize, 0u32);
    let word = |offset: u32| match offset {
        0 => number,
        4 => architecture,
        8 | 12 => 0,
        offset => {
            let argument = arguments[(offset as usize - 16) / 8];
            (if offset % 8 == 0 { argument } else { argument >> 32 }) as u32
        }
    };
    loop {
        let step = program[at];
        at += 1;
        let taken = match step.code {
            // Load a word of the call's data.
            0x20 => {
                loaded = word(step.operand);
                continue;
            }
            // AND with a constant.
            0x54 => {
                loaded &= step.operand;
                continue;
            }
            // Return a constant.
            0x06 => return step.operand,
            // Jumps: always, equal, greater, greater or equal, any bit.
            0x05 => {
                at += step.operand as usize;
                continue;
            }
            0x15 => loaded == step.operand,
            0x25 => loaded > step.operand,
            0x35 => loaded >= step.operand,
            0x45 => loaded & step.operand != 0,
            other => panic!("unknown instruction {other:#x}"),
        };
        at += usize::from(if taken { step.jump_true } else { step.jump_false });
    }
}
