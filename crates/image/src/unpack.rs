//! Unpacks one layer: from a compressed stream to a directory that overlayfs can mount.
//!
//! Runs in the helper process, which is confined to that directory (see `helper_process`). One
//! thread decompresses and another writes files, because each takes about one core.

mod layer_dir;
pub(crate) mod tar_reader;

use flate2::bufread::MultiGzDecoder;
use layer_dir::{FileWriter, LayerDir};
pub(crate) use layer_dir::{
    OPAQUE, WHITEOUT, WHITEOUT_META, at_path, below_no_directory, clean_path, split,
};
use msb_spec::{Bytes, Digest, Error, Kind, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tar_reader::{TarReader, broken};

/// Compression of a layer, by its first bytes: media types are often wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Number of bytes that are needed to detect it.
    const PROBE: usize = 4;

    pub(crate) fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A skippable frame, which zstd tools write first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// Limits of one layer: what is left of the limits of its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Bytes of all files, and of the uncompressed stream.
    pub bytes: u64,
    /// Number of files, links and directories.
    pub entries: u64,
    /// Components of a path.
    pub depth: u64,
}

/// What an unpacked layer contains; stored as `layer.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerContents {
    /// Digest of the uncompressed stream.
    pub diff_id: Digest,
    /// Number of files, links and directories.
    pub entries: u64,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// Whether some entry has an owner other than root.
    pub owners: bool,
    /// Number of device nodes, which are not unpacked.
    pub devices: u64,
    /// Files and bytes on disk, to detect missing or truncated files later.
    pub tree: (u64, u64),
    /// Implied directories: those without an entry of their own. `.` is the root.
    pub implied: Vec<Vec<u8>>,
    /// Boot id of the host when the layer was unpacked; none once it was verified after a reboot.
    pub boot: Option<String>,
}

/// Largest window of zstd that is accepted, as a power of two: the default limit of its tools.
const ZSTD_WINDOW: u32 = 27;
/// Large enough that threads seldom wait for each other, small enough for the CPU cache.
const CHUNK: usize = 256 << 10;
/// Capacity of the channel between the two threads.
const CHUNKS: usize = 8;

/// Unpacks a layer into an empty directory. `many_owners` says whether files can have owners other
/// than root.
pub fn unpack(
    input: impl Read + Send,
    into: BorrowedFd<'_>,
    bounds: &Bounds,
    many_owners: bool,
) -> Result<LayerContents> {
    let (diff_id, (stats, implied)) =
        read_layer(input, bounds, |archive| write(archive, into, bounds, many_owners))?;
    let tree = match stats.replaced {
        true => measure(into)?,
        false => (stats.files, stats.bytes),
    };
    Ok(LayerContents {
        diff_id,
        entries: stats.entries,
        bytes: stats.bytes,
        owners: stats.owners,
        devices: stats.devices,
        tree,
        implied,
        boot: None,
    })
}

/// Decompresses a layer in another thread and passes it to `take`. Returns the diff id and the
/// result of `take`.
pub(crate) fn read_layer<T>(
    input: impl Read + Send,
    bounds: &Bounds,
    take: impl FnOnce(&mut TarReader<ChunkReader>) -> Result<T>,
) -> Result<(Digest, T)> {
    let (sender, receiver) = sync_channel(CHUNKS);
    let (giver, used) = sync_channel(CHUNKS);
    std::thread::scope(|scope| {
        let decompressing = scope.spawn(move || decompress(input, &sender, &used, bounds.bytes));
        let mut archive = TarReader::new(ChunkReader::new(receiver, giver));
        let taken = take(&mut archive).and_then(|taken| archive.drain().map(|()| taken));
        // Dropping the receiver ends the other thread.
        drop(archive);
        let diff_id = decompressing.join().map_err(|_| broken("it cannot be decompressed"))?;
        let taken = taken?;
        Ok((diff_id.ok_or_else(|| broken("it cannot be decompressed"))?, taken))
    })
}

fn write(
    archive: &mut TarReader<ChunkReader>,
    into: BorrowedFd<'_>,
    bounds: &Bounds,
    many_owners: bool,
) -> Result<(layer_dir::UnpackStats, Vec<Vec<u8>>)> {
    let mut tree = LayerDir::new(into, bounds, many_owners);
    while let Some(entry) = archive.next()? {
        if let Some(file) = tree.put(&entry)? {
            let mut writer = FileWriter::new(file.as_fd(), &entry);
            archive.data(|data| writer.write(data))?;
            writer.end()?;
            tree.finish_file(file.as_fd(), &entry)?;
        }
    }
    tree.finish()
}

/// Decompresses the stream into the channel. Returns the diff id; none after an error.
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
        // Reused memory costs no page faults.
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
            let said = limit_message("bytes", Bytes(limit));
            failed(io::Error::new(io::ErrorKind::FileTooLarge, said));
            return None;
        }
        digest.update(&chunk);
        if filled == 0 {
            return Some(Digest::of_bytes(digest.finalize().into()));
        }
        // The receiver has failed, and has reported why.
        sender.send(Ok(chunk)).ok()?;
    }
}

/// Decompresses a stream, if it is compressed.
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

/// Reads the decompressed stream from the channel.
#[derive(Debug)]
pub(crate) struct ChunkReader {
    from: Receiver<io::Result<Vec<u8>>>,
    used: SyncSender<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
}

impl ChunkReader {
    fn new(from: Receiver<io::Result<Vec<u8>>>, used: SyncSender<Vec<u8>>) -> Self {
        Self { from, used, chunk: Vec::new(), at: 0 }
    }
}

impl Read for ChunkReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(into)?;
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for ChunkReader {
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

/// Deeper than any unpacked layer, and than any path that a sandbox can create at once.
const DEPTH: u64 = 4096;

/// Counts the files of a layer and their bytes.
pub(crate) fn measure(directory: BorrowedFd<'_>) -> Result<(u64, u64)> {
    layer_dir::measure(directory, DEPTH)
        .map_err(|error| Error::host("cannot read a layer of the image", io::Error::from(error)))
}

/// Removes a file or a whole directory tree.
pub(crate) fn remove(directory: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    layer_dir::remove(directory, name, DEPTH)
}

/// The error for an exceeded limit, with its key in the settings.
pub(crate) fn exceeded(word: &str, limit: impl Display) -> Error {
    Error::new(Kind::Limit, format!("the image holds {}", limit_message(word, limit)))
        .hint("raise it in config.toml of the state directory if you trust the image")
}

fn limit_message(word: &str, limit: impl Display) -> String {
    format!("more than `image_limits.{word}` allows, which is {limit}")
}
