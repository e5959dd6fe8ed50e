//! Packs overlay upper directories into one read-only EROFS disk for microVMs.

use super::build_store::UpperLayer;
use crate::disks::DISK_FILE;
use crate::helper_process::{Helper, HelperTask};
use crate::owners::Owners;
use crate::pack::{OverlayXattrs, PackedDisk};
use crate::store::{Store, storage_error};
use msb_spec::{Error, Kind, Result};
use msb_sys::sparse::{Budget, SparseWriter};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

impl Store {
    /// Packs upper directories, lowest first, into a disk in an empty directory; none if they are
    /// empty. `owners` is the id mapping of their files. Each is placed at its path `at`, with
    /// whiteouts and opaque marks.
    pub fn pack_disk(
        &self,
        written: Vec<UpperLayer<'_>>,
        marks: OverlayXattrs,
        uuid: [u8; 16],
        owners: Owners,
        directory: &Path,
    ) -> Result<Option<PathBuf>> {
        let helper = Helper { program: self.helper().program.clone(), owners };
        let mut spooled = Vec::new();
        for (number, written) in written.into_iter().enumerate() {
            let path = directory.join(format!("layer{number}"));
            spooled.extend(self.spool(&helper, written, &path)?);
        }
        if spooled.is_empty() {
            return Ok(None);
        }
        let sizes = spooled.iter().map(|(_, size)| *size).collect();
        let task = HelperTask::Disk { sizes, bounds: self.bounds(), uuid, marks: Some(marks) };
        let mut running = self.single_id_helper().start(directory, task)?;
        if let Some(mut stdin) = running.stdin.take() {
            for (mut file, _) in spooled {
                // If the helper has died, its reply says why.
                if io::copy(&mut file, &mut stdin).is_err() {
                    break;
                }
            }
        }
        running.reply::<PackedDisk>()?;
        let disk = directory.join(DISK_FILE);
        File::open(&disk)
            .and_then(|file| file.sync_all())
            .map_err(|error| storage_error(&disk, error))?;
        Ok(Some(disk))
    }

    /// Writes one layer to an unlinked temporary file, because its size must be known before it is
    /// packed. None if the layer is empty.
    fn spool(
        &self,
        helper: &Helper,
        written: UpperLayer<'_>,
        at: &Path,
    ) -> Result<Option<(File, u64)>> {
        let storage_failed = |error: io::Error| storage_error(at, error);
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(at);
        let mut file = file.map_err(storage_failed)?;
        fs::remove_file(at).map_err(storage_failed)?;
        let UpperLayer { upper, at, below, shift, missing, covered, latest } = written;
        let task = HelperTask::Pack { at, shift, missing, covered, latest };
        let mut running = helper.start_reading(upper, below, task)?;
        let most = self.bounds().bytes;
        let copied = match running.layer.take() {
            Some(layer) => spool_stream(layer.take(most.saturating_add(1)), &file),
            None => Ok(0),
        };
        let any: bool = running.reply()?;
        let size = copied.map_err(|error| Error::host("cannot write a temporary layer", error))?;
        if size > most {
            return Err(Error::new(Kind::Limit, "a layer is larger than the limit"));
        }
        io::Seek::rewind(&mut file).map_err(|error| Error::host("cannot read a layer", error))?;
        Ok(any.then_some((file, size)))
    }
}

/// Writes a stream to an empty file. Blocks of zeros become holes.
fn spool_stream(mut layer: impl Read, file: &File) -> io::Result<u64> {
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
