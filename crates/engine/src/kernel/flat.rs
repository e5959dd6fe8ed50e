//! Guest kernels as a microVM maps them: a flat image, and beside it `kernel.json`, which says
//! where the image lies and where it is entered.
//!
//! Whatever is read back is checked as if anybody had written it: an image that does not fit its
//! description would be a guest that dies without a word.

use super::elf::{EXECUTABLE, Elf, Segment};
use crate::store::{Aside, passing};
use msb_spec::{Error, GuestKernel, Result, shown};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

/// Name of the flat image in its directory.
pub(super) const IMAGE: &str = "kernel.img";
/// Name of what is said about it.
pub(super) const RECORD: &str = "kernel.json";

/// The VMM maps whole pages, and those of some machines are this large.
const UNIT: u64 = 64 << 10;
/// Ours takes 30 MiB; one with everything built in about 100.
const SIZE_LIMIT: u64 = 256 << 20;
/// What the VMM tells the kernel lies below.
const LOWEST: u64 = 1 << 20;
/// The smallest guests end not far above.
const HIGHEST: u64 = 1 << 30;
/// A record is some hundred bytes.
const RECORD_LIMIT: u64 = 64 << 10;

/// Where a kernel came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Built by `msb setup vm`.
    Built,
    /// Somebody's own ELF file.
    Elf,
    /// A system library.
    Libkrunfw,
}

/// What is said about a flat image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The guest's physical address that its first byte is at.
    pub(super) load: u64,
    /// Where it is entered.
    pub(super) entry: u64,
    /// As people know it.
    pub(super) version: String,
    /// The machine it is for.
    pub(super) arch: String,
    /// Hash of everything that it was made from.
    pub(super) inputs: String,
    /// Where it came from.
    pub(super) origin: Origin,
    /// Hash of the options it was built with, if we did.
    #[serde(default)]
    pub(super) fragment: Option<String>,
}

/// Where a flat image lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) load: u64,
    pub(super) entry: u64,
    /// Of the image, a multiple of [`UNIT`].
    pub(super) size: u64,
}

impl Place {
    /// Whether a guest can have a kernel there.
    pub(super) fn check(self) -> Result<()> {
        let Self { load, entry, size } = self;
        if size == 0 || size > SIZE_LIMIT || !size.is_multiple_of(UNIT) {
            return Err(Error::invalid(format!("its image has {size} bytes"))
                .cause(format!("that is not a multiple of {UNIT} up to {SIZE_LIMIT}")));
        }
        if !(LOWEST..=HIGHEST).contains(&load) || !load.is_multiple_of(4096) {
            return Err(Error::invalid(format!("it cannot be loaded at {load:#x}")));
        }
        if !(load..load + size).contains(&entry) {
            return Err(Error::invalid(format!("it is entered outside of itself, at {entry:#x}")));
        }
        Ok(())
    }
}

/// The kernel in this directory, with what is said about it.
pub(super) fn open(directory: &Path) -> Result<(GuestKernel, Record)> {
    let read = || -> Result<(GuestKernel, Record)> {
        let mut text = String::new();
        let unreadable = |error| Error::host(format!("its {RECORD} cannot be read"), error);
        let file = File::open(directory.join(RECORD)).map_err(unreadable)?;
        file.take(RECORD_LIMIT).read_to_string(&mut text).map_err(unreadable)?;
        let record: Record = serde_json::from_str(&text)
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
        Place { load: record.load, entry: record.entry, size: image.len() }.check()?;
        let version = record.version.clone();
        Ok((GuestKernel { path, load: record.load, entry: record.entry, version }, record))
    };
    read().map_err(|error| super::unusable(directory, error))
}

/// What a kernel says about itself; the rest is found out while its image is written.
pub(super) struct Making<'a> {
    pub(super) inputs: &'a str,
    pub(super) origin: Origin,
    pub(super) fragment: Option<String>,
}

/// Keeps a new kernel in `kernels`, in a directory named by the hash of its inputs. `write` puts
/// its image into a file. Whoever was quicker with the same inputs wins.
pub(super) fn keep(
    kernels: &Path,
    making: Making<'_>,
    write: impl FnOnce(&File) -> Result<Place>,
) -> Result<PathBuf> {
    let about = |error: io::Error| {
        Error::host(format!("cannot keep a kernel in `{}`", kernels.display()), error)
    };
    let directory = kernels.join(making.inputs);
    let aside = kernels.join(passing("making", making.inputs));
    fs::DirBuilder::new().mode(0o700).recursive(true).create(&aside).map_err(about)?;
    let _guard = Aside(aside.clone());
    let path = aside.join(IMAGE);
    let options = &mut File::options();
    let image = options.read(true).write(true).create_new(true).open(&path).map_err(about)?;
    let place = write(&image)?;
    place.check()?;
    let record = Record {
        load: place.load,
        entry: place.entry,
        version: version(&image, place.size)?,
        arch: std::env::consts::ARCH.to_owned(),
        inputs: making.inputs.to_owned(),
        origin: making.origin,
        fragment: making.fragment,
    };
    let text = serde_json::to_string_pretty(&record).expect("our own types always serialise");
    fs::write(aside.join(RECORD), text + "\n").map_err(about)?;
    image.sync_all().map_err(about)?;
    match fs::rename(&aside, &directory) {
        Err(_) if open(&directory).is_ok() => Ok(directory),
        // Something that is not a kernel is in the way.
        Err(_) => {
            crate::store::remove_tree(&directory).map_err(about)?;
            fs::rename(&aside, &directory).map_err(about).map(|()| directory)
        }
        Ok(()) => Ok(directory),
    }
}

/// Writes the segments of an ELF kernel as they lie in memory. What is zero stays a hole.
pub(super) fn flatten(elf: &Elf<'_>, image: &File) -> Result<Place> {
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
    // The ends are known not to wrap.
    if segments.windows(2).any(|pair| pair[0].physical + pair[0].size > pair[1].physical) {
        return Err(Error::invalid("two segments of it lie over each other"));
    }
    let load = first.physical;
    let extent = last.physical + last.size - load;
    if extent > SIZE_LIMIT {
        return Err(Error::invalid(format!("it takes {extent} bytes, more than {SIZE_LIMIT}")));
    }
    let place = Place { load, entry: entry(elf)?, size: extent.next_multiple_of(UNIT) };
    place.check()?;
    let failed = |error| Error::host("its image cannot be written", error);
    image.set_len(place.size).map_err(failed)?;
    for segment in &segments {
        for (from, size) in pieces(segment.filled) {
            let bytes = elf.bytes(segment.offset + from, size)?;
            if bytes.iter().any(|byte| *byte != 0) {
                image.write_all_at(&bytes, segment.physical - load + from).map_err(failed)?;
            }
        }
    }
    Ok(place)
}

/// The physical address of the first instruction. Linux gives that itself; others give where the
/// kernel will see it once it has its page tables.
fn entry(elf: &Elf<'_>) -> Result<u64> {
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

/// Large enough to be quick, small enough for holes to be found.
const PIECE: u64 = 64 << 10;

pub(super) fn pieces(size: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..size).step_by(PIECE as usize).map(move |from| (from, PIECE.min(size - from)))
}

/// What a kernel prints first has its version in it.
const BANNER: &[u8] = b"Linux version ";
/// As long as `uname -r` can be.
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
        // A banner may lie across two pieces.
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
