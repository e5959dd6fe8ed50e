//! Accepts TCP connections, with limits that apply before authentication.
//!
//! A connection without a request is closed after a timeout. At the limit, the oldest connection
//! without an authenticated request is closed for the new one, so idle connections cannot block
//! clients. An authenticated connection counts against the quota of its key.

use crate::dialect::Caller;
use crate::quota::{Permit, Quota};
use axum::Router;
use hyper::Request;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Most connections at a time; at most half of `RLIMIT_NOFILE`.
const MOST: usize = 4096;
/// Time to receive the headers of a request, the first and every later one.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// Largest request head in bytes. Heads of real clients have a few kilobytes.
const LARGEST_HEAD: usize = 64 << 10;
/// Delay after a failed `accept(2)`: no descriptor is free until a connection closes.
const PAUSE: Duration = Duration::from_millis(20);

/// All connections of one listener.
#[derive(Debug, Clone)]
pub(super) struct Connections(Arc<ConnectionTable>);

#[derive(Debug)]
struct ConnectionTable {
    claimed: Quota,
    pending: Mutex<PendingConnections>,
}

/// Connections on which no request has been authenticated yet.
#[derive(Debug, Default)]
struct PendingConnections {
    next: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

/// One connection, stored in the extensions of its requests.
#[derive(Debug, Clone)]
pub(super) struct Connection(Arc<ConnectionState>);

#[derive(Debug)]
struct ConnectionState {
    all: Arc<ConnectionTable>,
    age: u64,
    claim: OnceLock<Permit>,
}

impl Connections {
    pub(super) fn new() -> Self {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let files = usize::try_from(files.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        Self::at_most(MOST.min(files / 2))
    }

    fn at_most(most: usize) -> Self {
        Self(Arc::new(ConnectionTable { claimed: Quota::new(most), pending: Mutex::default() }))
    }

    /// Registers a new connection; at the limit it closes the oldest unauthenticated one. The token
    /// is cancelled when this connection has to close.
    fn open(&self) -> Option<(Connection, CancellationToken)> {
        let mut pending = self.0.pending();
        if pending.by_age.len() + self.0.claimed.total() >= self.0.claimed.most() {
            let (_, oldest) = pending.by_age.pop_first()?;
            oldest.cancel();
        }
        let closed = CancellationToken::new();
        let age = pending.next;
        pending.next += 1;
        pending.by_age.insert(age, closed.clone());
        let state = ConnectionState { all: Arc::clone(&self.0), age, claim: OnceLock::new() };
        Some((Connection(Arc::new(state)), closed))
    }

    /// Closes the oldest unauthenticated connection.
    fn close_oldest(&self) {
        if let Some((_, oldest)) = self.0.pending().by_age.pop_first() {
            oldest.cancel();
        }
    }

    /// Serves until `stop` is cancelled, and then until every open request is answered.
    pub(super) async fn serve(
        self,
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        router: Router,
        stop: CancellationToken,
    ) {
        let service = TowerToHyperService::new(router);
        let mut tasks = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = tasks.join_next() => continue,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    if let Some((connection, closed)) = self.open() {
                        let (service, stop, tls) = (service.clone(), stop.clone(), tls.clone());
                        tasks.spawn(accept(stream, tls, connection, closed, service, stop));
                    }
                }
                Err(_) => {
                    self.close_oldest();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        while tasks.join_next().await.is_some() {}
    }
}

impl ConnectionTable {
    fn pending(&self) -> std::sync::MutexGuard<'_, PendingConnections> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Counts this connection for the first caller authenticated on it; false if the quota is used
    /// up.
    pub(super) fn claim(&self, caller: &Caller) -> bool {
        if self.0.claim.get().is_some() {
            return true;
        }
        let Some(permit) = self.0.all.claimed.acquire(caller, 1) else { return false };
        let _ = self.0.claim.set(permit);
        self.0.all.pending().by_age.remove(&self.0.age);
        true
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        self.all.pending().by_age.remove(&self.age);
    }
}

/// Shakes hands if the listener speaks TLS, and serves the connection.
async fn accept(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    connection: Connection,
    closed: CancellationToken,
    service: TowerToHyperService<Router>,
    stop: CancellationToken,
) {
    // A response is a few small writes; with Nagle's algorithm the later ones would wait 40 ms for
    // the client's kernel to acknowledge the first.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return serve_connection(stream, connection, closed, service, stop).await;
    };
    let stream = tokio::select! {
        stream = tokio::time::timeout(HEADER_LIMIT, tls.accept(stream)) => stream,
        () = closed.cancelled() => return,
        () = stop.cancelled() => return,
    };
    if let Ok(Ok(stream)) = stream {
        serve_connection(stream, connection, closed, service, stop).await;
    }
}

/// Serves one connection until the client or the server closes it.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    connection: Connection,
    closed: CancellationToken,
    service: TowerToHyperService<Router>,
    stop: CancellationToken,
) {
    let answer = move |mut request: Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(connection.clone());
        service.call(request.map(axum::body::Body::new))
    };
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .with_upgrades();
    tokio::pin!(serving);
    tokio::select! {
        _ = serving.as_mut() => return,
        () = closed.cancelled() => return,
        () = stop.cancelled() => serving.as_mut().graceful_shutdown(),
    }
    msb_log::debug_on_failure!(serving.await, "a connection broke");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Caller {
        Caller { key: Some(id.to_owned()), ..Caller::default() }
    }

    #[test]
    fn the_oldest_silent_connection_makes_room_for_a_new_one() {
        let all = Connections::at_most(4);
        let open: Vec<_> = (0..4).map(|_| all.open().unwrap()).collect();
        assert!(open[1].0.claim(&Caller::default()));
        let (fifth, closed) = all.open().unwrap();
        let ended: Vec<bool> = open.iter().map(|(_, closed)| closed.is_cancelled()).collect();
        assert_eq!(ended, [true, false, false, false]);
        assert!(!closed.is_cancelled());
        drop((open, fifth));
        assert_eq!(all.0.pending().by_age.len(), 0);
        assert_eq!(all.0.claimed.total(), 0);
    }

    #[test]
    fn connections_with_a_key_are_not_closed_for_others_and_are_shared() {
        let all = Connections::at_most(8);
        let mut held = Vec::new();
        for id in ["a", "b"] {
            loop {
                let (connection, closed) = all.open().unwrap();
                if !connection.claim(&key(id)) {
                    break;
                }
                held.push((connection, closed));
            }
            assert!(!held.is_empty());
        }
        assert!(held.len() < 8);
        for _ in 0..20 {
            assert!(all.open().is_some());
        }
        assert!(held.iter().all(|(_, closed)| !closed.is_cancelled()));
        assert!(all.open().unwrap().0.claim(&key("c")));
    }
}
