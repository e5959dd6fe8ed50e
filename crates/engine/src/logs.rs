//! Reads the bounded output log of a sandbox as lines.

pub use msb_api::{LogFilter as Filter, LogLine as Line};
use msb_spec::{Error, Result, state};
use msb_wire::record::Output;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Reads the output log of a sandbox, and follows it as it grows.
#[derive(Debug)]
pub struct Reader {
    directory: PathBuf,
    filter: Filter,
    file: Option<File>,
    pending: Vec<u8>,
    /// The incomplete line of each stream of each Exec.
    open: Vec<Line>,
}

/// The longest line in bytes. Longer ones are split; binary data has no line ends.
const LINE_LIMIT: usize = 64 << 10;

impl Reader {
    pub(crate) fn new(directory: &Path, filter: Filter) -> Self {
        let directory = directory.to_owned();
        Self { directory, filter, file: None, pending: Vec::new(), open: Vec::new() }
    }

    /// All lines so far, from the rotated file first.
    pub fn all(&mut self) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        let rotated = self.directory.join(format!("{}{}", state::OUTPUT, state::ROTATED));
        if let Some(file) = open(&rotated)? {
            self.file = Some(file);
            lines.extend(self.read_on()?);
        }
        self.file = None;
        self.pending.clear();
        lines.extend(self.more()?);
        Ok(lines)
    }

    /// The lines since the last call.
    pub fn more(&mut self) -> Result<Vec<Line>> {
        let path = self.directory.join(state::OUTPUT);
        let mut lines = Vec::new();
        if let Some(file) = &self.file {
            let current = std::fs::metadata(&path).ok().map(|meta| meta.ino());
            let ours = file.metadata().ok().map(|meta| meta.ino());
            if current != ours {
                // The log was rotated: read the rest of the old file first.
                lines.extend(self.read_on()?);
                self.file = None;
                self.pending.clear();
            }
        }
        if self.file.is_none() {
            self.file = open(&path)?;
        }
        lines.extend(self.read_on()?);
        Ok(lines)
    }

    /// The remaining lines without a line end.
    pub fn rest(&mut self) -> Vec<Line> {
        let open = std::mem::take(&mut self.open);
        open.into_iter().filter(|line| self.wanted(line)).collect()
    }

    fn read_on(&mut self) -> Result<Vec<Line>> {
        let Some(file) = &mut self.file else {
            return Ok(Vec::new());
        };
        let failed = |error| Error::host("cannot read the log", error);
        file.read_to_end(&mut self.pending).map_err(failed)?;
        let mut used = 0;
        let mut lines = Vec::new();
        while let Some((output, length)) = Output::parse(&self.pending[used..]) {
            used += length;
            self.split(&output, &mut lines);
        }
        self.pending.drain(..used);
        lines.retain(|line| self.wanted(line));
        Ok(lines)
    }

    fn split(&mut self, output: &Output, lines: &mut Vec<Line>) {
        let same = |line: &Line| line.exec == output.exec && line.source == output.source;
        for piece in output.bytes.split_inclusive(|byte| *byte == b'\n') {
            let line = match self.open.iter_mut().find(|line| same(line)) {
                Some(line) => line,
                None => {
                    let (source, exec, time) = (output.source, output.exec, output.time);
                    self.open.push(Line { source, exec, time, bytes: Vec::new() });
                    self.open.last_mut().expect("just added")
                }
            };
            line.bytes.extend_from_slice(piece);
            if piece.ends_with(b"\n") || line.bytes.len() >= LINE_LIMIT {
                let at = self.open.iter().position(&same).expect("just found");
                lines.push(self.open.remove(at));
            }
        }
    }

    fn wanted(&self, line: &Line) -> bool {
        let filter = &self.filter;
        filter.exec.is_none_or(|exec| exec == line.exec)
            && filter.source.is_none_or(|source| source == line.source)
            && filter.since.is_none_or(|since| line.time >= since)
            && filter.until.is_none_or(|until| line.time <= until)
            && filter
                .grep
                .as_ref()
                .is_none_or(|text| String::from_utf8_lossy(&line.bytes).contains(text.as_str()))
    }
}

fn open(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(mut file) => {
            file.seek(SeekFrom::Start(0))
                .map_err(|error| Error::host("cannot read the log", error))?;
            Ok(Some(file))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::host("cannot read the log", error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_wire::record::Source;

    fn reader(filter: Filter) -> Reader {
        Reader::new(Path::new("/nowhere"), filter)
    }

    fn output(exec: u64, source: Source, bytes: &[u8]) -> Output {
        Output { source, exec, time: 5, bytes: bytes.to_vec() }
    }

    #[test]
    fn lines_of_different_streams_do_not_mix() {
        let mut reader = reader(Filter::default());
        let mut lines = Vec::new();
        reader.split(&output(1, Source::Stdout, b"he"), &mut lines);
        reader.split(&output(1, Source::Stderr, b"oops\n"), &mut lines);
        reader.split(&output(1, Source::Stdout, b"llo\nwor"), &mut lines);
        let said: Vec<&[u8]> = lines.iter().map(|line| line.bytes.as_slice()).collect();
        assert_eq!(said, [b"oops\n".as_slice(), b"hello\n"]);
        assert_eq!(reader.rest()[0].bytes, b"wor");
    }

    #[test]
    fn filters_select_lines() {
        let reader =
            reader(Filter { grep: Some("err".to_owned()), exec: Some(2), ..Filter::default() });
        let line = |exec, bytes: &[u8]| Line {
            source: Source::Stdout,
            exec,
            time: 1,
            bytes: bytes.to_vec(),
        };
        assert!(reader.wanted(&line(2, b"an error\n")));
        assert!(!reader.wanted(&line(1, b"an error\n")));
        assert!(!reader.wanted(&line(2, b"fine\n")));
    }
}
