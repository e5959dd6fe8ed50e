//! One layer: from a compressed stream to a directory that overlayfs can use.
//!
//! Runs in a process of its own that is locked into that directory (see `apart`). Decompressing
//! and writing files are two threads, because each takes about one processor.

pub(crate) mod archive;
mod tree;

use archive::{Archive, broken};
use flate2::bufread::MultiGzDecoder;
use msb_spec::{Bytes, Digest, Error, Kind, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
pub(crate) use tree::{OPAQUE, WHITEOUT, WHITEOUT_META, below_no_directory, clean, named, split};
use tree::{Tree, Writer};

/// How a layer is compressed, found by its first bytes: media types are often wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Enough bytes to tell.
    const PROBE: usize = 4;

    pub(crate) fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A skippable frame, which zstd's own tools put first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// How much one layer may hold; for a layer of an image that is what the others have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Bytes of its files, and of the whole stream.
    pub bytes: u64,
    /// Files, links and directories.
    pub entries: u64,
    /// Components of a path.
    pub depth: u64,
}

/// What a layer was found to hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// The digest of the stream, decompressed.
    pub diff_id: Digest,
    /// Files, links and directories.
    pub entries: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether anything belongs to somebody other than root.
    pub owners: bool,
    /// Devices that were left out.
    pub devices: u64,
    /// Files in the tree and their bytes, to tell later that none is missing or cut short.
    pub tree: (u64, u64),
    /// Directories that it does not describe, only what is in them; `.` is its root.
    pub implied: Vec<Vec<u8>>,
    /// The boot that the layer was unpacked in; none once it was seen to have outlived that.
    pub boot: Option<String>,
}

/// Window of zstd that is accepted, as a power of two: what its own tools accept by default, and
/// memory that any machine can spare.
const ZSTD_WINDOW: u32 = 27;
/// Large enough that threads seldom wait for each other, small enough to stay in the cache.
const CHUNK: usize = 256 << 10;
/// Chunks on their way between the two threads.
const CHUNKS: usize = 8;

/// Unpacks a layer into an empty directory. `many_owners` tells whether files can belong to
/// anybody but root there.
pub fn unpack(
    input: impl Read + Send,
    into: BorrowedFd<'_>,
    bounds: &Bounds,
    many_owners: bool,
) -> Result<Contents> {
    let (diff_id, (counted, implied)) =
        streamed(input, bounds, |archive| write(archive, into, bounds, many_owners))?;
    let tree = match counted.replaced {
        true => measure(into)?,
        false => (counted.files, counted.bytes),
    };
    Ok(Contents {
        diff_id,
        entries: counted.entries,
        bytes: counted.bytes,
        owners: counted.owners,
        devices: counted.devices,
        tree,
        implied,
        boot: None,
    })
}

/// Gives a layer to `take`, decompressed by another thread. Returns its digest, if all of it was
/// read, and what `take` made of it.
pub(crate) fn streamed<T>(
    input: impl Read + Send,
    bounds: &Bounds,
    take: impl FnOnce(&mut Archive<Chunks>) -> Result<T>,
) -> Result<(Digest, T)> {
    let (sender, receiver) = sync_channel(CHUNKS);
    let (giver, used) = sync_channel(CHUNKS);
    std::thread::scope(|scope| {
        let decompressing = scope.spawn(move || decompress(input, &sender, &used, bounds.bytes));
        let mut archive = Archive::new(Chunks::new(receiver, giver));
        let taken = take(&mut archive).and_then(|taken| archive.drain().map(|()| taken));
        // Without a receiver the other thread is at its end too.
        drop(archive);
        let diff_id = decompressing.join().map_err(|_| broken("it cannot be decompressed"))?;
        let taken = taken?;
        Ok((diff_id.ok_or_else(|| broken("it cannot be decompressed"))?, taken))
    })
}

fn write(
    archive: &mut Archive<Chunks>,
    into: BorrowedFd<'_>,
    bounds: &Bounds,
    many_owners: bool,
) -> Result<(tree::Counted, Vec<Vec<u8>>)> {
    let mut tree = Tree::new(into, bounds, many_owners);
    while let Some(entry) = archive.next()? {
        if let Some(file) = tree.put(&entry)? {
            let mut writer = Writer::new(file.as_fd(), &entry);
            archive.data(|data| writer.write(data))?;
            writer.end()?;
            tree.finish_file(file.as_fd(), &entry)?;
        }
    }
    tree.finish()
}

