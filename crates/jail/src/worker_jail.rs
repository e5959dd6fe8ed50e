//! The jail of a worker itself.
//!
//! A worker reads messages of a hostile guest. If it is compromised, it can change files of its own
//! sandbox and its cgroups, and signal its own guest. It cannot execute, connect, mount, trace,
//! create devices or touch any other file of the host. This also holds when root runs msb.

use crate::capabilities;
use crate::syscall_groups::{self, READ_FILES, RUN, STREAMS, WRITE_FILES};
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use msb_spec::{Error, Result};
use msb_sys::seccomp::Instruction;
use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// What a worker needs after its guest has been started.
#[derive(Debug, Default)]
pub struct WorkerNeeds<'a> {
    /// The sandbox's directory. It is renamed to free the name, then removed.
    pub directory: PathBuf,
    /// The sandbox's cgroups: limits and counters, removed at the end.
    pub cgroups: Vec<PathBuf>,
    /// The sandbox's /proc, for counting use without a cgroup and for killing a process.
    pub processes: Option<BorrowedFd<'a>>,
}

/// Calls of a worker besides running, I/O and changing its own files.
const WORKER: &[i64] = &[
    // Its clients, guest and gateway, all connected already; `syscall_groups::argument_rules`
    // restricts `socketpair`. There is no `socket` and no `connect`: a path would lead to any
    // service of the host that listens on a Unix socket.
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    // Pipes of commands, and giving them to root inside. By descriptor only: `fchownat` would
    // change every file of the host.
    libc::SYS_fchown,
    libc::SYS_pipe2,
    // Its guest by pidfd, and the processes inside by their directories in the sandbox's /proc.
    // There is no `pidfd_open`.
    libc::SYS_pidfd_send_signal,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// What root needs: to give pipes of commands to root inside, to remove files of every id, and to
/// kill a guest that is owned by another id.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::KILL);

/// Confines this process permanently.
pub fn confine_worker(needs: &WorkerNeeds<'_>) -> Result<()> {
    rustix::thread::set_no_new_privs(true)
        .map_err(|error| Error::host("cannot set no_new_privs", error))?;
    rules(needs)?.and_then(RulesetCreated::restrict_self).map_err(|error| missing(&error))?;
    capabilities::reduce_to(KEPT)?;
    msb_sys::seccomp::install(&program()).map_err(|error| missing(&error))
}

fn missing(error: &dyn std::fmt::Display) -> Error {
    Error::unsupported("the worker cannot be confined on this host")
        .cause(error)
        .hint("`msb doctor` tells what is missing")
}

/// The Landlock rules; the outer error is a path that cannot be opened.
fn rules(needs: &WorkerNeeds<'_>) -> Result<Result<RulesetCreated, RulesetError>> {
    let all = AccessFs::from_all(ABI::V2);
    let look = AccessFs::ReadFile | AccessFs::ReadDir;
    let change = AccessFs::WriteFile | AccessFs::Truncate;
    let own = look
        | change
        | AccessFs::MakeDir
        | AccessFs::MakeReg
        | AccessFs::Refer
        | AccessFs::RemoveDir
        | AccessFs::RemoveFile;
    let mut opened: Vec<(OwnedFd, BitFlags<AccessFs>)> = vec![
        // Without ReadDir: an open directory of /proc works as a pidfd.
        (open(Path::new("/proc"))?, AccessFs::ReadFile.into()),
        (open(Path::new("/dev/null"))?, AccessFs::ReadFile | AccessFs::WriteFile),
        (open(&needs.directory)?, own),
    ];
    if let Some(processes) = needs.processes {
        let processes = processes.try_clone_to_owned();
        let processes = processes
            .map_err(|error| Error::host("cannot duplicate the descriptor of /proc", error))?;
        opened.push((processes, look));
    }
    // The directory is renamed and removed in its parent; nothing else there can be opened.
    if let Some(parent) = needs.directory.parent() {
        opened.push((open(parent)?, AccessFs::MakeDir | AccessFs::RemoveDir));
    }
    for group in &needs.cgroups {
        opened.push((open(group)?, look | change | AccessFs::RemoveDir));
        if let Some(parent) = group.parent() {
            opened.push((open(parent)?, AccessFs::RemoveDir.into()));
        }
    }
    let create = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(all)?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::Truncate | AccessFs::IoctlDev)?
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

fn program() -> Vec<Instruction> {
    syscall_groups::allowlist(&[RUN, STREAMS, READ_FILES, WRITE_FILES, WORKER])
}
