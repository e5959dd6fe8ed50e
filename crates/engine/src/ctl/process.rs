//! The ctl process of a sandbox: accepts connections until the sandbox ends.

use super::connection;
use crate::children::within;
use crate::launch::{Launcher, redirect_stdio_to_null};
use crate::sandboxes::Engine;
use crate::store::Home;
use msb_spec::{CallOrigin, Isolation, Name, Result};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The most concurrent connections; more wait in the backlog.
const MAX_CONNECTIONS: usize = 8;
/// Token bucket of requests: its size, and tokens per second. Spawning takes milliseconds of the
/// host, which a loop inside must not exhaust.
const BURST: f64 = 64.0;
const REFILL_PER_SECOND: f64 = 32.0;
/// The delay before the next accept after a transient error.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Runs as the ctl process of this sandbox; stdin is its listening socket. Returns the exit code.
pub fn serve(home: &Path, name: &str) -> i32 {
    let Ok(listener) = rustix::stdio::stdin().try_clone_to_owned().map(UnixListener::from) else {
        return 125;
    };
    // Forked, so that init reaps it.
    match msb_sys::process::fork() {
        Ok(true) => msb_sys::process::leave(match run_detached(home, name, listener) {
            Ok(()) => 0,
            Err(_) => 125,
        }),
        Ok(false) => 0,
        Err(_) => 125,
    }
}

fn run_detached(home: &Path, name: &str, listener: UnixListener) -> Result<()> {
    let _ = rustix::process::setsid();
    msb_log::debug_on_failure!(redirect_stdio_to_null(), "cannot open /dev/null");
    let _ = std::env::set_current_dir("/");
    let program = std::env::current_exe().unwrap_or_default();
    let name = Name::parse(name)?;
    // Requests come from inside a sandbox, including image names.
    let engine = Engine::at(Home::at(home)?, Launcher::Execute(program)).for_guests();
    let engine = Arc::new(engine.with_default_origin(CallOrigin::parent(&name)));
    let ctl = Arc::new(CtlState {
        engine: Arc::clone(&engine),
        parent: name.clone(),
        open: Mutex::new(0),
        freed: Condvar::new(),
        bucket: Mutex::new(TokenBucket { left: BURST, at: Instant::now() }),
    });
    let machine = engine.home().plan(&name).is_ok_and(|plan| plan.isolation == Isolation::Vm);
    thread::spawn(move || match machine {
        true => accept_from_worker(&listener, &ctl),
        false => accept(&listener, &ctl),
    });
    while engine.wait(&name).is_err() && engine.home().is_running(&name) {
        thread::sleep(RETRY_DELAY);
    }
    // The sandbox has ended, so its children are orphans.
    engine.children().end_orphans();
    Ok(())
}

/// The state that all connections share.
pub(super) struct CtlState {
    pub(super) engine: Arc<Engine>,
    pub(super) parent: Name,
    open: Mutex<usize>,
    freed: Condvar,
    bucket: Mutex<TokenBucket>,
}

impl CtlState {
    /// The name of a sandbox without its namespace, which is unknown inside.
    pub(super) fn without_namespace<'a>(&self, name: &'a Name) -> &'a str {
        within(&self.parent, name)
    }

    /// The name of a child inside: its alias, or its name.
    pub(super) fn visible_name(&self, child: &Name) -> String {
        let plan = self.engine.home().plan(child).ok();
        let alias = plan.and_then(|plan| plan.family?.alias);
        alias.map_or_else(|| self.without_namespace(child).to_owned(), |alias| alias.to_string())
    }

    /// Takes a token; false if there is none.
    pub(super) fn allows(&self) -> bool {
        self.bucket.lock().is_ok_and(|mut bucket| bucket.take(Instant::now()))
    }
}

/// A token bucket that limits the rate of requests.
struct TokenBucket {
    left: f64,
    at: Instant,
}

impl TokenBucket {
    fn take(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + since * REFILL_PER_SECOND).min(BURST);
        self.at = now;
        let allowed = self.left >= 1.0;
        if allowed {
            self.left -= 1.0;
        }
        allowed
    }
}

/// A permit for one of the concurrent connections; returned on drop.
struct ConnPermit(Arc<CtlState>);

impl ConnPermit {
    /// Waits for a free permit.
    fn take(ctl: &Arc<CtlState>) -> Self {
        let open = ctl.open.lock().unwrap_or_else(PoisonError::into_inner);
        let free = ctl.freed.wait_while(open, |open| *open >= MAX_CONNECTIONS);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        Self(Arc::clone(ctl))
    }
}

impl Drop for ConnPermit {
    fn drop(&mut self) {
        *self.0.open.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

fn accept(listener: &UnixListener, ctl: &Arc<CtlState>) {
    loop {
        let permit = ConnPermit::take(ctl);
        match listener.accept() {
            Ok((stream, _)) => spawn_connection(stream, permit),
            Err(error) if is_transient(&error) => thread::sleep(RETRY_DELAY),
            Err(_) => return,
        }
    }
}

/// Accepts connections of a microVM, which its worker passes as descriptors over one socket.
fn accept_from_worker(listener: &UnixListener, ctl: &Arc<CtlState>) {
    loop {
        match listener.accept() {
            Ok((worker, _)) => serve_passed_fds(&worker, ctl),
            Err(error) if is_transient(&error) => thread::sleep(RETRY_DELAY),
            Err(_) => return,
        }
    }
}

/// Serves each received descriptor until the worker closes the socket.
fn serve_passed_fds(worker: &UnixStream, ctl: &Arc<CtlState>) {
    loop {
        let permit = ConnPermit::take(ctl);
        let mut streams = Vec::new();
        match msb_sys::socket::receive(worker.as_fd(), &mut [0], &mut streams) {
            Ok(1) => {
                if let Some(stream) = streams.pop() {
                    spawn_connection(UnixStream::from(stream), permit);
                }
            }
            Err(error) if is_transient(&error) => thread::sleep(RETRY_DELAY),
            _ => return,
        }
    }
}

fn spawn_connection(stream: UnixStream, permit: ConnPermit) {
    // If no thread can be started, the connection is closed.
    let _ = thread::Builder::new().spawn(move || connection::serve(stream, &permit.0));
}

fn is_transient(error: &io::Error) -> bool {
    let passing = [Errno::INTR, Errno::CONNABORTED, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_bucket_limits_burst_and_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket { left: BURST, at: start };
        let at_once = (0..1000).filter(|_| bucket.take(start)).count();
        assert_eq!(at_once, 64);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..1000).filter(|_| bucket.take(later)).count(), 32);
    }
}
