//! Bounded log files, which stay until the sandbox is removed.

pub(crate) use msb_spec::clock::now as now_ms;
use msb_spec::state::ROTATED;
use msb_wire::record::{Output, Source};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::path::{Path, PathBuf};

/// Bytes after which a log is rotated; one old file is kept, so at most two exist.
const OUTPUT_SIZE: u64 = 16 << 20;
const LINES_SIZE: u64 = 4 << 20;

/// A log file that is rotated when it is full. It is created with the first write.
#[derive(Debug)]
pub(crate) struct BoundedLog {
    path: PathBuf,
    limit: u64,
    open: Option<(File, u64)>,
    /// The first error, such as a full disk. A command must not fail because of it.
    failed: Option<io::Error>,
}

impl BoundedLog {
    pub(crate) fn of_output(directory: &Path) -> Self {
        Self::new(directory.join(msb_spec::state::OUTPUT), OUTPUT_SIZE)
    }

    pub(crate) fn of_lines(directory: &Path, name: &str) -> Self {
        Self::new(directory.join(name), LINES_SIZE)
    }

    fn new(path: PathBuf, limit: u64) -> Self {
        Self { path, limit, open: None, failed: None }
    }

    /// Appends output of an Exec.
    pub(crate) fn output(&mut self, source: Source, exec: u64, bytes: &[u8]) {
        let header = Output::header(source, exec, now_ms(), bytes.len());
        self.append(&[&header, bytes]);
    }

    /// Appends one line of JSON.
    pub(crate) fn line<T: Serialize>(&mut self, value: &T) {
        let mut line = serde_json::to_vec(value).expect("our own types always serialise");
        line.push(b'\n');
        self.append(&[&line, &[]]);
    }

    /// Rotates if so many bytes do not fit. Returns whether the next line is the first of its file.
    pub(crate) fn make_room(&mut self, length: u64) -> bool {
        let room = self.room_for(length).map(|(_, size)| *size == 0);
        room.unwrap_or_else(|error| {
            self.fail(error);
            true
        })
    }

    /// Appends whole lines without rotating; false, with nothing written, on failure.
    pub(crate) fn lines(&mut self, lines: &[u8]) -> bool {
        let written = self.write(&[lines, &[]], lines.len() as u64, 0);
        written.map_err(|error| self.fail(error)).is_ok()
    }

    pub(crate) fn fail(&mut self, error: io::Error) {
        tracing::warn!(%error, path = %self.path.display(), "cannot write a log");
        self.failed.get_or_insert(error);
    }

    /// The first error while writing.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    fn append(&mut self, parts: &[&[u8]; 2]) {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        if let Err(error) = self.write(parts, length, length) {
            self.fail(error);
        }
    }

    /// Opens the file, rotating it if `length` more bytes do not fit.
    fn room_for(&mut self, length: u64) -> io::Result<&mut (File, u64)> {
        let full = |size: u64| size > 0 && size + length > self.limit;
        if self.open.as_ref().is_some_and(|(_, size)| full(*size)) {
            self.open = None;
            let mut rotated = self.path.clone().into_os_string();
            rotated.push(ROTATED);
            fs::rename(&self.path, rotated)?;
        }
        if self.open.is_none() {
            let file = File::options().append(true).create(true).open(&self.path)?;
            let size = file.metadata()?.len();
            self.open = Some((file, size));
        }
        Ok(self.open.as_mut().expect("it was opened"))
    }

    fn write(&mut self, parts: &[&[u8]; 2], length: u64, room: u64) -> io::Result<()> {
        let (file, size) = self.room_for(room)?;
        let write = |file: &mut File| -> io::Result<()> {
            let slices = [IoSlice::new(parts[0]), IoSlice::new(parts[1])];
            let written = file.write_vectored(&slices)? as u64;
            if written == length {
                return Ok(());
            }
            // A short write: append the rest of both parts.
            let rest: Vec<u8> = parts.concat().split_off(written as usize);
            file.write_all(&rest)
        };
        // Truncate a partial record, so that the next one is not read as its rest.
        write(file).inspect_err(|_| drop(file.set_len(*size)))?;
        *size += length;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_is_rotated_once() {
        let directory = std::env::temp_dir().join(format!("msb-log-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut log = BoundedLog::new(directory.join("x.log"), 1000);
        for _ in 0..100 {
            log.output(Source::Stdout, 1, &[b'x'; 100]);
        }
        let sizes =
            ["x.log", "x.log.1"].map(|name| fs::metadata(directory.join(name)).unwrap().len());
        assert!(sizes.iter().all(|size| *size <= 1000 && *size > 0), "{sizes:?}");
        assert!(log.failure().is_none());
        fs::remove_dir_all(directory).unwrap();
    }
}
