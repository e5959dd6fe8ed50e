//! The x86_64 machine: a PC without firmware, PCI or ACPI.

/// Kernel parameters. Nothing is probed or waited for, and lock instructions stay as they were
/// built (`noreplace-smp`), so that their pages are shared by all microVMs.
pub(crate) const PARAMETERS: &str = "no_timer_check tsc=reliable random.trust_cpu=on \
                                     rcupdate.rcu_expedited=1 cryptomgr.notests \
                                     i8042.nokbd i8042.noaux noreplace-smp";

/// Devices for which the in-kernel interrupt controller has lines. More need the one in the VMM,
/// which is slower.
pub(crate) const SHARED_INTERRUPTS: usize = 11;
