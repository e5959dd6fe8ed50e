//! Bodies on their way through: watched for placeholders outwards, scrubbed of values inwards.

use super::message_end::MessageEnd;
use super::patterns::Watch;
use super::scrub::{PAUSE, Scrubber, scrub_headers};
use super::secrets::Scope;
use super::stall::Stall;
use super::value_search::ValueSearch;
use crate::budget::Reserved;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::HeaderMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Nothing of a body for so long, and whoever sends it has gone. Events of some APIs are minutes
/// apart.
pub(crate) const BODY_LIMIT: Duration = Duration::from_secs(600);

/// A body for the other side.
pub(crate) enum Outgoing {
    /// Read before, or none.
    Whole(Option<Bytes>),
    /// As it comes.
    Passing(Box<Watched>),
}

/// A body in which no placeholder may stand.
pub(crate) struct Watched {
    body: Incoming,
    scope: Scope,
    watch: Watch,
    stall: Stall,
    /// None when there is nothing more to find: one was found.
    report: Option<Report>,
}

/// Told whose placeholder is in a body.
pub(crate) type Report = Box<dyn FnOnce(usize) + Send + Sync>;

impl Outgoing {
    /// Passes `body` on until a placeholder comes in it.
    pub(crate) fn passing(body: Incoming, scope: Scope, report: Report) -> Self {
        if body.is_end_stream() {
            return Self::Whole(None);
        }
        Self::Passing(Box::new(Watched {
            body,
            scope,
            watch: Watch::default(),
            stall: Stall::new(BODY_LIMIT),
            report: Some(report),
        }))
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Passing(watched) => watched.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Passing(watched) => watched.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Passing(watched) => watched.body.size_hint(),
        }
    }
}

impl Watched {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.report.is_none() {
            return Poll::Ready(Some(Err(io::ErrorKind::PermissionDenied.into())));
        }
        let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(cx) else {
            ready!(self.stall.poll(cx));
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        };
        self.stall.reset();
        let Some(frame) = next else { return Poll::Ready(None) };
        let frame = frame.map_err(io::Error::other)?;
        let of = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(piece), _) => self.scope.watched(&mut self.watch, piece),
            (None, Some(trailers)) => self.scope.check_trailers(trailers),
            (None, None) => None,
        };
        if let Some(of) = of {
            // The other side never gets the end of the request, so it cannot act on it.
            if let Some(report) = self.report.take() {
                report(of);
            }
            return Poll::Ready(Some(Err(io::ErrorKind::PermissionDenied.into())));
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

/// A body for the inside.
pub(crate) enum Reply {
    /// Our own words, or none.
    Whole(Option<Bytes>),
    /// What the other side sends.
    Passing(Box<Scrubbed<Incoming>>),
}

/// A body without values.
pub(crate) struct Scrubbed<B> {
    body: B,
    scrubber: Option<Scrubber>,
    values: Arc<ValueSearch>,
    /// In use until all of it has gone on.
    memory: Option<Reserved>,
    trailers: Option<HeaderMap>,
    over: bool,
    stall: Stall,
    pause: Stall,
}

impl Reply {
    /// Passes `body` on, in this memory; `headers` are those that came with it.
    pub(crate) fn passing(
        body: Incoming,
        headers: &HeaderMap,
        scope: &Scope,
        memory: Reserved,
    ) -> Self {
        if body.is_end_stream() {
            return Self::Whole(None);
        }
        let messages = MessageEnd::of_body(headers, scope.values());
        let mut scrubbed = Scrubbed::new(body, Arc::clone(scope.values()), messages);
        scrubbed.memory = Some(memory);
        Self::Passing(Box::new(scrubbed))
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Passing(scrubbed) => scrubbed.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Passing(scrubbed) => scrubbed.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Passing(scrubbed) => match scrubbed.is_holding() {
                // The server asks before the first byte; later it is only a hint.
                true => SizeHint::default(),
                false => scrubbed.body.size_hint(),
            },
        }
    }
}

