//! Writes tar archives entry by entry, so that a test decides each header.

/// An archive.
#[derive(Debug, Clone, Default)]
pub struct Tar(Vec<u8>);

/// One entry: what its header says and its content.
#[derive(Debug, Clone)]
pub struct Entry {
    path: String,
    kind: u8,
    link: String,
    mode: u32,
    owner: (u64, u64),
    modified: i64,
    device: (u32, u32),
    content: Vec<u8>,
    records: Vec<(String, Vec<u8>)>,
    long: LongNames,
}

/// How a name that does not fit its field is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LongNames {
    Pax,
    Gnu,
}

/// Any time will do, if it is not now.
const MODIFIED: i64 = 1_600_000_000;
const BLOCK: usize = 512;

impl Tar {
    /// Adds entries.
    #[must_use]
    pub fn with(mut self, entries: impl IntoIterator<Item = Entry>) -> Self {
        for entry in entries {
            entry.write(&mut self.0);
        }
        self
    }

    /// Adds bytes that no entry describes.
    #[must_use]
    pub fn with_bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    /// The archive with its end.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.resize(bytes.len() + 2 * BLOCK, 0);
        bytes
    }
}

impl Entry {
    fn new(path: &str, kind: u8, mode: u32) -> Self {
        Self {
            path: path.to_owned(),
            kind,
            link: String::new(),
            mode,
            owner: (0, 0),
            modified: MODIFIED,
            device: (0, 0),
            content: Vec::new(),
            records: Vec::new(),
            long: LongNames::Pax,
        }
    }

    /// A regular file, 0644.
    pub fn file(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self { content: content.into(), ..Self::new(path, b'0', 0o644) }
    }

    /// A regular file, 0755.
    pub fn program(path: &str, content: impl Into<Vec<u8>>) -> Self {
        Self::file(path, content).mode(0o755)
    }

    /// A directory, 0755.
    pub fn directory(path: &str) -> Self {
        Self::new(path, b'5', 0o755)
    }

    /// A symbolic link.
    pub fn symlink(path: &str, target: &str) -> Self {
        Self { link: target.to_owned(), ..Self::new(path, b'2', 0o777) }
    }

    /// Another name of a file of the same archive.
    pub fn hard_link(path: &str, target: &str) -> Self {
        Self { link: target.to_owned(), ..Self::new(path, b'1', 0o644) }
    }

    /// A named pipe, 0644.
    pub fn fifo(path: &str) -> Self {
        Self::new(path, b'6', 0o644)
    }

    /// A character device.
    pub fn device(path: &str, major: u32, minor: u32) -> Self {
        Self { device: (major, minor), ..Self::new(path, b'3', 0o666) }
    }

    /// A block device.
    pub fn block_device(path: &str, major: u32, minor: u32) -> Self {
        Self { kind: b'4', ..Self::device(path, major, minor) }
    }

    /// The mark that removes what lower layers have at a path.
    pub fn whiteout(path: &str) -> Self {
        let (parent, name) =
            path.rsplit_once('/').map_or(("", path), |(parent, name)| (parent, name));
        let slash = if parent.is_empty() { "" } else { "/" };
        Self::file(&format!("{parent}{slash}.wh.{name}"), "")
    }

    /// The mark that hides what lower layers have in a directory.
    pub fn opaque(directory: &str) -> Self {
        Self::file(&format!("{directory}/.wh..wh..opq"), "")
    }

    /// A file of this size with one piece of data in it, in GNU tar's format 1.0 for those.
    pub fn sparse(path: &str, size: u64, at: u64, piece: &[u8]) -> Self {
        let map = format!("2\n{at}\n{}\n{size}\n0\n", piece.len());
        let mut content = map.into_bytes();
        content.resize(BLOCK, 0);
        content.extend(piece);
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
        Self::file(&format!("{parent}/GNUSparseFile.0/{name}"), content)
            .record("GNU.sparse.major", "1")
            .record("GNU.sparse.minor", "0")
            .record("GNU.sparse.name", path)
            .record("GNU.sparse.realsize", size.to_string())
    }

    /// Permissions with setuid, setgid and sticky.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// User and group.
    #[must_use]
    pub fn owner(mut self, uid: u64, gid: u64) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// Seconds since 1970, negative before.
    #[must_use]
    pub fn modified(mut self, seconds: i64) -> Self {
        self.modified = seconds;
        self
    }

