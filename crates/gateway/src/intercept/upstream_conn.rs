//! The upstream connection that belongs to one client connection.
//!
//! It is kept open between requests, so that only the first one waits for it, and reopened when the
//! server has closed it.

use super::body::RequestBody;
use super::request::OriginServer;
use super::serve::MAX_SEND_BUFFER;
use super::upstream::{Upstream, UpstreamError, UpstreamStream};
use crate::tls::client::{AlpnOffer, HttpVersion};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// The limit for the head of a response: language models take minutes.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(900);
/// The limit for a connection to become ready. A new one is; one with an unread response is not.
const READY_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest head of a response, in bytes: that of a request, and room for what servers add.
const MAX_RESPONSE_HEAD: usize = 128 << 10;

/// Sends requests over HTTP/1 or HTTP/2.
enum HttpSender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

/// A connection to a server, which is opened when it is needed.
pub(crate) struct UpstreamConn {
    upstream: Arc<Upstream>,
    origin: OriginServer,
    protocol: HttpVersion,
    /// The receive window of HTTP/2, in bytes.
    window: u32,
    /// Not locked across `.await`.
    idle: Mutex<Option<HttpSender>>,
}

impl UpstreamConn {
    /// Creates it without connecting.
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        origin: OriginServer,
        protocol: HttpVersion,
        window: u32,
    ) -> Self {
        Self { upstream, origin, protocol, window, idle: Mutex::new(None) }
    }

    /// Adopts a connection that is open already.
    pub(crate) async fn adopt(&self, connected: UpstreamStream) -> Result<(), UpstreamError> {
        let sender = self.handshake(connected).await?;
        self.put_idle(sender);
        Ok(())
    }

    pub(crate) fn protocol(&self) -> HttpVersion {
        self.protocol
    }

    /// Sends a request and waits for the head of its response.
    pub(crate) async fn send(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, UpstreamError> {
        let mut reused = true;
        loop {
            let mut sender = match self.take_idle().filter(|_| reused) {
                Some(sender) => sender,
                None => {
                    reused = false;
                    let only = AlpnOffer::Only(self.protocol);
                    let connected = self.upstream.connect(&self.origin, only, self.window).await?;
                    self.handshake(connected).await?
                }
            };
            if !matches!(timeout(READY_TIMEOUT, sender.ready()).await, Ok(true)) {
                if reused {
                    reused = false;
                    continue;
                }
                return Err(UpstreamError::Broken("it closed the connection".to_owned()));
            }
            // The server may just have closed an idle connection: an idempotent request is then
            // sent again.
            let again = if reused { retry_copy(&request) } else { None };
            let sent = match timeout(RESPONSE_TIMEOUT, sender.send(request)).await {
                Err(_) => return Err(UpstreamError::Slow),
                Ok(sent) => sent,
            };
            match sent {
                Ok(response) => {
                    self.put_idle(sender);
                    return Ok(response);
                }
                Err(mut error) => match error.take_message().or(again) {
                    Some(back) if reused => {
                        reused = false;
                        request = back;
                    }
                    _ => return Err(UpstreamError::Broken(error_chain(error.error()))),
                },
            }
        }
    }

    /// Starts HTTP on a stream; the connection lives as long as its sender.
    async fn handshake(&self, connected: UpstreamStream) -> Result<HttpSender, UpstreamError> {
        let io = TokioIo::new(connected.stream);
        let broken = |error: hyper::Error| UpstreamError::Broken(error_chain(&error));
        match connected.protocol {
            HttpVersion::Http1 => {
                let mut builder = http1::Builder::new();
                builder.max_buf_size(MAX_RESPONSE_HEAD).max_headers(1024);
                let (sender, connection) = builder.handshake(io).await.map_err(broken)?;
                tokio::spawn(connection.with_upgrades());
                Ok(HttpSender::Http1(sender))
            }
            HttpVersion::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder
                    .timer(TokioTimer::new())
                    .max_header_list_size(MAX_RESPONSE_HEAD as u32)
                    .initial_connection_window_size(self.window)
                    .initial_stream_window_size(self.window)
                    .max_send_buf_size(MAX_SEND_BUFFER)
                    .keep_alive_interval(Duration::from_secs(60))
                    .keep_alive_timeout(Duration::from_secs(30));
                let (sender, connection) = builder.handshake(io).await.map_err(broken)?;
                tokio::spawn(connection);
                Ok(HttpSender::Http2(sender))
            }
        }
    }

    fn take_idle(&self) -> Option<HttpSender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        match idle.as_ref()? {
            HttpSender::Http2(sender) if !sender.is_closed() => {
                Some(HttpSender::Http2(sender.clone()))
            }
            HttpSender::Http1(sender) if !sender.is_closed() => idle.take(),
            _ => {
                *idle = None;
                None
            }
        }
    }

    fn put_idle(&self, sender: HttpSender) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }
}

impl HttpSender {
    async fn ready(&mut self) -> bool {
        match self {
            Self::Http1(sender) => sender.ready().await.is_ok(),
            Self::Http2(sender) => sender.ready().await.is_ok(),
        }
    }

    async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender) => sender.try_send_request(request).await,
        }
    }
}

/// A copy of a request, if it is idempotent and has no body.
fn retry_copy(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    let idempotent = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    if !idempotent || !matches!(request.body(), RequestBody::Whole(None)) {
        return None;
    }
    let mut copy = Request::new(RequestBody::Whole(None));
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// The message of an error, with its causes.
fn error_chain(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(cause) = below {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        below = cause.source();
    }
    text
}
