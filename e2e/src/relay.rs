//! A man in the middle, for tests: passes bytes on to a server, notes what was asked, and can
//! hold the answer back in the middle.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A relay on a free port of loopback. It ends when it is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    state: Arc<(Mutex<RelayState>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct RelayState {
    /// How many more bytes of answers may pass; none is all.
    left: Option<u64>,
    is_held: bool,
    is_over: bool,
    passed: u64,
    /// What each connection sent.
    asked: Vec<Vec<u8>>,
    /// The client's end of each connection.
    clients: Vec<TcpStream>,
}

impl Relay {
    /// Passes on to `host:port`.
    pub fn to(server: &str) -> Self {
        Self::at(IpAddr::V4(Ipv4Addr::LOCALHOST), server)
    }

    /// Listens at an address of this machine and passes on to `host:port`.
    pub fn at(ip: IpAddr, server: &str) -> Self {
        let listener = TcpListener::bind((ip, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state: Arc<(Mutex<RelayState>, Condvar)> = Arc::default();
        let (server, shared) = (server.to_owned(), state.clone());
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if lock(&shared).is_over {
                    return;
                }
                if let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) {
                    join(&client, &server, &shared);
                }
            }
        });
        Self { address, state, thread: Some(thread) }
    }

    /// Its host and port, as in the name of an image.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Lets only so many more bytes of all answers pass.
    pub fn hold_after(&self, bytes: u64) {
        lock(&self.state).left = Some(bytes);
    }

    /// Lets everything pass again.
    pub fn release(&self) {
        let mut state = lock(&self.state);
        state.left = None;
        state.is_held = false;
        self.state.1.notify_all();
    }

    /// Breaks off all connections that there are; later ones are as they were.
    pub fn cut(&self) {
        for client in &lock(&self.state).clients {
            let _ = client.shutdown(Shutdown::Both);
        }
        self.release();
    }

    /// Whether an answer is being held back.
    pub fn is_held(&self) -> bool {
        lock(&self.state).is_held
    }

    /// How many bytes of answers have passed.
    pub fn passed(&self) -> u64 {
        lock(&self.state).passed
    }

    /// The head of each request so far, connection by connection. Bodies are not told apart.
    pub fn asked(&self) -> Vec<String> {
        let state = lock(&self.state);
        let texts = state.asked.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        texts
            .flat_map(|text| text.split("\r\n\r\n").map(str::to_owned).collect::<Vec<_>>())
            .filter(|head| !head.is_empty())
            .collect()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        lock(&self.state).is_over = true;
        self.release();
        let woken = TcpStream::connect(self.address);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// Passes bytes both ways until either side has had enough.
fn join(client: &TcpStream, server: &TcpStream, state: &Arc<(Mutex<RelayState>, Condvar)>) {
    let streams = || Some((client.try_clone().ok()?, server.try_clone().ok()?));
    let (Some(there), Some(back)) = (streams(), streams()) else {
        return;
    };
    let connection = {
        let mut state = lock(state);
        state.asked.push(Vec::new());
        state.clients.extend(client.try_clone());
        state.asked.len() - 1
    };
    let shared = state.clone();
    std::thread::spawn(move || {
        copy(&there.0, &there.1, |bytes| lock(&shared).asked[connection].extend(bytes));
    });
    let shared = state.clone();
    std::thread::spawn(move || copy(&back.1, &back.0, |bytes| pass(&shared, bytes.len() as u64)));
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, mut before: impl FnMut(&[u8])) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        before(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Waits until these bytes may pass.
fn pass(shared: &(Mutex<RelayState>, Condvar), bytes: u64) {
    let mut state = lock(shared);
    while state.left.is_some_and(|left| left < bytes) && !state.is_over {
        state.is_held = true;
        state = shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    state.left = state.left.map(|left| left.saturating_sub(bytes));
    state.passed += bytes;
}

fn lock(shared: &(Mutex<RelayState>, Condvar)) -> MutexGuard<'_, RelayState> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}
