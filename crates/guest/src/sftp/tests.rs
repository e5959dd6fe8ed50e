//! Transcripts of valid and invalid clients, byte by byte.

use super::*;
use packet::*;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A temporary directory and an initialised session.
struct Lab {
    dir: PathBuf,
    session: SftpSession<'static>,
    client: Option<UnixStream>,
    next: u32,
}

/// A reply: its type, and what follows its id.
type Answer = (u8, Vec<u8>);

impl Lab {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("msb-sftp-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        let (client, ours) = UnixStream::pair().unwrap();
        // Leaked, because the session borrows it.
        let ours: &'static UnixStream = Box::leak(Box::new(ours));
        let mut session = SftpSession::new(dir.clone(), ours.as_fd());
        let mut out = ReplyBuffer::default();
        assert!(session.answer(&[INIT, 0, 0, 0, 3], &mut out));
        assert_eq!(&out.bytes()[4..9], [VERSION, 0, 0, 0, 3]);
        Self { dir, session, client: Some(client), next: 7 }
    }

    fn path(&self, name: &str) -> Vec<u8> {
        self.dir.join(name).into_os_string().into_encoded_bytes()
    }

    fn ask(&mut self, kind: u8, parts: &[Part<'_>]) -> Answer {
        self.next += 1;
        let mut packet = vec![kind];
        packet.extend(self.next.to_be_bytes());
        parts.iter().for_each(|part| part.put(&mut packet));
        let mut out = ReplyBuffer::default();
        assert!(self.session.answer(&packet, &mut out));
        let answer = out.bytes();
        assert_eq!(answer[..4], (answer.len() as u32 - 4).to_be_bytes());
        assert_eq!(answer[5..9], self.next.to_be_bytes());
        (answer[4], answer[9..].to_vec())
    }

    /// The status code of a reply.
    fn status(&mut self, kind: u8, parts: &[Part<'_>]) -> u32 {
        let (answered, rest) = self.ask(kind, parts);
        assert_eq!(answered, STATUS, "{rest:?}");
        u32::from_be_bytes(rest[..4].try_into().unwrap())
    }

    fn open(&mut self, name: &str, flags: u32) -> Vec<u8> {
        let path = self.path(name);
        let (kind, rest) = self.ask(OPEN, &[Str(&path), U32(flags), U32(0)]);
        assert_eq!(kind, HANDLE, "{rest:?}");
        rest[4..].to_vec()
    }

    fn refused_open(&mut self, path: &[u8], flags: u32) -> u32 {
        self.status(OPEN, &[Str(path), U32(flags), U32(0)])
    }

    fn extended(&mut self, name: &str, parts: &[Part<'_>]) -> Answer {
        let parts: Vec<Part<'_>> =
            [Str(name.as_bytes())].into_iter().chain(parts.iter().copied()).collect();
        self.ask(EXTENDED, &parts)
    }

    fn extended_status(&mut self, name: &str, parts: &[Part<'_>]) -> u32 {
        let (kind, rest) = self.extended(name, parts);
        assert_eq!(kind, STATUS, "{rest:?}");
        u32::from_be_bytes(rest[..4].try_into().unwrap())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[derive(Clone, Copy)]
enum Part<'a> {
    U32(u32),
    U64(u64),
    Str(&'a [u8]),
}
use Part::{Str, U32, U64};

impl Part<'_> {
    fn put(&self, packet: &mut Vec<u8>) {
        match self {
            U32(number) => packet.extend(number.to_be_bytes()),
            U64(number) => packet.extend(number.to_be_bytes()),
            Str(bytes) => {
                packet.extend((bytes.len() as u32).to_be_bytes());
                packet.extend_from_slice(bytes);
            }
        }
    }
}

const OK: u32 = 0;
const EOF: u32 = 1;
const NO_SUCH_FILE: u32 = 2;
const DENIED: u32 = 3;
const FAILURE: u32 = 4;
const BAD: u32 = 5;
const UNSUPPORTED: u32 = 8;

const R: u32 = 1;
const W: u32 = 2;
const APPEND: u32 = 4;
const CREATE: u32 = 8;
const TRUNCATE: u32 = 16;
const EXCLUSIVE: u32 = 32;

#[test]
fn written_bytes_are_read_back() {
    let mut lab = Lab::new("write");
    let handle = lab.open("file", R | W | CREATE | TRUNCATE);
    assert_eq!(lab.status(WRITE, &[Str(&handle), U64(3), Str(b"defgh")]), OK);
    assert_eq!(lab.status(WRITE, &[Str(&handle), U64(0), Str(b"abc")]), OK);
    let (kind, data) = lab.ask(READ, &[Str(&handle), U64(2), U32(4)]);
    assert_eq!((kind, data), (DATA, [&4u32.to_be_bytes()[..], b"cdef"].concat()));
    assert_eq!(lab.status(READ, &[Str(&handle), U64(8), U32(4)]), EOF);
    // A read beyond the maximum returns the maximum.
    let (kind, data) = lab.ask(READ, &[Str(&handle), U64(0), U32(u32::MAX)]);
    assert_eq!((kind, data.len()), (DATA, 12));
    assert_eq!(lab.status(READ, &[Str(&handle), U64(u64::MAX), U32(4)]), BAD);
    assert_eq!(lab.status(CLOSE, &[Str(&handle)]), OK);
    assert_eq!(lab.status(CLOSE, &[Str(&handle)]), FAILURE);
    assert_eq!(fs::read(lab.dir.join("file")).unwrap(), b"abcdefgh");
}

#[test]
fn files_are_opened_as_asked_for() {
    let mut lab = Lab::new("open");
    let path = lab.path("file");
    assert_eq!(lab.refused_open(&path, R), NO_SUCH_FILE);
    lab.open("file", W | CREATE | EXCLUSIVE);
    assert_eq!(lab.refused_open(&path, W | CREATE | EXCLUSIVE), FAILURE);
    fs::write(lab.dir.join("file"), "one").unwrap();
    let handle = lab.open("file", W | APPEND);
    assert_eq!(lab.status(WRITE, &[Str(&handle), U64(0), Str(b" two")]), OK);
    assert_eq!(fs::read(lab.dir.join("file")).unwrap(), b"one two");
    assert_eq!(lab.status(READ, &[Str(&handle), U64(0), U32(1)]), NO_SUCH_FILE);
    lab.open("file", W | CREATE | TRUNCATE);
    assert_eq!(fs::read(lab.dir.join("file")).unwrap(), b"");
    let (kind, _) = lab.ask(OPEN, &[Str(&lab.path("mode")), U32(W | CREATE), U32(4), U32(0o600)]);
    assert_eq!(kind, HANDLE);
    assert_eq!(fs::metadata(lab.dir.join("mode")).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn pipes_and_devices_do_not_block() {
    let mut lab = Lab::new("pipe");
    let pipe = lab.path("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    let made = rustix::fs::mknodat(rustix::fs::CWD, &*pipe, rustix::fs::FileType::Fifo, mode, 0);
    made.unwrap();
    for flags in [R, W, R | W] {
        assert_eq!(lab.refused_open(&pipe, flags), FAILURE);
    }
    assert_eq!(lab.refused_open(b"/dev/tty", R | W), FAILURE);
    assert_eq!(lab.status(SETSTAT, &[Str(&pipe), U32(1), U64(0)]), BAD);
    let (kind, handle) = lab.ask(OPEN, &[Str(b"/dev/null"), U32(R | W), U32(0)]);
    assert_eq!(kind, HANDLE);
    assert_eq!(lab.status(READ, &[Str(&handle[4..]), U64(0), U32(9)]), EOF);
}

#[test]
fn attributes_are_read_and_set() {
    let mut lab = Lab::new("attributes");
    let (file, link) = (lab.path("file"), lab.path("link"));
    fs::write(lab.dir.join("file"), "12345").unwrap();
    symlink("file", lab.dir.join("link")).unwrap();
    let times = [U32(0x4 | 0x8), U32(0o100_640), U32(1000), U32(2000)];
    assert_eq!(lab.status(SETSTAT, &[&[Str(&link)], &times[..]].concat()), OK);
    let (kind, told) = lab.ask(STAT, &[Str(&link)]);
    let number = |at: usize| u32::from_be_bytes(told[at..at + 4].try_into().unwrap());
    assert_eq!((kind, number(0), number(8), number(20)), (ATTRS, 15, 5, 0o100_640));
    assert_eq!((number(24), number(28)), (1000, 2000));
    let (_, told) = lab.ask(LSTAT, &[Str(&link)]);
    assert_eq!(told[20..24], 0o120_777u32.to_be_bytes());
    let handle = lab.open("file", R | W);
    assert_eq!(lab.status(FSETSTAT, &[Str(&handle), U32(1), U64(2)]), OK);
    assert_eq!(fs::read(lab.dir.join("file")).unwrap(), b"12");
    assert_eq!(lab.status(SETSTAT, &[Str(&file), U32(1), U64(3)]), OK);
    let (kind, told) = lab.ask(FSTAT, &[Str(&handle)]);
    assert_eq!((kind, &told[4..12]), (ATTRS, &3u64.to_be_bytes()[..]));
    // The symlink itself, not its target.
    let times = [U32(0x8), U32(5), U32(6)];
    let set = [&[Str(&link)], &times[..]].concat();
    assert_eq!(lab.extended_status("lsetstat@openssh.com", &set), OK);
    assert_eq!(fs::symlink_metadata(lab.dir.join("link")).unwrap().mtime(), 6);
    assert_ne!(fs::metadata(lab.dir.join("link")).unwrap().mtime(), 6);
    let mode = [Str(&link), U32(4), U32(0o600)];
    assert_eq!(lab.extended_status("lsetstat@openssh.com", &mode), UNSUPPORTED);
    assert_eq!(lab.extended_status("lsetstat@openssh.com", &[Str(&file), U32(1), U64(0)]), BAD);
}

#[test]
fn directories_are_listed_once() {
    let mut lab = Lab::new("list");
    let dir = lab.path("");
    // Not valid UTF-8.
    let odd = Path::new(std::ffi::OsStr::from_bytes(b"\xff\n"));
    fs::write(lab.dir.join(odd), "x").unwrap();
    for number in 0..600 {
        fs::write(lab.dir.join(number.to_string()), "").unwrap();
    }
    let (kind, handle) = lab.ask(OPENDIR, &[Str(&dir)]);
    assert_eq!(kind, HANDLE);
    let mut names = Vec::new();
    loop {
        let (kind, answer) = lab.ask(READDIR, &[Str(&handle[4..])]);
        if kind == STATUS {
            assert_eq!(answer[..4], EOF.to_be_bytes());
            break;
        }
        assert!(answer.len() < 48 << 10);
        let mut fields = PacketReader(&answer);
        for _ in 0..fields.u32().unwrap() {
            let name = fields.string().unwrap();
            let long = fields.string().unwrap();
            assert!(long.ends_with(name) && long.len() > name.len() + 40);
            attributes::SetAttrs::read(&mut fields).unwrap();
            names.push(name.to_vec());
        }
        assert!(fields.0.is_empty());
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 600 + 1 + 2);
    assert!(names.contains(&b"\xff\n".to_vec()));
    assert_eq!(lab.status(READ, &[Str(&handle[4..]), U64(0), U32(1)]), FAILURE);
    assert_eq!(lab.status(OPENDIR, &[Str(&lab.path("7"))]), NO_SUCH_FILE);
}

#[test]
fn names_are_made_moved_and_removed() {
    let mut lab = Lab::new("names");
    let (a, b, c) = (lab.path("a"), lab.path("b"), lab.path("c"));
    assert_eq!(lab.status(MKDIR, &[Str(&a), U32(4), U32(0o700)]), OK);
    assert_eq!(fs::metadata(lab.dir.join("a")).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(lab.status(MKDIR, &[Str(&a), U32(0)]), FAILURE);
    fs::write(lab.dir.join("b"), "b").unwrap();
    fs::write(lab.dir.join("c"), "c").unwrap();
    assert_eq!(lab.status(RENAME, &[Str(&b), Str(&c)]), FAILURE);
    assert_eq!(lab.extended_status("posix-rename@openssh.com", &[Str(&b), Str(&c)]), OK);
    assert_eq!(fs::read(lab.dir.join("c")).unwrap(), b"b");
    assert_eq!(lab.status(RENAME, &[Str(&c), Str(&b)]), OK);
    assert_eq!(lab.extended_status("hardlink@openssh.com", &[Str(&b), Str(&c)]), OK);
    assert_eq!(fs::metadata(lab.dir.join("c")).unwrap().nlink(), 2);
    assert_eq!(lab.status(REMOVE, &[Str(&a)]), FAILURE);
    assert_eq!(lab.status(RMDIR, &[Str(&b)]), NO_SUCH_FILE);
    assert_eq!(lab.status(RMDIR, &[Str(&a)]), OK);
    assert_eq!(lab.status(REMOVE, &[Str(&b)]), OK);
    assert_eq!(lab.status(REMOVE, &[Str(&b)]), NO_SUCH_FILE);
    // The target comes first.
    assert_eq!(lab.status(SYMLINK, &[Str(b"nowhere"), Str(&a)]), OK);
    let (kind, answer) = lab.ask(READLINK, &[Str(&a)]);
    assert_eq!((kind, &answer[4..15]), (NAME, &b"\0\0\0\x07nowhere"[..]));
    assert_eq!(lab.status(READLINK, &[Str(&c)]), BAD);
}

#[test]
fn paths_are_resolved() {
    let mut lab = Lab::new("real");
    fs::create_dir(lab.dir.join("dir")).unwrap();
    symlink("dir", lab.dir.join("link")).unwrap();
    let base = lab.dir.canonicalize().unwrap();
    let resolve = |lab: &mut Lab, path: &[u8]| {
        let (kind, answer) = lab.ask(REALPATH, &[Str(path)]);
        assert_eq!(kind, NAME);
        let mut fields = PacketReader(&answer);
        assert_eq!(fields.u32().unwrap(), 1);
        fields.path().unwrap().to_owned()
    };
    let ask = |lab: &Lab, path: &str| lab.path(path);
    let path = ask(&lab, "link/./../dir");
    assert_eq!(resolve(&mut lab, &path), base.join("dir"));
    let path = ask(&lab, "link/missing/far/../x");
    assert_eq!(resolve(&mut lab, &path), base.join("dir/missing/x"));
    assert_eq!(resolve(&mut lab, b"/../../.."), Path::new("/"));
    assert_eq!(resolve(&mut lab, b""), std::env::current_dir().unwrap());
    let (kind, answer) = lab.extended("expand-path@openssh.com", &[Str(b"~/link/x")]);
    assert_eq!(kind, NAME);
    assert_eq!(PacketReader(&answer[4..]).path().unwrap(), base.join("dir/x"));
    assert_eq!(lab.extended_status("home-directory", &[Str(b"nobody-at-all")]), NO_SUCH_FILE);
    assert_eq!(lab.status(REALPATH, &[Str(b"a\0b")]), BAD);
}

#[test]
fn files_are_copied_inside() {
    let mut lab = Lab::new("copy");
    fs::write(lab.dir.join("from"), vec![7; 300_000]).unwrap();
    let from = lab.open("from", R);
    let to = lab.open("to", R | W | CREATE);
    let copied = [Str(&from), U64(1), U64(0), Str(&to), U64(5)];
    assert_eq!(lab.extended_status("copy-data", &copied), OK);
    assert_eq!(fs::metadata(lab.dir.join("to")).unwrap().len(), 300_004);
    let itself = lab.open("to", R);
    let copied = [Str(&itself), U64(0), U64(0), Str(&to), U64(300_004)];
    assert_eq!(lab.extended_status("copy-data", &copied), FAILURE);
    assert_eq!(lab.extended_status("fsync@openssh.com", &[Str(&to)]), OK);
    let (kind, room) = lab.extended("fstatvfs@openssh.com", &[Str(&to)]);
    assert_eq!((kind, room.len()), (EXTENDED_REPLY, 11 * 8));
    let (kind, limits) = lab.extended("limits@openssh.com", &[]);
    assert_eq!((kind, limits.len()), (EXTENDED_REPLY, 4 * 8));
    let ids = [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xfe];
    let (kind, names) = lab.extended("users-groups-by-id@openssh.com", &[Str(&ids), Str(b"")]);
    assert_eq!(
        (kind, &names[..]),
        (EXTENDED_REPLY, &b"\0\0\0\x0c\0\0\0\x04root\0\0\0\0\0\0\0\0"[..])
    );
    assert_eq!(lab.extended_status("unheard-of", &[]), UNSUPPORTED);
    assert_eq!(lab.status(99, &[]), UNSUPPORTED);
}

#[test]
fn a_copy_ends_when_its_client_disconnects() {
    let mut lab = Lab::new("endless");
    let (zero, null) = (lab.open("/dev/zero", R), lab.open("/dev/null", W));
    let copied = [Str(&zero), U64(0), U64(0), Str(&null), U64(0)];
    assert_eq!(lab.extended_status("copy-data", &copied), FAILURE);
    // A sparse file that would take days to copy.
    fs::File::create(lab.dir.join("hole")).unwrap().set_len(1 << 43).unwrap();
    let hole = lab.open("hole", R);
    let copied = [Str(&hole), U64(0), U64(1 << 20), Str(&null), U64(0)];
    assert_eq!(lab.extended_status("copy-data", &copied), OK);
    lab.client = None;
    let copied = [Str(&hole), U64(0), U64(0), Str(&null), U64(0)];
    assert_eq!(lab.extended_status("copy-data", &copied), FAILURE);
}

#[test]
fn handles_are_limited_and_never_reused() {
    let mut lab = Lab::new("handles");
    fs::write(lab.dir.join("file"), "x").unwrap();
    let first = lab.open("file", R);
    assert_eq!(lab.status(CLOSE, &[Str(&first)]), OK);
    let handles: Vec<_> = (0..handles::MAX_HANDLES).map(|_| lab.open("file", R)).collect();
    assert!(!handles.contains(&first));
    let path = lab.path("file");
    for _ in 0..2000 {
        assert_eq!(lab.refused_open(&path, R), FAILURE);
        assert_eq!(lab.status(OPENDIR, &[Str(b"/")]), FAILURE);
    }
    for wrong in [&b""[..], b"x", b"12345678", &[0xff; 8], &[0; 300], &first] {
        assert_eq!(lab.status(READ, &[Str(wrong), U64(0), U32(1)]), FAILURE);
        assert_eq!(lab.status(CLOSE, &[Str(wrong)]), FAILURE);
    }
    assert_eq!(lab.status(CLOSE, &[Str(&handles[9])]), OK);
    lab.open("file", R);
}

#[test]
fn malformed_packets_change_nothing() {
    let mut lab = Lab::new("lies");
    let path = lab.path("file");
    // Truncated at every offset, and with lengths beyond the end.
    let mut whole = vec![OPEN, 0, 0, 0, 1];
    [Str(&path), U32(W | CREATE), U32(0x8000_000f), U64(1), U32(1), U32(2), U32(3)]
        .iter()
        .chain(&[U32(4), U32(5), U32(u32::MAX)])
        .for_each(|part| part.put(&mut whole));
    for end in 1..whole.len() {
        let mut out = ReplyBuffer::default();
        let goes_on = lab.session.answer(&whole[..end], &mut out);
        assert_eq!(goes_on, end >= 5);
        assert!(end < 5 || out.bytes()[4..13] == [STATUS, 0, 0, 0, 1, 0, 0, 0, 5]);
    }
    assert_eq!(lab.status(REMOVE, &[U32(u32::MAX)]), BAD);
    assert_eq!(lab.status(WRITE, &[Str(b"12345678"), U64(0), U32(u32::MAX)]), FAILURE);
    assert!(!lab.dir.join("file").exists());
    // No request is allowed before INIT.
    let (_client, ours) = UnixStream::pair().unwrap();
    let mut unknown = SftpSession::new(PathBuf::from("/"), ours.as_fd());
    assert!(!unknown.answer(&whole, &mut ReplyBuffer::default()));
    assert!(!unknown.answer(&[], &mut ReplyBuffer::default()));
}

#[test]
fn errors_keep_their_meaning() {
    let mut lab = Lab::new("errors");
    let long = vec![b'x'; 5000];
    assert_eq!(lab.status(STAT, &[Str(&long)]), BAD);
    assert_eq!(lab.status(STAT, &[Str(b"/proc/self/nothing")]), NO_SUCH_FILE);
    // Root may write any file.
    if is_root() {
        return;
    }
    fs::write(lab.dir.join("file"), "").unwrap();
    fs::set_permissions(lab.dir.join("file"), fs::Permissions::from_mode(0o000)).unwrap();
    let path = lab.path("file");
    assert_eq!(lab.refused_open(&path, R), DENIED);
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A complete session over a socket.
#[test]
fn answers_come_together_and_in_order() {
    let lab = Lab::new("stream");
    fs::write(lab.dir.join("file"), vec![9; 1 << 20]).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let home = lab.dir.clone();
    let served = std::thread::spawn(move || serve(theirs.as_fd(), 28 << 10, home));
    let mut requests = Vec::new();
    let mut ask = |kind: u8, id: Option<u32>, parts: &[Part<'_>]| {
        let mut packet = vec![kind];
        packet.extend(id.into_iter().flat_map(u32::to_be_bytes));
        parts.iter().for_each(|part| part.put(&mut packet));
        requests.extend((packet.len() as u32).to_be_bytes());
        requests.extend(packet);
    };
    ask(INIT, None, &[U32(3)]);
    ask(OPEN, Some(1), &[Str(&lab.path("file")), U32(R), U32(0)]);
    // The first handle of a session.
    let handle = [0, 0, 0, 0, 0, 0, 0, 1];
    for number in 0..64 {
        ask(READ, Some(2 + number), &[Str(&handle), U64(u64::from(number) << 14), U32(1 << 14)]);
    }
    let writer = ours.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        // In pieces that ignore packet boundaries.
        for piece in requests.chunks(1000) {
            (&writer).write_all(piece).unwrap();
        }
        writer.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let mut answers = Vec::new();
    ours.read_to_end(&mut answers).unwrap();
    writing.join().unwrap();
    served.join().unwrap();
    let mut ids = Vec::new();
    let mut rest = &answers[..];
    while let Ok(Some(packet)) = first_packet(rest) {
        rest = &rest[4 + packet.len()..];
        ids.push((packet[0], u32::from_be_bytes(packet[1..5].try_into().unwrap())));
    }
    assert!(rest.is_empty());
    assert_eq!(ids[0], (VERSION, 3));
    assert_eq!(ids[1], (HANDLE, 1));
    assert_eq!(ids[2..], (2..66).map(|id| (DATA, id)).collect::<Vec<_>>());
}

#[test]
fn a_packet_over_the_limit_ends_the_session() {
    for length in [0, MAX_PACKET as u32 + 1, u32::MAX] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let served =
            std::thread::spawn(move || serve(theirs.as_fd(), usize::MAX, PathBuf::from("/")));
        ours.write_all(&[0, 0, 0, 5, INIT, 0, 0, 0, 3]).unwrap();
        ours.write_all(&length.to_be_bytes()).unwrap();
        let mut said = Vec::new();
        ours.read_to_end(&mut said).unwrap();
        served.join().unwrap();
        assert_eq!(first_packet(&said).ok().flatten().map(|packet| packet[0]), Some(VERSION));
    }
}

/// Random packets with a valid start, so that they get past the first field. None may stop the
/// session, use much memory, or get anything but one reply.
#[test]
fn random_requests_are_answered_or_refused() {
    let mut lab = Lab::new("random");
    let (file, dir) = (lab.path("file"), lab.path(""));
    fs::write(lab.dir.join("file"), "content").unwrap();
    let handle = lab.open("file", R);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let kinds: Vec<u8> = (2..=21).chain([EXTENDED, 255]).collect();
    // Paths that stay in the directory or do not exist.
    let strings: [&[u8]; 5] = [&file, &dir, &handle, b"", b"\0"];
    for _ in 0..50_000 {
        let mut packet = vec![kinds[random(kinds.len() as u64) as usize], 0, 0, 0, 1];
        if packet[0] == EXTENDED && random(2) == 0 {
            Str(b"limits@openssh.com").put(&mut packet);
        }
        for _ in 0..random(5) {
            // No number is the length of a name that exists in our own directory.
            match random(3) {
                0 => U32(random(1 << 16) as u32 | 512).put(&mut packet),
                1 => U64(random(1 << 20) | 512).put(&mut packet),
                _ => Str(strings[random(5) as usize]).put(&mut packet),
            }
        }
        packet
            .truncate(packet.len() - random(2) as usize * random(packet.len() as u64 - 4) as usize);
        let mut out = ReplyBuffer::default();
        assert!(lab.session.answer(&packet, &mut out));
        let answer = first_packet(out.bytes()).ok().flatten().expect("one packet");
        assert_eq!(answer.len() + 4, out.len());
        assert_eq!(answer[1..5], [0, 0, 0, 1]);
        if answer[0] == HANDLE && answer[5..] != *handle {
            lab.session.answer(
                &[&[CLOSE, 0, 0, 0, 2], &answer[5..]].concat(),
                &mut ReplyBuffer::default(),
            );
        }
    }
}
