//! Serves one intercepted flow: TLS with the client, a connection to the server, and HTTP between
//! them.

use super::exchange::ClientConnection;
use super::http1_framing::MAX_HEADERS;
use super::request::OriginServer;
use super::request_guard::{GuardState, RequestGuard};
use super::upstream::{ByteStream, UpstreamStream};
use super::upstream_conn::UpstreamConn;
use super::{FlowHandoff, InterceptContext};
use crate::budget::MemoryReservation;
use crate::secrets::value_search::ValueSearch;
use crate::tcp::sniff;
use crate::tls::client::{AlpnOffer, HttpVersion};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use msb_spec::Decision;
use rustix::fs::OFlags;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::{Acceptor, ClientHello};

/// The limit of a TLS handshake with the client. Its ClientHello has arrived; two more messages
/// follow.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);
/// The limit between two requests of a client.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(600);
/// Concurrent requests (HTTP/2 streams) of one connection.
const MAX_STREAMS: u32 = 64;
/// Bytes of each stream that are buffered for writing, beyond the client's window.
pub(crate) const MAX_SEND_BUFFER: usize = 16 << 10;
/// The interval of HTTP/2 pings, and the limit for their answer.
const PING_INTERVAL: Duration = Duration::from_secs(60);

/// Serves a flow until either side closes it. An error closes the flow.
pub(crate) async fn serve(shared: Arc<InterceptContext>, handoff: FlowHandoff) {
    let Some(stream) = into_async(handoff.socket) else { return };
    let FlowHandoff { name, address, tls, is_host, memory, .. } = handoff;
    let origin = OriginServer { name, address, tls, is_host };
    let mut secrets = shared.secrets.for_host(&origin.name, origin.tls);
    // The credentials of the host's proxy are sent with plain requests, and must not be echoed.
    if let Some(proxy) = shared.upstream.proxy_for(&origin).filter(|_| !origin.tls) {
        secrets =
            secrets.scrubbing(ValueSearch::of(proxy.credentials().iter().map(|own| &own[..])));
    }
    // Reserved until the last task of the flow has ended.
    let memory_share = Arc::new(memory);
    let window = memory_share.window;
    let flow = |protocol, connect_error| ClientConnection {
        number: handoff.flow,
        secrets: secrets.clone(),
        upstream: UpstreamConn::new(Arc::clone(&shared.upstream), origin.clone(), protocol, window),
        memory_share: Arc::clone(&memory_share),
        guard: Arc::new(GuardState::default()),
        shared: Arc::clone(&shared),
        origin: origin.clone(),
        connect_error: Mutex::new(connect_error),
    };
    if !origin.tls {
        serve_http(stream, Arc::new(flow(HttpVersion::Http1, None))).await;
        return;
    }
    let acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
    let Ok(Ok(start)) = timeout(HANDSHAKE_TIMEOUT, acceptor).await else { return };
    let hello = start.client_hello();
    if !names_origin(&hello, &origin) {
        let rule = "another name in the TLS ClientHello".to_owned();
        flow(HttpVersion::Http1, None).record(Decision::Deny, rule, "TLS".to_owned(), Vec::new());
        return;
    }
    let Some(alpn_offer) = alpn_offer(&hello) else {
        let rule = "a protocol other than HTTP inside TLS".to_owned();
        flow(HttpVersion::Http1, None).record(Decision::Deny, rule, "TLS".to_owned(), Vec::new());
        return;
    };
    let flow = match shared.upstream.connect(&origin, alpn_offer, window).await {
        Ok(connected) => adopt_connection(flow(connected.protocol, None), connected).await,
        // Reported inside TLS, where the client can read it.
        Err(connect_error) => flow(preferred(alpn_offer), Some(connect_error)),
    };
    let Ok(server_config) = shared.server_config(&origin.name, flow.upstream.protocol()) else {
        return;
    };
    let Ok(Ok(stream)) = timeout(HANDSHAKE_TIMEOUT, start.into_stream(server_config)).await else {
        return;
    };
    serve_http(stream, Arc::new(flow)).await;
}

