//! Accepts connections, within limits that hold before anybody has shown a key.
//!
//! A connection that says nothing is closed after a while. Where there are too many, the oldest of those on which no
//! request has been let in is closed for the new one, so that silent connections keep no client out. A
//! connection on which a key was shown counts for that key.

use crate::dialect::Who;
use crate::room::{Permit, Quota};
use axum::Router;
use hyper::Request;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Connections at a time, of all clients together, if the host allows twice as many open files.
const MOST: usize = 4096;
/// For the headers of a request, the first and every later one.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// A list of headers of a client is a few kilobytes.
const LARGEST_HEAD: usize = 64 << 10;
/// After a failure to accept: until something is closed there are no descriptors.
const PAUSE: Duration = Duration::from_millis(20);

/// All connections of a listener.
#[derive(Debug, Clone)]
pub(super) struct Connections(Arc<All>);

#[derive(Debug)]
struct All {
    claimed: Quota,
    waiting: Mutex<Waiting>,
}

/// Connections on which no request has been authenticated yet.
#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    by_age: BTreeMap<u64, CancellationToken>,
}

/// One connection, as its requests know it.
#[derive(Debug, Clone)]
pub(super) struct Connection(Arc<One>);

#[derive(Debug)]
struct One {
    all: Arc<All>,
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
        Self(Arc::new(All { claimed: Quota::new(most), waiting: Mutex::default() }))
    }

    /// Takes a new connection in, and closes the oldest that waits if there are too many. The token is
    /// cancelled when it is this one's turn.
    fn open(&self) -> Option<(Connection, CancellationToken)> {
        let mut waiting = self.0.waiting();
        if waiting.by_age.len() + self.0.claimed.total() >= self.0.claimed.most() {
            let (_, oldest) = waiting.by_age.pop_first()?;
            oldest.cancel();
        }
        let closed = CancellationToken::new();
        let age = waiting.next;
        waiting.next += 1;
        waiting.by_age.insert(age, closed.clone());
        let one = One { all: Arc::clone(&self.0), age, claim: OnceLock::new() };
        Some((Connection(Arc::new(one)), closed))
    }

    /// Closes the oldest that waits.
    fn close_oldest(&self) {
        if let Some((_, oldest)) = self.0.waiting().by_age.pop_first() {
            oldest.cancel();
        }
    }

    /// Serves until it is told to stop, and then until every request has been answered.
    pub(super) async fn serve(
        self,
        listener: TcpListener,
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
                        let (service, stop) = (service.clone(), stop.clone());
                        tasks.spawn(one(stream, connection, closed, service, stop));
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

impl All {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// Counts this connection for the caller that was authenticated on it first; false if that is too many.
    pub(super) fn claim(&self, who: &Who) -> bool {
        if self.0.claim.get().is_some() {
            return true;
        }
        let Some(permit) = self.0.all.claimed.take(who, 1) else { return false };
        let _ = self.0.claim.set(permit);
        self.0.all.waiting().by_age.remove(&self.0.age);
        true
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.all.waiting().by_age.remove(&self.age);
    }
}

/// Serves one connection until either end closes it.
async fn one(
    stream: TcpStream,
    connection: Connection,
    closed: CancellationToken,
    service: TowerToHyperService<Router>,
    stop: CancellationToken,
) {
    // An answer is a few small writes; the later ones would wait 40 ms for the client's kernel to
    // acknowledge the first.
    let _ = stream.set_nodelay(true);
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
    let _ = serving.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Who {
        Who { key: Some(id.to_owned()), ..Who::default() }
    }

    #[test]
    fn the_oldest_silent_connection_makes_room_for_a_new_one() {
        let all = Connections::at_most(4);
        let open: Vec<_> = (0..4).map(|_| all.open().unwrap()).collect();
        assert!(open[1].0.claim(&Who::default()));
        let (fifth, closed) = all.open().unwrap();
        let ended: Vec<bool> = open.iter().map(|(_, closed)| closed.is_cancelled()).collect();
        assert_eq!(ended, [true, false, false, false]);
        assert!(!closed.is_cancelled());
        drop((open, fifth));
        assert_eq!(all.0.waiting().by_age.len(), 0);
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