    /// An extended header record.
    #[must_use]
    pub fn record(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.records.push((key.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// An extended attribute.
    #[must_use]
    pub fn xattr(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.record(&format!("SCHILY.xattr.{name}"), value)
    }

    /// Writes names that are too long as old GNU tar did, not as POSIX says.
    #[must_use]
    pub fn gnu(mut self) -> Self {
        self.long = LongNames::Gnu;
        self
    }

    fn write(mut self, out: &mut Vec<u8>) {
        const FIELD: usize = 100;
        for (text, key, kind) in [(&self.path, "path", b'L'), (&self.link, "linkpath", b'K')] {
            if text.len() <= FIELD {
                continue;
            }
            match self.long {
                LongNames::Pax => self.records.push((key.to_owned(), text.clone().into_bytes())),
                LongNames::Gnu => {
                    let content = [text.as_bytes(), b"\0"].concat();
                    let extension = Self { content, ..Self::new("././@LongLink", kind, 0o644) };
                    extension.write(out);
                }
            }
        }
        const OCTAL_LIMIT: u64 = 0o7_777_777;
        for (id, key) in [(self.owner.0, "uid"), (self.owner.1, "gid")] {
            if id > OCTAL_LIMIT {
                self.records.push((key.to_owned(), id.to_string().into_bytes()));
            }
        }
        if self.modified < 0 {
            self.records.push(("mtime".to_owned(), self.modified.to_string().into_bytes()));
        }
        if !self.records.is_empty() {
            let content = self.records.iter().flat_map(|(key, value)| record(key, value)).collect();
            let header = Self { content, ..Self::new("PaxHeaders/entry", b'x', 0o644) };
            header.write(out);
        }
        let octal = |width: usize, value: u64| format!("{value:0width$o}\0", width = width - 1);
        let mut header = Vec::with_capacity(BLOCK);
        let mut field = |width: usize, value: &[u8]| {
            let kept = &value[..value.len().min(width)];
            header.extend(kept);
            header.resize(header.len() + width - kept.len(), 0);
        };
        field(FIELD, self.path.as_bytes());
        field(8, octal(8, self.mode.into()).as_bytes());
        field(8, octal(8, self.owner.0.min(OCTAL_LIMIT)).as_bytes());
        field(8, octal(8, self.owner.1.min(OCTAL_LIMIT)).as_bytes());
        field(12, octal(12, self.content.len() as u64).as_bytes());
        field(12, octal(12, u64::try_from(self.modified).unwrap_or(0)).as_bytes());
        field(8, b"        ");
        field(1, &[self.kind]);
        field(FIELD, self.link.as_bytes());
        field(8, if self.long == LongNames::Gnu { b"ustar  \0" } else { b"ustar\x0000" });
        field(64, b"");
        field(8, octal(8, self.device.0.into()).as_bytes());
        field(8, octal(8, self.device.1.into()).as_bytes());
        field(167, b"");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend(header);
        out.extend(&self.content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
}

/// `LENGTH KEY=VALUE`, where the length counts its own digits.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

/// An archive without the entries beneath some directories, for what another tool has written.
pub(crate) fn without(archive: &[u8], directories: &[&str]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(archive.len());
    // Where the headers begin that only tell more of the next entry.
    let mut begin = 0;
    let mut at = 0;
    while let Some(header) = archive.get(at..at + BLOCK) {
        if header.iter().all(|byte| *byte == 0) {
            break;
        }
        let text = |from: usize, to: usize| {
            let field = header[from..to].split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(field).trim().to_owned()
        };
        let size = usize::from_str_radix(&text(124, 136), 8).expect("a size in octal");
        let end = at + BLOCK + size.next_multiple_of(BLOCK);
        if !matches!(header[156], b'x' | b'g' | b'L' | b'K') {
            let prefix = text(345, 500);
            let slash = if prefix.is_empty() { "" } else { "/" };
            let path = format!("{prefix}{slash}{}", text(0, 100));
            let path = path.trim_start_matches("./");
            let is_out = directories.iter().any(|directory| {
                path.strip_prefix(directory)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            });
            if !is_out {
                kept.extend(&archive[begin..end]);
            }
            begin = end;
        }
        at = end;
    }
    kept.resize(kept.len() + 2 * BLOCK, 0);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn listed(archive: &[u8]) -> String {
        let mut child = Command::new("tar")
            .args(["--utc", "-tvf", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(archive).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn gnu_tar_reads_what_we_write() {
        let long = "d/".repeat(60) + "name";
        let tar = Tar::default().with([
            Entry::directory("d").owner(5, 3_000_000),
            Entry::file("d/f", "four").mode(0o4755),
            Entry::hard_link("d/g", "d/f"),
            Entry::symlink("d/s", "f"),
            Entry::file(&long, ""),
            Entry::file(&long, "").gnu(),
            Entry::whiteout("d/w"),
            Entry::sparse("d/sparse", 1 << 20, 4096, b"piece"),
            Entry::device("d/null", 1, 3),
        ]);
        let expected = format!(
            "\
drwxr-xr-x 5/3000000         0 2020-09-13 12:26 d
-rwsr-xr-x 0/0               4 2020-09-13 12:26 d/f
hrw-r--r-- 0/0               0 2020-09-13 12:26 d/g link to d/f
lrwxrwxrwx 0/0               0 2020-09-13 12:26 d/s -> f
-rw-r--r-- 0/0               0 2020-09-13 12:26 {long}
-rw-r--r-- 0/0               0 2020-09-13 12:26 {long}
-rw-r--r-- 0/0               0 2020-09-13 12:26 d/.wh.w
-rw-r--r-- 0/0         1048576 2020-09-13 12:26 d/sparse
crw-rw-rw- 0/0             1,3 2020-09-13 12:26 d/null
"
        );
        assert_eq!(listed(&tar.bytes()), expected);
    }

    #[test]
    fn what_is_left_out_takes_its_extended_header_along() {
        let entries = |paths: &[&str]| {
            Tar::default()
                .with(paths.iter().map(|path| Entry::file(path, "x").xattr("user.a", "b")))
        };
        let all = entries(&["./a", "./var/b", "./variety"]).bytes();
        assert_eq!(without(&all, &["var"]), entries(&["./a", "./variety"]).bytes());
    }
}