/// Copies between a flow and the host's proxy, over TLS.
pub(crate) async fn proxy_tls(
    shared: Arc<InterceptContext>,
    socket: OwnedFd,
    memory: MemoryReservation,
) {
    let Some(mut stream) = into_async(socket) else { return };
    // On failure the socket is closed, and the flow sees an end of file.
    let Ok(mut proxy) = shared.upstream.connect_proxy().await else { return };
    msb_log::debug_on_failure!(
        tokio::io::copy_bidirectional(&mut stream, &mut proxy).await,
        "a connection to the proxy broke"
    );
    drop(memory);
}

fn into_async(socket: OwnedFd) -> Option<UnixStream> {
    // Not by `set_nonblocking`, which is an ioctl: the seccomp filter forbids it.
    rustix::fs::fcntl_setfl(&socket, OFlags::NONBLOCK | OFlags::RDWR).ok()?;
    UnixStream::from_std(Socket::from(socket)).ok()
}

async fn adopt_connection(
    mut flow: ClientConnection,
    connected: UpstreamStream,
) -> ClientConnection {
    flow.connect_error = Mutex::new(flow.upstream.adopt(connected).await.err());
    flow
}

/// Whether the ClientHello names the server of the flow.
fn names_origin(hello: &ClientHello<'_>, origin: &OriginServer) -> bool {
    let name = hello.server_name().and_then(|name| msb_spec::DomainName::parse(name).ok());
    name.as_ref() == Some(&origin.name)
}

/// The HTTP versions that a client offers; `None` if it offers other protocols only.
fn alpn_offer(hello: &ClientHello<'_>) -> Option<AlpnOffer> {
    let Some(names) = hello.alpn() else { return Some(AlpnOffer::Only(HttpVersion::Http1)) };
    let (mut http1, mut http2) = (false, false);
    for name in names {
        http1 |= name == HttpVersion::Http1.alpn();
        http2 |= name == HttpVersion::Http2.alpn();
    }
    match (http1, http2) {
        (true, true) => Some(AlpnOffer::Both),
        (true, false) => Some(AlpnOffer::Only(HttpVersion::Http1)),
        (false, true) => Some(AlpnOffer::Only(HttpVersion::Http2)),
        (false, false) => None,
    }
}

fn preferred(alpn_offer: AlpnOffer) -> HttpVersion {
    match alpn_offer {
        AlpnOffer::Only(protocol) => protocol,
        AlpnOffer::Both => HttpVersion::Http1,
    }
}

async fn serve_http(stream: impl ByteStream + 'static, flow: Arc<ClientConnection>) {
    let protocol = flow.upstream.protocol();
    let (guard, window) = (Arc::clone(&flow.guard), flow.memory_share.window);
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = Arc::clone(&flow).answer(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    // Errors close the connection, which both ends see.
    match protocol {
        HttpVersion::Http1 => {
            let io = TokioIo::new(RequestGuard::new(stream, guard));
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(KEEP_ALIVE_TIMEOUT)
                .half_close(true)
                .max_buf_size(2 * sniff::MAX_SNIFF_BYTES)
                .max_headers(MAX_HEADERS)
                .auto_date_header(false);
            msb_log::debug_on_failure!(
                builder.serve_connection(io, service).with_upgrades().await,
                "an HTTP/1 connection of the guest broke"
            );
        }
        HttpVersion::Http2 => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_header_list_size(sniff::MAX_SNIFF_BYTES as u32)
                .max_concurrent_streams(MAX_STREAMS)
                .initial_connection_window_size(window)
                .initial_stream_window_size(window)
                .max_send_buf_size(MAX_SEND_BUFFER)
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_INTERVAL)
                .auto_date_header(false);
            msb_log::debug_on_failure!(
                builder.serve_connection(TokioIo::new(stream), service).await,
                "an HTTP/2 connection of the guest broke"
            );
        }
    }
}
