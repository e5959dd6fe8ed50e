//! `msb cp` with `-`: a file or a tar archive on stdout, and from stdin.
//!
//! Listings come from a hostile guest, and an archive on stdin from anywhere: each name is checked,
//! and no entry of an archive is written through a link that the archive has made.

use crate::output;
use msb_api::{Api, Attributes, CopyCount, EntryKind, Place};
use msb_spec::{Error, Kind, Result, shown};
use msb_wire::Meta;
use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Read, Write};
use tar::{EntryType, Header};

/// Deepest tree that is archived; real trees are not that deep.
const MAX_DEPTH: usize = 256;
/// Most entries of an archive: a hostile guest would list an endless tree.
const MAX_ENTRIES: u64 = 10_000_000;
/// Unit of a tar archive, in bytes.
const BLOCK: u64 = 512;

/// A file or tree inside a sandbox, on its way to or from a stream.
pub(super) struct StreamCopy<'a> {
    pub(super) api: &'a dyn Api,
    pub(super) place: &'a Place,
    pub(super) copied: CopyCount,
}

impl StreamCopy<'_> {
    /// Writes a file as it is, and a directory as a tar archive.
    pub(super) fn write(&mut self, path: &[u8], out: &mut dyn Write) -> Result<()> {
        let meta = self.api.file_stat(self.place, path, true)?;
        match meta.kind {
            EntryKind::File => {
                let (place, copied) = (self.place, &mut self.copied);
                copied.entries += 1;
                let shows = io::stdout().is_terminal();
                self.api.file_read(place, path, 0, None, &mut |bytes| {
                    copied.bytes += bytes.len() as u64;
                    // A file may hold what moves the cursor or worse.
                    match shows {
                        true => out.write_all(output::harmless(bytes).as_bytes()),
                        false => out.write_all(bytes),
                    }
                    .map_err(unwritable)
                })
            }
            EntryKind::Directory if io::stdout().is_terminal() => {
                Err(Error::invalid("an archive is not written to a terminal")
                    .hint("`msb cp NAME:PATH - > x.tar`, or `| tar -tv`"))
            }
            EntryKind::Directory => {
                let name = path.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty());
                let name = name.filter(|name| *name != b"..").unwrap_or(b".");
                self.directory(path, name, &meta, 0, out)?;
                // Two empty blocks end an archive.
                out.write_all(&[0; 2 * BLOCK as usize]).map_err(unwritable)
            }
            _ => Err(Error::invalid(format!("not a file or directory: `{}`", text(path)))),
        }
    }

    fn directory(
        &mut self,
        path: &[u8],
        name: &[u8],
        meta: &Meta,
        depth: usize,
        out: &mut dyn Write,
    ) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::new(Kind::Limit, format!("the tree is too deep: `{}`", text(path))));
        }
        let mut shown_name = name.to_vec();
        shown_name.push(b'/');
        self.header(&shown_name, EntryType::Directory, None, meta, out)?;
        for entry in self.api.file_list(self.place, path)? {
            if !is_name(&entry.name) {
                let message = format!("not a valid file name: `{}`", text(&entry.name));
                return Err(Error::new(Kind::Protocol, message));
            }
            let below = |directory: &[u8]| join(directory, &entry.name);
            let (path, name) = (below(path), below(name));
            match &entry.kind {
                EntryKind::Directory => self.directory(&path, &name, &entry, depth + 1, out)?,
                EntryKind::Symlink(target) => {
                    self.header(&name, EntryType::Symlink, Some(target), &entry, out)?;
                }
                EntryKind::File => self.file(&path, &name, &entry, out)?,
                EntryKind::Other | EntryKind::End => self.copied.left_out += 1,
            }
        }
        Ok(())
    }

    /// Writes exactly as many bytes as the header says, whatever becomes of the file meanwhile.
    fn file(&mut self, path: &[u8], name: &[u8], meta: &Meta, out: &mut dyn Write) -> Result<()> {
        self.header(name, EntryType::Regular, None, meta, out)?;
        let mut left = meta.size;
        self.api.file_read(self.place, path, 0, Some(meta.size), &mut |bytes| {
            left = left.saturating_sub(bytes.len() as u64);
            out.write_all(bytes).map_err(unwritable)
        })?;
        let padding = meta.size.next_multiple_of(BLOCK) - meta.size;
        io::copy(&mut io::repeat(0).take(left + padding), out).map_err(unwritable)?;
        self.copied.bytes += meta.size;
        Ok(())
    }

    fn header(
        &mut self,
        name: &[u8],
        kind: EntryType,
        target: Option<&[u8]>,
        meta: &Meta,
        out: &mut dyn Write,
    ) -> Result<()> {
        self.copied.entries += 1;
        if self.copied.entries > MAX_ENTRIES {
            return Err(Error::new(Kind::Limit, "the tree has too many entries"));
        }
        let mut header = Header::new_gnu();
        let size = if kind == EntryType::Regular { meta.size } else { 0 };
        header.set_entry_type(kind);
        header.set_mode(meta.mode & 0o777);
        header.set_uid(meta.uid.into());
        header.set_gid(meta.gid.into());
        header.set_mtime(u64::try_from(meta.modified / 1000).unwrap_or(0));
        header.set_size(size);
        let target = target.unwrap_or_default();
        put(&mut header.as_old_mut().name, name, EntryType::GNULongName, out)?;
        put(&mut header.as_old_mut().linkname, target, EntryType::GNULongLink, out)?;
        header.set_cksum();
        out.write_all(header.as_bytes()).map_err(unwritable)
    }

    /// Reads a tar archive into a directory that is there; anything else becomes a file.
    pub(super) fn read(&mut self, path: &[u8], input: &mut dyn Read) -> Result<()> {
        let is_directory = match self.api.file_stat(self.place, path, true) {
            Ok(meta) => meta.kind == EntryKind::Directory,
            Err(error) if error.kind() == Kind::NotFound && !path.ends_with(b"/") => false,
            Err(error) => return Err(error),
        };
        if is_directory {
            return self.unpack(path, input);
        }
        self.copied.entries += 1;
        // The mode of the file that it replaces.
        let old = self.api.file_stat(self.place, path, false).ok();
        match old {
            Some(old) if old.kind != EntryKind::File => {
                self.copied.bytes += self.api.file_write(self.place, path, 0o644, false, input)?;
                Ok(())
            }
            old => self.put_file(path, old.map_or(0o644, |old| old.mode & 0o777), input),
        }
    }

    /// Writes a file beside its path and renames it.
    fn put_file(&mut self, path: &[u8], mode: u32, content: &mut dyn Read) -> Result<()> {
        let draft = [path, format!(".msb-{}", std::process::id()).as_bytes()].concat();
        let written = self.api.file_write(self.place, &draft, mode, false, content);
        let put = written.and_then(|bytes| {
            self.api.file_rename(self.place, &draft, path)?;
            Ok(bytes)
        });
        self.copied.bytes += put.inspect_err(|_| {
            let _ = self.api.file_remove(self.place, &draft, true);
        })?;
        Ok(())
    }

    fn unpack(&mut self, root: &[u8], input: &mut dyn Read) -> Result<()> {
        let mut archive = tar::Archive::new(input);
        let mut links: BTreeSet<Vec<u8>> = BTreeSet::new();
        let mut modes: Vec<(Vec<u8>, u32)> = Vec::new();
        for entry in archive.entries().map_err(not_an_archive)? {
            let mut entry = entry.map_err(not_an_archive)?;
            let Some(below) = below_root(&entry.path_bytes(), &links)? else { continue };
            let path = join(root, &below);
            let mode = entry.header().mode().map_err(not_an_archive)? & 0o777;
            let kind = entry.header().entry_type();
            if is_sparse(&mut entry)? {
                let message = format!("a sparse file in the archive: `{}`", text(&below));
                return Err(Error::unsupported(message).hint("make it without `--sparse`"));
            }
            if links.remove(&below) {
                // A directory would be the one that the link leads to.
                if kind == EntryType::Directory {
                    return Err(leads_out(&below));
                }
                self.api.file_remove(self.place, &path, false)?;
            }
            self.copied.entries += 1;
            match kind {
                EntryType::Directory => {
                    self.api.file_mkdir(self.place, &path, true)?;
                    modes.push((path, mode));
                }
                EntryType::Regular | EntryType::Continuous => {
                    self.parents(root, &below)?;
                    self.put_file(&path, mode, &mut entry)?;
                }
                EntryType::Symlink => {
                    let target = entry.link_name_bytes().unwrap_or_default();
                    self.api.file_symlink(self.place, &path, &target)?;
                    links.insert(below);
                }
                EntryType::Link => {
                    let target = entry.link_name_bytes().unwrap_or_default();
                    let from = below_root(&target, &links)?.filter(|from| !links.contains(from));
                    let from = from.ok_or_else(|| leads_out(&target))?;
                    self.parents(root, &below)?;
                    self.api.file_copy(self.place, &join(root, &from), &path)?;
                }
                _ => {
                    self.copied.entries -= 1;
                    self.copied.left_out += 1;
                }
            }
        }
        // Last: a mode may forbid creating entries.
        for (path, mode) in modes.into_iter().rev() {
            let attributes = Attributes { mode: Some(mode), ..Attributes::default() };
            self.api.file_set(self.place, &path, &attributes)?;
        }
        Ok(())
    }

    /// Makes the directories that an archive has no entries of.
    fn parents(&self, root: &[u8], below: &[u8]) -> Result<()> {
        match below.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => self.api.file_mkdir(self.place, &join(root, &below[..slash]), true),
            None => Ok(()),
        }
    }
}

