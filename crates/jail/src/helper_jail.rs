//! The jail of a helper process, which unpacks, packs, copies or compares trees of an image or a
//! sandbox.
//!
//! A compromised helper can reach the given directories and nothing else: no other file, program,
//! process, socket, mount, device or signal. This also holds when root runs msb.

use crate::capabilities;
use crate::container_init;
use crate::syscall_groups::{self, READ_FILES, RUN, STREAMS, SetId, WRITE_FILES};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use msb_spec::{Error, Result};
use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitySet;
use std::os::fd::BorrowedFd;

/// What a helper process needs.
#[derive(Debug, Default)]
pub struct HelperNeeds<'a> {
    /// Directories with files that it reads.
    pub reads: Vec<BorrowedFd<'a>>,
    /// Directories in which it creates, changes and removes files.
    pub writes: Vec<BorrowedFd<'a>>,
    /// Whether it may create set-id files, as layers have them. Files of root are only created
    /// where nothing but msb can reach them.
    pub set_id: bool,
}

/// File attributes and copies. Landlock does not govern all of these by path; a helper confined by
/// `chroot` has no other path.
const ATTRIBUTES: &[i64] = &[
    libc::SYS_copy_file_range,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_linkat,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    // FIFOs, and the 0:0 device of a whiteout. Others need CAP_MKNOD.
    libc::SYS_mknodat,
    // For paths below a root. Its mode is behind a pointer, so set-id files of its own user can be
    // created.
    libc::SYS_openat2,
    libc::SYS_removexattr,
    libc::SYS_setxattr,
    libc::SYS_symlinkat,
    libc::SYS_syncfs,
    libc::SYS_umask,
    libc::SYS_utimensat,
    // Large differences are kept in a memfd.
    libc::SYS_memfd_create,
];

/// A second thread decompresses.
const THREADS: &[i64] = &[
    libc::SYS_clone,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    // Locks on the records of a review.
    libc::SYS_flock,
];

/// What root needs to own, read and change files of every id of the image.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// Confines this process permanently. It must have one thread.
pub fn confine_helper(needs: &HelperNeeds<'_>) -> Result<()> {
    let failed = |error: rustix::io::Errno| Error::host("cannot confine a helper process", error);
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    msb_sys::process::set_rlimit(libc::RLIMIT_CORE, 0, 0)
        .map_err(|error| Error::host("cannot forbid core files", error))?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)?;
    container_init::new_session_keyring()?;
    let missing = |error: &dyn std::fmt::Display| {
        Error::unsupported("a helper process cannot be confined on this host")
            .cause(error)
            .hint("`msb doctor` tells what is missing")
    };
    rules(needs).and_then(RulesetCreated::restrict_self).map_err(|error| missing(&error))?;
    capabilities::reduce_to(KEPT)?;
    let set_id = if needs.set_id { SetId::Allowed } else { SetId::Refused };
    let program = syscall_groups::allowlist_with(
        &[RUN, STREAMS, READ_FILES, WRITE_FILES, ATTRIBUTES, THREADS],
        set_id,
    );
    msb_sys::seccomp::install(&program).map_err(|error| missing(&error))
}

fn rules(needs: &HelperNeeds<'_>) -> Result<RulesetCreated, RulesetError> {
    let all = AccessFs::from_all(ABI::V2);
    let look = AccessFs::ReadFile | AccessFs::ReadDir;
    // Whiteouts are character devices. Sockets and block devices are never created.
    let change = (all | AccessFs::Truncate)
        & !(AccessFs::Execute | AccessFs::MakeBlock | AccessFs::MakeSock);
    let reads = needs.reads.iter().map(|directory| (*directory, look));
    let writes = needs.writes.iter().map(|directory| (*directory, change));
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(all)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::Truncate | AccessFs::IoctlDev)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?
        .add_rules(
            reads.chain(writes).map(|(directory, access)| Ok(PathBeneath::new(directory, access))),
        )
}
