//! Compressed streams byte by byte: valid ones, bombs, and ones with false sizes.

/// The media types of layers.
pub mod media {
    /// Not compressed.
    pub const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
    /// With gzip.
    pub const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
    /// With zstd.
    pub const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
    /// Docker's word for one with gzip.
    pub const DOCKER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    /// Docker's type of a layer that is stored at another URL.
    pub const DOCKER_FOREIGN: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
    /// A layer that is stored at another URL.
    pub const FOREIGN: &str = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip";
}

const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// What a block of zstd may hold at most.
const ZSTD_BLOCK: usize = 128 * 1024;
/// What a stored block of gzip may hold at most.
const STORED_BLOCK: usize = 65535;
/// The longest match that gzip knows.
const LONGEST: usize = 258;

/// One member of gzip, its content stored as it is.
pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut bytes = GZIP_HEADER.to_vec();
    let blocks: Vec<&[u8]> = content.chunks(STORED_BLOCK).collect();
    for (at, block) in blocks.iter().enumerate() {
        let length = u16::try_from(block.len()).expect("a chunk");
        bytes.push(u8::from(at + 1 == blocks.len()));
        bytes.extend(length.to_le_bytes());
        bytes.extend((!length).to_le_bytes());
        bytes.extend(*block);
    }
    if blocks.is_empty() {
        bytes.extend([1, 0, 0, 0xff, 0xff]);
    }
    bytes.extend(crc_32(content).to_le_bytes());
    bytes.extend((content.len() as u32).to_le_bytes());
    bytes
}

/// Gzip of `begin` and then of `pattern` at least so many times: a hundredth of what it becomes.
/// The stream has no end: a reader that gets there has read too much.
pub fn gzip_bomb(begin: &[u8], pattern: &[u8], times: u64) -> Vec<u8> {
    let mut bits = Bits { bytes: GZIP_HEADER.to_vec(), filled: 8 };
    // The last block, with the codes that the format itself fixes.
    bits.push(0b011, 3);
    for byte in begin.iter().chain(pattern) {
        match *byte {
            literal @ 0..=143 => bits.push_code(0x30 + u32::from(literal), 8),
            literal => bits.push_code(0x190 + u32::from(literal) - 144, 9),
        }
    }
    let (code, extra, extra_bits) = distance(pattern.len());
    let matches = (pattern.len() as u64 * times.saturating_sub(1)).div_ceil(LONGEST as u64);
    for _ in 0..matches {
        // 285: the longest match, without further bits.
        bits.push_code(0xc0 + 285 - 280, 8);
        bits.push_code(code, 5);
        bits.push(extra, extra_bits);
    }
    bits.bytes
}

/// The code of a distance, what is to be added to it, and how many bits that has.
fn distance(distance: usize) -> (u32, u32, u32) {
    let less = u32::try_from(distance - 1).expect("within the window of gzip");
    if less < 4 {
        return (less, 0, 0);
    }
    let extra_bits = less.ilog2() - 1;
    (2 * extra_bits + (less >> extra_bits), less & ((1 << extra_bits) - 1), extra_bits)
}

/// Bytes that are filled from their lowest bit on.
struct Bits {
    bytes: Vec<u8>,
    filled: u32,
}

impl Bits {
    fn push(&mut self, value: u32, count: u32) {
        for at in 0..count {
            if self.filled == 8 {
                self.bytes.push(0);
                self.filled = 0;
            }
            let last = self.bytes.last_mut().expect("there is a header");
            *last |= ((value >> at & 1) as u8) << self.filled;
            self.filled += 1;
        }
    }

    /// Codes alone are written from their highest bit on.
    fn push_code(&mut self, code: u32, count: u32) {
        self.push(code.reverse_bits() >> (32 - count), count);
    }
}

/// One frame of zstd, its content stored as it is.
pub fn zstd(content: &[u8]) -> Vec<u8> {
    let mut bytes = zstd_frame(10);
    for block in content.chunks(ZSTD_BLOCK) {
        bytes.extend(zstd_block(0, block.len(), false));
        bytes.extend(block);
    }
    bytes.extend(zstd_block(0, 0, true));
    bytes
}

