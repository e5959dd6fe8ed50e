//! Compiles per-call decisions to the seccomp BPF program that the kernel runs for every system
//! call.
//!
//! The kernel walks the program once for every call number when it is installed. A chain of 350
//! comparisons costs it a millisecond; a binary search over ranges costs a tenth of that.

use msb_sys::seccomp::Instruction;

/// What the filter does with a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SyscallAction {
    /// The call is allowed.
    Allow,
    /// The call returns this errno; 0 is success without doing anything.
    Errno(u16),
    /// The arguments decide: the first test that matches wins, otherwise the call is allowed.
    Depends(Vec<ArgTest>),
}

/// One test of a call's argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArgTest {
    /// Returns this errno if any of these bits is set.
    AnyBit { argument: u8, bits: u32, errno: u16 },
    /// Returns this errno if the argument has this value.
    Is { argument: u8, value: u32, errno: u16 },
    /// Returns this errno unless the argument has one of these values.
    IsNot { argument: u8, values: Vec<u32>, errno: u16 },
    /// Allows the call if none of these bits is set; later tests do not apply.
    PassWithout { argument: u8, bits: u32 },
    /// Allows the call if the argument has another value; later tests do not apply.
    PassUnless { argument: u8, value: u32 },
}

const LOAD_WORD: u16 = 0x20;
const JUMP_ALWAYS: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

pub(crate) const RETURN_ALLOW: u32 = 0x7fff_0000;
pub(crate) const RETURN_ERRNO: u32 = 0x0005_0000;
const RETURN_KILL: u32 = 0x8000_0000;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;

#[cfg(target_arch = "x86_64")]
pub(crate) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCHITECTURE: u32 = 0xc000_00b7;

/// Compiles sorted ranges of `(first number, action)`, each valid up to the next.
pub(crate) fn compile(ranges: &[(u32, SyscallAction)]) -> Vec<Instruction> {
    let mut program = vec![
        load(OFFSET_ARCHITECTURE),
        jump(JUMP_EQUAL, ARCHITECTURE, 1, 0),
        // Another architecture has other call numbers, so nothing below would apply.
        result(RETURN_KILL),
        load(OFFSET_NUMBER),
    ];
    search(ranges, &mut program);
    program
}

/// Compiles an allowlist: `action` decides about each listed call, all others return EPERM.
pub(crate) fn compile_allowlist(
    allowed: impl Iterator<Item = i64>,
    action: impl Fn(i64) -> SyscallAction,
) -> Vec<Instruction> {
    let refused = SyscallAction::Errno(libc::EPERM as u16);
    let number = |call: i64| u32::try_from(call).expect("call numbers are small");
    let mut allowed: Vec<i64> = allowed.collect();
    allowed.sort_unstable();
    let mut ranges = vec![(0, refused.clone())];
    for call in allowed {
        ranges.retain(|(first, _)| *first != number(call));
        ranges.push((number(call), action(call)));
        ranges.push((number(call) + 1, refused.clone()));
    }
    compile(&ranges)
}

