//! Snapshot archives at allowed host paths.
//!
//! The path was resolved before it comes here, so it has no symbolic links. A link that appears
//! later
//! was placed to redirect it, and is refused (`O_NOFOLLOW`).

use msb_spec::{Error, Result};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, openat2, renameat, unlinkat};
use std::fs::File;
use std::io::{BufReader, Chain, Cursor, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// The magic number of zstandard.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The compression level: fast, at half the size.
const LEVEL: i32 = 3;

fn about(doing: &str, path: &Path) -> impl Fn(std::io::Error) -> Error {
    let message = format!("cannot {doing} `{}`", path.display());
    move |error| Error::host(message.clone(), error)
}

fn opened(path: &Path, flags: OFlags) -> std::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    Ok(openat2(rustix::fs::CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

fn parts(path: &Path) -> Result<(&Path, &std::ffi::OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(directory), Some(name)) => Ok((directory, name)),
        _ => Err(Error::invalid(format!("not a file: `{}`", path.display()))),
    }
}

/// Reads an archive, decompressed if necessary.
pub(super) fn open(path: &Path) -> Result<Box<dyn Read>> {
    let about = about("read", path);
    let mut file = File::from(opened(path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(&about)?);
    if !file.metadata().map_err(&about)?.is_file() {
        return Err(Error::invalid(format!("not a file: `{}`", path.display())));
    }
    let mut start = Vec::new();
    Read::take(&mut file, MAGIC.len() as u64).read_to_end(&mut start).map_err(&about)?;
    let compressed = start == MAGIC;
    let whole: Chain<Cursor<Vec<u8>>, File> = Cursor::new(start).chain(file);
    match compressed {
        true => Ok(Box::new(zstd::Decoder::new(whole).map_err(about)?)),
        false => Ok(Box::new(BufReader::new(whole))),
    }
}

/// Writes an archive atomically.
pub(super) fn write(
    path: &Path,
    compressed: bool,
    fill: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    placed(path, |file| {
        let about = about("write", path);
        if !compressed {
            let mut out = std::io::BufWriter::new(file);
            fill(&mut out)?;
            return out.flush().map_err(about);
        }
        let mut out = zstd::Encoder::new(file, LEVEL).map_err(&about)?;
        fill(&mut out)?;
        out.finish().map(drop).map_err(about)
    })
}

/// Copies an archive unchanged.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut source = File::from(opened(from, OFlags::RDONLY).map_err(about("read", from))?);
    placed(to, |file| std::io::copy(&mut source, file).map(drop).map_err(about("write", to)))
}

/// Removes an archive file.
pub(super) fn remove(path: &Path) -> Result<()> {
    let (directory, name) = parts(path)?;
    let about = about("remove", path);
    let directory = opened(directory, OFlags::PATH | OFlags::DIRECTORY).map_err(&about)?;
    unlinkat(directory, name, AtFlags::empty()).map_err(|error| about(error.into()))
}

/// Writes a temporary file in the same directory, and renames it to its place.
fn placed(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let (directory, name) = parts(path)?;
    let about = about("write", path);
    let directory = opened(directory, OFlags::RDONLY | OFlags::DIRECTORY).map_err(&about)?;
    let unfinished = format!(".{}.{}", name.to_string_lossy(), super::exec_sessions::unguessable());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let file = rustix::fs::openat(&directory, unfinished.as_str(), flags, mode);
    let mut file = File::from(file.map_err(|error| about(error.into()))?);
    let filled = fill(&mut file).and_then(|()| {
        renameat(&directory, unfinished.as_str(), &directory, name)
            .map_err(|error| about(error.into()))
    });
    if filled.is_err() {
        let _ = unlinkat(&directory, unfinished.as_str(), AtFlags::empty());
    }
    filled
}
