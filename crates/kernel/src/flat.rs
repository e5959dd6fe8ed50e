//! Flat kernel images, as microVMs map them, with `kernel.json` for load address and entry point.
//!
//! Both files are untrusted when they are read back: a wrong layout would give a guest that dies
//! without a message.

use super::elf::{EXECUTABLE, ElfFile, Segment};
use msb_spec::{Error, GuestKernel, Result, shown};
use msb_sys::tree::{TempDir, temp_name};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

/// The name of the flat image in its directory.
pub(super) const IMAGE: &str = "kernel.img";
/// The name of the record of the image.
pub(super) const RECORD: &str = "kernel.json";
/// Name of the configuration that a kernel was built with.
pub(super) const CONFIG: &str = "kernel.config";

/// The alignment of the image size: the largest page size of any supported machine.
const ALIGNMENT: u64 = 64 << 10;
/// The largest image in bytes. Ours takes 30 MiB, a kernel with everything built in about 100.
const SIZE_LIMIT: u64 = 256 << 20;
/// The lowest load address: boot parameters of the VMM are below.
const MIN_LOAD: u64 = 1 << 20;
/// The highest load address: the smallest guests have little more memory.
const MAX_LOAD: u64 = 1 << 30;
/// The most bytes of a record that are read.
const RECORD_LIMIT: u64 = 64 << 10;

/// How a kernel was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Built by `msb setup vm`.
    Built,
    /// Converted from an ELF file of the user.
    Elf,
    /// Extracted from a system libkrunfw.
    Libkrunfw,
}

/// The record of a flat image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KernelRecord {
    /// The guest-physical load address.
    pub(super) load: u64,
    /// The guest-physical entry point.
    pub(super) entry: u64,
    /// The version, as in `uname -r`.
    pub(super) version: String,
    /// The architecture it was built for.
    pub(super) arch: String,
    /// The hash of all inputs it was made from.
    pub(super) inputs: String,
    /// How the kernel was obtained.
    pub(super) origin: Origin,
    /// The hash of its build options, if msb built it.
    #[serde(default)]
    pub(super) fragment: Option<String>,
    /// Package and version of the source it was built from, if we did. With the configuration it is
    /// what the kernel's licence asks of a copy that is given to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<String>,
}

/// The memory layout of a flat image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelLayout {
    pub(super) load: u64,
    pub(super) entry: u64,
    /// Size in bytes, a multiple of [`ALIGNMENT`].
    pub(super) size: u64,
}

impl KernelLayout {
    /// Fails if a guest cannot load a kernel with this layout.
    pub(super) fn check(self) -> Result<()> {
        let Self { load, entry, size } = self;
        if size == 0 || size > SIZE_LIMIT || !size.is_multiple_of(ALIGNMENT) {
            return Err(Error::invalid(format!("its image has {size} bytes"))
                .cause(format!("that is not a multiple of {ALIGNMENT} up to {SIZE_LIMIT}")));
        }
        if !(MIN_LOAD..=MAX_LOAD).contains(&load) || !load.is_multiple_of(4096) {
            return Err(Error::invalid(format!("it cannot be loaded at {load:#x}")));
        }
        if !(load..load + size).contains(&entry) {
            return Err(Error::invalid(format!("it is entered outside of itself, at {entry:#x}")));
        }
        Ok(())
    }
}

