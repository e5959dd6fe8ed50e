//! The jail of a worker itself.
//!
//! A worker reads what a hostile guest sends. Should that ever take it over, there is little to
//! gain: it can change the files of its own sandbox and its cgroups, and signal its own guest. It
//! cannot execute, connect, mount, trace, make devices, or touch any other file of the host, also
//! where root runs msb.

use crate::calls::{self, CHANGE, LOOK, RUN, STREAMS};
use crate::capabilities;
use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use msb_spec::{Error, Result};
use msb_sys::seccomp::Instruction;
use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What a worker still does once its guest has been started.
#[derive(Debug, Default)]
pub struct WorkerNeeds {
    /// Its sandbox's directory. It is renamed to free the name, and then removed.
    pub directory: PathBuf,
    /// The cgroups of its sandbox: limits and counters, removed at the end.
    pub cgroups: Vec<PathBuf>,
    /// Whether it has to find the processes of its sandbox in /proc, to count what they use and to
    /// kill the largest, because no cgroup does that.
    pub watches: bool,
}

/// What a worker does beside running, reading, writing and changing its own files.
const OWN: &[i64] = &[
    // Its clients, its guest and its gateway. All of them are connected: see `calls::program` for
    // `socketpair`. There is no `socket` and no `connect`, because a path would lead to any service
    // of the host that listens on a Unix socket.
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    // The streams of commands, and that they belong to root inside. By descriptor only: `fchownat`
    // would change every file of the host.
    libc::SYS_fchown,
    libc::SYS_pipe2,
    // Its guest, by the descriptor that it got when it started it.
    libc::SYS_pidfd_send_signal,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// The process to kill for want of memory is found by its number.
const WATCHING: &[i64] = &[libc::SYS_pidfd_open];

/// What root needs: to give the streams of commands to root inside, to remove what was written
/// inside, by whichever id, out of whichever directory, and to kill its guest, whose user namespace
/// belongs to another id.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::KILL);

/// Confines this process for good.
pub fn confine_worker(needs: &WorkerNeeds) -> Result<()> {
    rustix::thread::set_no_new_privs(true)
        .map_err(|error| Error::host("cannot give up new privileges", error))?;
    rules(needs)?.and_then(RulesetCreated::restrict_self).map_err(|error| missing(&error))?;
    capabilities::give_up_but(KEPT)?;
    msb_sys::seccomp::install(&program(needs)).map_err(|error| missing(&error))
}

fn missing(error: &dyn std::fmt::Display) -> Error {
    Error::unsupported("the worker cannot be confined on this host")
        .cause(error)
        .hint("`msb doctor` tells what is missing")
}

/// The rules; the outer error is a path that cannot be opened.
fn rules(needs: &WorkerNeeds) -> Result<Result<RulesetCreated, RulesetError>> {
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
        // A directory of /proc, opened, is as good as a pidfd.
        (open(Path::new("/proc"))?, if needs.watches { look } else { AccessFs::ReadFile.into() }),
        (open(Path::new("/dev/null"))?, AccessFs::ReadFile | AccessFs::WriteFile),
        (open(&needs.directory)?, own),
    ];
    // The directory is renamed and removed where it lies; nothing beside it can be opened.
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

fn program(needs: &WorkerNeeds) -> Vec<Instruction> {
    let watching = if needs.watches { WATCHING } else { &[] };
    calls::program(&[RUN, STREAMS, LOOK, CHANGE, OWN, watching])
}
