//! Streaming bodies: request bodies are searched for placeholders, response bodies are scrubbed of
//! values.

use super::idle_timeout::IdleTimeout;
use crate::budget::MemoryReservation;
use crate::secrets::message_end::MessageEnd;
use crate::secrets::patterns::StreamSearch;
use crate::secrets::scrub::{HOLD_TIMEOUT, Scrubber, scrub_headers};
use crate::secrets::substitution::HostSecrets;
use crate::secrets::value_search::ValueSearch;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::HeaderMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// A body that makes no progress for so long is aborted. Events of some APIs are minutes apart.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(600);

/// The body of a request to the server.
pub(crate) enum RequestBody {
    /// A body that is in memory, or none.
    Whole(Option<Bytes>),
    /// A body that is forwarded as it arrives.
    Streaming(Box<ScannedBody>),
}

/// A request body in which no placeholder may occur.
pub(crate) struct ScannedBody {
    body: Incoming,
    secrets: HostSecrets,
    search: StreamSearch,
    idle: IdleTimeout,
    /// `None` after a placeholder was found.
    report: Option<PlaceholderReport>,
}

/// Called with the index of the Secret, when its placeholder is in a body.
pub(crate) type PlaceholderReport = Box<dyn FnOnce(usize) + Send + Sync>;

impl RequestBody {
    /// Forwards `body` until a placeholder is found in it.
    pub(crate) fn streaming(
        body: Incoming,
        secrets: HostSecrets,
        report: PlaceholderReport,
    ) -> Self {
        if body.is_end_stream() {
            return Self::Whole(None);
        }
        Self::Streaming(Box::new(ScannedBody {
            body,
            secrets,
            search: StreamSearch::default(),
            idle: IdleTimeout::new(BODY_TIMEOUT),
            report: Some(report),
        }))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Streaming(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Streaming(body) => body.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Streaming(body) => body.body.size_hint(),
        }
    }
}