/// Opens the kernel in a directory, with its record.
pub(super) fn open(directory: &Path) -> Result<(GuestKernel, KernelRecord)> {
    let read = || -> Result<(GuestKernel, KernelRecord)> {
        let mut text = String::new();
        let unreadable = |error| Error::host(format!("its {RECORD} cannot be read"), error);
        let file = File::open(directory.join(RECORD)).map_err(unreadable)?;
        file.take(RECORD_LIMIT).read_to_string(&mut text).map_err(unreadable)?;
        let record: KernelRecord = serde_json::from_str(&text)
            .map_err(|error| Error::invalid(format!("its {RECORD} makes no sense")).cause(error))?;
        if record.arch != std::env::consts::ARCH {
            let arch = shown(&record.arch);
            return Err(Error::unsupported(format!("it is for another machine: `{arch}`")));
        }
        if !is_version(&record.version) {
            return Err(Error::invalid(format!("its {RECORD} has no version in it")));
        }
        let path = directory.join(IMAGE);
        let image = fs::metadata(&path)
            .map_err(|error| Error::host(format!("its {IMAGE} cannot be read"), error))?;
        if !image.is_file() {
            return Err(Error::invalid(format!("its {IMAGE} is not a file")));
        }
        KernelLayout { load: record.load, entry: record.entry, size: image.len() }.check()?;
        let version = record.version.clone();
        Ok((GuestKernel { path, load: record.load, entry: record.entry, version }, record))
    };
    read().map_err(|error| super::unusable(directory, error))
}

/// The known part of a record; the rest is found while the image is written.
pub(super) struct KernelMeta<'a> {
    pub(super) inputs: &'a str,
    pub(super) origin: Origin,
    /// None for a kernel that we did not build.
    pub(super) build: Option<BuildSource>,
}

/// What a kernel was built from.
pub(super) struct BuildSource {
    /// Hash of the options that were asked for.
    pub(super) fragment: String,
    /// Name and version of the source package.
    pub(super) source: String,
    /// The whole `.config` of the build.
    pub(super) config: Vec<u8>,
}

/// Stores a new kernel in `kernels`, in a directory named by the hash of its inputs. `write` writes
/// the image. If another process has stored the same inputs first, its kernel is used.
pub(super) fn keep(
    kernels: &Path,
    meta: KernelMeta<'_>,
    write: impl FnOnce(&File) -> Result<KernelLayout>,
) -> Result<PathBuf> {
    let about = |error: io::Error| {
        Error::host(format!("cannot keep a kernel in `{}`", kernels.display()), error)
    };
    let directory = kernels.join(meta.inputs);
    let temp = kernels.join(temp_name("making", meta.inputs));
    fs::DirBuilder::new().mode(0o700).recursive(true).create(&temp).map_err(about)?;
    let _guard = TempDir(temp.clone());
    let path = temp.join(IMAGE);
    let options = &mut File::options();
    let image = options.read(true).write(true).create_new(true).open(&path).map_err(about)?;
    let layout = write(&image)?;
    layout.check()?;
    let (fragment, source, config) = match meta.build {
        Some(build) => (Some(build.fragment), Some(build.source), Some(build.config)),
        None => (None, None, None),
    };
    if let Some(config) = config {
        fs::write(temp.join(CONFIG), config).map_err(about)?;
    }
    let record = KernelRecord {
        load: layout.load,
        entry: layout.entry,
        version: version(&image, layout.size)?,
        arch: std::env::consts::ARCH.to_owned(),
        inputs: meta.inputs.to_owned(),
        origin: meta.origin,
        fragment,
        source,
    };
    let text = serde_json::to_string_pretty(&record).expect("our own types always serialise");
    fs::write(temp.join(RECORD), text + "\n").map_err(about)?;
    image.sync_all().map_err(about)?;
    match fs::rename(&temp, &directory) {
        Err(_) if open(&directory).is_ok() => Ok(directory),
        // An invalid directory is in the way.
        Err(_) => {
            msb_sys::tree::remove(&directory).map_err(about)?;
            fs::rename(&temp, &directory).map_err(about).map(|()| directory)
        }
        Ok(()) => Ok(directory),
    }
}

