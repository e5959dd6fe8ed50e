//! The guest kernel: where it is found, and how one is made.
//!
//! Looked for in this order: `MSB_KERNEL`, what `msb setup vm` has built, a system libkrunfw.
//! Whatever is not flat yet is flattened once and kept beside the others, because a microVM maps
//! its kernel as it lies on disk and shares it with every other.

mod build;
mod elf;
mod flat;
mod krunfw;
#[cfg(test)]
mod tests;

pub use flat::Origin;

use crate::sandboxes::Engine;
use crate::store::Home;
use elf::Elf;
use flat::{Making, Record};
use msb_spec::{Error, GuestKernel, Kind, Result, env};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What `msb setup vm` is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// Another msb builds a kernel.
    Waiting,
    /// Installing packages.
    Installing(&'a str),
    /// Fetching a package.
    Fetching(&'a str),
    /// Unpacking the source.
    Unpacking,
    /// Configuring the kernel.
    Configuring,
    /// Compiling it.
    Compiling {
        /// Files that are compiled.
        done: u64,
        /// All there are, about.
        total: u64,
    },
    /// Laying it out flat and keeping it.
    Keeping,
}

/// A kernel that microVMs can use, and how it came to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ready {
    /// The kernel.
    #[serde(flatten)]
    pub kernel: GuestKernel,
    /// What [`env::KERNEL`] can name.
    pub directory: PathBuf,
    /// Where it came from.
    pub origin: Origin,
    /// Whether it was built just now.
    pub built: bool,
}

impl Engine {
    /// The kernel for a microVM of this user. Starts no build.
    pub fn guest_kernel(&self) -> Result<GuestKernel> {
        find(self.home())
    }

    /// Finds a kernel for microVMs, or builds one; `force` builds one whatever there is.
    pub fn set_up_vm(&self, force: bool, said: &dyn Fn(Step<'_>)) -> Result<Ready> {
        set_up(self.home(), force, said)
    }
}

/// The kernel for a microVM of this user. Starts no build.
pub fn find(home: &Home) -> Result<GuestKernel> {
    if let Some(path) = named() {
        return from_path(home, &path);
    }
    if let Some((kernel, _)) = built(home) {
        return Ok(kernel);
    }
    match krunfw::library() {
        Some(library) => from_library(home, &library).map_err(|error| error.hint(SETUP)),
        None => Err(Error::new(Kind::NotFound, "there is no kernel for microVMs yet").hint(SETUP)),
    }
}

const SETUP: &str = "`msb setup vm` builds one, once";

fn set_up(home: &Home, force: bool, said: &dyn Fn(Step<'_>)) -> Result<Ready> {
    if let Some(path) = named() {
        if force {
            let variable = env::KERNEL;
            return Err(Error::invalid(format!("{variable} names a kernel, so none is built"))
                .hint(format!("unset {variable} to have one built and used")));
        }
        return from_path(home, &path).and_then(|kernel| ready(&kernel, false));
    }
    if !force && let Some(kernel) = good_enough(home) {
        return ready(&kernel, false);
    }
    let directory = build::build(home, force, said)?;
    let (kernel, _) = flat::open(&directory)?;
    ready(&kernel, true)
}

/// A kernel that need not be built again: made from what is here now, or the library's where none
/// was ever built.
fn good_enough(home: &Home) -> Option<GuestKernel> {
    match built(home) {
        Some((kernel, record)) => {
            let ours = record.fragment.is_some_and(|hash| build::fragments().contains(&hash));
            // Where nothing can be built, what was built before is as good as it gets.
            let same = build::Recipe::read().map_or(true, |recipe| recipe.inputs == record.inputs);
            (ours && same).then_some(kernel)
        }
        None => krunfw::library().and_then(|library| from_library(home, &library).ok()),
    }
}

/// Every kernel is in a directory with what is said about it.
fn ready(kernel: &GuestKernel, built: bool) -> Result<Ready> {
    let directory = kernel.path.parent().unwrap_or(Path::new("/")).to_owned();
    let (kernel, record) = flat::open(&directory)?;
    Ok(Ready { kernel, directory, origin: record.origin, built })
}

/// What the user has named.
fn named() -> Option<PathBuf> {
    std::env::var_os(env::KERNEL).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The kernel in a directory of its own, or an ELF file.
fn from_path(home: &Home, path: &Path) -> Result<GuestKernel> {
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
    flattened(home, &path, Origin::Elf).map_err(about)
}

fn from_library(home: &Home, library: &Path) -> Result<GuestKernel> {
    let path = fs::canonicalize(library)
        .map_err(|error| unusable(library, Error::host("it cannot be found", error)))?;
    flattened(home, &path, Origin::Libkrunfw)
}

/// The newest kernel that was built, one with the options of this msb before all others.
fn built(home: &Home) -> Option<(GuestKernel, Record)> {
    let entries = fs::read_dir(home.kernels()).ok()?.filter_map(Result::ok);
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

/// For comparing versions: `6.12.9` is older than `6.12.115`.
fn numbers(version: &str) -> Vec<u32> {
    version.split(['.', '-']).map_while(|part| part.parse().ok()).collect()
}

/// A flat image made of this file, or the one that was made of it before.
fn flattened(home: &Home, path: &Path, origin: Origin) -> Result<GuestKernel> {
    let make = || -> Result<GuestKernel> {
        let unreadable = |error| Error::host("it cannot be read", error);
        let file = File::open(path).map_err(unreadable)?;
        let meta = file.metadata().map_err(unreadable)?;
        if !meta.is_file() {
            return Err(Error::invalid("it is not a file"));
        }
        let inputs = same_file(path, &meta);
        let kernels = home.kernels();
        if let Ok((kernel, _)) = flat::open(&kernels.join(&inputs)) {
            return Ok(kernel);
        }
        let elf = Elf::read(&file)?;
        let making = Making { inputs: &inputs, origin, fragment: None };
        let directory = flat::keep(&kernels, making, |image| match origin {
            Origin::Libkrunfw => krunfw::extract(&elf, image),
            Origin::Elf | Origin::Built => flat::flatten(&elf, image),
        })?;
        flat::open(&directory).map(|(kernel, _)| kernel)
    };
    make().map_err(|error| unusable(path, error))
}

/// Stands for the content of a file without reading it, which every start would pay for.
fn same_file(path: &Path, meta: &fs::Metadata) -> String {
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
    hashed(hash)
}

/// As long as is needed for names of directories to be apart.
fn hashed(hash: Sha256) -> String {
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn unusable(path: &Path, error: Error) -> Error {
    error.under(format!("cannot use the kernel `{}`", path.display()))
}
