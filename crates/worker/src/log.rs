//! Bounded files that survive the sandbox until it is removed.

use msb_spec::state::ROTATED;
use msb_wire::record::{Output, Source};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, IoSlice, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A full log is renamed and begun anew, so at most two of these exist.
const OUTPUT_SIZE: u64 = 16 << 20;
const LINES_SIZE: u64 = 4 << 20;

/// A file that starts over when it is full. It is made when something is first written.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    limit: u64,
    open: Option<(File, u64)>,
    /// The first failure; the disk may be full, and a command must not die of that.
    failed: Option<io::Error>,
}

impl Log {
    pub(crate) fn of_output(directory: &Path) -> Self {
        Self::new(directory.join(msb_spec::state::OUTPUT), OUTPUT_SIZE)
    }

    pub(crate) fn of_lines(directory: &Path, name: &str) -> Self {
        Self::new(directory.join(name), LINES_SIZE)
    }

    fn new(path: PathBuf, limit: u64) -> Self {
        Self { path, limit, open: None, failed: None }
    }

    /// Adds some output of an Exec.
    pub(crate) fn output(&mut self, source: Source, exec: u64, bytes: &[u8]) {
        let header = Output::header(source, exec, now_ms(), bytes.len());
        self.append(&[&header, bytes]);
    }

    /// Adds a JSON line.
    pub(crate) fn line<T: Serialize>(&mut self, value: &T) {
        let mut line = serde_json::to_vec(value).expect("our own types always serialise");
        line.push(b'\n');
        self.append(&[&line, &[]]);
    }

    /// Makes room for so many bytes; whether what comes next is the first of a file.
    pub(crate) fn begin(&mut self, length: u64) -> bool {
        let begun = self.room_for(length).map(|(_, size)| *size == 0);
        begun.unwrap_or_else(|error| {
            self.fail(error);
            true
        })
    }

    /// Adds whole lines, for which there is room; all of them or, which is false, none.
    pub(crate) fn lines(&mut self, lines: &[u8]) -> bool {
        let written = self.write(&[lines, &[]], lines.len() as u64, 0);
        written.map_err(|error| self.fail(error)).is_ok()
    }

    pub(crate) fn fail(&mut self, error: io::Error) {
        self.failed.get_or_insert(error);
    }

    /// Why something could not be written.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failed.as_ref()
    }

    fn append(&mut self, parts: &[&[u8]; 2]) {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        if let Err(error) = self.write(parts, length, length) {
            self.fail(error);
        }
    }

    /// The file, with room for so many bytes more if it is not begun with them.
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
            // A short write: finish byte by byte, whichever part it ended in.
            let rest: Vec<u8> = parts.concat().split_off(written as usize);
            file.write_all(&rest)
        };
        // What comes next must not be taken for the rest of what did not fit.
        write(file).inspect_err(|_| drop(file.set_len(*size)))?;
        *size += length;
        Ok(())
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_starts_over_and_keeps_one_before_it() {
        let directory = std::env::temp_dir().join(format!("msb-log-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut log = Log::new(directory.join("x.log"), 1000);
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