/// Writes the segments of an ELF kernel at their physical offsets. Zero blocks stay holes.
pub(super) fn flatten(elf: &ElfFile<'_>, image: &File) -> Result<KernelLayout> {
    if elf.kind() != EXECUTABLE {
        return Err(Error::invalid(
            "it is not a kernel as `vmlinux` is: it can be loaded anywhere",
        ));
    }
    let mut segments: Vec<Segment> =
        elf.segments().iter().copied().filter(|segment| segment.size > 0).collect();
    segments.sort_by_key(|segment| segment.physical);
    let (Some(first), Some(last)) = (segments.first(), segments.last()) else {
        return Err(Error::invalid("nothing of it is loaded"));
    };
    // `ElfFile` has checked that the ends do not wrap.
    if segments.windows(2).any(|pair| pair[0].physical + pair[0].size > pair[1].physical) {
        return Err(Error::invalid("two segments of it lie over each other"));
    }
    let load = first.physical;
    let extent = last.physical + last.size - load;
    if extent > SIZE_LIMIT {
        return Err(Error::invalid(format!("it takes {extent} bytes, more than {SIZE_LIMIT}")));
    }
    let layout =
        KernelLayout { load, entry: entry(elf)?, size: extent.next_multiple_of(ALIGNMENT) };
    layout.check()?;
    let failed = |error| Error::host("its image cannot be written", error);
    image.set_len(layout.size).map_err(failed)?;
    for segment in &segments {
        for (from, size) in pieces(segment.filled) {
            let bytes = elf.bytes(segment.offset + from, size)?;
            if bytes.iter().any(|byte| *byte != 0) {
                image.write_all_at(&bytes, segment.physical - load + from).map_err(failed)?;
            }
        }
    }
    Ok(layout)
}

/// The physical entry point. Linux gives it directly; other kernels give the virtual address.
fn entry(elf: &ElfFile<'_>) -> Result<u64> {
    let entry = elf.entry();
    let inside = |segment: &&Segment, start: u64| {
        entry.checked_sub(start).is_some_and(|inside| inside < segment.filled)
    };
    let segments = || elf.segments().iter();
    if segments().any(|segment| inside(&segment, segment.physical)) {
        return Ok(entry);
    }
    let seen = segments().find(|segment| inside(segment, segment.address));
    seen.map(|segment| segment.physical + (entry - segment.address))
        .ok_or_else(|| Error::invalid(format!("it is entered outside of itself, at {entry:#x}")))
}

/// The block size of copies: large enough to be fast, small enough to keep holes.
const PIECE: u64 = 64 << 10;

pub(super) fn pieces(size: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..size).step_by(PIECE as usize).map(move |from| (from, PIECE.min(size - from)))
}

/// The start of the boot banner, which contains the version.
const BANNER: &[u8] = b"Linux version ";
/// The longest version, as for `uname -r`.
const VERSION_LENGTH: usize = 64;

fn version(image: &File, size: u64) -> Result<String> {
    let unreadable = |error| Error::host("its image cannot be read", error);
    let mut window: Vec<u8> = Vec::new();
    for (from, size) in pieces(size) {
        let mut piece = vec![0; size as usize];
        image.read_exact_at(&mut piece, from).map_err(unreadable)?;
        window.extend(piece);
        let found = window.windows(BANNER.len()).enumerate().filter(|(_, w)| *w == BANNER);
        for (at, _) in found {
            let rest = &window[at + BANNER.len()..];
            let length = rest.iter().take_while(|byte| is_version_byte(**byte)).count();
            let version = String::from_utf8_lossy(&rest[..length]);
            if is_version(&version) && rest.get(length) == Some(&b' ') {
                return Ok(version.into_owned());
            }
        }
        // The banner may span two blocks.
        let keep = window.len().min(BANNER.len() + VERSION_LENGTH + 1);
        window.drain(..window.len() - keep);
    }
    Err(Error::invalid("it is not a Linux kernel: it says no version"))
}

fn is_version(text: &str) -> bool {
    (1..=VERSION_LENGTH).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(is_version_byte)
}

fn is_version_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".+~_-".contains(&byte)
}