impl ScannedBody {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.report.is_none() {
            return Poll::Ready(Some(Err(io::ErrorKind::PermissionDenied.into())));
        }
        let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(cx) else {
            ready!(self.idle.poll(cx));
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        };
        self.idle.reset();
        let Some(frame) = next else { return Poll::Ready(None) };
        let frame = frame.map_err(io::Error::other)?;
        let index = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(piece), _) => self.secrets.search(&mut self.search, piece),
            (None, Some(trailers)) => self.secrets.check_trailers(trailers),
            (None, None) => None,
        };
        if let Some(index) = index {
            // The server never gets the end of the request, so it cannot act on it.
            if let Some(report) = self.report.take() {
                report(index);
            }
            return Poll::Ready(Some(Err(io::ErrorKind::PermissionDenied.into())));
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

/// The body of a response to the client.
pub(crate) enum ResponseBody {
    /// A body of the gateway itself, or none.
    Whole(Option<Bytes>),
    /// The scrubbed body of the server.
    Streaming(Box<ScrubbedBody<Incoming>>),
}

/// A response body with masked secret values.
pub(crate) struct ScrubbedBody<B> {
    body: B,
    scrubber: Option<Scrubber>,
    values: Arc<ValueSearch>,
    /// Memory that is reserved until the body is sent.
    memory: Option<MemoryReservation>,
    trailers: Option<HeaderMap>,
    ended: bool,
    idle: IdleTimeout,
    hold_timeout: IdleTimeout,
}

impl ResponseBody {
    /// Forwards `body`, in this reserved memory; `headers` are those of the response.
    pub(crate) fn streaming(
        body: Incoming,
        headers: &HeaderMap,
        secrets: &HostSecrets,
        memory: MemoryReservation,
    ) -> Self {
        if body.is_end_stream() {
            return Self::Whole(None);
        }
        let message_end = MessageEnd::of_body(headers, secrets.values());
        let mut scrubbed = ScrubbedBody::new(body, Arc::clone(secrets.values()), message_end);
        scrubbed.memory = Some(memory);
        Self::Streaming(Box::new(scrubbed))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Streaming(scrubbed) => scrubbed.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Streaming(scrubbed) => scrubbed.is_finished(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Streaming(scrubbed) => match scrubbed.is_holding() {
                // hyper asks before the first byte; later it is only a hint.
                true => SizeHint::default(),
                false => scrubbed.body.size_hint(),
            },
        }
    }
}

impl<B> ScrubbedBody<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    fn new(body: B, values: Arc<ValueSearch>, message_end: MessageEnd) -> Self {
        let scrubber =
            (!values.is_empty()).then(|| Scrubber::new(Arc::clone(&values), message_end));
        Self {
            body,
            scrubber,
            values,
            memory: None,
            trailers: None,
            ended: false,
            idle: IdleTimeout::new(BODY_TIMEOUT),
            hold_timeout: IdleTimeout::new(HOLD_TIMEOUT),
        }
    }

    fn is_holding(&self) -> bool {
        self.scrubber.as_ref().is_some_and(Scrubber::is_holding)
    }

    fn is_finished(&self) -> bool {
        let ended = self.ended || self.body.is_end_stream();
        ended && self.trailers.is_none() && !self.is_holding()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            if self.ended {
                return Poll::Ready(self.trailing_frame().map(Ok));
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => return self.on_pending(cx),
                Poll::Ready(None) => self.ended = true,
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(io::Error::other(error))));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    self.idle.reset();
                    self.hold_timeout.reset();
                    match frame.into_data() {
                        Ok(piece) => {
                            let out = match &mut self.scrubber {
                                Some(scrubber) if self.body.is_end_stream() => {
                                    scrubber.push_last(&piece)
                                }
                                Some(scrubber) => scrubber.push(&piece),
                                None => piece,
                            };
                            if !out.is_empty() {
                                return Poll::Ready(Some(Ok(Frame::data(out))));
                            }
                        }
                        Err(frame) => {
                            self.ended = true;
                            self.trailers = frame.into_trailers().ok().map(|mut trailers| {
                                scrub_headers(&self.values, &mut trailers);
                                trailers
                            });
                        }
                    }
                }
            }
        }
    }

    /// After the end: the held bytes, then the trailers.
    fn trailing_frame(&mut self) -> Option<Frame<Bytes>> {
        match &mut self.scrubber {
            Some(scrubber) if scrubber.is_holding() => Some(Frame::data(scrubber.release())),
            _ => self.trailers.take().map(Frame::trailers),
        }
    }

    /// No frame is available: releases held bytes after the hold timeout.
    fn on_pending(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(scrubber) = &mut self.scrubber
            && scrubber.is_holding()
        {
            ready!(self.hold_timeout.poll(cx));
            return Poll::Ready(Some(Ok(Frame::data(scrubber.release()))));
        }
        ready!(self.idle.poll(cx));
        Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use std::convert::Infallible;
    use tokio::sync::mpsc;
    use tokio::time::{Instant, sleep};

    const VALUE: &[u8] = b"sk-live-0123456789/x";

    /// A body with data from a channel.
    struct ChannelBody(mpsc::UnboundedReceiver<Bytes>);

    impl Body for ChannelBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let next = ready!(self.get_mut().0.poll_recv(cx));
            Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
        }
    }

    /// A scrubbed body as hyper sees it.
    struct TestBody(ScrubbedBody<ChannelBody>);

    impl Body for TestBody {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            self.get_mut().0.poll(cx)
        }
    }

    fn paused(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        // The paused clock advances when all tasks wait.
        builder.enable_all().start_paused(true).build().unwrap().block_on(test);
    }

    fn channel_body() -> (mpsc::UnboundedSender<Bytes>, TestBody) {
        let (pieces, body) = mpsc::unbounded_channel();
        let values = Arc::new(ValueSearch::of([VALUE]));
        let message_end = MessageEnd::of_body(&HeaderMap::new(), &values);
        (pieces, TestBody(ScrubbedBody::new(ChannelBody(body), values, message_end)))
    }

    #[test]
    fn a_value_that_arrives_byte_by_byte_is_masked() {
        paused(async {
            let (pieces, body) = channel_body();
            tokio::spawn(async move {
                for byte in [b"Bearer ", VALUE, b"; sk"].concat() {
                    pieces.send(Bytes::copy_from_slice(&[byte])).unwrap();
                    sleep(HOLD_TIMEOUT - Duration::from_millis(1)).await;
                }
            });
            let shown = body.collect().await.unwrap().to_bytes();
            assert_eq!(shown, format!("Bearer {}; sk", "*".repeat(VALUE.len())));
        });
    }

    /// The lengths and times of frames until the server is silent.
    fn frames_of(sent: &'static [&'static [u8]]) -> Vec<(usize, Duration)> {
        let mut frames_of = Vec::new();
        paused(async {
            let (pieces, mut body) = channel_body();
            tokio::spawn(async move {
                for piece in sent {
                    pieces.send(Bytes::from_static(piece)).unwrap();
                    sleep(HOLD_TIMEOUT / 5).await;
                }
                sleep(4 * HOLD_TIMEOUT).await;
            });
            let begin = Instant::now();
            while let Some(frame) = body.frame().await {
                frames_of.push((frame.unwrap().into_data().unwrap().len(), begin.elapsed()));
            }
        });
        frames_of
    }

    #[test]
    fn a_line_end_is_sent_at_once_and_the_rest_after_the_hold_timeout() {
        let step = HOLD_TIMEOUT / 5;
        let quiet = step * 2 + HOLD_TIMEOUT;
        let first = frames_of(&[b"data: yes\n\n", b"data: y", b"es"]);
        assert_eq!(first[0], (11, Duration::ZERO));
        assert_eq!(first[1].0, 9);
        assert!(first[1].1 >= quiet && first[1].1 < quiet + step, "{first:?}");
        assert_eq!(first.len(), 2);
    }

    /// The attack: guesses of which some, or all but one, characters are right.
    #[test]
    fn a_guess_is_echoed_alike_however_much_of_it_is_right() {
        let wrong = frames_of(&[b"say ", b"xx-xxxx-xxxxxxxxxx/x", b"\nbye", b"xx-xxxx-xxxxxxxxxx"]);
        const GUESSES: [[&[u8]; 4]; 3] = [
            [b"say ", b"sk-live-xxxxxxxxxx/x", b"\nbye", b"sk-live-0123456789"],
            [b"say ", b"sk-live-012345678x/x", b"\nbye", b"sk-live-0123456789"],
            [b"say ", b"xk-live-0123456789/x", b"\nbye", b"sxxxxxxxxxxxxxxxxx"],
        ];
        for guess in &GUESSES {
            assert_eq!(frames_of(guess), wrong, "{guess:?}");
        }
    }
}
