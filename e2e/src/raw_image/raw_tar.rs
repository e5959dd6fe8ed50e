//! Tar archives byte by byte, with headers that no library will write.
//!
//! Nothing is checked and nothing is made right unless asked for: a name may be empty, a size
//! may lie, a checksum may be wrong.

/// Everything in a tar archive is a multiple of this.
pub const BLOCK: usize = 512;

/// What a header says an entry is.
pub mod kind {
    /// A regular file.
    pub const FILE: u8 = b'0';
    /// A hard link.
    pub const HARD: u8 = b'1';
    /// A symbolic link.
    pub const SYMBOLIC: u8 = b'2';
    /// A character device.
    pub const CHARACTER: u8 = b'3';
    /// A block device.
    pub const BLOCK: u8 = b'4';
    /// A directory.
    pub const DIRECTORY: u8 = b'5';
    /// A named pipe.
    pub const PIPE: u8 = b'6';
    /// GNU: the next entry's name.
    pub const LONG_NAME: u8 = b'L';
    /// GNU: the next entry's link target.
    pub const LONG_TARGET: u8 = b'K';
    /// GNU: a sparse file.
    pub const SPARSE: u8 = b'S';
    /// PAX: records for the next entry.
    pub const RECORDS: u8 = b'x';
    /// PAX: records for all that follow.
    pub const GLOBAL: u8 = b'g';
}

/// One header of 512 bytes, begun as that of an ordinary file and changed field by field.
#[derive(Debug, Clone)]
pub struct TarHeader([u8; BLOCK]);

impl TarHeader {
    /// A header with this kind and name; a name longer than the field is cut.
    pub fn new(kind: u8, name: impl AsRef<[u8]>) -> Self {
        let header = Self([0; BLOCK]);
        let mode = if kind == kind::DIRECTORY { 0o755 } else { 0o644 };
        header
            .raw(257, b"ustar\x0000")
            .raw(156, &[kind])
            .raw(0, cut(name.as_ref(), 100))
            .mode(mode)
            .owner(0, 0)
            .size(0)
            .octal(136, 12, 1_600_000_000)
            .device(0, 0)
    }

    /// The permission bits, and more bits than there are.
    pub fn mode(self, mode: u64) -> Self {
        self.octal(100, 8, mode)
    }

    /// User and group.
    pub fn owner(self, uid: u64, gid: u64) -> Self {
        self.octal(108, 8, uid).octal(116, 8, gid)
    }

    /// The size that is claimed.
    pub fn size(self, size: u64) -> Self {
        self.octal(124, 12, size)
    }

    /// The size as twelve bytes of any sort.
    pub fn raw_size(self, bytes: &[u8]) -> Self {
        self.raw(124, cut(bytes, 12))
    }

    /// The target of a link; one longer than the field is cut.
    pub fn target(self, target: impl AsRef<[u8]>) -> Self {
        self.raw(157, cut(target.as_ref(), 100))
    }

    /// The numbers of a device.
    pub fn device(self, major: u64, minor: u64) -> Self {
        self.octal(329, 8, major).octal(337, 8, minor)
    }

    /// What comes before the name, after POSIX.
    pub fn prefix(self, prefix: impl AsRef<[u8]>) -> Self {
        self.raw(345, cut(prefix.as_ref(), 155))
    }

    /// The mark of GNU tar in place of that of POSIX.
    pub fn gnu(self) -> Self {
        self.raw(257, b"ustar  \0")
    }

