//! Answers that come piece by piece, as server-sent events.

use super::pieces::{Chunk, Kept, Pipe, body_of, pipe};
use super::waiting::Waiting;
use crate::cancel::Cancel;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use msb_api::http::streams::Progress;
use msb_api::{ExecInput, Part, Watch};
use serde::Serialize;
use std::sync::Arc;

/// One event.
pub(super) struct Event(String);

impl Event {
    pub(super) fn new(name: &str, data: &impl Serialize) -> Self {
        let data = serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned());
        // JSON has no line ends of its own.
        Self(format!("event: {name}\ndata: {data}\n\n"))
    }
}

/// Where they are written; by a thread that may wait.
pub(super) struct Events {
    pipe: Pipe,
    waiting: Waiting,
}

impl Events {
    /// The answer, and where its events are written.
    pub(super) fn begin() -> (Self, Response) {
        let (waiting, gone) = Waiting::begin();
        let (pipe, chunks) = pipe();
        let mut response = Response::new(body_of(chunks, Kept::new(gone)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        (Self { pipe, waiting }, response)
    }

    /// Sends one; false if nobody listens any more.
    pub(super) fn send(&self, event: Event) -> bool {
        self.pipe.send(Chunk::Ok(Bytes::from(event.0)))
    }

    /// Cancelled when nobody listens any more.
    pub(super) fn cancel(&self) -> &Cancel {
        self.waiting.cancel()
    }
}

impl Watch for Events {
    fn step(&self, what: &str, done: Option<Part>) {
        let _ = self.send(Event::new("progress", &Progress::new(what, done)));
    }

    fn running(&self, input: &Arc<dyn ExecInput>) {
        self.waiting.running(input);
    }
}

/// Whether a client takes events.
pub(super) fn wants(headers: &HeaderMap) -> bool {
    let mut said = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    said.any(|value| value.contains("text/event-stream"))
}
