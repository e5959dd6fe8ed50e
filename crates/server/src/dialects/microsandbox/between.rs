//! Copies from one sandbox to another, piece by piece: no path of the host is involved.

use super::scratch::Scratch;
use msb_api::{Api, EntryKind, Place};
use msb_spec::{Error, Kind, Result};
use msb_sys::sparse::{Budget, OverBudget, SparseWriter};
use std::fs::File;

/// Deeper than any tree that somebody made on purpose.
const DEEPEST: usize = 256;
/// Files, directories and links in one copy.
const MOST: u64 = 100_000;

/// Copies a file or tree, and tells how many bytes its files have. If there is a directory at the
/// target, it is merged into it.
pub(super) fn between(api: &dyn Api, from: (&Place, &[u8]), to: (&Place, &[u8])) -> Result<u64> {
    let scratch = Scratch::new()?;
    let mut copy = Copy { api, from: from.0, to: to.0, scratch, entries: 0, bytes: 0 };
    copy.entry(from.1, to.1, true, 0)?;
    Ok(copy.bytes)
}

struct Copy<'a> {
    api: &'a dyn Api,
    from: &'a Place,
    to: &'a Place,
    scratch: Scratch,
    entries: u64,
    bytes: u64,
}

impl Copy<'_> {
    fn entry(&mut self, from: &[u8], to: &[u8], follow: bool, depth: usize) -> Result<()> {
        self.entries += 1;
        if depth > DEEPEST || self.entries > MOST {
            return Err(Error::new(Kind::Limit, "the tree is too deep or too large to be copied")
                .hint("copy parts of it, or an archive that was made of it"));
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
            // Devices and the like belong to the sandbox they are in.
            EntryKind::Other | EntryKind::End => Ok(()),
        }
    }

    fn file(&mut self, from: &[u8], to: &[u8], mode: u32) -> Result<()> {
        let failed = |error: std::io::Error| match OverBudget::of(&error) {
            Some(why) => Error::new(Kind::Limit, "the file is too large to be copied").cause(why),
            None => Error::host("cannot keep what is copied for a moment", error),
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
