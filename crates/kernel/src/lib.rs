//! The guest kernel of microVMs: finds one, or builds one.
//!
//! Search order: `MSB_KERNEL`, kernels that `msb setup vm` has built, a system libkrunfw. Other
//! formats are converted once to a flat image and stored beside the others, because a microVM maps
//! its kernel from disk and shares its pages with all others.

mod build;
mod elf;
mod flat;
mod krunfw;
#[cfg(test)]
mod tests;

pub use flat::Origin;

use elf::ElfFile;
use flat::{KernelMeta, KernelRecord};
use msb_spec::encoding::hex;
use msb_spec::{Error, GuestKernel, Kind, Result, env};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A step of `msb setup vm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// Waiting for another msb that builds a kernel.
    Waiting,
    /// Installing build packages with apt.
    Installing(&'a str),
    /// Fetching a package with apt.
    Fetching(&'a str),
    /// Unpacking the source of Linux.
    Unpacking,
    /// Configuring the kernel (`.config`).
    Configuring,
    /// Compiling the kernel with make.
    Compiling {
        /// Files compiled so far.
        done: u64,
        /// Estimated number of files.
        total: u64,
    },
    /// Converting and storing the result.
    Keeping,
}

/// A usable guest kernel and its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ready {
    /// The kernel with its load address.
    #[serde(flatten)]
    pub kernel: GuestKernel,
    /// Its directory, which [`env::KERNEL`] accepts.
    pub directory: PathBuf,
    /// How the kernel was obtained.
    pub origin: Origin,
    /// Whether this call has built it.
    pub built: bool,
}

/// The guest kernel for microVMs of this user, or one that is kept in `kernels`. Builds nothing.
pub fn find(kernels: &Path) -> Result<GuestKernel> {
    if let Some(path) = named() {
        return from_path(kernels, &path);
    }
    if let Some((kernel, _)) = built(kernels) {
        return Ok(kernel);
    }
    match krunfw::library() {
        Some(library) => from_library(kernels, &library).map_err(|error| error.hint(SETUP)),
        None => Err(Error::new(Kind::NotFound, "there is no kernel for microVMs yet").hint(SETUP)),
    }
}

const SETUP: &str = "`msb setup vm` builds one, once";

/// Finds a guest kernel, or builds one in `kernels`; `force` always builds.
pub fn set_up(kernels: &Path, force: bool, progress: &dyn Fn(Step<'_>)) -> Result<Ready> {
    if let Some(path) = named() {
        if force {
            let variable = env::KERNEL;
            return Err(Error::invalid(format!("{variable} names a kernel, so none is built"))
                .hint(format!("unset {variable} to have one built and used")));
        }
        return from_path(kernels, &path).and_then(|kernel| ready(&kernel, false));
    }
    if !force && let Some(kernel) = current_kernel(kernels) {
        return ready(&kernel, false);
    }
    let directory = build::build(kernels, force, progress)?;
    let (kernel, _) = flat::open(&directory)?;
    ready(&kernel, true)
}

/// A kernel that makes a build unnecessary: built from the present inputs, or that of libkrunfw if
/// none was built.
fn current_kernel(kernels: &Path) -> Option<GuestKernel> {
    match built(kernels) {
        Some((kernel, record)) => {
            let ours = record.fragment.is_some_and(|hash| build::fragments().contains(&hash));
            // Without build tools an existing kernel is good enough.
            let same = build::BuildInputs::read()
                .map_or(true, |build_inputs| build_inputs.inputs == record.inputs);
            (ours && same).then_some(kernel)
        }
        None => krunfw::library().and_then(|library| from_library(kernels, &library).ok()),
    }
}

/// The result for a kernel in its directory.
fn ready(kernel: &GuestKernel, built: bool) -> Result<Ready> {
    let directory = kernel.path.parent().unwrap_or(Path::new("/")).to_owned();
    let (kernel, record) = flat::open(&directory)?;
    Ok(Ready { kernel, directory, origin: record.origin, built })
}

/// The path in `MSB_KERNEL`, if it is set.
fn named() -> Option<PathBuf> {
    std::env::var_os(env::KERNEL).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The kernel in a directory, or one converted from an ELF file.
fn from_path(kernels: &Path, path: &Path) -> Result<GuestKernel> {
    let about = |error: Error| {
        let hint =
            format!("{} names a `vmlinux`, or a directory as `msb setup vm` makes", env::KERNEL);
        error.hint(hint)
    };
    let path = fs::canonicalize(path)
        .map_err(|error| about(unusable(path, Error::host("it cannot be found", error))))?;
    if path.is_dir() {
        return flat::open(&path).map(|(kernel, _)| kernel).map_err(about);
    }
    flattened(kernels, &path, Origin::Elf).map_err(about)
}

fn from_library(kernels: &Path, library: &Path) -> Result<GuestKernel> {
    let path = fs::canonicalize(library)
        .map_err(|error| unusable(library, Error::host("it cannot be found", error)))?;
    flattened(kernels, &path, Origin::Libkrunfw)
}

/// The newest built kernel; those with the options of this msb come first.
fn built(kernels: &Path) -> Option<(GuestKernel, KernelRecord)> {
    let entries = fs::read_dir(kernels).ok()?.filter_map(Result::ok);
    let opened = entries.filter_map(|entry| {
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if hidden { None } else { flat::open(&entry.path()).ok() }
    });
    let built = opened.filter(|(_, record)| record.origin == Origin::Built);
    let ours = build::fragments();
    built.max_by_key(|(kernel, record)| {
        let ours = record.fragment.as_ref().is_some_and(|hash| ours.contains(hash));
        let made = fs::metadata(&kernel.path).and_then(|meta| meta.modified()).ok();
        (ours, numbers(&kernel.version), made)
    })
}

/// The numbers of a version, for comparison: `6.12.9` is older than `6.12.115`.
fn numbers(version: &str) -> Vec<u32> {
    version.split(['.', '-']).map_while(|part| part.parse().ok()).collect()
}

/// Converts a file to a flat image, or finds the earlier result.
fn flattened(kernels: &Path, path: &Path, origin: Origin) -> Result<GuestKernel> {
    let make = || -> Result<GuestKernel> {
        let unreadable = |error| Error::host("it cannot be read", error);
        let file = File::open(path).map_err(unreadable)?;
        let meta = file.metadata().map_err(unreadable)?;
        if !meta.is_file() {
            return Err(Error::invalid("it is not a file"));
        }
        let inputs = file_identity(path, &meta);
        if let Ok((kernel, _)) = flat::open(&kernels.join(&inputs)) {
            return Ok(kernel);
        }
        let elf = ElfFile::read(&file)?;
        let meta = KernelMeta { inputs: &inputs, origin, build: None };
        let directory = flat::keep(kernels, meta, |image| match origin {
            Origin::Libkrunfw => krunfw::extract(&elf, image),
            Origin::Elf | Origin::Built => flat::flatten(&elf, image),
        })?;
        flat::open(&directory).map(|(kernel, _)| kernel)
    };
    make().map_err(|error| unusable(path, error))
}

/// A hash of path, inode, size and times: identifies the content without reading it at every start.
fn file_identity(path: &Path, meta: &fs::Metadata) -> String {
    let facts = [
        meta.dev(),
        meta.ino(),
        meta.size(),
        meta.mtime() as u64,
        meta.mtime_nsec() as u64,
        meta.ctime() as u64,
        meta.ctime_nsec() as u64,
    ];
    let mut hash = Sha256::new();
    hash.update(path.as_os_str().as_encoded_bytes());
    facts.iter().for_each(|fact| hash.update(fact.to_le_bytes()));
    short_hash(hash)
}

/// The first 16 bytes of a hash in hex, for directory names.
fn short_hash(hash: Sha256) -> String {
    hex(&hash.finalize()[..16])
}

fn unusable(path: &Path, error: Error) -> Error {
    error.under(format!("cannot use the kernel `{}`", path.display()))
}