/// Puts a name into its field of a header; one that is too long goes into an entry of its own.
fn put(field: &mut [u8], name: &[u8], long: EntryType, out: &mut dyn Write) -> Result<()> {
    let length = name.len().min(field.len());
    field[..length].copy_from_slice(&name[..length]);
    if name.len() <= field.len() {
        return Ok(());
    }
    let mut header = Header::new_gnu();
    let size = name.len() as u64 + 1;
    header.as_old_mut().name[..13].copy_from_slice(b"././@LongLink");
    header.set_entry_type(long);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    let padding = vec![0; (size.next_multiple_of(BLOCK) - size + 1) as usize];
    let written = [header.as_bytes(), name, &padding].iter().try_for_each(|it| out.write_all(it));
    written.map_err(unwritable)
}

/// The path of an entry below the root; none for the root itself. Fails if it leads out of it, or
/// through a link of the same archive.
fn below_root(path: &[u8], links: &BTreeSet<Vec<u8>>) -> Result<Option<Vec<u8>>> {
    let mut below: Vec<u8> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => continue,
            _ if part == b".." || part.contains(&0) || links.contains(&below) => {
                return Err(leads_out(path));
            }
            _ if below.is_empty() => below.extend_from_slice(part),
            _ => below = join(&below, part),
        }
    }
    Ok((!below.is_empty()).then_some(below))
}