impl<B> Scrubbed<B>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    fn new(body: B, values: Arc<ValueSearch>, messages: MessageEnd) -> Self {
        let scrubber = (!values.is_empty()).then(|| Scrubber::new(Arc::clone(&values), messages));
        Self {
            body,
            scrubber,
            values,
            memory: None,
            trailers: None,
            over: false,
            stall: Stall::new(BODY_LIMIT),
            pause: Stall::new(PAUSE),
        }
    }

    fn is_holding(&self) -> bool {
        self.scrubber.as_ref().is_some_and(Scrubber::is_holding)
    }

    fn is_over(&self) -> bool {
        let ended = self.over || self.body.is_end_stream();
        ended && self.trailers.is_none() && !self.is_holding()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            if self.over {
                return Poll::Ready(self.last().map(Ok));
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => return self.waiting(cx),
                Poll::Ready(None) => self.over = true,
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(io::Error::other(error))));
                }
                Poll::Ready(Some(Ok(frame))) => {
                    self.stall.reset();
                    self.pause.reset();
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
                            self.over = true;
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

    /// Behind the end: what is held, then the trailers.
    fn last(&mut self) -> Option<Frame<Bytes>> {
        match &mut self.scrubber {
            Some(scrubber) if scrubber.is_holding() => Some(Frame::data(scrubber.release())),
            _ => self.trailers.take().map(Frame::trailers),
        }
    }

    /// Nothing comes at the moment.
    fn waiting(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(scrubber) = &mut self.scrubber
            && scrubber.is_holding()
        {
            ready!(self.pause.poll(cx));
            return Poll::Ready(Some(Ok(Frame::data(scrubber.release()))));
        }
        ready!(self.stall.poll(cx));
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

    /// What is sent to it, as it comes.
    struct Dripping(mpsc::UnboundedReceiver<Bytes>);

    impl Body for Dripping {
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

    /// A scrubbed body as others see it.
    struct Shown(Scrubbed<Dripping>);

    impl Body for Shown {
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
        // Time goes on by itself when everything waits.
        builder.enable_all().start_paused(true).build().unwrap().block_on(test);
    }

    fn dripping() -> (mpsc::UnboundedSender<Bytes>, Shown) {
        let (pieces, body) = mpsc::unbounded_channel();
        let values = Arc::new(ValueSearch::of([VALUE]));
        let messages = MessageEnd::of_body(&HeaderMap::new(), &values);
        (pieces, Shown(Scrubbed::new(Dripping(body), values, messages)))
    }

    #[test]
    fn a_value_that_comes_byte_by_byte_is_starred_whole() {
        paused(async {
            let (pieces, body) = dripping();
            tokio::spawn(async move {
                for byte in [b"Bearer ", VALUE, b"; sk"].concat() {
                    pieces.send(Bytes::copy_from_slice(&[byte])).unwrap();
                    sleep(PAUSE - Duration::from_millis(1)).await;
                }
            });
            let shown = body.collect().await.unwrap().to_bytes();
            assert_eq!(shown, format!("Bearer {}; sk", "*".repeat(VALUE.len())));
        });
    }

    /// What comes until the peer is silent for good, and when.
    fn heard(sent: &'static [&'static [u8]]) -> Vec<(usize, Duration)> {
        let mut heard = Vec::new();
        paused(async {
            let (pieces, mut body) = dripping();
            tokio::spawn(async move {
                for piece in sent {
                    pieces.send(Bytes::from_static(piece)).unwrap();
                    sleep(PAUSE / 5).await;
                }
                sleep(4 * PAUSE).await;
            });
            let begin = Instant::now();
            while let Some(frame) = body.frame().await {
                heard.push((frame.unwrap().into_data().unwrap().len(), begin.elapsed()));
            }
        });
        heard
    }

    #[test]
    fn the_end_of_a_line_comes_at_once_and_the_rest_when_nothing_follows() {
        let step = PAUSE / 5;
        let quiet = step * 2 + PAUSE;
        let first = heard(&[b"data: yes\n\n", b"data: y", b"es"]);
        assert_eq!(first[0], (11, Duration::ZERO));
        assert_eq!(first[1].0, 9);
        assert!(first[1].1 >= quiet && first[1].1 < quiet + step, "{first:?}");
        assert_eq!(first.len(), 2);
    }

    /// The attack: guesses whose letters are right, some of them, all but one.
    #[test]
    fn a_guess_comes_back_the_same_however_much_of_it_is_right() {
        let wrong = heard(&[b"say ", b"xx-xxxx-xxxxxxxxxx/x", b"\nbye", b"xx-xxxx-xxxxxxxxxx"]);
        const GUESSES: [[&[u8]; 4]; 3] = [
            [b"say ", b"sk-live-xxxxxxxxxx/x", b"\nbye", b"sk-live-0123456789"],
            [b"say ", b"sk-live-012345678x/x", b"\nbye", b"sk-live-0123456789"],
            [b"say ", b"xk-live-0123456789/x", b"\nbye", b"sxxxxxxxxxxxxxxxxx"],
        ];
        for guess in &GUESSES {
            assert_eq!(heard(guess), wrong, "{guess:?}");
        }
    }
}
