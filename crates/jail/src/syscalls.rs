//! The seccomp filter of a sandbox.
//!
//! An allowlist: `syscall_list` has the allowed calls with reasons, this file the argument rules. A
//! known call that is not listed fails with EPERM. A call that is newer than the list fails with
//! ENOSYS, as on an older kernel, so that programs fall back.

use crate::bpf_compiler::{ArgTest, SyscallAction, compile};
use crate::syscall_groups::only_unix_pairs;
use crate::syscall_list::{ALLOWED, ALLOWED_ON_ARCH, NOT_RESTRICTED, SyscallGroup, WITH_USERNS};
use libc::{
    EAFNOSUPPORT, EINVAL, ENOSYS, EOPNOTSUPP, EPERM, EPROTONOSUPPORT, SYS_clone, SYS_clone3,
    SYS_fchmod, SYS_fchmodat, SYS_fchmodat2, SYS_fchown, SYS_fchownat, SYS_fcntl, SYS_fsetxattr,
    SYS_ioctl, SYS_lsetxattr, SYS_mknodat, SYS_openat, SYS_openat2, SYS_personality, SYS_setfsgid,
    SYS_setfsuid, SYS_setgid, SYS_setgroups, SYS_setregid, SYS_setresgid, SYS_setresuid,
    SYS_setreuid, SYS_setuid, SYS_setxattr, SYS_socket, SYS_socketpair,
};
use msb_spec::{Ids, Profile, Security};
use msb_sys::seccomp::Instruction;
use std::collections::BTreeMap;

/// Call numbers that existed when the list was written: up to futex_requeue of Linux 6.7.
#[cfg(target_arch = "x86_64")]
const KNOWN: [(u32, u32); 2] = [(0, 334), (424, 456)];
#[cfg(target_arch = "aarch64")]
const KNOWN: [(u32, u32); 2] = [(0, 293), (424, 456)];

/// These return success without doing anything where only root exists, so that apt, pip and npm
/// work.
const FAKED_FOR_ONE_ID: &[i64] = &[
    SYS_fchown,
    SYS_fchownat,
    SYS_setfsgid,
    SYS_setfsuid,
    SYS_setgid,
    SYS_setgroups,
    SYS_setregid,
    SYS_setresgid,
    SYS_setresuid,
    SYS_setreuid,
    SYS_setuid,
];

#[cfg(target_arch = "x86_64")]
mod legacy {
    pub(super) const FAKED_FOR_ONE_ID: &[i64] = &[libc::SYS_chown, libc::SYS_lchown];
    /// Legacy calls with the index of their mode argument.
    pub(super) const MODES: &[(i64, u8)] =
        &[(libc::SYS_chmod, 1), (libc::SYS_creat, 1), (libc::SYS_mknod, 1)];
    /// Legacy calls with the indexes of their flags and mode arguments.
    pub(super) const OPENS: &[(i64, u8, u8)] = &[(libc::SYS_open, 1, 2)];
}
#[cfg(not(target_arch = "x86_64"))]
mod legacy {
    pub(super) const FAKED_FOR_ONE_ID: &[i64] = &[];
    pub(super) const MODES: &[(i64, u8)] = &[];
    pub(super) const OPENS: &[(i64, u8, u8)] = &[];
}

/// Every `CLONE_NEW*` flag but CLONE_NEWTIME, which needs privileges anyway.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32;

/// ioctl that injects characters into a terminal's input.
const TIOCSTI: u32 = 0x5412;
/// ioctl that injects characters into a virtual console's input.
const TIOCLINUX: u32 = 0x541c;

/// fcntl for a delegation, which is a kind of lease; since Linux 6.19.
const F_SETDELEG: u32 = 1024 + 16;

/// Address families that the network namespace confines. AF_VSOCK is excluded: it reaches the host
/// past every namespace.
const FAMILIES: [u32; 4] =
    [libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, libc::AF_NETLINK as u32];

/// Protocols of AF_NETLINK: routes and addresses, which `getifaddrs` reads. The others reach parts
/// of the kernel that a sandbox does not need, some of them shared by the whole host.
const NETLINK_PROTOCOLS: [u32; 1] = [libc::NETLINK_ROUTE as u32];

/// Personalities that only affect the process itself; the last value queries the current one.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

pub(crate) const SET_ID_BITS: u32 = 0o6000;
pub(crate) const CREATES: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;

/// Compiles the filter of a sandbox.
pub(crate) fn program(security: &Security, ids: &Ids) -> Vec<Instruction> {
    compile(&ranges(actions(security, ids)))
}

