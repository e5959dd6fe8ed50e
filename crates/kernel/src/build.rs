//! Builds the guest kernel from the Linux source of Debian.
//!
//! The kernel is small and has no modules, so this takes minutes. The result is stored under the
//! hash of its inputs. An interrupted build continues. A lock serialises concurrent builds.

mod commands;
mod config;
mod linux_source;
mod tools;

use super::flat::{self, BuildSource, KernelMeta};
use super::{Origin, Step, elf, short_hash};
use commands::BuildLog;
use config::KernelConfig;
use linux_source::LinuxSource;
use msb_spec::{Error, Kind, Result};
use msb_sys::tree;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tools::BuildTools;

/// Receives the steps of a build.
pub(super) type Progress<'a> = &'a dyn Fn(Step<'_>);

/// The version of the build process. It is raised when equal inputs give another kernel.
const RECIPE: &str = "1";

/// How long another build is waited for: one slow processor takes hours.
const LOCK_LIMIT: Duration = Duration::from_secs(3 * 3600);

/// Disk space for the source, its archive and the objects.
const REQUIRED_SPACE: u64 = 2 << 30;

/// The inputs of a build.
pub(super) struct BuildInputs {
    source: LinuxSource,
    config: KernelConfig,
    /// The hash of all inputs.
    pub(super) inputs: String,
}

impl BuildInputs {
    /// The inputs that a build would use now; fails if a tool is missing.
    pub(super) fn read() -> Result<Self> {
        tools::check()?;
        Self::with(&BuildTools::find()?, LinuxSource::offered()?)
    }

    fn with(tools: &BuildTools, source: LinuxSource) -> Result<Self> {
        let config = KernelConfig::of(source.series)?;
        let arch = std::env::consts::ARCH;
        let mut hash = Sha256::new();
        for input in [RECIPE, arch, &source.package, &source.version, &tools.compiler] {
            hash.update(input);
            hash.update([0]);
        }
        hash.update(config.hash());
        Ok(Self { source, config, inputs: short_hash(hash) })
    }
}

/// The hashes of the kernel options of this msb, one for each series.
pub(super) fn fragments() -> Vec<String> {
    let options = linux_source::SERIES.iter().filter_map(|series| KernelConfig::of(series).ok());
    options.map(|options| options.hash()).collect()
}

/// Builds a kernel and returns its directory. `rebuild` ignores an existing one.
pub(super) fn build(kernels: &Path, rebuild: bool, progress: Progress<'_>) -> Result<PathBuf> {
    let about = |error: io::Error| {
        Error::host(format!("cannot build a kernel in `{}`", kernels.display()), error)
    };
    let build_dirs = kernels.join(".build");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&build_dirs).map_err(about)?;
    let lock = locked(&kernels.join(".lock"), progress)?;
    tools::install(progress)?;
    let tools = BuildTools::find()?;
    let source =
        LinuxSource::offered().or_else(|error| linux_source::after_update(error, progress))?;
    let build_inputs = BuildInputs::with(&tools, source)?;
    let work = build_dirs.join(&build_inputs.inputs);
    clean(&build_dirs, (!rebuild).then_some(&work)).map_err(about)?;
    // Another process may have built it while we waited.
    let directory = kernels.join(&build_inputs.inputs);
    if !rebuild && flat::open(&directory).is_ok() {
        return Ok(directory);
    }
    let room = rustix::fs::statvfs(&build_dirs).map_err(|error| about(error.into()))?;
    let room = room.f_bavail.saturating_mul(room.f_frsize);
    if !work.exists() && room < REQUIRED_SPACE {
        return Err(about(io::ErrorKind::StorageFull.into())
            .cause(format!(
                "{} MiB are free, about {} are needed",
                room >> 20,
                REQUIRED_SPACE >> 20
            ))
            .hint(format!("{} names a directory on another disk", msb_spec::env::HOME)));
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&work).map_err(about)?;
    let log = BuildLog::at(work.join("log"));
    let tree = work.join("linux");
    if !tree.exists() {
        build_inputs.source.unpack(&work, &tree, &log, progress)?;
    }
    build_inputs.config.configure(&tree, &log, progress)?;
    commands::compile(&tree, &tools, &lock, &log, progress)?;
    progress(Step::Keeping);
    if rebuild {
        tree::remove(&directory).map_err(about)?;
    }
    let directory = keep(kernels, &build_inputs, &tree.join("vmlinux"))?;
    // The build directory takes a gigabyte and is not needed any more.
    let _ = tree::remove(&work);
    Ok(directory)
}

fn keep(kernels: &Path, build_inputs: &BuildInputs, vmlinux: &Path) -> Result<PathBuf> {
    let make = || {
        let file = File::open(vmlinux).map_err(|error| Error::host("it cannot be read", error))?;
        let elf = elf::ElfFile::read(&file)?;
        let meta = KernelMeta {
            inputs: &build_inputs.inputs,
            origin: Origin::Built,
            build: Some(BuildSource {
                fragment: build_inputs.config.hash(),
                source: format!("{} {}", build_inputs.source.package, build_inputs.source.version),
                config: fs::read(vmlinux.with_file_name(".config"))
                    .map_err(|error| Error::host("its configuration cannot be read", error))?,
            }),
        };
        flat::keep(kernels, meta, |image| flat::flatten(&elf, image))
    };
    make().map_err(|error| super::unusable(vmlinux, error))
}

/// Takes the build lock. `make` inherits it, so it is held while anything writes, even if this
/// process is killed.
fn locked(path: &Path, progress: Progress<'_>) -> Result<File> {
    let about = |error: io::Error| Error::host(format!("cannot lock `{}`", path.display()), error);
    let options = &mut File::options();
    let file =
        options.read(true).write(true).create(true).truncate(false).open(path).map_err(about)?;
    let since = Instant::now();
    while !msb_sys::lock::try_lock(&file).map_err(about)? {
        progress(Step::Waiting);
        if since.elapsed() > LOCK_LIMIT {
            return Err(Error::new(Kind::Timeout, "another msb has been building for too long"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(file)
}

/// Removes build directories of other inputs.
fn clean(build_dirs: &Path, keep: Option<&PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(build_dirs)? {
        let path = entry?.path();
        if Some(&path) != keep {
            tree::remove(&path)?;
        }
    }
    Ok(())
}
