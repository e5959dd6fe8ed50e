//! A session: one program that drives sandboxes over one connection, in frames.
//!
//! docs/session-protocol.md describes the protocol. A session does not read by itself: its carrier
//! passes on the bytes of the client. Dropping it cancels every call and ends the sandboxes that it
//! owns.

mod calls;
mod command;
mod flow;
mod frame;
mod ownership;

pub use ownership::{OwnedSandbox, SandboxOwner};

use crate::cancel::Cancel;
use flow::{FrameSender, InputItem, SendCredit, StreamInput, StreamSender};
use frame::{SessionFrame, SessionFrameDecoder, SessionFrameKind, violation};
use msb_api::Api;
use msb_spec::{Error, Kind, Result};
use ownership::OwnedSandboxes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// The version of the protocol.
const PROTOCOL: u32 = 1;
/// Most calls of one session at a time: each has a thread.
const MOST_STREAMS: usize = 1024;
/// Most bytes of the name of a client.
const LONGEST_CLIENT: usize = 200;
/// The parts of the protocol that this version has.
const CAPABILITIES: [&str; 4] = ["operations", "exec", "files", "ownership"];

/// One session with a client.
pub struct Session {
    shared: Arc<SessionShared>,
    decoder: SessionFrameDecoder,
    hello_received: bool,
    /// The greatest stream number so far.
    last_stream: u32,
}

/// What the threads of a session share.
struct SessionShared {
    api: Arc<dyn Api>,
    frames: Arc<FrameSender>,
    streams: Mutex<HashMap<u32, OpenStream>>,
    owned: OwnedSandboxes,
}

/// The parts of a stream that frames of the client reach.
#[derive(Clone)]
struct OpenStream {
    cancel: Cancel,
    credit: Arc<SendCredit>,
    input: Arc<StreamInput>,
}

impl OpenStream {
    fn cancel(&self) {
        self.cancel.cancel();
        self.credit.close();
        self.input.close();
    }
}

#[derive(Deserialize)]
struct ClientHello {
    protocol: u32,
    #[serde(default)]
    client: String,
}

#[derive(Serialize)]
struct ServerHello {
    protocol: u32,
    version: &'static str,
    capabilities: [&'static str; 4],
}

/// The payload of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallRequest {
    op: String,
    #[serde(default)]
    args: Map<String, Value>,
    /// Whether a sandbox that this call starts belongs to the session.
    #[serde(default)]
    own: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("last_stream", &self.last_stream).finish_non_exhaustive()
    }
}

impl Session {
    /// A session whose frames go to `out`.
    pub fn new(
        api: Arc<dyn Api>,
        owner: Arc<dyn SandboxOwner>,
        out: Box<dyn Write + Send>,
    ) -> Self {
        let shared = SessionShared {
            api,
            frames: Arc::new(FrameSender::new(out)),
            streams: Mutex::default(),
            owned: OwnedSandboxes::new(owner),
        };
        Self {
            shared: Arc::new(shared),
            decoder: SessionFrameDecoder::default(),
            hello_received: false,
            last_stream: 0,
        }
    }