/// Whether an entry has holes: a few bytes of it can claim any size.
fn is_sparse<R: Read>(entry: &mut tar::Entry<'_, R>) -> Result<bool> {
    if entry.header().entry_type() == EntryType::GNUSparse {
        return Ok(true);
    }
    let Some(extensions) = entry.pax_extensions().map_err(not_an_archive)? else {
        return Ok(false);
    };
    for extension in extensions {
        if extension.map_err(not_an_archive)?.key_bytes().starts_with(b"GNU.sparse.") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether it is the name of one entry of a directory.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

fn text(bytes: &[u8]) -> String {
    shown(&String::from_utf8_lossy(bytes).chars().take(300).collect::<String>())
}

fn unwritable(error: io::Error) -> Error {
    Error::host("cannot write to stdout", error)
}

fn not_an_archive(error: io::Error) -> Error {
    Error::invalid("what comes on stdin is not a tar archive").cause(error).hint(
        "into a directory goes a tar archive, not a compressed one; `NAME:DIR/FILE` takes any bytes",
    )
}

fn leads_out(path: &[u8]) -> Error {
    Error::new(Kind::Denied, format!("an entry leads out of the archive: `{}`", text(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_leads_out_of_the_archive() {
        let links = BTreeSet::from([b"a/link".to_vec()]);
        let below = |path: &str| below_root(path.as_bytes(), &links).ok();
        assert_eq!(below("./a//b/"), Some(Some(b"a/b".to_vec())));
        assert_eq!(below("/etc/x"), Some(Some(b"etc/x".to_vec())));
        assert_eq!(below("./"), Some(None));
        assert_eq!(below("a/link"), Some(Some(b"a/link".to_vec())));
        for bad in ["..", "a/../../x", "a/link/x", "a/./link/x"] {
            assert_eq!(below(bad), None, "{bad}");
        }
    }

    #[test]
    fn long_names_are_read_by_others() {
        let (name, mut out) = (vec![b'n'; 300], Vec::new());
        let mut header = Header::new_gnu();
        put(&mut header.as_old_mut().name, &name, EntryType::GNULongName, &mut out).unwrap();
        header.set_entry_type(EntryType::Regular);
        header.set_size(0);
        header.set_cksum();
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(&[0; 1024]);
        let mut archive = tar::Archive::new(&*out);
        let entry = archive.entries().unwrap().next().unwrap().unwrap();
        assert_eq!(&*entry.path_bytes(), name);
    }
}
