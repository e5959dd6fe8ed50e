//! What `char *krunfw_get_kernel(size_t *load, size_t *entry, size_t *size)` answers, found by
//! following its instructions.
//!
//! It stores three constants and returns an address. Compilers write that with or without a
//! frame; the instructions of both are known here and no others.

use super::super::flat::Place;

/// Which of the three places a register points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Argument {
    Load,
    Entry,
    Size,
}

/// The answer, if every instruction up to the return is one that we know.
pub(super) fn read(code: &[u8]) -> Option<Place> {
    let mut answer: [Option<u64>; 3] = [None; 3];
    // What is known about the frame, by distance from its base, and what rax points to.
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
                answer[argument as usize] = Some(u64::try_from(constant).ok()?);
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
    Some(Place { load: answer[0]?, entry: answer[1]?, size: answer[2]? })
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

    /// With it.
    const WITHOUT_FRAME: &[u8] = &[
        0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0xc7, 0x07, 0x00, 0x00, 0x00, 0x01, 0x48, 0xc7, 0x06, 0x23,
        0x01, 0x00, 0x01, 0x48, 0x8d, 0x05, 0x00, 0x10, 0x00, 0x00, 0x48, 0xc7, 0x02, 0x00, 0x00,
        0x49, 0x01, 0xc3,
    ];

    const PLACE: Place = Place { load: 0x100_0000, entry: 0x100_0123, size: 0x149_0000 };

    #[test]
    fn both_ways_of_writing_it_are_read() {
        assert_eq!(read(WITH_FRAME), Some(PLACE));
        assert_eq!(read(WITHOUT_FRAME), Some(PLACE));
    }

    #[test]
    fn any_other_instruction_is_no_answer() {
        for at in [0, 4, 11, 18, 25, 32] {
            let mut code = WITHOUT_FRAME.to_vec();
            code.insert(at, 0x90);
            assert_eq!(read(&code), None, "{at}");
        }
    }

    #[test]
    fn a_place_that_nobody_named_is_no_answer() {
        // A store through rax before it holds an argument, and a constant that is not one.
        assert_eq!(read(&[&WITH_FRAME[..16], &WITH_FRAME[20..]].concat()), None);
        let mut code = WITHOUT_FRAME.to_vec();
        code[10] = 0xff;
        assert_eq!(read(&code), None);
    }

    #[test]
    fn code_that_ends_before_it_returns_is_no_answer() {
        for length in 0..WITHOUT_FRAME.len() {
            assert_eq!(read(&WITHOUT_FRAME[..length]), None, "{length}");
        }
    }
}
