//! Digest of a directory tree: one line per entry, similar to mtree. Lines name what has changed.
//! Holes of files are not read.

use crate::helper_process::{Helper, HelperTask};
use crate::owners::Owners;
use crate::posix_acl;
use msb_spec::encoding::hex;
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

/// Deeper than real trees; each level holds a descriptor.
const DEPTH: usize = 400;

/// Summary of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeDigest {
    /// SHA-256 of all lines, which contain the digests of all files.
    pub digest: Digest,
    /// Number of entries in the tree.
    pub files: u64,
    /// Size of all files in bytes.
    pub bytes: u64,
}

/// How the digest of a file is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileDigest {
    /// SHA-256 of all bytes, including holes. Used by records from before `Sparse` existed.
    #[default]
    Plain,
    /// [`crate::digest_of_sparse`], which does not read holes: a sandbox can create exabytes of
    /// them in a moment.
    Sparse,
}

/// Describes a tree with ids that are `shift` higher than in the sandbox. The lines go to `out`.
pub fn digest_tree(
    program: PathBuf,
    owners: Owners,
    tree: &Path,
    (shift, digests): (u32, FileDigest),
    out: &mut dyn Write,
) -> Result<TreeDigest> {
    let failed = |error| Error::host("cannot write the description of a layer", error);
    let mut running =
        Helper { program, owners }.start(tree, HelperTask::TreeDigest { shift, digests })?;
    let mut hash = Sha256::new();
    if let Some(mut lines) = running.layer.take() {
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
    let (files, bytes) = running.reply()?;
    let digest = Digest::parse(&format!("sha256:{}", hex(hash.finalize())))?;
    Ok(TreeDigest { digest, files, bytes })
}

/// Writes the lines; runs in the helper. Returns the number of entries and the bytes of all files.
pub(crate) fn write_lines(
    root: BorrowedFd<'_>,
    (shift, digests): (u32, FileDigest),
    out: impl Write,
) -> Result<(u64, u64)> {
    let links = HashMap::new();
    let mut walker = TreeWalker { out, shift, digests, links, files: 0, bytes: 0 };
    let failed_at = |(path, error): (PathBuf, std::io::Error)| {
        Error::host(format!("cannot read `{}`", path.display()), error)
    };
    walker.directory(root, Path::new(""), 0).map_err(failed_at)?;
    walker.out.flush().map_err(|error| failed_at((PathBuf::new(), error)))?;
    Ok((walker.files, walker.bytes))
}

struct TreeWalker<W> {
    out: W,
    shift: u32,
    digests: FileDigest,
    links: HashMap<u64, PathBuf>,
    files: u64,
    bytes: u64,
}

type WalkResult = std::result::Result<(), (PathBuf, std::io::Error)>;

impl<W: Write> TreeWalker<W> {
    fn directory(&mut self, directory: BorrowedFd<'_>, at: &Path, depth: usize) -> WalkResult {
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
            self.entry(directory, name, &at.join(name), depth)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
        depth: usize,
    ) -> WalkResult {
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
        let (type_char, content, attributes, below) = match kind {
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
        let line = self.line(type_char, &stat, &content, &attributes, path);
        self.out.write_all(line.as_bytes()).map_err(failed)?;
        match below {
            Some(opened) => self.directory(opened.as_fd(), path, depth + 1),
            None => Ok(()),
        }
    }

    fn line(
        &self,
        type_char: &str,
        stat: &Stat,
        content: &str,
        attributes: &str,
        path: &Path,
    ) -> String {
        let own = |id: u32| id.wrapping_sub(self.shift);
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        format!(
            "{type_char} {:o} {} {} {}.{:09} {} {} {}\n",
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
            0 => return Ok(hex(hash.finalize())),
            length => hash.update(&buffer[..length]),
        }
    }
}

fn attributes(file: BorrowedFd<'_>, own: impl Fn(u32) -> u32) -> std::io::Result<String> {
    let attributes = posix_acl::xattrs_with_acls(file, own)?;
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
    Ok(hex(hash.finalize()))
}

/// Percent-encodes a path, so that it fits on one line.
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
