//! Whether microVMs run on this host. Cheap enough for every start.

use crate::sandboxes::Engine;
use crate::store::Home;
use msb_kernel::{Ready, Step};
use msb_spec::{Error, GuestKernel, Result, Stage};
use rustix::fs::Access;
use std::fs;
use std::io;

/// The KVM device, which microVMs need.
pub(crate) const DEVICE: &str = "/dev/kvm";

/// The guest kernel to boot; the error says what the host lacks and how to get it.
pub(crate) fn usable(home: &Home) -> Result<GuestKernel> {
    let unsupported = |what: &str, hint: &str| Error::unsupported(what).hint(hint).at(Stage::Plan);
    if !cfg!(target_arch = "x86_64") {
        return Err(unsupported("microVMs run on x86_64 only so far", "use `--isolation process`"));
    }
    if let Err(error) = access() {
        return Err(unsupported("this host offers no KVM", DEVICE_FIX).cause(error));
    }
    // Tried once per boot of the host: it takes as long as starting a `process` sandbox.
    let marker = home.kernels().join(format!(".entered-{}", boot_id()));
    if !marker.exists() {
        if !msb_sys::kvm::is_claimed() {
            return Err(unsupported(
                "this processor has no hardware virtualisation",
                PROCESSOR_FIX,
            ));
        }
        msb_sys::kvm::enter_once().map_err(|error| {
            unsupported("KVM cannot run a machine on this host", ENTRY_FIX).cause(error)
        })?;
        write_marker(home, &marker);
    }
    msb_kernel::find(&home.kernels()).map_err(|error| error.at(Stage::Plan))
}

impl Engine {
    /// The guest kernel for microVMs of this user. Builds nothing.
    pub fn guest_kernel(&self) -> Result<GuestKernel> {
        msb_kernel::find(&self.home().kernels())
    }

    /// Finds a guest kernel, or builds one; `force` always builds.
    pub fn set_up_vm(&self, force: bool, progress: &dyn Fn(Step<'_>)) -> Result<Ready> {
        msb_kernel::set_up(&self.home().kernels(), force, progress)
    }
}

/// Whether /dev/kvm can be opened for reading and writing.
pub(crate) fn access() -> io::Result<()> {
    Ok(rustix::fs::access(DEVICE, Access::READ_OK | Access::WRITE_OK)?)
}

pub(crate) const DEVICE_FIX: &str =
    "load the kvm module, and join the group that owns /dev/kvm; `--isolation process` needs none";
pub(crate) const PROCESSOR_FIX: &str =
    "switch virtualisation on in the firmware, or allow nested virtualisation for this machine";
pub(crate) const ENTRY_FIX: &str =
    "this KVM is not backed by hardware, or another hypervisor holds it";

/// Errors are ignored: without the marker the next start repeats the check.
fn write_marker(home: &Home, marker: &std::path::Path) {
    let directory = home.kernels();
    msb_log::debug_on_failure!(
        fs::create_dir_all(&directory),
        "cannot remember that microVMs work here"
    );
    for old in fs::read_dir(&directory).into_iter().flatten().filter_map(io::Result::ok) {
        if old.file_name().to_string_lossy().starts_with(".entered-") {
            let _ = fs::remove_file(old.path());
        }
    }
    msb_log::debug_on_failure!(fs::write(marker, ""), "cannot remember that microVMs work here");
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
