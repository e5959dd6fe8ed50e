//! What a tree holds, line by line, so that a single changed bit is found and named. Holes of files
//! are not read.

use crate::acl;
use crate::apart::{Apart, Task};
use crate::owners::Owners;
use msb_spec::{Digest, Error, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Deeper than any tree that people make; each level holds a descriptor.
const DEPTH: usize = 400;

/// What was found out about a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// Of the description, which holds the digests of all files.
    pub digest: Digest,
    /// Everything in it.
    pub files: u64,
    /// Bytes of its files.
    pub bytes: u64,
}

/// How the digest of a file is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileDigest {
    /// SHA-256 of all bytes, those of holes too: what was written down before `Sparse` was known.
    #[default]
    Plain,
    /// [`crate::digest_of_sparse`], for which holes are not read: a sandbox can make exabytes of them
    /// in a moment.
    Sparse,
}

/// Describes a tree whose root inside is `shift` on disk; the lines go to `out`.
pub fn seal(
    program: PathBuf,
    owners: Owners,
    tree: &Path,
    (shift, digests): (u32, FileDigest),
    out: &mut dyn Write,
) -> Result<Seal> {
    let failed = |error| Error::host("cannot write what a layer holds", error);
    let mut work = Apart { program, owners }.start(tree, Task::Seal { shift, digests })?;
    let mut hash = Sha256::new();
    if let Some(mut lines) = work.layer.take() {
        let mut buffer = vec![0; 256 << 10];
        loop {
            let length = lines.read(&mut buffer).map_err(failed)?;
            if length == 0 {
                break;
            }
            hash.update(&buffer[..length]);
            out.write_all(&buffer[..length]).map_err(failed)?;
        }
    }
    let (files, bytes) = work.answer()?;
    let digest = Digest::parse(&format!("sha256:{}", hex(&hash.finalize())))?;
    Ok(Seal { digest, files, bytes })
}

/// Writes the lines; how many there are, and the bytes of all files.
pub(crate) fn describe(
    root: BorrowedFd<'_>,
    (shift, digests): (u32, FileDigest),
    out: impl Write,
) -> Result<(u64, u64)> {
    let links = HashMap::new();
    let mut describing = Describing { out, shift, digests, links, files: 0, bytes: 0 };
    let told = |(path, error): (PathBuf, std::io::Error)| {
        Error::host(format!("cannot read `{}`", path.display()), error)
    };
    describing.directory(root, Path::new(""), 0).map_err(told)?;
    describing.out.flush().map_err(|error| told((PathBuf::new(), error)))?;
    Ok((describing.files, describing.bytes))
}

struct Describing<W> {
    out: W,
    shift: u32,
    digests: FileDigest,
    links: HashMap<u64, PathBuf>,
    files: u64,
    bytes: u64,
}

type Told = std::result::Result<(), (PathBuf, std::io::Error)>;

impl<W: Write> Describing<W> {
    fn directory(&mut self, directory: BorrowedFd<'_>, at: &Path, depth: usize) -> Told {
        let failed = |error: rustix::io::Errno| (at.to_owned(), error.into());
        if depth > DEPTH {
            return Err(failed(rustix::io::Errno::NAMETOOLONG));
        }
        let mut names: Vec<OsString> = Vec::new();
        for entry in rustix::fs::Dir::read_from(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        names.sort();
        for name in &names {
            self.one(directory, name, &at.join(name), depth)?;
        }
        Ok(())
    }

    fn one(&mut self, parent: BorrowedFd<'_>, name: &OsStr, path: &Path, depth: usize) -> Told {
        let failed = |error: std::io::Error| (path.to_owned(), error);
        let refused = |error: rustix::io::Errno| (path.to_owned(), error.into());
        let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(refused)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let open = |flags: OFlags| {
            let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(refused)
        };
        self.files += 1;
        let shift = self.shift;
        let own = |id: u32| id.wrapping_sub(shift);
        let (letter, content, attributes, below) = match kind {
            FileType::RegularFile if stat.st_nlink > 1 && self.links.contains_key(&stat.st_ino) => {
                let first = escaped(&self.links[&stat.st_ino]);
                ("h", first, String::new(), None)
            }
            FileType::RegularFile => {
                if stat.st_nlink > 1 {
                    self.links.insert(stat.st_ino, path.to_owned());
                }
                let file = File::from(open(OFlags::NONBLOCK)?);
                let attributes = attributes(file.as_fd(), own).map_err(failed)?;
                self.bytes += u64::try_from(stat.st_size).unwrap_or(0);
                ("f", digest(&file, self.digests).map_err(failed)?, attributes, None)
            }
            FileType::Directory => {
                let opened = open(OFlags::DIRECTORY)?;
                let attributes = attributes(opened.as_fd(), own).map_err(failed)?;
                ("d", String::new(), attributes, Some(opened))
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent, name, Vec::new()).map_err(refused)?;
                let target = escaped(Path::new(OsStr::from_bytes(target.as_bytes())));
                ("l", target, String::new(), None)
            }
            FileType::Fifo => ("p", String::new(), String::new(), None),
            FileType::Socket => ("s", String::new(), String::new(), None),
            _ => ("c", stat.st_rdev.to_string(), String::new(), None),
        };
        let line = self.line(letter, &stat, &content, &attributes, path);
        self.out.write_all(line.as_bytes()).map_err(failed)?;
        match below {
            Some(opened) => self.directory(opened.as_fd(), path, depth + 1),
            None => Ok(()),
        }
    }

    fn line(
        &self,
        letter: &str,
        stat: &Stat,
        content: &str,
        attributes: &str,
        path: &Path,
    ) -> String {
        let own = |id: u32| id.wrapping_sub(self.shift);
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        format!(
            "{letter} {:o} {} {} {}.{:09} {} {} {}\n",
            stat.st_mode & 0o7777,
            own(stat.st_uid),
            own(stat.st_gid),
            stat.st_mtime,
            stat.st_mtime_nsec,
            or_dash(content),
            or_dash(attributes),
            escaped(path)
        )
    }
}

fn digest(mut file: &File, digests: FileDigest) -> std::io::Result<String> {
    if digests == FileDigest::Sparse {
        return Ok(crate::digest_of_sparse(file)?.hex().to_owned());
    }
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            length => hash.update(&buffer[..length]),
        }
    }
}

fn attributes(file: BorrowedFd<'_>, own: impl Fn(u32) -> u32) -> std::io::Result<String> {
    let attributes = acl::with_lists(file, own)?;
    if attributes.is_empty() {
        return Ok(String::new());
    }
    let mut hash = Sha256::new();
    for (name, value) in &attributes {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update((value.len() as u64).to_le_bytes());
        hash.update(value);
    }
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A path on one line, whatever bytes are in it.
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'%' | 0..=32 | 127..=255 => {
                let _ = write!(text, "%{byte:02x}");
            }
            _ => text.push(char::from(*byte)),
        }
    }
    text
}
