//! Capabilities that root inside keeps.

use msb_spec::{Error, Result, Security};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// What an ordinary image needs: owning and reading its files, switching users, binding low ports.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Drops every capability but the kept ones, permanently.
///
/// Where host paths are writable, CAP_SETFCAP is dropped too, because a sandbox must not set file
/// capabilities there. With `--allow-userns` it has to stay, since mapping a user namespace needs
/// it; the seccomp filter refuses `setxattr` instead. With a network CAP_NET_RAW is kept for ping:
/// raw packets reach only the gateway.
pub(crate) fn drop_for_sandbox(security: &Security, network: bool) -> Result<()> {
    let may_set_file_caps = security.allow_setid || security.allow_userns;
    let kept = if may_set_file_caps { KEPT } else { KEPT.difference(CapabilitySet::SETFCAP) };
    keep_only(if network { kept.union(CapabilitySet::NET_RAW) } else { kept })
}

/// Drops every other capability, permanently.
pub(crate) fn keep_only(kept: CapabilitySet) -> Result<()> {
    let refused = |error| Error::host("cannot drop capabilities", error);
    for capability in CapabilitySet::all().iter().filter(|one| !kept.contains(*one)) {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // The kernel does not have this capability yet.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    rustix::thread::clear_ambient_capability_set().map_err(refused)?;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(refused)
}

/// As [`keep_only`], for a process that may have fewer capabilities: it never gains any. Without
/// CAP_SETPCAP the bounding set stays as it is; with no_new_privs and no capabilities it has no
/// effect.
pub(crate) fn reduce_to(kept: CapabilitySet) -> Result<()> {
    let refused = |error| Error::host("cannot drop capabilities", error);
    let now = rustix::thread::capabilities(None).map_err(refused)?;
    let kept = kept.intersection(now.permitted);
    if now.effective.contains(CapabilitySet::SETPCAP) {
        return keep_only(kept);
    }
    rustix::thread::clear_ambient_capability_set().map_err(refused)?;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(refused)
}
