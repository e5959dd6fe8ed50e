//! Landlock as a second barrier: only files below the sandbox's own root can be reached.
//!
//! The root was changed before, so this matters only if something else fails, such as a leaked
//! descriptor or an escape from the mount namespace.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use msb_spec::{Error, Result};
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;

/// The first ABI that governs renames between directories; Linux 5.19.
const NEEDED: ABI = ABI::V2;

/// Confines this process and its children to files below `/`, which is the sandbox's root.
pub(crate) fn confine(allow_userns: bool) -> Result<()> {
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Error::host("cannot open the root of the sandbox", error))?;
    // Our capability replaces no_new_privs here, which would break sudo of the image.
    ruleset(&root, allow_userns)
        .and_then(|ruleset| ruleset.no_new_privs(false).restrict_self())
        .map(|_| ())
        .map_err(|error| {
            Error::unsupported("this host does not offer Landlock")
                .cause(error)
                .hint("it needs Linux 5.19 with `landlock` in the kernel's `lsm=` list")
        })
}

fn ruleset(root: &OwnedFd, allow_userns: bool) -> Result<RulesetCreated, RulesetError> {
    let scopes = Scope::AbstractUnixSocket | Scope::Signal;
    if allow_userns {
        // Landlock file rules forbid mounting, which nested user namespaces are used for.
        return Ruleset::default().scope(scopes)?.create();
    }
    let handled = AccessFs::from_all(NEEDED);
    let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(handled)?
        .set_compatibility(CompatLevel::BestEffort)
        .scope(scopes)?
        .create()?
        .add_rule(PathBeneath::new(root, handled & !devices))
}
