//! Writes layers as tar archives: the same bytes on every machine and in every run.

use std::io::{self, Write};

const BLOCK: usize = 512;

/// Of every entry: any time will do, if it is not now.
const MODIFIED: u64 = 1_600_000_000;

/// User and group, the same number.
pub(super) type Owner = u32;

/// One layer being written. Paths are at most 100 bytes.
pub(super) struct Archive<W>(W);

impl<W: Write> Archive<W> {
    pub(super) fn new(output: W) -> Self {
        Archive(output)
    }

    pub(super) fn directory(&mut self, path: &str, owner: Owner) -> io::Result<()> {
        self.0.write_all(&header(&format!("{path}/"), b'5', 0o755, owner, 0, ""))
    }

    pub(super) fn link(&mut self, path: &str, to: &str) -> io::Result<()> {
        self.0.write_all(&header(path, b'2', 0o777, 0, 0, to))
    }

    pub(super) fn file(&mut self, path: &str, owner: Owner, content: &[u8]) -> io::Result<()> {
        self.entry(path, 0o644, owner, content)
    }

    pub(super) fn program(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.entry(path, 0o755, 0, content)
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        self.0.write_all(&[0; 2 * BLOCK])?;
        self.0.flush()?;
        Ok(self.0)
    }

    fn entry(&mut self, path: &str, mode: u32, owner: Owner, content: &[u8]) -> io::Result<()> {
        self.0.write_all(&header(path, b'0', mode, owner, content.len(), ""))?;
        self.0.write_all(content)?;
        let rest = content.len().next_multiple_of(BLOCK) - content.len();
        self.0.write_all(&[0; BLOCK][..rest])
    }
}

fn header(path: &str, kind: u8, mode: u32, owner: Owner, size: usize, to: &str) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, &format!("{mode:07o}"));
    put(108, &format!("{owner:07o}"));
    put(116, &format!("{owner:07o}"));
    put(124, &format!("{size:011o}"));
    put(136, &format!("{MODIFIED:011o}"));
    // The sum is made as if its own field were spaces.
    put(148, "        ");
    put(157, to);
    put(257, "ustar\x0000");
    header[156] = kind;
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// Numbers that look random and are the same in every run.
pub(super) struct Noise(u64);

/// Words of the text that files hold.
const WORDS: usize = 2048;

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        // Zero would stay zero for ever.
        Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// xorshift64*. The upper half of its output is the more random one.
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let [.., a, b, c, d] = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// A number from 0 to `bound` - 1.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }

    /// Bytes that nothing can make fewer.
    pub(super) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 4);
        while bytes.len() < count {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }

    /// Words and lines; compresses about as well as source code does.
    pub(super) fn text(&mut self, vocabulary: &Vocabulary, count: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(count + 16);
        let mut word = 0;
        while text.len() < count {
            // Mostly the same word follows as ever: text has phrases.
            word = match self.below(3) {
                0 => self.below(WORDS),
                _ => (word + 1) % WORDS,
            };
            text.extend(&vocabulary.0[word]);
            text.push(if word.is_multiple_of(8) { b'\n' } else { b' ' });
        }
        text.truncate(count);
        text
    }
}

pub(super) struct Vocabulary(Vec<Vec<u8>>);

impl Vocabulary {
    pub(super) fn new() -> Self {
        let mut noise = Noise::new(1);
        let word = |_| {
            let length = 2 + noise.below(9);
            (0..length).map(|_| b"etaoinsrhldcumfpgwybvkxjqz_.()"[noise.below(30)]).collect()
        };
        Vocabulary((0..WORDS).map(word).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn tar_reads_what_we_write() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("a", 0).unwrap();
        archive.file("a/b", 7, &[b'x'; 513]).unwrap();
        archive.program("a/c", b"").unwrap();
        archive.link("a/d", "b").unwrap();
        let bytes = archive.finish().unwrap();

        let mut tar = Command::new("tar")
            .args(["--utc", "--numeric-owner", "-tv"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        tar.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = tar.wait_with_output().unwrap();

        assert!(output.status.success());
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            "\
drwxr-xr-x 0/0               0 2020-09-13 12:26 a/
-rw-r--r-- 7/7             513 2020-09-13 12:26 a/b
-rwxr-xr-x 0/0               0 2020-09-13 12:26 a/c
lrwxrwxrwx 0/0               0 2020-09-13 12:26 a/d -> b
"
        );
    }

    #[test]
    fn noise_is_the_same_again_and_of_the_length_asked_for() {
        let words = Vocabulary::new();
        let make = || {
            let mut noise = Noise::new(7);
            (noise.bytes(1001), noise.text(&words, 1001))
        };
        assert_eq!(make(), make());
        assert_eq!((make().0.len(), make().1.len()), (1001, 1001));
    }
}
