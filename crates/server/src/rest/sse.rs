//! Responses as server-sent events.

use super::body_stream::{BodyChunk, BodyGuard, BodyWriter, body_of, pipe};
use super::disconnect::DisconnectWatch;
use crate::cancel::Cancel;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use msb_api::http::streams::Progress;
use msb_api::{ExecInput, Part, Watch};
use serde::Serialize;
use std::sync::Arc;

/// One server-sent event, encoded.
pub(super) struct SseEvent(String);

impl SseEvent {
    pub(super) fn new(name: &str, data: &impl Serialize) -> Self {
        Self::of_json(name, &serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned()))
    }

    /// An event whose data is already JSON.
    pub(super) fn of_json(name: &str, data: &str) -> Self {
        // Serialized JSON contains no line feeds.
        Self(format!("event: {name}\ndata: {data}\n\n"))
    }
}

/// The sending side of a response of events, for a thread that may block.
pub(super) struct SseSender {
    pipe: BodyWriter,
    waiting: DisconnectWatch,
}

impl SseSender {
    /// Creates the sender and the response of its events.
    pub(super) fn begin() -> (Self, Response) {
        let (waiting, on_disconnect) = DisconnectWatch::begin();
        let (pipe, chunks) = pipe();
        let mut response = Response::new(body_of(chunks, BodyGuard::new(on_disconnect)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        (Self { pipe, waiting }, response)
    }

    /// Sends an event; false if the client has disconnected.
    pub(super) fn send(&self, event: SseEvent) -> bool {
        self.pipe.send(BodyChunk::Ok(Bytes::from(event.0)))
    }

    /// Cancelled when the client has disconnected.
    pub(super) fn cancel(&self) -> &Cancel {
        self.waiting.cancel()
    }
}

impl Watch for SseSender {
    fn step(&self, what: &str, done: Option<Part>) {
        let _ = self.send(SseEvent::new("progress", &Progress::new(what, done)));
    }

    fn running(&self, input: &Arc<dyn ExecInput>) {
        self.waiting.running(input);
    }
}

/// Whether the client accepts server-sent events.
pub(super) fn wants(headers: &HeaderMap) -> bool {
    let mut accepted =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("text/event-stream"))
}
