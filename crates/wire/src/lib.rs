//! Frames between host, worker and guest: bytes in, values out.
//!
//! A frame is `length (u32, little endian) · kind (u8) · payload`. The length is checked against
//! the reader's own limit before anything is allocated. One connection is one Exec or one file
//! operation, so there are no stream ids. [`FramedSocket`] and [`WorkerClient`] are the only
//! readers of frames. Nothing here opens a socket or waits for one; see `docs/protocol.md`.

mod chain;
mod client;
mod control;
mod drain;
mod files;
mod frame;
mod framed;
mod links;
mod machine;
mod network;
pub mod record;
mod request;
mod volume;

pub use chain::{Head, Link, unchained};
pub use client::{ClientError, ClientMessage, WorkerClient, WorkerEvent};
pub use control::{FromGuest, Handover, Hit, InitFailure, SpawnFailure, ToGuest};
pub use drain::OutputDrain;
pub use files::{
    Change, Entry, EntryKind, FailedChange, FileFailure, FileReply, FileRequest, Meta,
};
pub use frame::{Frame, FrameError, FrameKind, HEADER, Piece, decode, encode, header};
pub use framed::FramedSocket;
pub use links::{LinkFailure, LinkReply, Target, Unwrapping, wrap};
pub use machine::{
    Boot, BootNetwork, CTL_HELLO, FromMachine, MACHINE_PORT, MachineMount, MachineRoot,
    MachineTmpfs, MachineUsage, SPARE_CONNECTIONS, ShareOverlay, ToMachine, WrittenDisk,
};
pub use network::{
    FlowKind, FromGateway, MAX_FROM_GATEWAY, NetEvent, NetFlow, NetRecord, NetTable, NetUsage,
    ToGateway, Verdict,
};
pub use request::{
    CodeNote, DiskTraffic, ExecState, ExecStatus, Hello, HoldsNow, Reply, Request, Sample,
    StopResult, Usage, WorkerStatus,
};
pub use volume::{VOLUME_ARGUMENT, VolumeHelperRequest};

/// Protocol version, compared in the first frame. Incremented whenever an older peer could misread
/// a frame.
pub const VERSION: u32 = 11;

/// Longest frame in bytes that a worker accepts from a client: a command line and environment at
/// the kernel's limit of 2 MiB fit.
pub const MAX_REQUEST: usize = 4 << 20;
/// Longest data frame in bytes; larger ones only cost memory.
pub const MAX_CHUNK: usize = 256 << 10;
/// Longest frame in bytes that is accepted from a guest, which is hostile.
pub const MAX_FROM_GUEST: usize = 512 << 10;
