//! Follows the source: looks at what may have changed, and sends what has.
//!
//! One thread owns all of this. Whatever it is told by events, it decides by looking: a directory
//! is watched before it is listed, and a file is read after the event that named it, so that
//! every later change is another event.

mod settle;

use super::board::Board;
use super::ledger::{Known, Ledger, below, parent};
use super::notes::Notes;
use super::outgoing::{Outgoing, Refused, Sent};
use super::queue::{Job, Queue, Wanted};
use super::rules::Rules;
use super::source::{Sort, Source};
use super::watches::{Heard, Watches};
use super::{Observer, SyncEvent, SyncSpec, SyncState, text};
use crate::sandboxes::Engine;
use msb_spec::{Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Events come in bursts: it is worth waiting this long for the next one.
const QUIET: Duration = Duration::from_millis(5);
/// But not longer than this altogether.
const GATHER_LIMIT: Duration = Duration::from_millis(60);
/// After so many paths, what has happened meanwhile is heard: the kernel keeps only so much.
const BETWEEN_HEARING: usize = 64;
/// How soon what failed is tried again, at first and at last.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(60);
/// The first copy is given up when the way in is lost this often in a row.
const LOST_LIMIT: u32 = 3;
/// How long to wait before the next attempt at a way in.
const LOST_PAUSE: Duration = Duration::from_millis(300);
/// How often somebody who watches is told of progress.
const TELLING: Duration = Duration::from_millis(100);
/// More messages than anybody reads are not kept, only counted.
const MESSAGES: usize = 1000;

/// Why a job was not done.
pub(crate) enum Trouble {
    /// The way in is lost; there may be another.
    Lost(Error),
    /// There is no going on.
    Fatal(Error),
}

/// The state of one sync.
pub(crate) struct Follower {
    engine: Engine,
    spec: SyncSpec,
    id: String,
    source: Source,
    rules: Rules,
    watches: Watches,
    ledger: Ledger,
    notes: Option<Notes>,
    queue: Queue,
    outgoing: Option<Outgoing>,
    failures: Failures,
    board: Arc<Board>,
    observer: Observer,
    /// Whether the first copy is made.
    ready: bool,
    /// Whether the source was moved or removed.
    gone: bool,
    /// How often in a row the way in was lost.
    lost: u32,
    sent: Traffic,
}

/// What could not be sent, and when it is tried again.
#[derive(Default)]
struct Failures {
    now: BTreeMap<Vec<u8>, Option<String>>,
    /// What was told of those that are being tried again.
    told: BTreeMap<Vec<u8>, Option<String>>,
    retry: Option<(Instant, Duration)>,
}

/// Files and bytes, and how fast they went.
struct Traffic {
    files: u64,
    bytes: u64,
    /// Since when something is on its way, and how many bytes had been sent by then.
    busy: Option<(Instant, u64)>,
    told: Instant,
}

impl Follower {
    /// Opens the source. Its path is canonical.
    pub(crate) fn new(
        engine: &Engine,
        spec: &SyncSpec,
        source: &Path,
        (id, board): (&str, Arc<Board>),
        observer: Observer,
    ) -> Result<Self> {
        let about = |error| Error::host(format!("cannot read `{}`", source.display()), error);
        let mut ledger = Ledger::default();
        let sandbox = engine.home().directory(&spec.sandbox);
        let notes = Notes::open(&sandbox, source, &spec.target).map(|(notes, sent)| {
            for (path, is_directory) in sent {
                let sort = if is_directory { Sort::Directory } else { Sort::File };
                ledger.insert(&path, Known { sort, stamp: None, fresh: false });
            }
            ledger.news();
            notes
        });
        Ok(Self {
            engine: engine.clone(),
            spec: spec.clone(),
            id: id.to_owned(),
            source: Source::open(source).map_err(about)?,
            rules: Rules::new(spec, source, engine.home().path())?,
            watches: Watches::new().map_err(no_instance)?,
            ledger,
            notes,
            queue: Queue::default(),
            outgoing: None,
            failures: Failures::default(),
            board,
            observer,
            ready: false,
            gone: false,
            lost: 0,
            sent: Traffic { files: 0, bytes: 0, busy: None, told: Instant::now() },
        })
    }

    /// Copies, then follows until the source is gone.
    pub(crate) fn run(mut self) -> Result<()> {
        self.queue.add(b"", Wanted::ALL);
        loop {
            self.hear()?;
            if self.gone || !self.source.hold() {
                return Ok(());
            }
            match self.work() {
                Ok(()) => self.lost = 0,
                Err(Trouble::Fatal(error)) => return Err(error),
                Err(Trouble::Lost(error)) => self.lost_way(error)?,
            }
            if self.queue.is_empty() {
                self.idle();
                self.source.let_go();
                if !self.rest()? {
                    continue;
                }
                self.gather()?;
            }
        }
    }

    /// Takes what has happened.
    fn hear(&mut self) -> Result<()> {
        let heard = self
            .watches
            .hear()
            .map_err(|error| Error::host("cannot hear what changes in the source", error))?;
        heard.iter().for_each(|heard| self.queue.hear(heard));
        let now = Instant::now();
        self.queue.wake(now);
        self.failures.wake(now, &mut self.queue);
        self.gone |= heard.contains(&Heard::Lost);
        Ok(())
    }

    /// Does some of what waits, and hears how it went if nothing more does.
    fn work(&mut self) -> std::result::Result<(), Trouble> {
        if self.sent.busy.is_none() && !self.queue.is_empty() {
            self.sent.busy = Some((Instant::now(), self.sent.bytes));
            // The sandbox may be paused: whoever asks is to see that something waits.
            self.post(SyncState::Copying, true);
        }
        for _ in 0..BETWEEN_HEARING {
            let Some(job) = self.queue.next() else {
                return self.finish();
            };
            let done = match &job {
                Job::Rename(from, to) => self.rename(from, to),
                Job::Look(path, wanted) => self.settle(path, *wanted),
            };
            if let Err(trouble) = done {
                self.queue.put_back(job);
                return Err(trouble);
            }
            self.tell();
            if self.outgoing.as_ref().is_some_and(Outgoing::is_full) {
                self.finish()?;
            }
        }
        // The last of them would wait for something else to happen otherwise.
        if self.queue.is_empty() { self.finish() } else { Ok(()) }
    }

    /// The way in, opened when it is needed.
    fn way(&mut self) -> std::result::Result<&mut Outgoing, Trouble> {
        if self.outgoing.is_none() {
            let (sandbox, target) = (&self.spec.sandbox, &self.spec.target);
            let way = Outgoing::open(&self.engine, sandbox, target).map_err(Trouble::Lost)?;
            self.outgoing = Some(way);
        }
        Ok(self.outgoing.as_mut().expect("it was opened above"))
    }

    /// Sends one change and tells of it.
    fn send(
        &mut self,
        event: SyncEvent,
        send: impl FnOnce(&mut Outgoing) -> Result<()>,
    ) -> std::result::Result<(), Trouble> {
        send(self.way()?).map_err(Trouble::Lost)?;
        if self.ready {
            (self.observer)(event);
        }
        Ok(())
    }

    /// Keeps what has come and gone for the next sync of the same.
    fn note(&mut self) {
        let news = self.ledger.news();
        if let Some(notes) = self.notes.as_mut().filter(|_| !news.is_empty())
            && !notes.add(&news)
            && !notes.write_anew(self.ledger.all())
        {
            self.notes = None;
        }
    }

    /// Hears which changes were made.
    fn finish(&mut self) -> std::result::Result<(), Trouble> {
        self.note();
        let Some(way) = self.outgoing.take() else { return Ok(()) };
        let (sent, heard) = way.finish();
        match heard {
            Ok(failed) => {
                for Refused { number, errno, error } in failed {
                    self.refused(&sent[number], errno, error)?;
                }
                Ok(())
            }
            Err(error) => {
                sent.iter().for_each(|sent| self.doubt(sent));
                Err(Trouble::Lost(error))
            }
        }
    }

    /// A change that the guest could not make.
    fn refused(
        &mut self,
        sent: &Sent,
        errno: i32,
        error: Error,
    ) -> std::result::Result<(), Trouble> {
        match sent {
            Sent::Put(path) if path.is_empty() && !self.ready => return Err(Trouble::Fatal(error)),
            Sent::Put(path) => {
                self.ledger.doubt(path);
                // Somebody inside has put something else in the place of its directory, which is
                // sent again with all it holds. Not at once: nothing inside may keep us busy.
                let astray = [Errno::NOENT, Errno::NOTDIR, Errno::EXIST];
                if astray.iter().any(|astray| astray.raw_os_error() == errno) {
                    self.ledger.doubt(parent(path));
                    self.failed(parent(path), error);
                } else {
                    self.failed(path, error);
                }
            }
            // Somebody inside has put something else in its place: it is sent again.
            Sent::Touch(_) | Sent::Rename { .. } => self.doubt(sent),
            Sent::Remove { path, .. } => {
                let top = self.remember(sent).unwrap_or_else(|| path.clone());
                self.failed(&top, error);
            }
        }
        Ok(())
    }

    /// Has everything looked at again that a change was about which may or may not be made.
    fn doubt(&mut self, sent: &Sent) {
        match sent {
            Sent::Put(path) | Sent::Touch(path) => {
                self.ledger.doubt(path);
                self.queue.add(path, Wanted::ALL);
            }
            Sent::Remove { path, .. } => {
                let top = self.remember(sent).unwrap_or_else(|| path.clone());
                self.queue.add(&top, Wanted::DEEP);
            }
            Sent::Rename { from, to } => {
                self.remember(sent);
                let mut inside = self.ledger.all_below(to);
                inside.push(to.clone());
                inside.iter().for_each(|path| self.ledger.doubt(path));
                self.queue.add(from, Wanted::ALL);
                self.queue.add(to, Wanted::ALL);
            }
        }
    }

    /// Notes again what may still be inside. Gives the topmost directory that had to be noted for
    /// it, since only what is below a known directory is ever looked at.
    fn remember(&mut self, sent: &Sent) -> Option<Vec<u8>> {
        let mut again: Vec<(Vec<u8>, Sort)> = Vec::new();
        match sent {
            Sent::Remove { path, directory } => {
                let sort = if *directory { Sort::Directory } else { Sort::File };
                again.push((path.clone(), sort));
            }
            Sent::Rename { from, to } => {
                let mut inside = self.ledger.all_below(to);
                inside.push(to.clone());
                for path in inside {
                    let sort = self.ledger.get(&path).map_or(Sort::File, |known| known.sort);
                    again.push((super::ledger::moved(&path, to, from), sort));
                }
            }
            Sent::Put(_) | Sent::Touch(_) => {}
        }
        let mut top = None;
        for (path, sort) in again {
            if self.ledger.get(&path).is_none() {
                self.ledger.insert(&path, Known { sort, stamp: None, fresh: false });
            }
            let mut above = parent(&path);
            while !above.is_empty() && self.ledger.get(above).is_none() {
                let known = Known { sort: Sort::Directory, stamp: None, fresh: false };
                self.ledger.insert(above, known);
                top = Some(above.to_vec());
                above = parent(above);
            }
        }
        top
    }

    /// The way in is lost, or there is none.
    fn lost_way(&mut self, error: Error) -> Result<()> {
        self.abandon();
        self.lost = self.lost.saturating_add(1);
        if !self.ready && self.lost >= LOST_LIMIT {
            return Err(error);
        }
        self.board.log_error(&error);
        self.board.update(true, |status| status.last_error = Some(one_line(&error)));
        std::thread::sleep(LOST_PAUSE * self.lost.min(20));
        Ok(())
    }

    /// Gives up a connection; what was sent on it is looked at again.
    fn abandon(&mut self) {
        if let Some(way) = self.outgoing.take() {
            way.abandon().iter().for_each(|sent| self.doubt(sent));
        }
    }

    /// Notes a path that could not be sent.
    fn failed(&mut self, path: &[u8], error: Error) {
        let message = one_line(&error);
        let is_new = self.failures.told.remove(path).flatten().as_ref() != Some(&message);
        self.failures.add(path, message);
        if is_new {
            self.board.log_error(&error);
            (self.observer)(SyncEvent::Failed(error));
        }
    }

    /// Whoever watches is told how far it has come.
    fn tell(&mut self) {
        if self.sent.told.elapsed() < TELLING {
            return;
        }
        self.sent.told = Instant::now();
        let (files, bytes) = (self.ledger.files(), self.sent.bytes);
        (self.observer)(SyncEvent::Sent { files, bytes });
        self.post(SyncState::Copying, false);
    }

    /// Nothing waits: both sides are the same, but for what has failed.
    fn idle(&mut self) {
        self.post(SyncState::Watching, true);
        self.sent.busy = None;
        if !self.ready {
            self.ready = true;
            let (files, bytes) = (self.ledger.files(), self.sent.bytes);
            (self.observer)(SyncEvent::Sent { files, bytes });
            (self.observer)(SyncEvent::Ready { id: self.id.clone() });
        }
    }

    fn post(&self, state: SyncState, now: bool) {
        let rate = self.sent.rate();
        self.board.update(now, |status| {
            status.state = state;
            status.files = self.ledger.files();
            status.sent = self.sent.files;
            status.bytes = self.sent.bytes;
            status.rate = rate.unwrap_or(status.rate);
            status.pending = self.queue.len() as u64;
            status.failures = self.failures.now.len() as u64;
            status.last_error = self.failures.now.values().flatten().next().cloned();
        });
    }

    /// Waits for something to happen. False if it is only time to try something again.
    fn rest(&mut self) -> Result<bool> {
        let until = [self.queue.due(), self.failures.retry.map(|(at, _)| at)];
        let until = until.into_iter().flatten().min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.readable(left).map_err(|error| Error::host("cannot wait for changes", error))
    }

    /// Waits until a burst is over, or at least well under way.
    fn gather(&mut self) -> Result<()> {
        let since = Instant::now();
        while since.elapsed() < GATHER_LIMIT {
            let before = self.queue.len();
            std::thread::sleep(QUIET);
            self.hear()?;
            if self.queue.len() == before {
                break;
            }
        }
        Ok(())
    }

    fn readable(&self, limit: Option<Duration>) -> io::Result<bool> {
        // A millisecond more, so that what it waits for is due when it returns.
        let limit = limit.map(|limit| limit + Duration::from_millis(1));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = [PollFd::from_borrowed_fd(self.watches.fd(), PollFlags::IN)];
        match poll(&mut fds, limit.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Failures {
    fn add(&mut self, path: &[u8], message: String) {
        let message = (self.now.len() < MESSAGES).then_some(message);
        self.now.insert(path.to_vec(), message);
        self.retry.get_or_insert_with(|| (Instant::now() + RETRY_FIRST, RETRY_FIRST));
    }

    /// Forgets a path and, with `all`, everything below it.
    fn forget(&mut self, path: &[u8], all: bool) {
        self.now.remove(path);
        if all && !self.now.is_empty() {
            let (from, to) = below(path);
            let gone: Vec<Vec<u8>> =
                self.now.range(from..to).map(|(path, _)| path.clone()).collect();
            gone.iter().for_each(|path| drop(self.now.remove(path)));
        }
    }

    /// Has everything tried again when it is time, and less and less often.
    fn wake(&mut self, now: Instant, queue: &mut Queue) {
        let Some((at, pause)) = self.retry.filter(|(at, _)| *at <= now) else { return };
        if self.now.is_empty() {
            self.retry = None;
            self.told.clear();
            return;
        }
        let pause = (pause * 2).min(RETRY_LAST);
        self.retry = Some((at.max(now) + pause, pause));
        self.told = std::mem::take(&mut self.now);
        self.told.keys().for_each(|path| queue.add(path, Wanted::ALL));
    }
}

impl Traffic {
    fn rate(&self) -> Option<u64> {
        let (since, before) = self.busy?;
        let sent = self.bytes - before;
        let millis = since.elapsed().as_millis().max(1);
        (sent > 0).then(|| u64::try_from(u128::from(sent) * 1000 / millis).unwrap_or(u64::MAX))
    }
}

/// An error on one line, as a list shows it.
fn one_line(error: &Error) -> String {
    let causes = error.causes().iter().map(|cause| format!(": {cause}"));
    let line: String = [error.message().to_owned()].into_iter().chain(causes).collect();
    line.chars().take(500).collect()
}

/// The kernel gives each user only so many.
fn no_instance(error: io::Error) -> Error {
    let error = Error::new(Kind::Limit, "cannot watch for changes").cause(error);
    error.hint("`sudo sysctl fs.inotify.max_user_instances=1024` allows more syncs at a time")
}

fn no_watch(path: &[u8], error: io::Error) -> Error {
    let message = format!("cannot watch directory `{}`", text(path));
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC) => Error::new(Kind::Limit, message)
            .cause("this user watches as many directories as the host allows")
            .hint("`sudo sysctl fs.inotify.max_user_watches=1048576` allows more, or leave some out with `--exclude`"),
        _ => Error::host(message, error),
    }
}
