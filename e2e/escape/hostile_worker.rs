//! A worker that was taken over: it answers what it likes, in frames made by hand.

use msb_e2e::Msb;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Duration;

pub(crate) const REPLY: u8 = 16;
pub(crate) const ENTRY: u8 = 49;
pub(crate) const BYTES: u8 = 50;

/// What sort of thing an entry claims to be.
#[derive(Clone, Copy)]
pub(crate) enum Kind<'a> {
    File(&'a [u8]),
    Directory,
    Link(&'a [u8]),
    Other,
}

/// Takes the place of the worker of sandbox `web` and gives these bytes to every client that connects.
pub(crate) fn answer(msb: &Msb, bytes: &[u8]) {
    let path = msb.home().join("sandboxes/web/worker.sock");
    let aside = path.with_extension("aside");
    if !aside.exists() {
        fs::rename(&path, &aside).expect("the socket of a sandbox that runs");
    }
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("a socket");
    fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("its permissions");
    let bytes = bytes.to_vec();
    // A client may connect more than once, to see whether the worker listens. The thread ends with the
    // tests.
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            // Whatever the request is; a client may wait until it is taken.
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&bytes);
        }
    });
}

/// Gives the sandbox its own worker back, so that it can be removed.
pub(crate) fn restore(msb: &Msb) {
    let path = msb.home().join("sandboxes/web/worker.sock");
    let _ = fs::rename(path.with_extension("aside"), path);
}

/// A tree as the guest gives it out, with the end and the answer that follow it.
pub(crate) fn tree(entries: &[(&[u8], Kind<'_>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (path, kind) in entries {
        bytes.extend(entry(path, *kind, 0o6777));
    }
    let end = [&number(0)[..], &number(4), &number(0), &number(0), &number(0)].concat();
    bytes.extend(frame(ENTRY, &end));
    bytes.extend(frame(REPLY, &[number(0), number(1), number(1)].concat()));
    bytes
}

/// One entry of a tree, with its content.
pub(crate) fn entry(path: &[u8], kind: Kind<'_>, mode: u64) -> Vec<u8> {
    let (tag, size) = match kind {
        Kind::File(content) => (number(0), content.len()),
        Kind::Directory => (number(1), 0),
        Kind::Link(target) => ([number(2), text(target)].concat(), 0),
        Kind::Other => (number(3), 0),
    };
    let modified = number(0);
    let payload = [text(path), tag, number(mode), number(size as u64), modified].concat();
    let mut bytes = frame(ENTRY, &payload);
    if let Kind::File(content) = kind {
        bytes.extend(frame(BYTES, content));
    }
    bytes
}

/// A file operation that failed, in the guest's words.
pub(crate) fn failure(words: &str) -> Vec<u8> {
    frame(REPLY, &[number(3), text(words.as_bytes()), number(4)].concat())
}

pub(crate) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small frame").to_le_bytes();
    [&length[..], &[kind], payload].concat()
}

pub(crate) fn text(bytes: &[u8]) -> Vec<u8> {
    [number(bytes.len() as u64), bytes.to_vec()].concat()
}

/// Seven bits a byte, the lowest first.
pub(crate) fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