/// The action for each call that existed when the list was written.
pub(crate) fn actions(security: &Security, ids: &Ids) -> BTreeMap<u32, SyscallAction> {
    let refused = SyscallAction::Errno(EPERM as u16);
    let mut actions: BTreeMap<u32, SyscallAction> = KNOWN
        .iter()
        .flat_map(|(first, last)| *first..=*last)
        .map(|number| (number, refused.clone()))
        .collect();
    let mut set = |calls: &[i64], action: SyscallAction| {
        for call in calls {
            actions.insert(u32::try_from(*call).expect("call numbers are small"), action.clone());
        }
    };
    let numbers = |groups: &[SyscallGroup]| -> Vec<i64> {
        groups.iter().flat_map(|(_, calls)| *calls).map(|(_, number)| *number).collect()
    };
    set(&numbers(ALLOWED), SyscallAction::Allow);
    set(&numbers(ALLOWED_ON_ARCH), SyscallAction::Allow);
    for (call, tests) in conditions() {
        set(&[call], SyscallAction::Depends(tests));
    }
    if security.allow_userns {
        set(&numbers(WITH_USERNS), SyscallAction::Allow);
    } else {
        let own = ArgTest::AnyBit { argument: 0, bits: NEW_NAMESPACES, errno: EPERM as u16 };
        set(&[SYS_clone], SyscallAction::Depends(vec![own]));
        // Its flags are behind a pointer; C libraries fall back to clone.
        set(&[SYS_clone3], SyscallAction::Errno(ENOSYS as u16));
    }
    if security.profile == Profile::Restricted {
        let left_out: Vec<i64> = NOT_RESTRICTED.iter().map(|(_, number)| *number).collect();
        set(&left_out, refused);
    }
    if !ids.many() {
        set(FAKED_FOR_ONE_ID, SyscallAction::Errno(0));
        set(legacy::FAKED_FOR_ONE_ID, SyscallAction::Errno(0));
    }
    if !security.allow_setid {
        let bits = |argument| ArgTest::AnyBit { argument, bits: SET_ID_BITS, errno: EPERM as u16 };
        let modes = [(SYS_fchmod, 1), (SYS_fchmodat, 2), (SYS_fchmodat2, 2), (SYS_mknodat, 2)];
        for (call, mode) in modes.iter().chain(legacy::MODES) {
            set(&[*call], SyscallAction::Depends(vec![bits(*mode)]));
        }
        for (call, flags, mode) in [(SYS_openat, 2, 3)].iter().chain(legacy::OPENS) {
            let creates = ArgTest::PassWithout { argument: *flags, bits: CREATES };
            set(&[*call], SyscallAction::Depends(vec![creates, bits(*mode)]));
        }
        // Its mode is behind a pointer; C libraries fall back to openat.
        set(&[SYS_openat2], SyscallAction::Errno(ENOSYS as u16));
        if security.allow_userns {
            // Root of a nested namespace could set file capabilities; attribute names are behind
            // pointers.
            let none = SyscallAction::Errno(EOPNOTSUPP as u16);
            set(&[SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr], none);
        }
    }
    actions
}

/// Argument rules that apply in every sandbox.
fn conditions() -> [(i64, Vec<ArgTest>); 5] {
    let refused = EPERM as u16;
    [
        (
            SYS_ioctl,
            vec![
                ArgTest::Is { argument: 1, value: TIOCSTI, errno: refused },
                ArgTest::Is { argument: 1, value: TIOCLINUX, errno: refused },
            ],
        ),
        (
            SYS_socket,
            vec![
                ArgTest::IsNot {
                    argument: 0,
                    values: FAMILIES.to_vec(),
                    errno: EAFNOSUPPORT as u16,
                },
                ArgTest::PassUnless { argument: 0, value: libc::AF_NETLINK as u32 },
                ArgTest::IsNot {
                    argument: 2,
                    values: NETLINK_PROTOCOLS.to_vec(),
                    errno: EPROTONOSUPPORT as u16,
                },
            ],
        ),
        (SYS_socketpair, vec![only_unix_pairs()]),
        (
            SYS_personality,
            vec![ArgTest::IsNot { argument: 0, values: PERSONALITIES.to_vec(), errno: refused }],
        ),
        // A lease on a read-only file would block a process outside that opens it for writing.
        // F_NOTIFY would reveal changes in a shared directory.
        (
            SYS_fcntl,
            vec![
                ArgTest::Is { argument: 1, value: libc::F_SETLEASE as u32, errno: EINVAL as u16 },
                ArgTest::Is { argument: 1, value: libc::F_NOTIFY as u32, errno: EINVAL as u16 },
                ArgTest::Is { argument: 1, value: F_SETDELEG, errno: EINVAL as u16 },
            ],
        ),
    ]
}

/// Merges neighbours with the same action into ranges; gaps and later numbers get ENOSYS.
fn ranges(actions: BTreeMap<u32, SyscallAction>) -> Vec<(u32, SyscallAction)> {
    let unknown = SyscallAction::Errno(ENOSYS as u16);
    let mut ranges: Vec<(u32, SyscallAction)> = Vec::new();
    let mut add = |first: u32, action: SyscallAction| {
        if ranges.last().is_none_or(|(_, last)| *last != action) {
            ranges.push((first, action));
        }
    };
    let mut next = 0;
    for (number, action) in actions {
        if number > next {
            add(next, unknown.clone());
        }
        add(number, action);
        next = number + 1;
    }
    add(next, unknown);
    ranges
}

#[cfg(test)]
#[path = "syscalls_tests.rs"]
mod tests;