    /// Any bytes at any place.
    pub fn raw(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// The block with its right checksum.
    pub fn block(&self) -> [u8; BLOCK] {
        let sum = self.0.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        let old = self.0[148..156].iter().map(|byte| u32::from(*byte)).sum::<u32>();
        let sum = sum - old + 8 * u32::from(b' ');
        self.clone().raw(148, format!("{sum:06o}\0 ").as_bytes()).0
    }

    /// The block with a checksum that is wrong.
    pub fn miscounted(&self) -> [u8; BLOCK] {
        self.clone().raw(148, b"000001\0 ").0
    }

    /// A number as digits; what does not fit is written in base 256, after GNU.
    fn octal(self, at: usize, length: usize, number: u64) -> Self {
        let digits = format!("{number:0width$o}\0", width = length - 1);
        if digits.len() == length {
            return self.raw(at, digits.as_bytes());
        }
        self.raw(at, &base_256(length, i128::from(number)))
    }
}

/// A number in GNU's base 256, negative ones too.
pub fn base_256(length: usize, number: i128) -> Vec<u8> {
    let mut bytes = number.to_be_bytes()[16 - length..].to_vec();
    bytes[0] |= 0x80;
    bytes
}

/// A tar archive in the making.
#[derive(Debug, Clone, Default)]
pub struct RawLayer {
    bytes: Vec<u8>,
}

impl RawLayer {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// A file.
    pub fn file(self, name: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Self {
        self.file_as(TarHeader::new(kind::FILE, &name), name, content)
    }

    /// A file with a header of one's own; its size is set.
    pub fn file_as(
        self,
        header: TarHeader,
        name: impl AsRef<[u8]>,
        content: impl AsRef<[u8]>,
    ) -> Self {
        let header = header.size(content.as_ref().len() as u64);
        self.named(name.as_ref()).header(&header).content(content)
    }

    /// A directory.
    pub fn directory(self, name: impl AsRef<[u8]>) -> Self {
        let header = TarHeader::new(kind::DIRECTORY, &name);
        self.named(name.as_ref()).header(&header)
    }

    /// A symbolic link.
    pub fn symlink(self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.link(kind::SYMBOLIC, name, target)
    }

    /// A hard link.
    pub fn hardlink(self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.link(kind::HARD, name, target)
    }

    fn link(self, kind: u8, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        let header = TarHeader::new(kind, &name).target(&target);
        let layer = match target.as_ref().len() {
            0..=100 => self,
            _ => self.long(kind::LONG_TARGET, target.as_ref()),
        };
        layer.named(name.as_ref()).header(&header)
    }

    /// A device, a pipe, or an unknown type.
    pub fn special(self, kind: u8, name: impl AsRef<[u8]>, major: u64, minor: u64) -> Self {
        let header = TarHeader::new(kind, &name).device(major, minor);
        self.named(name.as_ref()).header(&header)
    }

    /// PAX records for the next entry, or with [`kind::GLOBAL`] for all that follow.
    pub fn records(self, kind: u8, records: &[(&str, &[u8])]) -> Self {
        let body: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
        self.raw_records(kind, body)
    }

    /// PAX records as bytes of any sort.
    pub fn raw_records(self, kind: u8, body: impl AsRef<[u8]>) -> Self {
        let header = TarHeader::new(kind, "PaxHeaders/x").size(body.as_ref().len() as u64);
        self.header(&header).content(body)
    }

    /// One PAX record for the next entry.
    pub fn pax(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.records(kind::RECORDS, &[(key, value.as_ref())])
    }

    /// GNU's way to say a long name or target.
    pub fn long(self, kind: u8, text: &[u8]) -> Self {
        let header = TarHeader::new(kind, "././@LongLink").gnu().size(text.len() as u64 + 1);
        self.header(&header).content([text, b"\0"].concat())
    }

    /// A header.
    pub fn header(self, header: &TarHeader) -> Self {
        self.bytes(header.block())
    }

    /// Content, filled up to a whole block.
    pub fn content(self, content: impl AsRef<[u8]>) -> Self {
        let filling = content.as_ref().len().next_multiple_of(BLOCK) - content.as_ref().len();
        self.bytes(content).bytes(vec![0; filling])
    }

    /// Any bytes.
    pub fn bytes(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.bytes.extend_from_slice(bytes.as_ref());
        self
    }

    /// What another one holds.
    pub fn then(self, other: &Self) -> Self {
        self.bytes(&other.bytes)
    }

    /// The archive with the two empty blocks that end it.
    pub fn tar(&self) -> Vec<u8> {
        [&self.bytes[..], &[0; 2 * BLOCK]].concat()
    }

    /// The archive without its end.
    pub fn unfinished(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    fn named(self, name: &[u8]) -> Self {
        if name.len() <= 100 { self } else { self.long(kind::LONG_NAME, name) }
    }
}

/// A PAX record: its own length, a space, the key, an equals sign, the value, a line end.
pub fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn cut(bytes: &[u8], length: usize) -> &[u8] {
    &bytes[..bytes.len().min(length)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn a_record_counts_its_own_digits() {
        assert_eq!(record("path", b"a"), b"9 path=a\n");
        assert_eq!(record("path", &[b'x'; 89]).len(), 98);
        assert!(record("path", &[b'x'; 90]).starts_with(b"99 path="));
        assert!(record("path", &[b'x'; 91]).starts_with(b"101 path="));
    }

    #[test]
    fn an_ordinary_archive_is_read_by_tar() {
        let long = "d/".repeat(80) + "long";
        let layer = RawLayer::new()
            .directory("d/")
            .file("d/file", "content")
            .symlink("d/link", "x".repeat(150))
            .hardlink("d/hard", "d/file")
            .file(&long, "")
            .pax("path", "d/from-pax")
            .file("ignored", "");
        let mut tar = Command::new("tar")
            .arg("-t")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("tar is installed");
        tar.stdin.take().expect("a pipe").write_all(&layer.tar()).expect("tar reads");
        let listed = tar.wait_with_output().expect("tar ends");
        assert!(listed.status.success());
        let expected = format!("d/\nd/file\nd/link\nd/hard\n{long}\nd/from-pax\n");
        assert_eq!(String::from_utf8_lossy(&listed.stdout), expected);
    }
}
