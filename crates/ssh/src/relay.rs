//! Relays bytes between a channel and a stream into the sandbox, without parsing them.

use crate::channel_writer::ChannelWriter;
use crate::channels::{ChannelIo, Channels, Inbound, StopWork};
use crate::flow_control::FlowControl;
use russh::ChannelId;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::thread;

/// Bytes of one read: as many as a socket returns at once, and two SSH packets.
const PIECE: usize = 64 << 10;

/// Stops a relay: shuts its stream down, once there is one.
#[derive(Debug, Default)]
pub(crate) struct StreamCloser {
    stream: OnceLock<Option<UnixStream>>,
}

impl StreamCloser {
    /// Sets the stream; false if the channel was stopped before.
    pub(crate) fn set_stream(&self, stream: &UnixStream) -> bool {
        let Ok(stream) = stream.try_clone() else { return false };
        self.stream.set(Some(stream)).is_ok()
    }
}

impl StopWork for StreamCloser {
    fn stop(&self) {
        let _ = self.stream.set(None);
        if let Some(Some(stream)) = self.stream.get() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What a channel sends when its stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndNotice {
    /// Exit status 0, as for a subsystem of sshd.
    ExitStatus,
    /// Nothing: it is a forwarded connection.
    None,
}

/// Relays bytes in both directions until both have ended.
pub(crate) fn relay(channels: &Channels, ends: ChannelIo, stream: UnixStream, notice: EndNotice) {
    let ChannelIo { out, inbound } = ends;
    let id = out.id();
    let input_thread = stream.try_clone().and_then(|sink| {
        let flow = Arc::clone(&channels.flow);
        thread::Builder::new()
            .name("ssh-in".to_owned())
            .spawn(move || copy_to_stream(inbound, sink, &flow, id))
    });
    let complete = input_thread.is_ok() && copy_to_client(&out, stream);
    if complete && notice == EndNotice::ExitStatus {
        let _ = out.send_status(0);
    }
    if complete {
        let _ = out.send_eof();
    }
    if let (EndNotice::None, true, Ok(thread)) = (notice, complete, input_thread) {
        // The client may still send on a half-closed connection.
        let _ = thread.join();
    }
    out.close();
    channels.remove(id);
}

/// Copies from the stream to the client; whether the stream ended regularly.
fn copy_to_client(out: &ChannelWriter, mut stream: UnixStream) -> bool {
    loop {
        let mut piece = vec![0; PIECE];
        match stream.read(&mut piece) {
            Ok(0) => return true,
            Ok(n) => piece.truncate(n),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return false,
        }
        if out.write_stdout(piece).is_err() {
            let _ = stream.shutdown(Shutdown::Both);
            return false;
        }
    }
}

/// Copies from the client to the stream, until one of them ends.
fn copy_to_stream(
    inbound: Receiver<Inbound>,
    mut sink: UnixStream,
    flow: &FlowControl,
    id: ChannelId,
) {
    for message in inbound {
        let (length, done) = match message {
            Inbound::Data(bytes) => (bytes.len(), sink.write_all(&bytes).is_err()),
            Inbound::Eof => {
                let _ = sink.shutdown(Shutdown::Write);
                return;
            }
            Inbound::Resize(_) => (0, false),
        };
        flow.consumed(id, length);
        if done {
            return;
        }
    }
}
