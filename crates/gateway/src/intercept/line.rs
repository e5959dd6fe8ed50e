//! The connection to the other side that belongs to one connection of the inside.
//!
//! Kept open between requests, so that only the first one waits for it; made anew when the other
//! side has closed it meanwhile.

use super::body::Outgoing;
use super::request::Peer;
use super::serve::WAITING;
use super::upstream::{Connected, Offer, Protocol, Trouble, Upstream};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// Models think for minutes before their first word.
const ANSWER_LIMIT: Duration = Duration::from_secs(900);
/// A connection that was just made is ready; one that is used by a forgotten answer is not.
const READY_LIMIT: Duration = Duration::from_secs(1);
/// The head of an answer: as long as that of a request may be, and room for what servers add.
const HEAD: usize = 128 << 10;

/// Something that requests are sent with.
enum Sender {
    One(http1::SendRequest<Outgoing>),
    Two(http2::SendRequest<Outgoing>),
}

/// The connection to the other side, there or not.
pub(crate) struct Line {
    upstream: Arc<Upstream>,
    peer: Peer,
    protocol: Protocol,
    /// Of HTTP/2: what may come before it is read.
    window: u32,
    /// Never held while waiting.
    idle: Mutex<Option<Sender>>,
}

impl Line {
    /// A connection that is made when it is needed.
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        peer: Peer,
        protocol: Protocol,
        window: u32,
    ) -> Self {
        Self { upstream, peer, protocol, window, idle: Mutex::new(None) }
    }

    /// Takes a connection over that was made before.
    pub(crate) async fn begin(&self, connected: Connected) -> Result<(), Trouble> {
        let sender = self.greet(connected).await?;
        self.put_back(sender);
        Ok(())
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn send(
        &self,
        mut request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, Trouble> {
        let mut old = true;
        loop {
            let mut sender = match self.take().filter(|_| old) {
                Some(sender) => sender,
                None => {
                    old = false;
                    let only = Offer::Only(self.protocol);
                    let connected = self.upstream.connect(&self.peer, only, self.window).await?;
                    self.greet(connected).await?
                }
            };
            if !matches!(timeout(READY_LIMIT, sender.ready()).await, Ok(true)) {
                if old {
                    old = false;
                    continue;
                }
                return Err(Trouble::Broken("it closed the connection".to_owned()));
            }
            // A connection that was idle may just have been closed by the other side: clients ask
            // again then, if it does no harm.
            let again = if old { copy(&request) } else { None };
            let sent = match timeout(ANSWER_LIMIT, sender.send(request)).await {
                Err(_) => return Err(Trouble::Slow),
                Ok(sent) => sent,
            };
            match sent {
                Ok(response) => {
                    self.put_back(sender);
                    return Ok(response);
                }
                Err(mut error) => match error.take_message().or(again) {
                    Some(back) if old => {
                        old = false;
                        request = back;
                    }
                    _ => return Err(Trouble::Broken(chain(error.error()))),
                },
            }
        }
    }

    /// Begins to speak HTTP; the connection then lives as long as its sender.
    async fn greet(&self, connected: Connected) -> Result<Sender, Trouble> {
        let io = TokioIo::new(connected.stream);
        let broken = |error: hyper::Error| Trouble::Broken(chain(&error));
        match connected.protocol {
            Protocol::One => {
                let mut builder = http1::Builder::new();
                builder.max_buf_size(HEAD).max_headers(1024);
                let (sender, connection) = builder.handshake(io).await.map_err(broken)?;
                tokio::spawn(connection.with_upgrades());
                Ok(Sender::One(sender))
            }
            Protocol::Two => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder
                    .timer(TokioTimer::new())
                    .max_header_list_size(HEAD as u32)
                    .initial_connection_window_size(self.window)
                    .initial_stream_window_size(self.window)
                    .max_send_buf_size(WAITING)
                    .keep_alive_interval(Duration::from_secs(60))
                    .keep_alive_timeout(Duration::from_secs(30));
                let (sender, connection) = builder.handshake(io).await.map_err(broken)?;
                tokio::spawn(connection);
                Ok(Sender::Two(sender))
            }
        }
    }

    fn take(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        match idle.as_ref()? {
            Sender::Two(sender) if !sender.is_closed() => Some(Sender::Two(sender.clone())),
            Sender::One(sender) if !sender.is_closed() => idle.take(),
            _ => {
                *idle = None;
                None
            }
        }
    }

    fn put_back(&self, sender: Sender) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }
}

impl Sender {
    async fn ready(&mut self) -> bool {
        match self {
            Self::One(sender) => sender.ready().await.is_ok(),
            Self::Two(sender) => sender.ready().await.is_ok(),
        }
    }

    async fn send(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Outgoing>>> {
        match self {
            Self::One(sender) => sender.try_send_request(request).await,
            Self::Two(sender) => sender.try_send_request(request).await,
        }
    }
}

/// The same request again, if sending it twice does no harm.
fn copy(request: &Request<Outgoing>) -> Option<Request<Outgoing>> {
    let harmless = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    if !harmless || !matches!(request.body(), Outgoing::Whole(None)) {
        return None;
    }
    let mut copy = Request::new(Outgoing::Whole(None));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// What hyper says, with what lies below it.
fn chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(cause) = below {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        below = cause.source();
    }
    text
}
