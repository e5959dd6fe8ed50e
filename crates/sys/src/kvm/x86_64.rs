//! The same on x86_64: one page, one instruction, one processor in real mode.

use std::arch::x86_64::__cpuid;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

const KVM_GET_API_VERSION: libc::c_ulong = 0xae00;
const KVM_CREATE_VM: libc::c_ulong = 0xae01;
const KVM_GET_VCPU_MMAP_SIZE: libc::c_ulong = 0xae04;
const KVM_CREATE_VCPU: libc::c_ulong = 0xae41;
const KVM_SET_USER_MEMORY_REGION: libc::c_ulong = 0x4020_ae46;
const KVM_RUN: libc::c_ulong = 0xae80;
const KVM_SET_REGS: libc::c_ulong = 0x4090_ae82;
const KVM_GET_SREGS: libc::c_ulong = 0x8138_ae83;
const KVM_SET_SREGS: libc::c_ulong = 0x4138_ae84;

/// The version that has not changed since 2007.
const VERSION: i32 = 12;
const PAGE: usize = 4096;
/// `hlt`.
const HALT: u8 = 0xf4;
const EXIT_HALT: u32 = 5;
/// Where the kernel's answer has the reason for an exit.
const EXIT_REASON: usize = 8;
/// Sizes of the kernel's structures, and where the code segment's base and selector lie.
const REGS: usize = 144;
const REGS_RIP: usize = 16 * 8;
const REGS_RFLAGS: usize = 17 * 8;
const SREGS: usize = 312;
const CS_BASE: usize = 0;
const CS_SELECTOR: usize = 12;

#[repr(C)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest: u64,
    size: u64,
    host: u64,
}

pub(super) fn is_claimed() -> bool {
    const VMX: u32 = 1 << 5;
    const SVM: u32 = 1 << 2;
    let extended = __cpuid(0x8000_0000).eax;
    let intel = __cpuid(1).ecx & VMX != 0;
    intel || (extended >= 0x8000_0001 && __cpuid(0x8000_0001).ecx & SVM != 0)
}

/// A mapping that is gone when this is.
struct Mapped(*mut libc::c_void, usize);

impl Mapped {
    fn new(size: usize, fd: Option<&OwnedFd>) -> io::Result<Self> {
        let (flags, fd) = match fd {
            Some(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(address, size))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped above with this size, and nothing points into it any more.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

pub(super) fn enter_once() -> io::Result<()> {
    let kvm: OwnedFd = File::options().read(true).write(true).open("/dev/kvm")?.into();
    if number(&kvm, KVM_GET_API_VERSION, 0)? != VERSION {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let vm = descriptor(&kvm, KVM_CREATE_VM, 0)?;
    let memory = Mapped::new(PAGE, None)?;
    // SAFETY: the page was just mapped for writing.
    unsafe { memory.0.cast::<u8>().write(HALT) };
    let region = MemoryRegion {
        slot: 0,
        flags: 0,
        guest: PAGE as u64,
        size: PAGE as u64,
        host: memory.0 as u64,
    };
    with(&vm, KVM_SET_USER_MEMORY_REGION, ptr::from_ref(&region).cast_mut().cast())?;
    let cpu = descriptor(&vm, KVM_CREATE_VCPU, 0)?;
    let size = usize::try_from(number(&kvm, KVM_GET_VCPU_MMAP_SIZE, 0)?).unwrap_or(0);
    if size < PAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let answer = Mapped::new(size, Some(&cpu))?;
    let mut sregs = [0u64; SREGS / 8];
    with(&cpu, KVM_GET_SREGS, sregs.as_mut_ptr().cast())?;
    let bytes = sregs.as_mut_ptr().cast::<u8>();
    // SAFETY: both lie within the structure, which is aligned to eight bytes.
    unsafe {
        bytes.add(CS_BASE).cast::<u64>().write(0);
        bytes.add(CS_SELECTOR).cast::<u16>().write(0);
    }
    with(&cpu, KVM_SET_SREGS, sregs.as_mut_ptr().cast())?;
    let mut regs = [0u64; REGS / 8];
    regs[REGS_RIP / 8] = PAGE as u64;
    // The one bit that is always set.
    regs[REGS_RFLAGS / 8] = 2;
    with(&cpu, KVM_SET_REGS, regs.as_mut_ptr().cast())?;
    number(&cpu, KVM_RUN, 0)?;
    // SAFETY: the kernel has written its answer, which is at least a page long.
    let reason = unsafe { answer.0.cast::<u8>().add(EXIT_REASON).cast::<u32>().read() };
    match reason {
        EXIT_HALT => Ok(()),
        _ => Err(io::Error::other(format!("the machine ended with reason {reason}"))),
    }
}

fn number(fd: &OwnedFd, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: these requests take a number and touch no memory of ours but what is mapped.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) } {
        ..0 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn descriptor(
    fd: &OwnedFd,
    request: libc::c_ulong,
    argument: libc::c_ulong,
) -> io::Result<OwnedFd> {
    let made = number(fd, request, argument)?;
    // SAFETY: the kernel made a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

fn with(fd: &OwnedFd, request: libc::c_ulong, argument: *mut libc::c_void) -> io::Result<()> {
    // SAFETY: the callers pass the structure that the request is about, in its full size.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) } {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
