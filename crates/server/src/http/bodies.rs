//! Reads request bodies in one place, within a memory budget.
//!
//! Parsed JSON takes many times its length: `[0,0,…]` takes about sixteen times. So all bodies in
//! flight share one byte budget, divided among keys, and the values in a body are counted before
//! anything parses it.

use crate::dialect::Caller;
use crate::quota::{Permit, Quota};
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use futures_util::StreamExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Largest body in bytes. Code and files are sent inside tool calls.
pub(super) const LARGEST: usize = 32 << 20;
/// Bytes of all bodies in flight. While parsed, each is held about four times.
const BUDGET: usize = 96 << 20;
/// Most JSON values in one body: more than any Spec has, and negligible in memory.
const MOST_VALUES: usize = 100_000;
/// Time to receive one body: 32 MiB at half a megabyte a second.
const READ_LIMIT: Duration = Duration::from_secs(64);

/// Why a request body is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyError {
    TooLong,
    TooManyValues,
    NoBudget,
    TooSlow,
    Broken,
}

impl BodyError {
    /// Status, code and message of the response.
    pub(super) fn answer(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::TooLong => {
                (StatusCode::PAYLOAD_TOO_LARGE, "too_large", "a body has 32 MiB at most")
            }
            Self::TooManyValues => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_many_values",
                "a body has 100000 JSON values at most",
            ),
            Self::NoBudget => (
                StatusCode::TOO_MANY_REQUESTS,
                "busy",
                "too many bytes of requests are in flight; try again",
            ),
            Self::TooSlow => {
                (StatusCode::REQUEST_TIMEOUT, "too_slow", "the body was not received in time")
            }
            Self::Broken => {
                (StatusCode::BAD_REQUEST, "broken_off", "the connection closed inside the body")
            }
        }
    }
}

/// The memory budget of all bodies in flight.
#[derive(Debug, Clone)]
pub(super) struct BodyBudget(Quota);

impl Default for BodyBudget {
    fn default() -> Self {
        Self(Quota::new(BUDGET))
    }
}

impl BodyBudget {
    /// Reads a whole body. Keep the permit for as long as the bytes.
    pub(super) async fn read(
        &self,
        caller: &Caller,
        body: Body,
    ) -> Result<(Bytes, Permit), BodyError> {
        let hinted = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if hinted > LARGEST {
            return Err(BodyError::TooLong);
        }
        let mut permit = self.0.acquire(caller, hinted).ok_or(BodyError::NoBudget)?;
        let mut all = Vec::with_capacity(hinted);
        let mut pieces = body.into_data_stream();
        let read = async {
            while let Some(piece) = pieces.next().await {
                let piece = piece.map_err(|_| BodyError::Broken)?;
                let length = all.len() + piece.len();
                if length > LARGEST {
                    return Err(BodyError::TooLong);
                }
                if length > hinted.max(all.len()) && !permit.grow(length - hinted.max(all.len())) {
                    return Err(BodyError::NoBudget);
                }
                all.extend_from_slice(&piece);
            }
            Ok(())
        };
        tokio::time::timeout(READ_LIMIT, read).await.map_err(|_| BodyError::TooSlow)??;
        if values(&all) > MOST_VALUES {
            return Err(BodyError::TooManyValues);
        }
        Ok((Bytes::from(all), permit))
    }
}

/// A lower bound of the values that a JSON parser would make of this text.
fn values(text: &[u8]) -> usize {
    let (mut count, mut inside, mut escaped) = (0, false, false);
    for byte in text {
        match (inside, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => inside = !inside,
            (false, b',' | b':' | b'[' | b'{') => count += 1,
            _ => {}
        }
    }
    count
}

/// A response body that holds a value, such as a permit, until it has been sent.
pub(super) struct BodyWithGuard<T> {
    body: Body,
    _kept: T,
}

impl<T> BodyWithGuard<T> {
    pub(super) fn new(body: Body, kept: T) -> Self {
        Self { body, _kept: kept }
    }
}

impl<T: Unpin> HttpBody for BodyWithGuard<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings_only() {
        for (text, count) in [
            ("", 0),
            ("{}", 1),
            (r#"{"a":1,"b":[2,3]}"#, 6),
            (r#"{"a":"[,,,:{"}"#, 2),
            (r#"{"a":"\"[,,,"}"#, 2),
            (r#"{"a":"\\","b":1}"#, 4),
            ("[[[[", 4),
        ] {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
    }

    #[test]
    fn a_body_that_would_fill_memory_is_not_parsed() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let budget = BodyBudget(Quota::new(1 << 20));
        let (caller, other) = (key("a"), key("b"));
        let read = |caller: &Caller, body: String| {
            runtime.block_on(budget.read(caller, Body::from(body))).map(|(bytes, permit)| {
                assert!(!bytes.is_empty());
                permit
            })
        };
        let many = format!("[{}0]", "0,".repeat(MOST_VALUES));
        assert_eq!(read(&caller, many).unwrap_err(), BodyError::TooManyValues);
        let held = read(&caller, "x".repeat(512 << 10)).unwrap();
        assert_eq!(read(&caller, "x".to_owned()).unwrap_err(), BodyError::NoBudget);
        assert!(read(&other, "x".repeat(200 << 10)).is_ok());
        drop(held);
        assert!(read(&caller, "x".to_owned()).is_ok());
        // A body without `Content-Length` is counted while it arrives.
        let piece = || Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 300 << 10]));
        let pieces = Body::from_stream(futures_util::stream::iter([piece(), piece()]));
        let refused = runtime.block_on(budget.read(&caller, pieces)).unwrap_err();
        assert_eq!(refused, BodyError::NoBudget);
    }

    fn key(id: &str) -> Caller {
        Caller { key: Some(id.to_owned()), ..Caller::default() }
    }
}
