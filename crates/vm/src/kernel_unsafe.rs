//! The guest's kernel, mapped as it lies on disk: pages that no machine changes are shared by all.

#![expect(unsafe_code, reason = "the VMM takes the kernel's address from a C function")]

use msb_spec::{Error, GuestKernel, Result};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_char;
use std::fs::File;
use std::ptr;
use std::sync::OnceLock;

/// The image is mapped in pieces of this size.
const UNIT: u64 = 64 << 10;
/// More than any kernel that we build; an image is mapped, not read.
const LARGEST: u64 = 512 << 20;

struct Image {
    address: usize,
    size: usize,
    load: u64,
    entry: u64,
}

/// One machine a process, so one kernel.
static IMAGE: OnceLock<Image> = OnceLock::new();

/// Maps the kernel for the VMM to find. Returns how many MiB of memory it is.
pub(crate) fn map(kernel: &GuestKernel) -> Result<u32> {
    let shown = kernel.path.display();
    let about = |error: std::io::Error| Error::host(format!("cannot map `{shown}`"), error);
    let file = File::open(&kernel.path).map_err(about)?;
    let size = file.metadata().map_err(about)?.len();
    let inside = kernel.entry.checked_sub(kernel.load).is_some_and(|offset| offset < size);
    if size == 0 || size % UNIT != 0 || size > LARGEST || !inside {
        return Err(Error::invalid(format!("not an image of a guest kernel: `{shown}`"))
            .hint("`msb setup vm` finds or builds one"));
    }
    let size = size as usize;
    let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new private mapping at an address of the kernel's choice; it is never unmapped,
    // and what the guest writes to it stays in this process.
    let mapped = unsafe { rustix::mm::mmap(ptr::null_mut(), size, read_write, private, &file, 0) };
    let address = mapped.map_err(|error| about(error.into()))? as usize;
    let image = Image { address, size, load: kernel.load, entry: kernel.entry };
    IMAGE.set(image).map_err(|_| Error::invalid("this process already is a machine"))?;
    Ok(u32::try_from(size.div_ceil(1 << 20)).unwrap_or(u32::MAX))
}

/// Where the VMM asks for the kernel. `path` is not used: there is one.
///
/// # Safety
///
/// The three pointers must be valid for writing.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn krunfw_get_kernel(
    _path: *const c_char,
    load: *mut u64,
    entry: *mut u64,
    size: *mut usize,
) -> *mut c_char {
    let Some(image) = IMAGE.get() else { return ptr::null_mut() };
    // SAFETY: the caller promises that they can be written.
    unsafe {
        *load = image.load;
        *entry = image.entry;
        *size = image.size;
    }
    image.address as *mut c_char
}
