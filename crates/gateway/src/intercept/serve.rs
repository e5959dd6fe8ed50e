//! Serves one flow: TLS towards the inside, a connection to the other side, and HTTP between.

use super::exchange::Flow;
use super::guarded::{Gate, Guarded};
use super::head::MOST_HEADERS;
use super::line::Line;
use super::request::Peer;
use super::upstream::{Connected, Offer, Protocol, Stream};
use super::value_search::ValueSearch;
use super::{Intercepted, Shared};
use crate::budget::Reserved;
use crate::sniff;
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

/// The hello was sniffed before, so it is there; the rest is two more messages.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(20);
/// Between two requests.
const IDLE_LIMIT: Duration = Duration::from_secs(600);
/// Requests of one connection at a time.
const MOST_STREAMS: u32 = 64;
/// What waits to be written of each, beyond the window of the client.
pub(crate) const WAITING: usize = 16 << 10;
/// A client that does not answer to a ping within this has gone.
const PING: Duration = Duration::from_secs(60);

/// Serves until either side is done. Whatever goes wrong ends the flow; there is nobody to tell.
pub(crate) async fn serve(shared: Arc<Shared>, taken: Intercepted) {
    let Some(stream) = waited_for(taken.socket) else { return };
    let Intercepted { name, address, tls, is_host, share, .. } = taken;
    let peer = Peer { name, address, tls, is_host };
    let mut scope = shared.secrets.towards(&peer.name, peer.tls);
    // The credentials of the host's proxy go out with plain requests, and must not come back.
    if let Some(proxy) = shared.upstream.proxy_for(&peer).filter(|_| !peer.tls) {
        scope = scope.hiding(ValueSearch::of(proxy.credentials().iter().map(|own| &own[..])));
    }
    // In use until the last of its tasks has ended.
    let share = Arc::new(share);
    let window = share.window;
    let flow = |protocol, trouble| Flow {
        number: taken.flow,
        scope: scope.clone(),
        line: Line::new(Arc::clone(&shared.upstream), peer.clone(), protocol, window),
        share: Arc::clone(&share),
        gate: Arc::new(Gate::default()),
        shared: Arc::clone(&shared),
        peer: peer.clone(),
        trouble: Mutex::new(trouble),
    };
    if !peer.tls {
        speak(stream, Arc::new(flow(Protocol::One, None))).await;
        return;
    }
    let acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
    let Ok(Ok(start)) = timeout(HANDSHAKE_LIMIT, acceptor).await else { return };
    let hello = start.client_hello();
    if !shows(&hello, &peer) {
        let rule = "another name in the TLS hello".to_owned();
        flow(Protocol::One, None).record(Decision::Deny, rule, "TLS".to_owned(), Vec::new());
        return;
    }
    let Some(offer) = offer(&hello) else {
        let rule = "something else than HTTP inside of TLS".to_owned();
        flow(Protocol::One, None).record(Decision::Deny, rule, "TLS".to_owned(), Vec::new());
        return;
    };
    let flow = match shared.upstream.connect(&peer, offer, window).await {
        Ok(connected) => joined(flow(connected.protocol, None), connected).await,
        // Told inside of TLS, where it can be read.
        Err(trouble) => flow(preferred(offer), Some(trouble)),
    };
    let Ok(config) = shared.config(&peer.name, flow.line.protocol()) else { return };
    let Ok(Ok(stream)) = timeout(HANDSHAKE_LIMIT, start.into_stream(config)).await else { return };
    speak(stream, Arc::new(flow)).await;
}

/// Speaks TLS with the proxy of the host, for a stream that goes through it as it is.
pub(crate) async fn secure(shared: Arc<Shared>, socket: OwnedFd, memory: Reserved) {
    let Some(mut stream) = waited_for(socket) else { return };
    // Whoever waits for the proxy's answer sees an end instead.
    let Ok(mut proxy) = shared.upstream.reach_proxy().await else { return };
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut proxy).await;
    drop(memory);
}

fn waited_for(socket: OwnedFd) -> Option<UnixStream> {
    // Not by `set_nonblocking`: that is an ioctl, which the jail has not.
    rustix::fs::fcntl_setfl(&socket, OFlags::NONBLOCK | OFlags::RDWR).ok()?;
    UnixStream::from_std(Socket::from(socket)).ok()
}

async fn joined(mut flow: Flow, connected: Connected) -> Flow {
    flow.trouble = Mutex::new(flow.line.begin(connected).await.err());
    flow
}

/// Whether the hello is for the name that the flow is for.
fn shows(hello: &ClientHello<'_>, peer: &Peer) -> bool {
    let name = hello.server_name().and_then(|name| msb_spec::DomainName::parse(name).ok());
    name.as_ref() == Some(&peer.name)
}

/// Which versions of HTTP a client speaks; none if it says that it speaks something else.
fn offer(hello: &ClientHello<'_>) -> Option<Offer> {
    let Some(names) = hello.alpn() else { return Some(Offer::Only(Protocol::One)) };
    let (mut one, mut two) = (false, false);
    for name in names {
        one |= name == Protocol::One.alpn();
        two |= name == Protocol::Two.alpn();
    }
    match (one, two) {
        (true, true) => Some(Offer::Both),
        (true, false) => Some(Offer::Only(Protocol::One)),
        (false, true) => Some(Offer::Only(Protocol::Two)),
        (false, false) => None,
    }
}

fn preferred(offer: Offer) -> Protocol {
    match offer {
        Offer::Only(protocol) => protocol,
        Offer::Both => Protocol::One,
    }
}

async fn speak(stream: impl Stream + 'static, flow: Arc<Flow>) {
    let protocol = flow.line.protocol();
    let (gate, window) = (Arc::clone(&flow.gate), flow.share.window);
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = Arc::clone(&flow).answer(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    // How a connection ends is seen by both of its ends; there is nothing to do about it here.
    match protocol {
        Protocol::One => {
            let io = TokioIo::new(Guarded::new(stream, gate));
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE_LIMIT)
                .half_close(true)
                .max_buf_size(2 * sniff::LIMIT)
                .max_headers(MOST_HEADERS)
                .auto_date_header(false);
            let _ = builder.serve_connection(io, service).with_upgrades().await;
        }
        Protocol::Two => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_header_list_size(sniff::LIMIT as u32)
                .max_concurrent_streams(MOST_STREAMS)
                .initial_connection_window_size(window)
                .initial_stream_window_size(window)
                .max_send_buf_size(WAITING)
                .keep_alive_interval(PING)
                .keep_alive_timeout(PING)
                .auto_date_header(false);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        }
    }
}