/// A frame of zstd of `begin` and then so many times 128 KiB of zeros, each in four bytes.
pub fn zstd_bomb(begin: &[u8], blocks: u64) -> Vec<u8> {
    zstd_of([(begin, blocks)])
}

/// A frame of zstd of several such parts.
pub fn zstd_of<'a>(parts: impl IntoIterator<Item = (&'a [u8], u64)>) -> Vec<u8> {
    let mut bytes = zstd_frame(10);
    for (begin, blocks) in parts {
        for block in begin.chunks(ZSTD_BLOCK) {
            bytes.extend(zstd_block(0, block.len(), false));
            bytes.extend(block);
        }
        for _ in 0..blocks {
            bytes.extend(zstd_block(1, ZSTD_BLOCK, false));
            bytes.push(0);
        }
    }
    bytes.extend(zstd_block(0, 0, true));
    bytes
}

/// A frame of zstd that wants a window of 2^(10+exponent) bytes: up to 2 TiB for 31.
pub fn zstd_window(content: &[u8], exponent: u8) -> Vec<u8> {
    let honest = zstd(content);
    [&zstd_frame(exponent)[..], &honest[6..]].concat()
}

/// A frame of zstd that says it holds so many bytes, whatever it holds.
pub fn zstd_claim(content: &[u8], claim: u64) -> Vec<u8> {
    let honest = zstd(content);
    [&ZSTD_MAGIC[..], &[0b1100_0000, 10 << 3], &claim.to_le_bytes(), &honest[6..]].concat()
}

fn zstd_frame(exponent: u8) -> Vec<u8> {
    [&ZSTD_MAGIC[..], &[0, exponent << 3]].concat()
}

fn zstd_block(kind: u32, length: usize, last: bool) -> [u8; 3] {
    let length = u32::try_from(length).expect("a chunk");
    let [a, b, c, _] = (length << 3 | kind << 1 | u32::from(last)).to_le_bytes();
    [a, b, c]
}

fn crc_32(content: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in content {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = sum >> 1 ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn honest_streams_are_read_by_the_tools() {
        let content: Vec<u8> = (0..300_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
        assert!(expanded("gzip", &gzip(&content), 1 << 20) == content, "gzip");
        assert!(expanded("gzip", &gzip(b""), 1) == b"", "empty gzip");
        assert!(expanded("zstd", &zstd(&content), 1 << 20) == content, "zstd");
        assert!(expanded("zstd", &zstd_window(&content, 12), 1 << 20) == content, "window");
    }

    #[test]
    fn bombs_become_what_they_say() {
        let pattern: Vec<u8> = (0..512u32).map(|at| (at % 251) as u8).collect();
        // The tool gives out whole windows only, and these streams do not end.
        let bomb = gzip_bomb(b"begin", &pattern, 1100);
        assert!(bomb.len() < 8000, "{}", bomb.len());
        let expected = [b"begin", &pattern.repeat(1000)[..]].concat();
        assert!(expanded("gzip", &bomb, expected.len() as u64) == expected, "gzip");
        let zeros = gzip_bomb(b"", &[0], 1_100_000);
        assert!(expanded("gzip", &zeros, 1_000_000) == vec![0; 1_000_000], "zeros");
        let expected = [b"begin", &vec![0; 100 * ZSTD_BLOCK][..]].concat();
        let bomb = zstd_bomb(b"begin", 100);
        assert!(bomb.len() < 500, "{}", bomb.len());
        assert!(expanded("zstd", &bomb, 1 << 30) == expected, "zstd");
    }

    fn expanded(tool: &str, squeezed: &[u8], limit: u64) -> Vec<u8> {
        let mut child = Command::new(tool)
            .arg("-dc")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the tool is installed");
        let mut pipe = child.stdin.take().expect("a pipe");
        let squeezed = squeezed.to_vec();
        let writer = std::thread::spawn(move || drop(pipe.write_all(&squeezed)));
        let mut read = Vec::new();
        let mut from = child.stdout.take().expect("a pipe");
        from.by_ref().take(limit).read_to_end(&mut read).expect("the tool writes");
        drop(from);
        writer.join().expect("no panic");
        child.wait().expect("the tool ends");
        read
    }
}