/// Sends the stream on, decompressed; its digest if all of it was read.
fn decompress(
    input: impl Read,
    sender: &SyncSender<io::Result<Vec<u8>>>,
    used: &Receiver<Vec<u8>>,
    limit: u64,
) -> Option<Digest> {
    let failed = |error: io::Error| {
        let _ = sender.send(Err(error));
    };
    let mut stream = match decompressed(input) {
        Ok(stream) => stream,
        Err(error) => {
            failed(error);
            return None;
        }
    };
    let (mut digest, mut total) = (Sha256::new(), 0u64);
    loop {
        // Memory that was written before costs no page faults.
        let mut chunk = used.try_recv().unwrap_or_default();
        chunk.resize(CHUNK, 0);
        let mut filled = 0;
        while filled < CHUNK {
            match stream.read(&mut chunk[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    failed(error);
                    return None;
                }
            }
        }
        chunk.truncate(filled);
        total += filled as u64;
        if total > limit {
            let said = limit_said("bytes", Bytes(limit));
            failed(io::Error::new(io::ErrorKind::FileTooLarge, said));
            return None;
        }
        digest.update(&chunk);
        if filled == 0 {
            return Some(Digest::of_bytes(digest.finalize().into()));
        }
        // The writer has given up, and has said why.
        sender.send(Ok(chunk)).ok()?;
    }
}

/// A stream as it was before it was compressed, if it was.
pub(crate) fn decompressed<'a>(mut input: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let start = start_of(&mut input)?;
    let compression = Compression::of(&start);
    let whole = BufReader::with_capacity(CHUNK, io::Cursor::new(start).chain(input));
    Ok(match compression {
        Compression::None => Box::new(whole),
        Compression::Gzip => Box::new(MultiGzDecoder::new(whole)),
        Compression::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(whole)?;
            decoder.window_log_max(ZSTD_WINDOW)?;
            Box::new(decoder)
        }
    })
}

/// The first bytes of a stream.
fn start_of(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(Compression::PROBE);
    input.take(Compression::PROBE as u64).read_to_end(&mut start)?;
    Ok(start)
}

/// The decompressed stream, as it comes from the other thread.
#[derive(Debug)]
pub(crate) struct Chunks {
    from: Receiver<io::Result<Vec<u8>>>,
    used: SyncSender<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
}

impl Chunks {
    fn new(from: Receiver<io::Result<Vec<u8>>>, used: SyncSender<Vec<u8>>) -> Self {
        Self { from, used, chunk: Vec::new(), at: 0 }
    }
}

impl Read for Chunks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(into)?;
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for Chunks {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.chunk.len() {
            let next = match self.from.recv() {
                Ok(chunk) => chunk?,
                Err(_) => Vec::new(),
            };
            let _ = self.used.try_send(std::mem::replace(&mut self.chunk, next));
            self.at = 0;
        }
        Ok(&self.chunk[self.at..])
    }

    fn consume(&mut self, n: usize) {
        self.at += n;
    }
}

/// Deeper than any layer that was unpacked, and than what a sandbox can have written in one name.
const DEPTH: u64 = 4096;

/// How many files a layer has, and their bytes.
pub(crate) fn measure(directory: BorrowedFd<'_>) -> Result<(u64, u64)> {
    tree::measure(directory, DEPTH)
        .map_err(|error| Error::host("cannot look at a layer of the image", io::Error::from(error)))
}

/// Removes one thing from a directory, whatever it is.
pub(crate) fn remove(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    tree::remove(directory, name, DEPTH)
}

/// A limit of the settings was reached.
pub(crate) fn exceeded(word: &str, limit: impl Display) -> Error {
    Error::new(Kind::Limit, format!("the image holds {}", limit_said(word, limit)))
        .hint("raise it in config.toml of the state directory if you trust the image")
}

fn limit_said(word: &str, limit: impl Display) -> String {
    format!("more than `image_limits.{word}` allows, which is {limit}")
}
