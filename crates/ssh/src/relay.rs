//! Carries bytes between a channel and a stream that leads inside, whatever they mean.

use crate::board::{Board, Ends, Inbound, Stop};
use crate::gate::Gate;
use crate::out::Out;
use russh::ChannelId;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::thread;

/// As much as a socket gives at once, and two packets of SSH.
const PIECE: usize = 64 << 10;

/// Ends a relay: its stream is shut, once there is one.
#[derive(Debug, Default)]
pub(crate) struct Shut {
    stream: OnceLock<Option<UnixStream>>,
}

impl Shut {
    /// Takes note of the stream; false if the channel has ended meanwhile.
    pub(crate) fn begins(&self, stream: &UnixStream) -> bool {
        let Ok(stream) = stream.try_clone() else { return false };
        self.stream.set(Some(stream)).is_ok()
    }
}

impl Stop for Shut {
    fn stop(&self) {
        let _ = self.stream.set(None);
        if let Some(Some(stream)) = self.stream.get() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What a channel tells its client when the stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// That a program has ended well, as a subsystem of sshd is one.
    Status,
    /// Nothing: it was a connection.
    Nothing,
}

/// Carries bytes both ways until both are done.
pub(crate) fn carry(board: &Board, ends: Ends, stream: UnixStream, farewell: Farewell) {
    let Ends { out, fed } = ends;
    let id = out.id();
    let fed_thread = stream.try_clone().and_then(|sink| {
        let gate = Arc::clone(&board.gate);
        thread::Builder::new().name("ssh-in".to_owned()).spawn(move || pour(fed, sink, &gate, id))
    });
    let said = fed_thread.is_ok() && speak(&out, stream);
    if said && farewell == Farewell::Status {
        let _ = out.status(0);
    }
    if said {
        let _ = out.eof();
    }
    if let (Farewell::Nothing, true, Ok(thread)) = (farewell, said, fed_thread) {
        // The client may still have something to say on a connection that is half closed.
        let _ = thread.join();
    }
    out.close();
    board.remove(id);
}

/// From the stream to the client; whether that went well to its end.
fn speak(out: &Out, mut stream: UnixStream) -> bool {
    loop {
        let mut piece = vec![0; PIECE];
        match stream.read(&mut piece) {
            Ok(0) => return true,
            Ok(n) => piece.truncate(n),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return false,
        }
        if out.say(piece).is_err() {
            let _ = stream.shutdown(Shutdown::Both);
            return false;
        }
    }
}

/// From the client to the stream, until either has enough.
fn pour(fed: Receiver<Inbound>, mut sink: UnixStream, gate: &Gate, id: ChannelId) {
    for inbound in fed {
        let (length, done) = match inbound {
            Inbound::Data(bytes) => (bytes.len(), sink.write_all(&bytes).is_err()),
            Inbound::Eof => {
                let _ = sink.shutdown(Shutdown::Write);
                return;
            }
            Inbound::Resize(_) => (0, false),
        };
        gate.taken(id, length);
        if done {
            return;
        }
    }
}
