//! Fuzz target: arbitrary bytes, fed to the frame decoder and to each payload type.
//!
//! Shared by the cargo-fuzz target and by `tests/frames.rs`, which runs it on generated input.

use msb_wire::record::Output;
use msb_wire::{
    Change, Entry, FileReply, FileRequest, FrameKind, FramedSocket, FromGuest, Hello, Reply,
    ToGuest, WorkerClient,
};

/// Small, so that fuzzed frames reach the limit.
const LIMIT: usize = 4096;

/// Feeds the bytes to each reader of frames, and every frame to every type.
pub(crate) fn check_bytes(bytes: &[u8]) {
    let mut socket = FramedSocket::new(bytes, LIMIT);
    while let Ok(Some(frame)) = socket.read_frame(&mut [0; 100]) {
        assert!(frame.payload.len() <= LIMIT, "a frame longer than the limit");
        check_round_trip(frame.kind, &frame.payload);
        if let Ok(missing) = socket.missing() {
            assert!(missing <= LIMIT + msb_wire::HEADER, "expects more than a frame can have");
        }
    }
    let (first, second) = bytes.split_at(bytes.len() / 3);
    let mut client = WorkerClient::default();
    for piece in [first, second] {
        client.receive(piece);
        while let Ok(Some(_)) = client.next_event() {}
    }
    if let Some((output, length)) = Output::parse(bytes) {
        assert!(length <= bytes.len() && output.bytes.len() < length);
    }
}

/// Decodes a payload as each type; what is accepted must decode to the same value again.
fn check_round_trip(kind: FrameKind, payload: &[u8]) {
    macro_rules! each {
        ($($kind:ty),*) => {$(
            if let Ok(value) = msb_wire::decode::<$kind>(payload) {
                let again = msb_wire::encode(kind, &value);
                assert_eq!(msb_wire::decode::<$kind>(&again[msb_wire::HEADER..]), Ok(value));
            }
        )*};
    }
    each!(Hello, Reply, FromGuest, ToGuest, FileRequest, FileReply, Entry, Change);
    if let Ok(entry) = msb_wire::decode::<Entry>(payload)
        && entry.is_safe()
    {
        let below = std::path::Path::new("/root")
            .join(std::ffi::OsStr::new(&*String::from_utf8_lossy(&entry.path)));
        assert!(below.starts_with("/root"), "a safe path that leaves its tree");
    }
}
