//! Which system calls a sandbox may make.
//!
//! Everything the kernel had when this list was written is allowed except what is named here;
//! whatever came later is answered with ENOSYS, as an older kernel would, so programs fall back.

use crate::filter::{Action, Test, compile};
use libc::{
    EAFNOSUPPORT, EINVAL, ENOSYS, EOPNOTSUPP, EPERM, SYS_acct, SYS_add_key, SYS_adjtimex, SYS_bpf,
    SYS_chroot, SYS_clock_adjtime, SYS_clock_settime, SYS_clone, SYS_clone3, SYS_delete_module,
    SYS_fanotify_init, SYS_fchmod, SYS_fchmodat, SYS_fchmodat2, SYS_fchown, SYS_fchownat,
    SYS_fcntl, SYS_finit_module, SYS_fsconfig, SYS_fsetxattr, SYS_fsmount, SYS_fsopen, SYS_fspick,
    SYS_init_module, SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup, SYS_ioctl,
    SYS_kcmp, SYS_kexec_file_load, SYS_kexec_load, SYS_keyctl, SYS_lookup_dcookie, SYS_lsetxattr,
    SYS_mknodat, SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_move_pages, SYS_nfsservctl,
    SYS_open_by_handle_at, SYS_open_tree, SYS_openat, SYS_openat2, SYS_perf_event_open,
    SYS_personality, SYS_pidfd_getfd, SYS_pivot_root, SYS_process_vm_readv, SYS_process_vm_writev,
    SYS_ptrace, SYS_quotactl, SYS_quotactl_fd, SYS_reboot, SYS_request_key, SYS_setdomainname,
    SYS_setfsgid, SYS_setfsuid, SYS_setgid, SYS_setgroups, SYS_sethostname, SYS_setns,
    SYS_setregid, SYS_setresgid, SYS_setresuid, SYS_setreuid, SYS_settimeofday, SYS_setuid,
    SYS_setxattr, SYS_socket, SYS_swapoff, SYS_swapon, SYS_syslog, SYS_umount2, SYS_unshare,
    SYS_userfaultfd, SYS_vhangup,
};
use msb_spec::{Ids, Profile, Security};
use msb_sys::seccomp::Instruction;
use std::collections::BTreeMap;

/// Runs of numbers that were in use when this list was written: up to futex_requeue, Linux 6.7.
#[cfg(target_arch = "x86_64")]
const KNOWN: [(u32, u32); 2] = [(0, 334), (424, 456)];
#[cfg(target_arch = "aarch64")]
const KNOWN: [(u32, u32); 2] = [(0, 293), (424, 456)];

/// Never needed inside, each a wide door into the kernel or the whole machine's business.
const NEVER: &[i64] = &[
    SYS_acct,
    SYS_add_key,
    SYS_adjtimex,
    SYS_bpf,
    SYS_clock_adjtime,
    SYS_clock_settime,
    SYS_delete_module,
    SYS_fanotify_init,
    SYS_finit_module,
    SYS_init_module,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_io_uring_setup,
    SYS_kcmp,
    SYS_kexec_file_load,
    SYS_kexec_load,
    SYS_keyctl,
    SYS_lookup_dcookie,
    SYS_move_pages,
    SYS_nfsservctl,
    SYS_open_by_handle_at,
    SYS_perf_event_open,
    SYS_quotactl,
    SYS_quotactl_fd,
    SYS_reboot,
    SYS_request_key,
    SYS_setdomainname,
    SYS_sethostname,
    SYS_settimeofday,
    SYS_swapoff,
    SYS_swapon,
    SYS_syslog,
    SYS_userfaultfd,
    SYS_vhangup,
];

/// Only of use in a user namespace of one's own.
const NEEDS_USERNS: &[i64] = &[
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fsopen,
    SYS_fspick,
    SYS_mount,
    SYS_mount_setattr,
    SYS_move_mount,
    SYS_open_tree,
    SYS_pivot_root,
    SYS_setns,
    SYS_umount2,
];

/// Left out of the restricted profile: debugging and changing roots.
const NOT_RESTRICTED: &[i64] =
    &[SYS_chroot, SYS_pidfd_getfd, SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace];

/// Answered with success where only root exists, so that apt, pip and npm go on.
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
    /// Those before 5.x that the kernel itself answers with ENOSYS are left to it.
    pub(super) const NEVER: &[i64] = &[
        libc::SYS_ioperm,
        libc::SYS_iopl,
        libc::SYS_modify_ldt,
        libc::SYS_sysfs,
        libc::SYS__sysctl,
        libc::SYS_uselib,
        libc::SYS_ustat,
    ];
    pub(super) const FAKED_FOR_ONE_ID: &[i64] = &[libc::SYS_chown, libc::SYS_lchown];
    /// `(call, argument that holds the mode)`.
    pub(super) const MODES: &[(i64, u8)] =
        &[(libc::SYS_chmod, 1), (libc::SYS_creat, 1), (libc::SYS_mknod, 1)];
    /// `(call, argument that holds the flags, argument that holds the mode)`.
    pub(super) const OPENS: &[(i64, u8, u8)] = &[(libc::SYS_open, 1, 2)];
}
#[cfg(not(target_arch = "x86_64"))]
mod legacy {
    pub(super) const NEVER: &[i64] = &[];
    pub(super) const FAKED_FOR_ONE_ID: &[i64] = &[];
    pub(super) const MODES: &[(i64, u8)] = &[];
    pub(super) const OPENS: &[(i64, u8, u8)] = &[];
}

/// Every `CLONE_NEW*` flag but the one for time, which needs privileges anyway.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32;

