//! A PC without firmware, PCI or ACPI.

/// What the kernel need not find out by itself. Nothing is probed or waited for, and locks stay as
/// they were built, so that their pages are shared by all microVMs.
pub(crate) const PARAMETERS: &str = "no_timer_check tsc=reliable random.trust_cpu=on \
                                     rcupdate.rcu_expedited=1 cryptomgr.notests \
                                     i8042.nokbd i8042.noaux noreplace-smp";

/// Devices that the interrupt controller in the host's kernel has lines for. More need the one in
/// the VMM, which is slower.
pub(crate) const SHARED_INTERRUPTS: usize = 11;
