//! Decodes `char *krunfw_get_kernel(size_t *load, size_t *entry, size_t *size)`.
//!
//! The function stores three constants and returns an address. The instructions that compilers emit
//! for it, with or without a frame, are known here; all others are refused.

use super::super::flat::KernelLayout;

/// Which of the three pointers a register holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Argument {
    Load,
    Entry,
    Size,
}

/// The layout, if every instruction up to the return is known.
pub(super) fn read(code: &[u8]) -> Option<KernelLayout> {
    let mut get_kernel: [Option<u64>; 3] = [None; 3];
    // Arguments saved in the frame, by offset, and the argument that rax holds.
    let mut frame: Vec<(u8, Argument)> = Vec::new();
    let mut rax = None;
    let mut rest = code;
    loop {
        rest = match rest {
            // endbr64, push rbp, mov rsp to rbp, pop rbp, leave
            [0xf3, 0x0f, 0x1e, 0xfa, rest @ ..]
            | [0x55, rest @ ..]
            | [0x48, 0x89, 0xe5, rest @ ..]
            | [0x5d, rest @ ..]
            | [0xc9, rest @ ..] => rest,
            // mov of an argument into the frame
            [0x48, 0x89, register @ (0x7d | 0x75 | 0x55), slot, rest @ ..] => {
                let argument = match register {
                    0x7d => Argument::Load,
                    0x75 => Argument::Entry,
                    _ => Argument::Size,
                };
                frame.push((*slot, argument));
                rest
            }
            // mov from the frame to rax
            [0x48, 0x8b, 0x45, slot, rest @ ..] => {
                let known = frame.iter().rfind(|(known, _)| known == slot);
                rax = Some(known?.1);
                rest
            }
            // mov of a constant to where rax, rdi, rsi or rdx points
            [0x48, 0xc7, register @ (0x00 | 0x07 | 0x06 | 0x02), a, b, c, d, rest @ ..] => {
                let argument = match register {
                    0x00 => rax?,
                    0x07 => Argument::Load,
                    0x06 => Argument::Entry,
                    _ => Argument::Size,
                };
                let constant = i32::from_le_bytes([*a, *b, *c, *d]);
                get_kernel[argument as usize] = Some(u64::try_from(constant).ok()?);
                rest
            }
            // the address of the bundle, taken directly or from the table of the linker
            [0x48, 0x8b | 0x8d, 0x05, _, _, _, _, rest @ ..] => {
                rax = None;
                rest
            }
            [0xc3, ..] => break,
            _ => return None,
        };
    }
    Some(KernelLayout { load: get_kernel[0]?, entry: get_kernel[1]?, size: get_kernel[2]? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As gcc 13 wrote it for libkrunfw 5.6, without optimisation.
    const WITH_FRAME: &[u8] = &[
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0x7d, 0xf8, 0x48, 0x89, 0x75, 0xf0, 0x48, 0x89, 0x55,
        0xe8, 0x48, 0x8b, 0x45, 0xf8, 0x48, 0xc7, 0x00, 0x00, 0x00, 0x00, 0x01, 0x48, 0x8b, 0x45,
        0xf0, 0x48, 0xc7, 0x00, 0x23, 0x01, 0x00, 0x01, 0x48, 0x8b, 0x45, 0xe8, 0x48, 0xc7, 0x00,
        0x00, 0x00, 0x49, 0x01, 0x48, 0x8b, 0x05, 0x97, 0x2e, 0x00, 0x00, 0x5d, 0xc3,
    ];

    /// As compiled with optimisation.
    const WITHOUT_FRAME: &[u8] = &[
        0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0xc7, 0x07, 0x00, 0x00, 0x00, 0x01, 0x48, 0xc7, 0x06, 0x23,
        0x01, 0x00, 0x01, 0x48, 0x8d, 0x05, 0x00, 0x10, 0x00, 0x00, 0x48, 0xc7, 0x02, 0x00, 0x00,
        0x49, 0x01, 0xc3,
    ];

    const PLACE: KernelLayout =
        KernelLayout { load: 0x100_0000, entry: 0x100_0123, size: 0x149_0000 };

    #[test]
    fn code_with_and_without_a_frame_is_read() {
        assert_eq!(read(WITH_FRAME), Some(PLACE));
        assert_eq!(read(WITHOUT_FRAME), Some(PLACE));
    }

    #[test]
    fn any_other_instruction_is_rejected() {
        for at in [0, 4, 11, 18, 25, 32] {
            let mut code = WITHOUT_FRAME.to_vec();
            code.insert(at, 0x90);
            assert_eq!(read(&code), None, "{at}");
        }
    }

    #[test]
    fn a_store_through_an_unknown_register_is_rejected() {
        // A store through rax before it holds an argument, and a constant that is not one.
        assert_eq!(read(&[&WITH_FRAME[..16], &WITH_FRAME[20..]].concat()), None);
        let mut code = WITHOUT_FRAME.to_vec();
        code[10] = 0xff;
        assert_eq!(read(&code), None);
    }

    #[test]
    fn code_that_ends_before_it_returns_is_rejected() {
        for length in 0..WITHOUT_FRAME.len() {
            assert_eq!(read(&WITHOUT_FRAME[..length]), None, "{length}");
        }
    }
}