/// Types characters into a terminal as if its user had.
const TIOCSTI: u32 = 0x5412;
/// Does the same on a console.
const TIOCLINUX: u32 = 0x541c;

/// A lease by another name, since Linux 6.19.
const F_SETDELEG: u32 = 1024 + 16;

/// Address families that the sandbox's own network namespace confines. Not vsock: it reaches the
/// host past every namespace.
const FAMILIES: [u32; 4] =
    [libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, libc::AF_NETLINK as u32];

/// Personalities that only change what a program sees of itself; the last asks for the present one.
const PERSONALITIES: [u32; 6] = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

pub(crate) const SET_ID_BITS: u32 = 0o6000;
pub(crate) const CREATES: u32 = (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u32;

/// The filter of a sandbox.
pub(crate) fn program(security: &Security, ids: &Ids) -> Vec<Instruction> {
    let mut actions: BTreeMap<u32, Action> = KNOWN
        .iter()
        .flat_map(|(first, last)| *first..=*last)
        .map(|number| (number, Action::Allow))
        .collect();
    let mut set = |calls: &[i64], action: Action| {
        for call in calls {
            actions.insert(u32::try_from(*call).expect("call numbers are small"), action.clone());
        }
    };
    let refused = Action::Errno(EPERM as u16);
    set(NEVER, refused.clone());
    set(legacy::NEVER, refused.clone());
    set(
        &[SYS_ioctl],
        Action::Depends(vec![
            Test::Is { argument: 1, value: TIOCSTI, errno: EPERM as u16 },
            Test::Is { argument: 1, value: TIOCLINUX, errno: EPERM as u16 },
        ]),
    );
    set(
        &[SYS_socket],
        Action::Depends(vec![Test::IsNot {
            argument: 0,
            values: FAMILIES.to_vec(),
            errno: EAFNOSUPPORT as u16,
        }]),
    );
    set(
        &[SYS_personality],
        Action::Depends(vec![Test::IsNot {
            argument: 0,
            values: PERSONALITIES.to_vec(),
            errno: EPERM as u16,
        }]),
    );
    // A lease on a file that can only be read holds up a process outside that writes it, and a notice of a
    // directory tells what is done there.
    set(
        &[SYS_fcntl],
        Action::Depends(vec![
            Test::Is { argument: 1, value: libc::F_SETLEASE as u32, errno: EINVAL as u16 },
            Test::Is { argument: 1, value: libc::F_NOTIFY as u32, errno: EINVAL as u16 },
            Test::Is { argument: 1, value: F_SETDELEG, errno: EINVAL as u16 },
        ]),
    );
    if !security.allow_userns {
        let own = Test::AnyBit { argument: 0, bits: NEW_NAMESPACES, errno: EPERM as u16 };
        set(NEEDS_USERNS, refused.clone());
        set(&[SYS_clone, SYS_unshare], Action::Depends(vec![own]));
        // Its flags are behind a pointer; C libraries fall back to clone.
        set(&[SYS_clone3], Action::Errno(ENOSYS as u16));
    }
    if security.profile == Profile::Restricted {
        set(NOT_RESTRICTED, refused);
    }
    if !ids.many() {
        set(FAKED_FOR_ONE_ID, Action::Errno(0));
        set(legacy::FAKED_FOR_ONE_ID, Action::Errno(0));
    }
    if !security.allow_setid {
        let bits = |argument| Test::AnyBit { argument, bits: SET_ID_BITS, errno: EPERM as u16 };
        let modes = [(SYS_fchmod, 1), (SYS_fchmodat, 2), (SYS_fchmodat2, 2), (SYS_mknodat, 2)];
        for (call, mode) in modes.iter().chain(legacy::MODES) {
            set(&[*call], Action::Depends(vec![bits(*mode)]));
        }
        for (call, flags, mode) in [(SYS_openat, 2, 3)].iter().chain(legacy::OPENS) {
            let creates = Test::PassWithout { argument: *flags, bits: CREATES };
            set(&[*call], Action::Depends(vec![creates, bits(*mode)]));
        }
        // Its mode is behind a pointer; C libraries fall back to openat.
        set(&[SYS_openat2], Action::Errno(ENOSYS as u16));
        if security.allow_userns {
            // Root of a nested namespace could give files capabilities; names are behind pointers.
            let none = Action::Errno(EOPNOTSUPP as u16);
            set(&[SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr], none);
        }
    }
    compile(&ranges(actions))
}

/// Neighbours with the same action become one range; gaps and all that follows are ENOSYS.
fn ranges(actions: BTreeMap<u32, Action>) -> Vec<(u32, Action)> {
    let unknown = Action::Errno(ENOSYS as u16);
    let mut ranges: Vec<(u32, Action)> = Vec::new();
    let mut add = |first: u32, action: Action| {
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
mod tests {
    use super::*;

    #[test]
    fn the_program_stays_small() {
        let security =
            Security { profile: Profile::Restricted, allow_userns: false, allow_setid: false };
        let program = program(&security, &Ids::Single { uid: 1000, gid: 1000 });
        assert!(program.len() < 500, "{} instructions", program.len());
    }

    #[test]
    fn ranges_cover_every_number_once() {
        let actions = [(3, Action::Allow), (4, Action::Allow), (9, Action::Errno(1))];
        let unknown = Action::Errno(ENOSYS as u16);
        assert_eq!(
            ranges(actions.into()),
            vec![
                (0, unknown.clone()),
                (3, Action::Allow),
                (5, unknown.clone()),
                (9, Action::Errno(1)),
                (10, unknown),
            ]
        );
    }
}
