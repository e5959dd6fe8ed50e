//! The kernel inside a system libkrunfw, read out of the file.
//!
//! The library is never loaded: msb is a static program, and a library runs code as soon as it is
//! loaded. It holds the flat image under one name, and says where it lies only in a function of a
//! few instructions, which is read here. A function of any other shape is refused: a kernel that
//! is entered at a guess would be a guest that dies without a word.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
use x86_64 as answer;

use super::elf::{Elf, SHARED};
use super::flat::{Place, pieces};
use msb_spec::{Error, Result};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Where distributions keep libraries, and where `make install` puts them.
const DIRECTORIES: [&str; 6] = [
    "/usr/local/lib64",
    "/usr/local/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib",
];

/// File systems that our guest cannot start without; some builds of libkrunfw lack one.
const NEEDED: [&str; 4] = ["erofs", "ext4", "overlay", "virtiofs"];

/// The newest libkrunfw of this system.
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

/// Writes the kernel of a libkrunfw.
pub(super) fn extract(elf: &Elf<'_>, image: &File) -> Result<Place> {
    let unknown = || Error::invalid("it is not a libkrunfw with a kernel in it");
    if elf.kind() != SHARED {
        return Err(unknown());
    }
    let bundle = elf.symbol("KERNEL_BUNDLE")?.ok_or_else(unknown)?;
    let asked = elf.symbol("krunfw_get_kernel")?.ok_or_else(unknown)?;
    // Seventeen instructions at most.
    let code = elf.offset_of(asked.address, asked.size.min(256))?;
    let code = elf.bytes(code, asked.size.min(256))?;
    let place = answer::read(&code).filter(|place| {
        // The bundle is a C string, with one more byte than is in it.
        place.size == bundle.size || Some(place.size) == bundle.size.checked_sub(1)
    });
    let place = place.ok_or_else(|| {
        Error::unsupported("it does not say where its kernel is entered in a way that we can read")
    })?;
    place.check()?;
    let from = elf.offset_of(bundle.address, place.size)?;
    let failed = |error| Error::host("its image cannot be written", error);
    image.set_len(place.size).map_err(failed)?;
    let mut missing: Vec<&str> = NEEDED.to_vec();
    for (at, size) in pieces(place.size) {
        let bytes = elf.bytes(from + at, size)?;
        missing.retain(|name| !names(&bytes, name));
        if bytes.iter().any(|byte| *byte != 0) {
            image.write_all_at(&bytes, at).map_err(failed)?;
        }
    }
    match missing.as_slice() {
        [] => Ok(place),
        missing => Err(Error::unsupported(format!("its kernel lacks `{}`", missing.join(", ")))),
    }
}

/// Whether a string of the kernel is this name. One that lies across two pieces is overlooked,
/// which costs a build and nothing else.
fn names(bytes: &[u8], name: &str) -> bool {
    let name = [b"\0", name.as_bytes(), b"\0"].concat();
    bytes.windows(name.len()).any(|window| window == name)
}

#[cfg(target_arch = "aarch64")]
mod answer {
    //! Nobody has read the function of this machine yet.

    use super::Place;

    pub(super) fn read(_code: &[u8]) -> Option<Place> {
        None
    }
}
