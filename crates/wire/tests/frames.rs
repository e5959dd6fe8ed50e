//! Runs the fuzz target on generated input: real frames with random damage, and noise.

#[path = "../fuzz/body.rs"]
mod body;

use msb_spec::{Command, Ending, Exit};
use msb_wire::{
    Change, Entry, EntryKind, FileReply, FileRequest, FrameKind, FromGuest, Hello, Reply, Request,
    ToGuest, encode,
};

/// Enough to damage every field many times; under a second.
const ROUNDS: u32 = 60_000;

/// xorshift64: the same random on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

#[test]
fn damaged_frames_never_panic() {
    let seeds = seeds();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..ROUNDS {
        let mut bytes = Vec::new();
        for _ in 0..=random.below(3) {
            bytes.extend_from_slice(&seeds[random.below(seeds.len())]);
        }
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes[at] ^= 1 << random.below(8),
                2 => drop(bytes.drain(..at)),
                _ => bytes.truncate(at.max(1)),
            }
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
        body::check_bytes(&bytes);
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Random(42);
    for _ in 0..ROUNDS {
        let length = random.below(64);
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        body::check_bytes(&bytes);
    }
}

/// One valid frame of each kind.
fn seeds() -> Vec<Vec<u8>> {
    let command = Command {
        argv: vec!["sh".to_owned(), "-c".to_owned(), "echo hi".to_owned()],
        env: vec![("A".to_owned(), "1".to_owned())],
        timeout: Some("5s".parse().expect("a span")),
        user: Some("web:web".parse().expect("a user")),
        origin: Some(msb_spec::CallOrigin::mcp("core").with_key("0123")),
        ..Command::default()
    };
    let exit = Exit { code: Some(0), signal: None, ending: Ending::Own, reached: None };
    let entry = Entry {
        path: b"a/b".to_vec(),
        kind: EntryKind::Symlink(b"../c".to_vec()),
        mode: 0o644,
        size: 3,
        modified: -1,
    };
    let failed = FileReply::Failed(msb_wire::FileFailure { doing: "x".to_owned(), errno: 2 });
    vec![
        encode(FrameKind::Hello, &Hello::new(Request::Exec(command))),
        encode(FrameKind::Hello, &Hello::new(Request::Attach { id: 7 })),
        encode(FrameKind::Reply, &Reply::Exited(exit)),
        encode(FrameKind::Control, &FromGuest::Started { id: 1, pid: 2 }),
        encode(FrameKind::Control, &ToGuest::SignalAll { signal: 15 }),
        encode(FrameKind::File, &FileRequest::Pull { path: b"/etc".to_vec() }),
        encode(FrameKind::Entry, &entry),
        encode(FrameKind::Change, &Change::Put(entry)),
        encode(FrameKind::Change, &Change::Rename { from: b"a".to_vec(), to: b"b/c".to_vec() }),
        encode(FrameKind::Reply, &failed),
        encode(FrameKind::Stdout, &vec![7u8; 300]),
    ]
}
