//! The jail of a worker itself.
//!
//! A worker reads what a hostile guest sends. Should that ever take it over, there is little to
//! gain: it can touch the sandboxes' own files and its cgroups, and neither execute, connect,
//! mount nor trace anything.

use crate::filter::{Action, Test, compile};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use msb_spec::{Error, Result};
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What a worker never does once its guest has been started.
const NEVER: [i64; 17] = [
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_userfaultfd,
];

/// Confines this process for good. `writable` and what lies below can be changed, empty
/// directories be removed from `emptied`, /proc be read; nothing else can be opened.
pub fn confine_worker(writable: &[PathBuf], emptied: &[PathBuf]) -> Result<()> {
    rustix::thread::set_no_new_privs(true)
        .map_err(|error| Error::host("cannot give up new privileges", error))?;
    let missing = |error: &dyn std::fmt::Display| {
        Error::unsupported("the worker cannot be confined on this host")
            .cause(error)
            .hint("`msb doctor` tells what is missing")
    };
    rules(writable, emptied)?
        .and_then(RulesetCreated::restrict_self)
        .map_err(|error| missing(&error))?;
    msb_sys::seccomp::install(&program()).map_err(|error| missing(&error))
}

/// The rules; the outer error is a path that cannot be opened.
fn rules(
    writable: &[PathBuf],
    emptied: &[PathBuf],
) -> Result<Result<RulesetCreated, RulesetError>> {
    let all = AccessFs::from_all(ABI::V2);
    let read = AccessFs::from_read(ABI::V2);
    let null = AccessFs::ReadFile | AccessFs::WriteFile;
    let mut opened = vec![(open(Path::new("/proc"))?, read), (open(Path::new("/dev/null"))?, null)];
    for path in writable {
        opened.push((open(path)?, all));
    }
    for path in emptied {
        opened.push((open(path)?, AccessFs::RemoveDir.into()));
    }
    let create = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(all)?
            .set_compatibility(CompatLevel::BestEffort)
            .scope(Scope::AbstractUnixSocket)?
            .create()?
            .add_rules(opened.iter().map(|(path, access)| Ok(PathBeneath::new(path, *access))))
    };
    Ok(create())
}

fn open(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
}

fn program() -> Vec<msb_sys::seccomp::Instruction> {
    let number = |call: i64| u32::try_from(call).expect("call numbers are small");
    let refused = Action::Errno(libc::EPERM as u16);
    let unix_only = Action::Depends(vec![Test::IsNot {
        argument: 0,
        values: vec![libc::AF_UNIX as u32],
        errno: libc::EAFNOSUPPORT as u16,
    }]);
    let mut special: Vec<(u32, Action)> =
        NEVER.iter().map(|call| (number(*call), refused.clone())).collect();
    special.push((number(libc::SYS_socket), unix_only));
    special.sort_by_key(|(number, _)| *number);
    let mut ranges = vec![(0, Action::Allow)];
    for (call, action) in special {
        ranges.retain(|(first, _)| *first != call);
        ranges.push((call, action));
        ranges.push((call + 1, Action::Allow));
    }
    compile(&ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order() {
        let program = program();
        assert!(program.len() > NEVER.len() && program.len() < 200);
    }
}
