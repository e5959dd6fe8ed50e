//! What root inside may still do.

use msb_spec::{Error, Result, Security};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// What an ordinary image needs: owning and reading its own files, its own users, low ports.
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

/// Drops every capability but these, for good. Where host paths can be written, capabilities of
/// files are not for a sandbox to give; a user namespace cannot be mapped without the right to,
/// so there the filter of system calls refuses it instead.
/// With a network, raw sockets can be had for echoes: what they send, the gateway reads.
pub(crate) fn drop(security: &Security, network: bool) -> Result<()> {
    let gives = security.allow_setid || security.allow_userns;
    let kept = if gives { KEPT } else { KEPT.difference(CapabilitySet::SETFCAP) };
    keep_only(if network { kept.union(CapabilitySet::NET_RAW) } else { kept })
}

/// Drops every other capability, for good.
pub(crate) fn keep_only(kept: CapabilitySet) -> Result<()> {
    let refused = |error| Error::host("cannot drop capabilities", error);
    for capability in CapabilitySet::all().iter().filter(|one| !kept.contains(*one)) {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Capabilities that this kernel does not have yet.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    rustix::thread::clear_ambient_capability_set().map_err(refused)?;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(refused)
}

/// The same as [`keep_only`] for a process that may have none: it gets no more than it has. The bounding
/// set is left to the kernel where it cannot be changed; without capabilities and with no_new_privs it
/// gives nothing.
pub(crate) fn give_up_but(kept: CapabilitySet) -> Result<()> {
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
