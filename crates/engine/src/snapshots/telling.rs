//! What sandboxes of the `vm` tier wrote, told by a machine that is started for nothing else.
//!
//! The host neither mounts nor parses a disk that a guest has written. This machine has the disks
//! read-only, no network, nothing of the user's and no command, and it is gone when it has told.
//! What it tells is a layer like any other that comes from outside: it is bounded, and read by
//! the process that unpacks hostile images.

use crate::connection::Connection;
use crate::files::understand_in;
use crate::hardware;
use crate::host::random;
use crate::sandboxes::Engine;
use msb_image::{Layer, Store};
use msb_spec::{By, Bytes, Error, Kind, Limit, Limits, Name, Plan, Result, Upper};
use msb_wire::{FileReply, FrameKind, Request};
use std::io::{self, Read};
use std::time::Duration;

/// A kernel, the guest, and some of what it reads.
const MEMORY: Bytes = Bytes::mib(128);
/// A machine that says nothing for so long never will. The slowest read one block of a disk.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// It has nothing to end.
const END_LIMIT: Duration = Duration::from_secs(10);

impl Engine {
    /// What sandboxes wrote over the image that a Plan lies on, as one layer; none if nothing.
    pub(super) fn told_layer(&self, plan: &Plan, store: &Store) -> Result<Option<Layer>> {
        let about = |error: Error| error.under("cannot read what a microVM wrote");
        let plan = self.teller(plan).map_err(about)?;
        let mut caller = self.create(&plan, false).map_err(about)?;
        let layer = self.begin(&plan, &mut caller).and_then(|()| {
            let connection = self.connect(&plan.name, &Request::Layer)?;
            connection.wait_at_most(SILENCE_LIMIT)?;
            let mut told = Told { connection, piece: Vec::new(), at: 0, done: false, failed: None };
            let kept = store.keep_streamed(&mut told);
            match told.failed.take() {
                Some(failed) => Err(failed),
                None => kept,
            }
        });
        // It ends with the connection of whoever started it.
        drop(caller);
        let ended = self.await_end(&plan.name, END_LIMIT);
        let layer = layer.map_err(about)?;
        ended.map(|()| layer)
    }

    /// A machine that has the disks of a Plan and nothing else of it.
    fn teller(&self, plan: &Plan) -> Result<Plan> {
        let kernel = hardware::usable(self.home()).map_err(|error| {
            error.hint("where microVMs run, `msb snapshot save` makes a file of it that `msb snapshot load` reads anywhere")
        })?;
        let digits: String = random::<4>().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = Name::parse(&format!("saving-{digits}")).expect("letters, digits and a dash");
        let mut plan = self.derived(plan, &name, self.ids_like(plan.ids)?);
        if let Some(machine) = &mut plan.machine {
            machine.kernel = kernel;
            machine.cpus = 1;
            machine.memory_mib = u32::try_from(MEMORY.0 >> 20).unwrap_or(u32::MAX);
        }
        plan.limits = Limits {
            memory: Some(Limit { value: MEMORY, by: By::Machine }),
            cgroup_owner: self.home().short_hash(),
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

/// A layer that comes from a machine, piece by piece.
struct Told {
    connection: Connection,
    piece: Vec<u8>,
    at: usize,
    /// Whether it has said that this was all: a stream that merely ends is none.
    done: bool,
    failed: Option<Error>,
}

impl Told {
    fn next(&mut self) -> Result<()> {
        let wrong = || Error::new(Kind::Protocol, "the machine said something else");
        let Some(frame) = self.connection.next_frame()? else {
            return Err(Error::new(Kind::Protocol, "the machine ended before it had told all"));
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
                Ok(told) => understand_in("snapshot", told).and_then(|_| Err(wrong())),
                Err(_) => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

impl Read for Told {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() && !self.done {
            if let Err(error) = self.next() {
                let told = io::Error::other(error.message().to_owned());
                self.failed = Some(error);
                return Err(told);
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

    /// What is read of a machine that says this and then nothing more.
    fn heard(said: &[u8]) -> (io::Result<Vec<u8>>, Option<Error>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(said).unwrap();
        drop(theirs);
        let connection = Connection::on(ours);
        let mut told = Told { connection, piece: Vec::new(), at: 0, done: false, failed: None };
        let mut all = Vec::new();
        let read = told.read_to_end(&mut all).map(|_| all);
        (read, told.failed)
    }

    fn bytes(bytes: &[u8]) -> Vec<u8> {
        [header(FrameKind::Bytes, bytes.len()).as_slice(), bytes].concat()
    }

    #[test]
    fn a_stream_that_merely_ends_is_no_layer() {
        let done = encode(FrameKind::Reply, &FileReply::Done { entries: 1, bytes: 3 });
        let (read, failed) = heard(&[bytes(b"abc"), bytes(b"de"), done.clone()].concat());
        assert_eq!((read.unwrap(), failed), (b"abcde".to_vec(), None));
        for wrong in [bytes(b"abc"), bytes(b""), b"nonsense".to_vec(), Vec::new()] {
            let (read, failed) = heard(&wrong);
            assert!(read.is_err() && failed.is_some(), "{wrong:?}");
        }
        let failure = msb_wire::FileFailure { doing: "read `/a`".to_owned(), errno: 5 };
        let failure = encode(FrameKind::Reply, &FileReply::Failed(failure));
        let (read, failed) = heard(&[bytes(b"abc"), failure].concat());
        assert!(read.is_err());
        assert_eq!(failed.unwrap().message(), "in the snapshot, cannot read `/a`");
    }
}