fn search(ranges: &[(u32, SyscallAction)], program: &mut Vec<Instruction>) {
    if let [(_, action)] = ranges {
        return decide(action, program);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    program.push(jump(JUMP_AT_LEAST, high[0].0, 0, 1));
    let patch = program.len();
    program.push(jump(JUMP_ALWAYS, 0, 0, 0));
    search(low, program);
    program[patch].operand = (program.len() - patch - 1) as u32;
    search(high, program);
}

fn decide(action: &SyscallAction, program: &mut Vec<Instruction>) {
    match action {
        SyscallAction::Allow => program.push(result(RETURN_ALLOW)),
        SyscallAction::Errno(errno) => program.push(error(*errno)),
        SyscallAction::Depends(tests) => {
            for test in tests {
                test.emit(program);
            }
            program.push(result(RETURN_ALLOW));
        }
    }
}

impl ArgTest {
    fn emit(&self, program: &mut Vec<Instruction>) {
        match self {
            Self::AnyBit { argument, bits, errno } => {
                program.push(load_argument(*argument));
                program.push(jump(JUMP_ANY_BIT, *bits, 0, 1));
                program.push(error(*errno));
            }
            Self::Is { argument, value, errno } => {
                program.push(load_argument(*argument));
                program.push(jump(JUMP_EQUAL, *value, 0, 1));
                program.push(error(*errno));
            }
            Self::IsNot { argument, values, errno } => {
                program.push(load_argument(*argument));
                for (i, value) in values.iter().enumerate() {
                    let rest = u8::try_from(values.len() - i).expect("a handful of values");
                    program.push(jump(JUMP_EQUAL, *value, rest, 0));
                }
                program.push(error(*errno));
            }
            Self::PassWithout { argument, bits } => {
                program.push(load_argument(*argument));
                program.push(jump(JUMP_ANY_BIT, *bits, 1, 0));
                program.push(result(RETURN_ALLOW));
            }
            Self::PassUnless { argument, value } => {
                program.push(load_argument(*argument));
                program.push(jump(JUMP_EQUAL, *value, 1, 0));
                program.push(result(RETURN_ALLOW));
            }
        }
    }
}

/// Loads the low half of an argument: every tested value has 32 bits, and the kernel ignores the
/// rest.
fn load_argument(argument: u8) -> Instruction {
    load(OFFSET_ARGUMENTS + 8 * u32::from(argument))
}

fn load(offset: u32) -> Instruction {
    Instruction { code: LOAD_WORD, jump_true: 0, jump_false: 0, operand: offset }
}

fn jump(code: u16, operand: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, operand }
}

fn result(value: u32) -> Instruction {
    Instruction { code: RETURN, jump_true: 0, jump_false: 0, operand: value }
}

fn error(errno: u16) -> Instruction {
    result(RETURN_ERRNO | u32::from(errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf_interpreter::interpret;

    fn run(program: &[Instruction], number: u32, arguments: [u32; 6]) -> u32 {
        interpret(program, ARCHITECTURE, number, arguments.map(u64::from))
    }

    #[test]
    fn every_number_gets_its_own_action() {
        let errno = |n: u16| RETURN_ERRNO | u32::from(n);
        let ranges: Vec<(u32, SyscallAction)> =
            (0..200u16).map(|n| (u32::from(n) * 3, SyscallAction::Errno(n))).collect();
        let program = compile(&ranges);
        for number in 0..600 {
            assert_eq!(run(&program, number, [0; 6]), errno((number / 3) as u16), "{number}");
        }
    }

    #[test]
    fn arguments_decide_in_order() {
        let program = compile(&[(
            0,
            SyscallAction::Depends(vec![
                ArgTest::PassWithout { argument: 0, bits: 0x40 },
                ArgTest::AnyBit { argument: 1, bits: 0o6000, errno: 1 },
                ArgTest::IsNot { argument: 2, values: vec![5, 6], errno: 2 },
                ArgTest::Is { argument: 3, value: 9, errno: 3 },
                ArgTest::PassUnless { argument: 2, value: 5 },
                ArgTest::Is { argument: 3, value: 8, errno: 4 },
            ]),
        )]);
        let run = |a, b, c, d| run(&program, 7, [a, b, c, d, 0, 0]);
        assert_eq!(run(0, 0o6000, 0, 0), RETURN_ALLOW);
        assert_eq!(run(0x40, 0o4755, 5, 0), RETURN_ERRNO | 1);
        assert_eq!(run(0x40, 0o755, 7, 0), RETURN_ERRNO | 2);
        assert_eq!(run(0x40, 0o755, 6, 9), RETURN_ERRNO | 3);
        assert_eq!(run(0x40, 0o755, 5, 0), RETURN_ALLOW);
        assert_eq!(run(0x40, 0o755, 5, 8), RETURN_ERRNO | 4);
        assert_eq!(run(0x40, 0o755, 6, 8), RETURN_ALLOW);
    }
}
