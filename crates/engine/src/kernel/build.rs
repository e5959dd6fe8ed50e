//! Builds the guest kernel from Debian's source, once.
//!
//! The kernel is small and has no modules, so this takes minutes. What was built is kept under
//! the hash of everything that went into it; what was interrupted goes on where it stopped. Of
//! two who build at the same time, one waits.

mod options;
mod running;
mod source;
mod tools;

use super::flat::{self, Making};
use super::{Origin, Step, elf, hashed};
use crate::store::{Home, remove_tree};
use msb_spec::{Error, Kind, Result};
use options::Options;
use running::Log;
use sha2::{Digest, Sha256};
use source::Source;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tools::Tools;

/// Told what is being done.
pub(super) type Said<'a> = &'a dyn Fn(Step<'_>);

/// Changes when the same inputs give another kernel.
const RECIPE: &str = "1";

/// Somebody else's build on a machine with one slow processor.
const LOCK_LIMIT: Duration = Duration::from_secs(3 * 3600);

/// The source, its archive and what is compiled.
const ROOM: u64 = 2 << 30;

/// Everything that a kernel is made from.
pub(super) struct Recipe {
    source: Source,
    options: Options,
    /// Hash of it all.
    pub(super) inputs: String,
}

impl Recipe {
    /// What would be built here and now; fails if something is missing for it.
    pub(super) fn read() -> Result<Self> {
        tools::check()?;
        Self::with(&Tools::find()?, Source::offered()?)
    }

    fn with(tools: &Tools, source: Source) -> Result<Self> {
        let options = Options::of(source.series)?;
        let arch = std::env::consts::ARCH;
        let mut hash = Sha256::new();
        for input in [RECIPE, arch, &source.package, &source.version, &tools.compiler] {
            hash.update(input);
            hash.update([0]);
        }
        hash.update(options.hash());
        Ok(Self { source, options, inputs: hashed(hash) })
    }
}

/// Hashes of the options that this msb builds kernels with.
pub(super) fn fragments() -> Vec<String> {
    let options = source::SERIES.iter().filter_map(|series| Options::of(series).ok());
    options.map(|options| options.hash()).collect()
}

/// Builds a kernel and gives its directory; with `anew`, whatever is there already.
pub(super) fn build(home: &Home, anew: bool, said: Said<'_>) -> Result<PathBuf> {
    let kernels = home.kernels();
    let about = |error: io::Error| {
        Error::host(format!("cannot build a kernel in `{}`", kernels.display()), error)
    };
    let works = kernels.join(".build");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&works).map_err(about)?;
    let lock = locked(&kernels.join(".lock"), said)?;
    tools::install(said)?;
    let tools = Tools::find()?;
    let source = Source::offered().or_else(|error| source::after_update(error, said))?;
    let recipe = Recipe::with(&tools, source)?;
    let work = works.join(&recipe.inputs);
    clean(&works, (!anew).then_some(&work)).map_err(about)?;
    // Whoever had the lock before us may have built it.
    let directory = kernels.join(&recipe.inputs);
    if !anew && flat::open(&directory).is_ok() {
        return Ok(directory);
    }
    let room = rustix::fs::statvfs(&works).map_err(|error| about(error.into()))?;
    let room = room.f_bavail.saturating_mul(room.f_frsize);
    if !work.exists() && room < ROOM {
        return Err(about(io::ErrorKind::StorageFull.into())
            .cause(format!("{} MiB are free, about {} are needed", room >> 20, ROOM >> 20))
            .hint(format!("{} names a directory on another disk", msb_spec::env::HOME)));
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&work).map_err(about)?;
    let log = Log::at(work.join("log"));
    let tree = work.join("linux");
    if !tree.exists() {
        recipe.source.unpack(&work, &tree, &log, said)?;
    }
    recipe.options.configure(&tree, &log, said)?;
    running::compile(&tree, &tools, &lock, &log, said)?;
    said(Step::Keeping);
    if anew {
        remove_tree(&directory).map_err(about)?;
    }
    let directory = keep(&kernels, &recipe, &tree.join("vmlinux"))?;
    // A gigabyte that nobody needs any more.
    let _ = remove_tree(&work);
    Ok(directory)
}

fn keep(kernels: &Path, recipe: &Recipe, vmlinux: &Path) -> Result<PathBuf> {
    let make = || {
        let file = File::open(vmlinux).map_err(|error| Error::host("it cannot be read", error))?;
        let elf = elf::Elf::read(&file)?;
        let making = Making {
            inputs: &recipe.inputs,
            origin: Origin::Built,
            fragment: Some(recipe.options.hash()),
        };
        flat::keep(kernels, making, |image| flat::flatten(&elf, image))
    };
    make().map_err(|error| super::unusable(vmlinux, error))
}

/// Waits until nobody else builds. The lock is handed on to `make`, so that it holds as long as
/// anything writes, even if we are killed.
fn locked(path: &Path, said: Said<'_>) -> Result<File> {
    let about = |error: io::Error| Error::host(format!("cannot lock `{}`", path.display()), error);
    let options = &mut File::options();
    let file =
        options.read(true).write(true).create(true).truncate(false).open(path).map_err(about)?;
    let since = Instant::now();
    while !msb_sys::lock::try_lock(&file).map_err(about)? {
        said(Step::Waiting);
        if since.elapsed() > LOCK_LIMIT {
            return Err(Error::new(Kind::Timeout, "another msb has been building for too long"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(file)
}

/// Removes what was begun from other inputs.
fn clean(works: &Path, keep: Option<&PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(works)? {
        let path = entry?.path();
        if Some(&path) != keep {
            remove_tree(&path)?;
        }
    }
    Ok(())
}
