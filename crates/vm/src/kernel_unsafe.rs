//! Maps the guest's kernel image as it lies on disk: unmodified pages are shared by all microVMs.

#![expect(unsafe_code, reason = "the VMM takes the kernel's address from a C function")]

use msb_spec::{Error, GuestKernel, Result};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_char;
use std::fs::File;
use std::ptr;
use std::sync::OnceLock;

/// Size of an image is a multiple of this many bytes.
const ALIGNMENT: u64 = 64 << 10;
/// Larger than any kernel that we build, in bytes.
const MAX_SIZE: u64 = 512 << 20;

struct KernelImage {
    address: usize,
    size: usize,
    load: u64,
    entry: u64,
}

/// One microVM in a process, so one kernel.
static IMAGE: OnceLock<KernelImage> = OnceLock::new();

/// Maps the kernel for the VMM. Returns its size in MiB.
pub(crate) fn map(kernel: &GuestKernel) -> Result<u32> {
    let shown = kernel.path.display();
    let map_error = |error: std::io::Error| Error::host(format!("cannot map `{shown}`"), error);
    let file = File::open(&kernel.path).map_err(map_error)?;
    let size = file.metadata().map_err(map_error)?.len();
    let inside = kernel.entry.checked_sub(kernel.load).is_some_and(|offset| offset < size);
    if size == 0 || size % ALIGNMENT != 0 || size > MAX_SIZE || !inside {
        return Err(Error::invalid(format!("not an image of a guest kernel: `{shown}`"))
            .hint("`msb setup vm` finds or builds one"));
    }
    let size = size as usize;
    let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new private mapping at an address of the kernel's choice; it is never unmapped, and
    // writes of the guest stay in this process.
    let mapped = unsafe { rustix::mm::mmap(ptr::null_mut(), size, read_write, private, &file, 0) };
    let address = mapped.map_err(|error| map_error(error.into()))? as usize;
    let image = KernelImage { address, size, load: kernel.load, entry: kernel.entry };
    IMAGE.set(image).map_err(|_| Error::invalid("this process already runs a microVM"))?;
    Ok(u32::try_from(size.div_ceil(1 << 20)).unwrap_or(u32::MAX))
}

/// Called by the VMM to get the kernel. `path` is ignored: there is one kernel.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn krunfw_get_kernel(
    _path: *const c_char,
    load: *mut u64,
    entry: *mut u64,
    size: *mut usize,
) -> *mut c_char {
    let Some(image) = IMAGE.get() else { return ptr::null_mut() };
    // SAFETY: the caller promises that they are valid for writes.
    unsafe {
        *load = image.load;
        *entry = image.entry;
        *size = image.size;
    }
    image.address as *mut c_char
}
