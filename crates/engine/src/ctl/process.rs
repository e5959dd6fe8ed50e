//! The life of the process that answers a sandbox.

use super::connection;
use crate::children::within;
use crate::launch::{Launcher, silence};
use crate::sandboxes::Engine;
use crate::store::Home;
use msb_spec::{Asker, Isolation, Name, Result};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Connections at once; who comes beyond them waits until one is free.
const MOST: usize = 8;
/// Requests that may come together, and how many more each second: spawning takes some
/// milliseconds of the host, and a loop inside must not have all of them.
const BURST: f64 = 64.0;
const EACH_SECOND: f64 = 32.0;
/// Before another connection is taken where the host had none to give.
const PAUSE: Duration = Duration::from_millis(100);

/// Is the process that answers the sandbox of this name; its socket is stdin. Returns the exit
/// code.
pub fn serve(home: &Path, name: &str) -> i32 {
    let Ok(listener) = rustix::stdio::stdin().try_clone_to_owned().map(UnixListener::from) else {
        return 125;
    };
    // So that nobody but init has to wait for it.
    match msb_sys::process::fork() {
        Ok(true) => msb_sys::process::leave(match apart(home, name, listener) {
            Ok(()) => 0,
            Err(_) => 125,
        }),
        Ok(false) => 0,
        Err(_) => 125,
    }
}

fn apart(home: &Path, name: &str, listener: UnixListener) -> Result<()> {
    let _ = rustix::process::setsid();
    let _ = silence();
    let _ = std::env::set_current_dir("/");
    let program = std::env::current_exe().unwrap_or_default();
    let name = Name::parse(name)?;
    // Whatever asks is inside a sandbox, and names the images.
    let engine = Engine::at(Home::at(home)?, Launcher::Execute(program)).for_guests();
    let engine = Arc::new(engine.asked_by(Asker::parent(&name)));
    let desk = Arc::new(Desk {
        engine: Arc::clone(&engine),
        parent: name.clone(),
        open: Mutex::new(0),
        freed: Condvar::new(),
        allowance: Mutex::new(Allowance { left: BURST, at: Instant::now() }),
    });
    let machine = engine.home().plan(&name).is_ok_and(|plan| plan.isolation == Isolation::Vm);
    thread::spawn(move || match machine {
        true => accept_from_worker(&listener, &desk),
        false => accept(&listener, &desk),
    });
    while engine.wait(&name).is_err() && engine.home().is_running(&name) {
        thread::sleep(PAUSE);
    }
    // However it ended, there is nobody left to answer.
    engine.end_orphans();
    Ok(())
}

/// Whom a request is for, and how many are answered.
pub(super) struct Desk {
    pub(super) engine: Arc<Engine>,
    pub(super) parent: Name,
    open: Mutex<usize>,
    freed: Condvar,
    allowance: Mutex<Allowance>,
}

impl Desk {
    /// A name as it is known inside, where nobody knows of namespaces.
    pub(super) fn inner<'a>(&self, name: &'a Name) -> &'a str {
        within(&self.parent, name)
    }

    /// What a child is called inside: as was asked for there, or by its name.
    pub(super) fn called(&self, child: &Name) -> String {
        let plan = self.engine.home().plan(child).ok();
        let alias = plan.and_then(|plan| plan.family?.alias);
        alias.map_or_else(|| self.inner(child).to_owned(), |alias| alias.to_string())
    }

    /// Whether one more request may be made now.
    pub(super) fn allows(&self) -> bool {
        self.allowance.lock().is_ok_and(|mut allowance| allowance.take(Instant::now()))
    }
}

/// Requests that may still be made.
struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    fn take(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + since * EACH_SECOND).min(BURST);
        self.at = now;
        let allowed = self.left >= 1.0;
        if allowed {
            self.left -= 1.0;
        }
        allowed
    }
}

/// One of the connections at once, until it is given back.
struct Place(Arc<Desk>);

impl Place {
    /// Waits until there is one.
    fn take(desk: &Arc<Desk>) -> Self {
        let open = desk.open.lock().unwrap_or_else(PoisonError::into_inner);
        let free = desk.freed.wait_while(open, |open| *open >= MOST);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        Self(Arc::clone(desk))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.open.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}

fn accept(listener: &UnixListener, desk: &Arc<Desk>) {
    loop {
        let place = Place::take(desk);
        match listener.accept() {
            Ok((stream, _)) => answer(stream, place),
            Err(error) if is_passing(&error) => thread::sleep(PAUSE),
            Err(_) => return,
        }
    }
}

/// The connections from a machine, which its worker hands over one by one on a connection of its own.
fn accept_from_worker(listener: &UnixListener, desk: &Arc<Desk>) {
    loop {
        match listener.accept() {
            Ok((worker, _)) => take_handed_over(&worker, desk),
            Err(error) if is_passing(&error) => thread::sleep(PAUSE),
            Err(_) => return,
        }
    }
}

/// Answers on each descriptor that comes, until no more can.
fn take_handed_over(worker: &UnixStream, desk: &Arc<Desk>) {
    loop {
        let place = Place::take(desk);
        let mut streams = Vec::new();
        match msb_sys::socket::receive(worker.as_fd(), &mut [0], &mut streams) {
            Ok(1) => {
                if let Some(stream) = streams.pop() {
                    answer(UnixStream::from(stream), place);
                }
            }
            Err(error) if is_passing(&error) => thread::sleep(PAUSE),
            _ => return,
        }
    }
}

fn answer(stream: UnixStream, place: Place) {
    // Without a thread it is closed, which says as much.
    let _ = thread::Builder::new().spawn(move || connection::serve(stream, &place.0));
}

fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::INTR, Errno::CONNABORTED, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    passing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_at_once_and_so_many_a_second() {
        let start = Instant::now();
        let mut allowance = Allowance { left: BURST, at: start };
        let at_once = (0..1000).filter(|_| allowance.take(start)).count();
        assert_eq!(at_once, 64);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..1000).filter(|_| allowance.take(later)).count(), 32);
    }
}
