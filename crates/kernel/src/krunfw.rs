//! Extracts the kernel of a system libkrunfw without loading the library.
//!
//! msb is static, and loading a library would execute its code. The library has the flat image as a
//! symbol, and its load address only in a function of a few instructions, which is decoded here. A
//! function of any other shape is refused: a wrong entry point would give a guest that dies without
//! a message.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
use x86_64 as get_kernel;

use super::elf::{ElfFile, SHARED};
use super::flat::{KernelLayout, pieces};
use msb_spec::{Error, Result};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The library directories of distributions and of `make install`.
const DIRECTORIES: [&str; 6] = [
    "/usr/local/lib64",
    "/usr/local/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
];

/// The file systems that the guest needs; some builds of libkrunfw lack one.
const NEEDED: [&str; 4] = ["erofs", "ext4", "overlay", "virtiofs"];

/// The newest libkrunfw in the first directory that has one.
pub(super) fn library() -> Option<PathBuf> {
    DIRECTORIES.iter().find_map(|directory| newest(Path::new(directory)))
}

fn newest(directory: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?.filter_map(Result::ok);
    let versioned = entries.filter_map(|entry| {
        let name = entry.file_name();
        let rest = name.to_str()?.strip_prefix("libkrunfw.so")?;
        let numbers: Vec<u32> = rest.split('.').filter_map(|part| part.parse().ok()).collect();
        (rest.is_empty() || rest.starts_with('.')).then(|| (numbers, entry.path()))
    });
    versioned.max().map(|(_, path)| path)
}

/// Writes the kernel of a libkrunfw to `image` and returns its layout.
pub(super) fn extract(elf: &ElfFile<'_>, image: &File) -> Result<KernelLayout> {
    let unknown = || Error::invalid("it is not a libkrunfw with a kernel in it");
    if elf.kind() != SHARED {
        return Err(unknown());
    }
    let bundle = elf.symbol("KERNEL_BUNDLE")?.ok_or_else(unknown)?;
    let asked = elf.symbol("krunfw_get_kernel")?.ok_or_else(unknown)?;
    // Long enough for 17 instructions.
    let code = elf.offset_of(asked.address, asked.size.min(256))?;
    let code = elf.bytes(code, asked.size.min(256))?;
    let layout = get_kernel::read(&code).filter(|layout| {
        // The bundle is a C string, with a terminating zero byte.
        layout.size == bundle.size || Some(layout.size) == bundle.size.checked_sub(1)
    });
    let layout = layout
        .ok_or_else(|| Error::unsupported("the function with its entry point cannot be decoded"))?;
    layout.check()?;
    let from = elf.offset_of(bundle.address, layout.size)?;
    let failed = |error| Error::host("its image cannot be written", error);
    image.set_len(layout.size).map_err(failed)?;
    let mut missing: Vec<&str> = NEEDED.to_vec();
    for (at, size) in pieces(layout.size) {
        let bytes = elf.bytes(from + at, size)?;
        missing.retain(|name| !names(&bytes, name));
        if bytes.iter().any(|byte| *byte != 0) {
            image.write_all_at(&bytes, at).map_err(failed)?;
        }
    }
    match missing.as_slice() {
        [] => Ok(layout),
        missing => Err(Error::unsupported(format!("its kernel lacks `{}`", missing.join(", ")))),
    }
}

/// Whether the bytes contain this name as a C string. One that spans two blocks is missed, which
/// only causes a build.
fn names(bytes: &[u8], name: &str) -> bool {
    let name = [b"\0", name.as_bytes(), b"\0"].concat();
    bytes.windows(name.len()).any(|window| window == name)
}

#[cfg(target_arch = "aarch64")]
mod get_kernel {
    //! The function of this architecture is not decoded yet.

    use super::KernelLayout;

    pub(super) fn read(_code: &[u8]) -> Option<KernelLayout> {
        None
    }
}
