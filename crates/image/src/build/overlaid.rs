//! What sandboxes wrote into directories, as one read-only disk for microVMs.

use super::making::Written;
use crate::apart::{Apart, Task};
use crate::disks::MAKING;
use crate::owners::Owners;
use crate::pack::{Marks, Packed};
use crate::store::{Store, unusable};
use msb_spec::{Error, Kind, Result};
use msb_sys::sparse::{Budget, SparseWriter};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

impl Store {
    /// Packs what sandboxes wrote, the lowest first, into a disk in an empty directory of ours;
    /// none if they wrote nothing. `owners` is who their files belong to. Each is below the name
    /// that its `at` says, with marks for what it removes.
    pub fn pack_disk(
        &self,
        written: Vec<Written<'_>>,
        marks: Marks,
        uuid: [u8; 16],
        owners: Owners,
        directory: &Path,
    ) -> Result<Option<PathBuf>> {
        let apart = Apart { program: self.apart().program.clone(), owners };
        let mut spooled = Vec::new();
        for (number, written) in written.into_iter().enumerate() {
            let path = directory.join(format!("layer{number}"));
            spooled.extend(self.spool(&apart, written, &path)?);
        }
        if spooled.is_empty() {
            return Ok(None);
        }
        let sizes = spooled.iter().map(|(_, size)| *size).collect();
        let task = Task::Disk { sizes, bounds: self.bounds(), uuid, marks: Some(marks) };
        let mut work = self.packer().start(directory, task)?;
        if let Some(mut stdin) = work.stdin.take() {
            for (mut file, _) in spooled {
                // One that has died tells why in its answer.
                if io::copy(&mut file, &mut stdin).is_err() {
                    break;
                }
            }
        }
        work.answer::<Packed>()?;
        let disk = directory.join(MAKING);
        File::open(&disk)
            .and_then(|file| file.sync_all())
            .map_err(|error| unusable(&disk, error))?;
        Ok(Some(disk))
    }

    /// Writes one layer aside, since its size has to be known before it is read. The file has no
    /// name any more. None if the layer holds nothing.
    fn spool(&self, apart: &Apart, written: Written<'_>, at: &Path) -> Result<Option<(File, u64)>> {
        let about = |error: io::Error| unusable(at, error);
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(at);
        let mut file = file.map_err(about)?;
        fs::remove_file(at).map_err(about)?;
        let Written { upper, at, below, shift, missing, covered, latest } = written;
        let task = Task::Pack { at, shift, missing, covered, latest };
        let mut work = apart.start_reading(upper, below, task)?;
        let most = self.bounds().bytes;
        let copied = match work.layer.take() {
            Some(layer) => spooled(layer.take(most.saturating_add(1)), &file),
            None => Ok(0),
        };
        let any: bool = work.answer()?;
        let size = copied.map_err(|error| Error::host("cannot write a layer aside", error))?;
        if size > most {
            return Err(Error::new(Kind::Limit, "a layer holds more bytes than one may"));
        }
        io::Seek::rewind(&mut file).map_err(|error| Error::host("cannot read a layer", error))?;
        Ok(any.then_some((file, size)))
    }
}

/// Writes a stream to an empty file. Zeros, which the holes of files became, become holes again.
fn spooled(mut layer: impl Read, file: &File) -> io::Result<u64> {
    let mut budget = Budget::default();
    let mut writer = SparseWriter::new(file, &mut budget);
    let mut piece = vec![0; 256 << 10];
    loop {
        match layer.read(&mut piece) {
            Ok(0) => return writer.finish(),
            Ok(read) => writer.data_or_holes(&piece[..read])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
