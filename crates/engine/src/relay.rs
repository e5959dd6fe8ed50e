//! Passes a tree from one guest to another. Both are untrusted.
//!
//! Each entry is parsed, checked and encoded anew, so the target gets no byte of the source outside
//! of the content of files. Holes stay holes, and nothing is stored on the host.

use crate::connection::Connection;
use crate::files::{CopyCount, Progress, guest_closed, malformed_reply, understand_in};
use crate::pull::ENTRY_LIMIT;
use msb_spec::{Error, Result};
use msb_sys::sparse::HOLES_LIMIT;
use msb_wire::{Entry, EntryKind, FrameKind, Piece, encode, header};

/// Which side of a copy has failed.
pub(crate) enum RelayError {
    Source(Error),
    /// The target takes no more frames.
    Target(Error),
}

/// Reads a tree from a guest, and gives its frames to `send`, with the end marker.
pub(crate) fn tree(
    source: &mut Connection,
    place: &str,
    progress: Progress<'_>,
    send: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> std::result::Result<CopyCount, RelayError> {
    let mut copied = CopyCount::default();
    let mut holes = HOLES_LIMIT;
    loop {
        let entry = next_entry(source, place).map_err(RelayError::Source)?;
        let is_root = entry.path.is_empty() && entry.kind != EntryKind::End;
        let is_first = copied.entries + copied.left_out == 0;
        if copied.entries >= ENTRY_LIMIT || is_first != is_root && entry.kind != EntryKind::End {
            return Err(RelayError::Source(malformed_reply()));
        }
        if entry.kind == EntryKind::Other {
            copied.left_out += 1;
            continue;
        }
        send(&encode(FrameKind::Entry, &entry)).map_err(RelayError::Target)?;
        if entry.kind == EntryKind::End {
            return Ok(copied);
        }
        copied.entries += 1;
        if entry.kind != EntryKind::File {
            continue;
        }
        let mut target_failed = false;
        let passed = source.stream(entry.size, |piece| {
            let (frames, length) = match piece {
                Piece::Bytes(bytes) => {
                    let frame = [&header(FrameKind::Bytes, bytes.len())[..], bytes].concat();
                    (frame, bytes.len() as u64)
                }
                Piece::Hole(length) => {
                    holes = holes.checked_sub(length).ok_or_else(malformed_reply)?;
                    (encode(FrameKind::Hole, &length), length)
                }
            };
            send(&frames).inspect_err(|_| target_failed = true)?;
            progress(length);
            Ok(())
        });
        passed.map_err(|error| match target_failed {
            true => RelayError::Target(error),
            false => RelayError::Source(error),
        })?;
        copied.bytes += entry.size;
    }
}

fn next_entry(source: &mut Connection, place: &str) -> Result<Entry> {
    let frame = source.next_frame()?.ok_or_else(guest_closed)?;
    match frame.kind {
        FrameKind::Entry => {
            let entry: Entry = frame.value().map_err(|_| malformed_reply())?;
            if entry.is_safe() { Ok(entry) } else { Err(malformed_reply()) }
        }
        FrameKind::Reply => {
            understand_in(place, frame.value().map_err(|_| malformed_reply())?)?;
            Err(malformed_reply())
        }
        _ => Err(malformed_reply()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn entry(path: &[u8], kind: EntryKind, size: u64) -> Entry {
        Entry { path: path.to_vec(), kind, mode: 0o644, size, modified: 0 }
    }

    /// What the target gets of these frames of the source, if it gets all.
    fn passed(frames: &[Vec<u8>]) -> Option<Vec<u8>> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&frames.concat()).unwrap();
        drop(theirs);
        let mut sent = Vec::new();
        let mut connection = Connection::from_stream(ours);
        let done = tree(&mut connection, "sandbox", &mut |_| {}, &mut |frames| {
            sent.extend_from_slice(frames);
            Ok(())
        });
        done.is_ok().then_some(sent)
    }

    #[test]
    fn a_tree_arrives_as_it_was_sent_without_what_is_not_copied() {
        let frame = |entry: &Entry| encode(FrameKind::Entry, entry);
        let root = frame(&entry(b"", EntryKind::Directory, 0));
        let file = frame(&entry(b"f", EntryKind::File, 7));
        let content = [&header(FrameKind::Bytes, 3)[..], b"abc"].concat();
        let hole = encode(FrameKind::Hole, &4u64);
        let end = frame(&entry(b"", EntryKind::End, 0));
        let device = frame(&entry(b"d", EntryKind::Other, 0));
        let sent = passed(&[&root, &file, &content, &hole, &device, &end].map(Clone::clone));
        assert_eq!(sent, Some([root.clone(), file, content, hole, end.clone()].concat()));
        for hostile in [
            entry(b"../x", EntryKind::File, 0),
            entry(b"/etc/x", EntryKind::File, 0),
            entry(b"", EntryKind::Directory, 0),
        ] {
            assert_eq!(passed(&[root.clone(), frame(&hostile), end.clone()]), None);
        }
        assert_eq!(passed(&[frame(&entry(b"x", EntryKind::File, 0)), end]), None);
        let large = frame(&entry(b"", EntryKind::File, u64::MAX));
        assert_eq!(passed(&[large, encode(FrameKind::Hole, &u64::MAX)]), None);
    }
}
