//! The second wall: files are reachable only below the sandbox's own root.
//!
//! The root was changed before, so this only matters when something else has failed: a
//! descriptor that leaked, or a way found out of the mount namespace.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use msb_spec::{Error, Result};
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;

/// The first version that governs renames between directories; Linux 5.19.
const NEEDED: ABI = ABI::V2;

/// Confines this process and its children to what lies below `/`, which is the sandbox's.
pub(crate) fn confine(allow_userns: bool) -> Result<()> {
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Error::host("cannot open the root of the sandbox", error))?;
    // We have the capability that Landlock asks for instead of no_new_privs, which would break
    // the image's own sudo.
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
    let apart = Scope::AbstractUnixSocket | Scope::Signal;
    if allow_userns {
        // Whoever is under file rules cannot mount, which is what user namespaces are for.
        return Ruleset::default().scope(apart)?.create();
    }
    let handled = AccessFs::from_all(NEEDED);
    let devices = AccessFs::MakeChar | AccessFs::MakeBlock;
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(handled)?
        .set_compatibility(CompatLevel::BestEffort)
        .scope(apart)?
        .create()?
        .add_rule(PathBeneath::new(root, handled & !devices))
}
