//! Exports the writable layers of a `vm` sandbox by booting a helper VM that streams them as tar.
//!
//! The host neither mounts nor parses a disk that a guest has written. The helper VM has the disks
//! read-only, and no network, mounts or command; it ends after the export. Its output is untrusted:
//! it is bounded and unpacked by the process that unpacks pulled layers.

use super::SnapshotStore;
use crate::connection::Connection;
use crate::files::understand_in;
use crate::hardware;
use crate::host::random;
use crate::start::{Launch, LaunchUntil};
use msb_image::{Layer, Store};
use msb_spec::encoding::hex;
use msb_spec::{By, Bytes, Error, Kind, Limit, Limits, Name, Plan, Result, Upper};
use msb_wire::{FileReply, FrameKind, Request};
use std::io::{self, Read};
use std::time::Duration;

/// Memory of the helper VM: a kernel, the guest, and some page cache.
const MEMORY: Bytes = Bytes::mib(128);
/// The longest silence of the helper VM. The slowest step reads one block of a disk.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// How long the helper VM may take to end; it has no processes to stop.
const END_LIMIT: Duration = Duration::from_secs(10);

impl SnapshotStore<'_> {
    /// The written layers of a Plan as one image layer; `None` if nothing was written.
    pub(super) fn export_layer(&self, plan: &Plan, store: &Store) -> Result<Option<Layer>> {
        let about = |error: Error| error.under("cannot read what a microVM wrote");
        let plan = self.exporter_plan(plan).map_err(about)?;
        let until = LaunchUntil::CommandStarted;
        let launch = Launch { until, ..Launch::default() };
        let exporter = self.engine.launch(plan, &launch).map_err(about)?;
        let name = exporter.plan().name.clone();
        let connection = self.engine.connect(&name, &Request::Layer).map_err(about)?;
        connection.set_read_timeout(SILENCE_LIMIT).map_err(about)?;
        let mut stream =
            LayerStream { connection, piece: Vec::new(), at: 0, done: false, failed: None };
        let kept = store.keep_streamed(&mut stream);
        let layer = match stream.failed.take() {
            Some(failed) => Err(failed),
            None => kept,
        };
        // The helper VM ends with its connection.
        drop(exporter);
        let ended = self.engine.await_end(&name, END_LIMIT);
        let layer = layer.map_err(about)?;
        ended.map(|()| layer)
    }

    /// The Plan of the helper VM: the disks of `plan` and nothing else of it.
    fn exporter_plan(&self, plan: &Plan) -> Result<Plan> {
        let kernel = hardware::usable(self.engine.home()).map_err(|error| {
            error.hint("where microVMs run, `msb snapshot save` makes a file of it that `msb snapshot load` reads anywhere")
        })?;
        let digits = hex(random::<4>());
        let name = Name::parse(&format!("saving-{digits}")).expect("letters, digits and a dash");
        let mut plan = self.derive_plan(plan, &name, self.new_ids_like(plan.ids)?);
        if let Some(machine) = &mut plan.machine {
            machine.kernel = kernel;
            machine.cpus = 1;
            machine.memory_mib = u32::try_from(MEMORY.0 >> 20).unwrap_or(u32::MAX);
        }
        plan.limits = Limits {
            memory: Some(Limit { value: MEMORY, by: By::Machine }),
            cgroup_owner: self.engine.home().short_hash(),
            ..Limits::default()
        };
        plan.rootfs.upper = Upper::Memory { size: 0 };
        plan.rootfs.own = 0;
        plan.ephemeral = true;
        plan.network = None;
        plan.mounts = Vec::new();
        plan.workspace = None;
        plan.tmpfs = Vec::new();
        (plan.user, plan.init) = (None, None);
        (plan.max_duration, plan.idle_timeout, plan.idle_pause) = (None, None, None);
        Ok(plan)
    }
}

/// The tar stream from the helper VM.
struct LayerStream {
    connection: Connection,
    piece: Vec<u8>,
    at: usize,
    /// Whether the final reply was received: a stream without it was cut off.
    done: bool,
    failed: Option<Error>,
}

impl LayerStream {
    fn next(&mut self) -> Result<()> {
        let wrong = || Error::new(Kind::Protocol, "the helper VM sent an unexpected reply");
        let Some(frame) = self.connection.next_frame()? else {
            return Err(Error::new(
                Kind::Protocol,
                "the helper VM ended before the export was complete",
            ));
        };
        match frame.kind {
            FrameKind::Bytes if !frame.payload.is_empty() => {
                (self.piece, self.at) = (frame.payload, 0);
                Ok(())
            }
            FrameKind::Reply => match frame.value() {
                Ok(FileReply::Done { .. }) => {
                    self.done = true;
                    Ok(())
                }
                Ok(stream) => understand_in("snapshot", stream).and_then(|_| Err(wrong())),
                Err(_) => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

impl Read for LayerStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() && !self.done {
            if let Err(error) = self.next() {
                let stream = io::Error::other(error.message().to_owned());
                self.failed = Some(error);
                return Err(stream);
            }
        }
        let some = buffer.len().min(self.piece.len() - self.at);
        buffer[..some].copy_from_slice(&self.piece[self.at..self.at + some]);
        self.at += some;
        Ok(some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_wire::{encode, header};
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// Reads the stream of a guest that sends these bytes and closes.
    fn exported(frames: &[u8]) -> (io::Result<Vec<u8>>, Option<Error>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(frames).unwrap();
        drop(theirs);
        let connection = Connection::from_stream(ours);
        let mut stream =
            LayerStream { connection, piece: Vec::new(), at: 0, done: false, failed: None };
        let mut all = Vec::new();
        let read = stream.read_to_end(&mut all).map(|_| all);
        (read, stream.failed)
    }

    fn bytes(bytes: &[u8]) -> Vec<u8> {
        [header(FrameKind::Bytes, bytes.len()).as_slice(), bytes].concat()
    }

    #[test]
    fn a_stream_without_a_final_reply_is_refused() {
        let done = encode(FrameKind::Reply, &FileReply::Done { entries: 1, bytes: 3 });
        let (read, failed) = exported(&[bytes(b"abc"), bytes(b"de"), done.clone()].concat());
        assert_eq!((read.unwrap(), failed), (b"abcde".to_vec(), None));
        for wrong in [bytes(b"abc"), bytes(b""), b"nonsense".to_vec(), Vec::new()] {
            let (read, failed) = exported(&wrong);
            assert!(read.is_err() && failed.is_some(), "{wrong:?}");
        }
        let failure = msb_wire::FileFailure { doing: "read `/a`".to_owned(), errno: 5 };
        let failure = encode(FrameKind::Reply, &FileReply::Failed(failure));
        let (read, failed) = exported(&[bytes(b"abc"), failure].concat());
        assert!(read.is_err());
        assert_eq!(failed.unwrap().message(), "in the snapshot, cannot read `/a`");
    }
}
