//! Whether microVMs run on this host, cheaply enough to ask before every start.

use crate::kernel;
use crate::store::Home;
use msb_spec::{Error, GuestKernel, Result, Stage};
use rustix::fs::Access;
use std::fs;
use std::io;

/// What microVMs need from the host.
pub(crate) const DEVICE: &str = "/dev/kvm";

/// The kernel to boot, if this host runs microVMs; else what it lacks and how to get it.
pub(crate) fn usable(home: &Home) -> Result<GuestKernel> {
    let lacking = |what: &str, hint: &str| Error::unsupported(what).hint(hint).at(Stage::Plan);
    if !cfg!(target_arch = "x86_64") {
        return Err(lacking("microVMs run on x86_64 only so far", "use `--isolation process`"));
    }
    if let Err(error) = access() {
        return Err(lacking("this host offers no KVM", DEVICE_FIX).cause(error));
    }
    // Asked once a boot: it costs as much as a whole `process` sandbox.
    let seen = home.kernels().join(format!(".entered-{}", boot()));
    if !seen.exists() {
        if !msb_sys::kvm::is_claimed() {
            return Err(lacking("this processor does not virtualise", PROCESSOR_FIX));
        }
        msb_sys::kvm::enter_once().map_err(|error| {
            lacking("KVM does not enter a machine here", ENTRY_FIX).cause(error)
        })?;
        remember(home, &seen);
    }
    kernel::find(home).map_err(|error| error.at(Stage::Plan))
}

/// Whether the device can be opened.
pub(crate) fn access() -> io::Result<()> {
    Ok(rustix::fs::access(DEVICE, Access::READ_OK | Access::WRITE_OK)?)
}

pub(crate) const DEVICE_FIX: &str =
    "load the kvm module, and join the group that owns /dev/kvm; `--isolation process` needs none";
pub(crate) const PROCESSOR_FIX: &str =
    "switch virtualisation on in the firmware, or allow nested virtualisation for this machine";
pub(crate) const ENTRY_FIX: &str =
    "this KVM is not backed by hardware, or another hypervisor holds it";

/// Whatever goes wrong here only costs the next start some time.
fn remember(home: &Home, seen: &std::path::Path) {
    let directory = home.kernels();
    let _ = fs::create_dir_all(&directory);
    for old in fs::read_dir(&directory).into_iter().flatten().filter_map(io::Result::ok) {
        if old.file_name().to_string_lossy().starts_with(".entered-") {
            let _ = fs::remove_file(old.path());
        }
    }
    let _ = fs::write(seen, "");
}

fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
