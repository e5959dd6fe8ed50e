//! The KVM check on x86_64: one page of memory, one `hlt`, one vCPU in real mode.

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

/// `KVM_API_VERSION`, which has not changed since 2007.
const API_VERSION: i32 = 12;
const PAGE: usize = 4096;
/// Opcode of the `hlt` instruction.
const HALT: u8 = 0xf4;
const EXIT_HALT: u32 = 5;
/// Offset of `exit_reason` in `struct kvm_run`.
const EXIT_REASON: usize = 8;
/// Sizes of `kvm_regs` and `kvm_sregs`, and offsets of their fields in bytes.
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

/// A memory mapping, unmapped on drop.
struct Mapping(*mut libc::c_void, usize);

impl Mapping {
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

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped above with this size, and nothing points into it any more.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

pub(super) fn enter_once() -> io::Result<()> {
    let kvm: OwnedFd = File::options().read(true).write(true).open("/dev/kvm")?.into();
    if ioctl_number(&kvm, KVM_GET_API_VERSION, 0)? != API_VERSION {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let vm = ioctl_fd(&kvm, KVM_CREATE_VM, 0)?;
    let memory = Mapping::new(PAGE, None)?;
    // SAFETY: the page was just mapped for writing.
    unsafe { memory.0.cast::<u8>().write(HALT) };
    let region = MemoryRegion {
        slot: 0,
        flags: 0,
        guest: PAGE as u64,
        size: PAGE as u64,
        host: memory.0 as u64,
    };
    ioctl_pointer(&vm, KVM_SET_USER_MEMORY_REGION, ptr::from_ref(&region).cast_mut().cast())?;
    let cpu = ioctl_fd(&vm, KVM_CREATE_VCPU, 0)?;
    let size = usize::try_from(ioctl_number(&kvm, KVM_GET_VCPU_MMAP_SIZE, 0)?).unwrap_or(0);
    if size < PAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let run_page = Mapping::new(size, Some(&cpu))?;
    let mut sregs = [0u64; SREGS / 8];
    ioctl_pointer(&cpu, KVM_GET_SREGS, sregs.as_mut_ptr().cast())?;
    let bytes = sregs.as_mut_ptr().cast::<u8>();
    // SAFETY: both lie within the structure, which is aligned to eight bytes.
    unsafe {
        bytes.add(CS_BASE).cast::<u64>().write(0);
        bytes.add(CS_SELECTOR).cast::<u16>().write(0);
    }
    ioctl_pointer(&cpu, KVM_SET_SREGS, sregs.as_mut_ptr().cast())?;
    let mut regs = [0u64; REGS / 8];
    regs[REGS_RIP / 8] = PAGE as u64;
    // Bit 1 of RFLAGS is always set.
    regs[REGS_RFLAGS / 8] = 2;
    ioctl_pointer(&cpu, KVM_SET_REGS, regs.as_mut_ptr().cast())?;
    ioctl_number(&cpu, KVM_RUN, 0)?;
    // SAFETY: `kvm_run` is at least a page long and was written by KVM_RUN.
    let reason = unsafe { run_page.0.cast::<u8>().add(EXIT_REASON).cast::<u32>().read() };
    match reason {
        EXIT_HALT => Ok(()),
        _ => Err(io::Error::other(format!(
            "KVM_RUN ended with exit reason {reason}, expected KVM_EXIT_HLT"
        ))),
    }
}

fn ioctl_number(fd: &OwnedFd, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: these requests take a number and touch no memory of ours but what is mapped.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) } {
        ..0 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn ioctl_fd(fd: &OwnedFd, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<OwnedFd> {
    let fd = ioctl_number(fd, request, argument)?;
    // SAFETY: the kernel returned a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn ioctl_pointer(
    fd: &OwnedFd,
    request: libc::c_ulong,
    argument: *mut libc::c_void,
) -> io::Result<()> {
    // SAFETY: the callers pass the structure of this request in its full size.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) } {
        ..0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