    /// Takes bytes of the client. An error ends the session; the client has been told.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<()> {
        self.decoder.push(bytes);
        let done = self.take_frames();
        if let Err(error) = &done {
            let _ = self.shared.frames.send_json(SessionFrameKind::Error, 0, error);
        }
        done
    }

    /// Ends the session after the last byte of the client. Bytes of half a frame are an error.
    pub fn finish(&mut self) -> Result<()> {
        match self.decoder.is_empty() {
            true => Ok(()),
            false => Err(violation("the connection ended within a frame")),
        }
    }

    fn take_frames(&mut self) -> Result<()> {
        while let Some(frame) = self.decoder.next()? {
            match (self.hello_received, frame.kind) {
                (false, SessionFrameKind::Hello) => self.greet(&frame)?,
                (false, _) => return Err(violation("the first frame has to be HELLO")),
                (true, _) => self.take_frame(frame)?,
            }
        }
        Ok(())
    }

    fn greet(&mut self, frame: &SessionFrame) -> Result<()> {
        let hello: ClientHello = serde_json::from_slice(&frame.payload)
            .map_err(|error| violation("the HELLO is not as expected").cause(error))?;
        if hello.protocol != PROTOCOL {
            return Err(Error::unsupported(format!(
                "this msb speaks version {PROTOCOL} of the session protocol, not {}",
                hello.protocol
            )));
        }
        if hello.client.len() > LONGEST_CLIENT {
            return Err(violation(format!(
                "the name of a client has {LONGEST_CLIENT} bytes at most"
            )));
        }
        tracing::debug!(client = hello.client, "a session begins");
        self.hello_received = true;
        let version = env!("CARGO_PKG_VERSION");
        let hello = ServerHello { protocol: PROTOCOL, version, capabilities: CAPABILITIES };
        self.shared.frames.send_json(SessionFrameKind::Hello, 0, &hello)
    }

    fn take_frame(&mut self, frame: SessionFrame) -> Result<()> {
        let SessionFrame { kind, stream, payload } = frame;
        if kind == SessionFrameKind::Request {
            if stream <= self.last_stream {
                return Err(violation(format!("stream {stream} is not greater than all before")));
            }
            self.last_stream = stream;
            return self.open(stream, payload);
        }
        // A stream that has ended: the frame has crossed its end.
        let Some(open) = self.shared.stream(stream) else { return Ok(()) };
        match kind {
            SessionFrameKind::Data => open.input.push(InputItem::Bytes(payload)),
            SessionFrameKind::End => open.input.push(InputItem::End),
            SessionFrameKind::Control => open.input.push_control(payload),
            SessionFrameKind::Credit => {
                let bytes = <[u8; 4]>::try_from(&payload[..])
                    .map_err(|_| violation("the payload of CREDIT has four bytes"))?;
                open.credit.add(u32::from_le_bytes(bytes));
                Ok(())
            }
            SessionFrameKind::Cancel => {
                open.cancel();
                Ok(())
            }
            _ => Err(violation("only the server sends frames of this kind")),
        }
    }

    /// Begins a call in a thread of its own.
    fn open(&self, stream: u32, payload: Vec<u8>) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let open =
            OpenStream { cancel: Cancel::default(), credit: Arc::default(), input: Arc::default() };
        {
            let mut streams = shared.streams.lock().unwrap_or_else(PoisonError::into_inner);
            if streams.len() >= MOST_STREAMS {
                drop(streams);
                let error = Error::new(
                    Kind::Limit,
                    format!("a session has {MOST_STREAMS} calls at a time at most"),
                );
                return shared.frames.send_json(SessionFrameKind::Error, stream, &error);
            }
            streams.insert(stream, open.clone());
        }
        let work = Arc::clone(&shared);
        let started =
            std::thread::Builder::new().name("session-call".to_owned()).spawn(move || {
                let call = StreamCall {
                    out: StreamSender {
                        stream,
                        frames: Arc::clone(&work.frames),
                        credit: Arc::clone(&open.credit),
                    },
                    cancel: open.cancel.clone(),
                    input: Arc::clone(&open.input),
                };
                let done = work.perform(&call, &payload);
                work.close(stream);
                open.input.close();
                let _ = match done {
                    Ok(text) => {
                        work.frames.send(SessionFrameKind::Response, stream, text.as_bytes())
                    }
                    Err(error) => work.frames.send_json(SessionFrameKind::Error, stream, &error),
                };
            });
        match started {
            Ok(_) => Ok(()),
            Err(error) => {
                shared.close(stream);
                let error = Error::host("cannot start a thread for a call", error);
                shared.frames.send_json(SessionFrameKind::Error, stream, &error)
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let open: Vec<OpenStream> = {
            let mut streams = self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.drain().map(|(_, open)| open).collect()
        };
        for stream in open {
            stream.cancel();
        }
        self.shared.owned.end_all();
    }
}

/// One call, as its threads see it.
#[derive(Clone)]
struct StreamCall {
    out: StreamSender,
    cancel: Cancel,
    input: Arc<StreamInput>,
}

impl SessionShared {
    fn stream(&self, stream: u32) -> Option<OpenStream> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).get(&stream).cloned()
    }

    fn close(&self, stream: u32) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream);
    }

    fn perform(&self, call: &StreamCall, payload: &[u8]) -> Result<String> {
        let request: CallRequest = serde_json::from_slice(payload)
            .map_err(|error| Error::invalid("the request is not as expected").cause(error))?;
        calls::perform(self, call, request)
    }
}
