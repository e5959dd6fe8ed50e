//! Copies files from one sandbox to another, through a temporary file and without client paths.

use super::temp_dir::TempDir;
use msb_api::{Api, EntryKind, Place};
use msb_spec::{Error, Kind, Result};
use msb_sys::sparse::{Budget, OverBudget, SparseWriter};
use std::fs::File;

/// Deepest tree that is copied; real trees are not that deep.
const DEEPEST: usize = 256;
/// Most files, directories and links in one copy.
const MOST: u64 = 100_000;

/// Copies a file or tree, and returns the bytes of its files. An existing target directory is
/// merged.
pub(super) fn between(api: &dyn Api, from: (&Place, &[u8]), to: (&Place, &[u8])) -> Result<u64> {
    let scratch = TempDir::new()?;
    let mut copy = TreeCopy { api, from: from.0, to: to.0, scratch, entries: 0, bytes: 0 };
    copy.entry(from.1, to.1, true, 0)?;
    Ok(copy.bytes)
}

struct TreeCopy<'a> {
    api: &'a dyn Api,
    from: &'a Place,
    to: &'a Place,
    scratch: TempDir,
    entries: u64,
    bytes: u64,
}

impl TreeCopy<'_> {
    fn entry(&mut self, from: &[u8], to: &[u8], follow: bool, depth: usize) -> Result<()> {
        self.entries += 1;
        if depth > DEEPEST || self.entries > MOST {
            return Err(Error::new(Kind::Limit, "the tree is too deep or too large to be copied")
                .hint("copy parts of it, or a tar archive of it"));
        }
        let meta = self.api.file_stat(self.from, from, follow)?;
        match &meta.kind {
            EntryKind::File => self.file(from, to, meta.mode & 0o7777),
            EntryKind::Directory => {
                self.api.file_mkdir(self.to, to, true)?;
                for entry in self.api.file_list(self.from, from)? {
                    let below = |directory: &[u8]| [directory, b"/", &entry.name].concat();
                    self.entry(&below(from), &below(to), false, depth + 1)?;
                }
                Ok(())
            }
            EntryKind::Symlink(target) => self.api.file_symlink(self.to, to, target),
            // Devices and the like are not copied.
            EntryKind::Other | EntryKind::End => Ok(()),
        }
    }

    fn file(&mut self, from: &[u8], to: &[u8], mode: u32) -> Result<()> {
        let failed = |error: std::io::Error| match OverBudget::of(&error) {
            Some(why) => Error::new(Kind::Limit, "the file is too large to be copied").cause(why),
            None => Error::host("cannot write a temporary file", error),
        };
        let held = self.scratch.path().join("file");
        let file = File::create(&held).map_err(failed)?;
        let mut budget = Budget::default();
        let mut writer = SparseWriter::new(&file, &mut budget);
        let mut take = |piece: &[u8]| writer.data_or_holes(piece).map_err(failed);
        self.api.file_read(self.from, from, 0, None, &mut take)?;
        writer.finish().map_err(failed)?;
        let mut file = File::open(&held).map_err(failed)?;
        self.bytes += self.api.file_write(self.to, to, mode, false, &mut file)?;
        Ok(())
    }
}
