//! Follows the source: checks paths that may have changed, and sends those that have.
//!
//! One thread owns this state. Events only name paths to check. A directory is watched before it is
//! listed, and a file is read after the event that named it, so every later change causes another
//! event.

mod reconcile;

use super::baseline::{Baseline, BaselineEntry, below, parent};
use super::baseline_file::BaselineFile;
use super::excludes::ExcludeRules;
use super::inotify::{FsEvent, InotifyWatches};
use super::mirror::{FailedChange, MirrorConnection, SentChange};
use super::queue::{CheckFlags, PathQueue, SyncJob};
use super::source::{SourceDir, SourceKind};
use super::status_file::StatusFile;
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

/// Events come in bursts: the step in which more are waited for.
const DEBOUNCE_STEP: Duration = Duration::from_millis(5);
/// The longest wait for a burst to end.
const DEBOUNCE_LIMIT: Duration = Duration::from_millis(60);
/// Paths handled before inotify events are read again: the kernel queue is bounded.
const JOBS_PER_ROUND: usize = 64;
/// The first and the longest delay before failed paths are retried.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(60);
/// The first copy fails after this many lost connections in a row.
const RECONNECT_LIMIT: u32 = 3;
/// The delay before the next connection, multiplied by the number of losses up to 20.
const RECONNECT_PAUSE: Duration = Duration::from_millis(300);
/// How often progress is reported to the observer.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// The most error messages that are kept; further failures are only counted.
const MAX_MESSAGES: usize = 1000;

/// Why a job failed.
pub(crate) enum JobError {
    /// The connection to the guest is lost; another one may work.
    Lost(Error),
    /// The sync cannot continue.
    Fatal(Error),
}

/// The state of one sync.
pub(crate) struct Follower {
    engine: Engine,
    spec: SyncSpec,
    id: String,
    source: SourceDir,
    excludes: ExcludeRules,
    inotify: InotifyWatches,
    baseline: Baseline,
    baseline_file: Option<BaselineFile>,
    queue: PathQueue,
    mirror: Option<MirrorConnection>,
    failures: RetryList,
    status_file: Arc<StatusFile>,
    observer: Observer,
    /// Whether the first copy is complete.
    ready: bool,
    /// Whether the source was moved, removed or unmounted.
    gone: bool,
    /// Lost connections in a row.
    lost: u32,
    sent: TransferStats,
}

/// Failed paths, and when they are retried.
#[derive(Default)]
struct RetryList {
    now: BTreeMap<Vec<u8>, Option<String>>,
    /// Messages already reported, of paths that are being retried.
    reported: BTreeMap<Vec<u8>, Option<String>>,
    retry: Option<(Instant, Duration)>,
}

/// Counters of the transfer, and its rate.
struct TransferStats {
    files: u64,
    bytes: u64,
    /// Start of the present transfer, and the byte count at that time.
    busy: Option<(Instant, u64)>,
    reported: Instant,
}

impl Follower {
    /// Opens the source, a canonical path, and reads the baseline of the last sync.
    pub(crate) fn new(
        engine: &Engine,
        spec: &SyncSpec,
        source: &Path,
        (id, status_file): (&str, Arc<StatusFile>),
        observer: Observer,
    ) -> Result<Self> {
        let about = |error| Error::host(format!("cannot read `{}`", source.display()), error);
        let mut baseline = Baseline::default();
        let sandbox = engine.home().directory(&spec.sandbox);
        let baseline_file =
            BaselineFile::open(&sandbox, source, &spec.target).map(|(baseline_file, sent)| {
                for (path, is_directory) in sent {
                    let kind = if is_directory { SourceKind::Directory } else { SourceKind::File };
                    baseline.insert(&path, BaselineEntry { kind, stamp: None, fresh: false });
                }
                baseline.pending_lines();
                baseline_file
            });
        Ok(Self {
            engine: engine.clone(),
            spec: spec.clone(),
            id: id.to_owned(),
            source: SourceDir::open(source).map_err(about)?,
            excludes: ExcludeRules::new(spec, source, engine.home().path())?,
            inotify: InotifyWatches::new().map_err(no_instance)?,
            baseline,
            baseline_file,
            queue: PathQueue::default(),
            mirror: None,
            failures: RetryList::default(),
            status_file,
            observer,
            ready: false,
            gone: false,
            lost: 0,
            sent: TransferStats { files: 0, bytes: 0, busy: None, reported: Instant::now() },
        })
    }

    /// Copies, then follows until the source is gone.
    pub(crate) fn run(mut self) -> Result<()> {
        self.queue.add(b"", CheckFlags::ALL);
        loop {
            self.read_events()?;
            if self.gone || !self.source.reopen() {
                return Ok(());
            }
            match self.work() {
                Ok(()) => self.lost = 0,
                Err(JobError::Fatal(error)) => return Err(error),
                Err(JobError::Lost(error)) => self.on_connection_lost(error)?,
            }
            if self.queue.is_empty() {
                self.idle();
                self.source.close();
                if !self.wait_for_events()? {
                    continue;
                }
                self.debounce()?;
            }
        }
    }

    /// Reads inotify events and due retries into the queue.
    fn read_events(&mut self) -> Result<()> {
        let events = self
            .inotify
            .read_events()
            .map_err(|error| Error::host("cannot read inotify events of the source", error))?;
        events.iter().for_each(|event| self.queue.apply(event));
        let now = Instant::now();
        self.queue.wake(now);
        self.failures.wake(now, &mut self.queue);
        self.gone |= events.contains(&FsEvent::Lost);
        Ok(())
    }

    /// Handles some queued paths. Reads the reply of the guest when the queue is empty.
    fn work(&mut self) -> std::result::Result<(), JobError> {
        if self.sent.busy.is_none() && !self.queue.is_empty() {
            self.sent.busy = Some((Instant::now(), self.sent.bytes));
            // The sandbox may be paused: the status shows that paths are pending.
            self.publish_status(SyncState::Copying, true);
        }
        for _ in 0..JOBS_PER_ROUND {
            let Some(job) = self.queue.next() else {
                return self.finish();
            };
            let done = match &job {
                SyncJob::Rename(from, to) => self.rename(from, to),
                SyncJob::Check(path, flags) => self.reconcile(path, *flags),
            };
            if let Err(trouble) = done {
                self.queue.put_back(job);
                return Err(trouble);
            }
            self.report_progress();
            if self.mirror.as_ref().is_some_and(MirrorConnection::is_full) {
                self.finish()?;
            }
        }
        // Without this, the reply would wait for the next event.
        if self.queue.is_empty() { self.finish() } else { Ok(()) }
    }

    /// The connection to the guest, opened on demand.
    fn connection(&mut self) -> std::result::Result<&mut MirrorConnection, JobError> {
        if self.mirror.is_none() {
            let (sandbox, target) = (&self.spec.sandbox, &self.spec.target);
            let connection =
                MirrorConnection::open(&self.engine, sandbox, target).map_err(JobError::Lost)?;
            self.mirror = Some(connection);
        }
        Ok(self.mirror.as_mut().expect("it was opened above"))
    }

    /// Sends one change and reports it to the observer.
    fn send(
        &mut self,
        event: SyncEvent,
        send: impl FnOnce(&mut MirrorConnection) -> Result<()>,
    ) -> std::result::Result<(), JobError> {
        send(self.connection()?).map_err(JobError::Lost)?;
        if self.ready {
            (self.observer)(event);
        }
        Ok(())
    }

    /// Appends changes of the baseline to its file.
    fn note(&mut self) {
        let pending_lines = self.baseline.pending_lines();
        if let Some(baseline_file) =
            self.baseline_file.as_mut().filter(|_| !pending_lines.is_empty())
            && !baseline_file.add(&pending_lines)
            && !baseline_file.rewrite(self.baseline.all())
        {
            self.baseline_file = None;
        }
    }

    /// Ends the connection and handles the changes that the guest could not make.
    fn finish(&mut self) -> std::result::Result<(), JobError> {
        self.note();
        let Some(connection) = self.mirror.take() else { return Ok(()) };
        let (sent, failed) = connection.finish();
        match failed {
            Ok(failed) => {
                for FailedChange { number, errno, error } in failed {
                    self.refused(&sent[number], errno, error)?;
                }
                Ok(())
            }
            Err(error) => {
                sent.iter().for_each(|sent| self.mark_unknown(sent));
                Err(JobError::Lost(error))
            }
        }
    }

    /// Handles a change that failed in the guest.
    fn refused(
        &mut self,
        sent: &SentChange,
        errno: i32,
        error: Error,
    ) -> std::result::Result<(), JobError> {
        match sent {
            SentChange::Put(path) if path.is_empty() && !self.ready => {
                return Err(JobError::Fatal(error));
            }
            SentChange::Put(path) => {
                self.baseline.mark_unknown(path);
                // A process inside has replaced the parent directory, which is sent again with its
                // contents. It is delayed, so that nothing inside can keep the sync busy.
                let parent_replaced = [Errno::NOENT, Errno::NOTDIR, Errno::EXIST];
                if parent_replaced.iter().any(|known| known.raw_os_error() == errno) {
                    self.baseline.mark_unknown(parent(path));
                    self.failed(parent(path), error);
                } else {
                    self.failed(path, error);
                }
            }
            // A process inside has replaced the file: it is sent again.
            SentChange::Touch(_) | SentChange::Rename { .. } => self.mark_unknown(sent),
            SentChange::Remove { path, .. } => {
                let top = self.restore_entries(sent).unwrap_or_else(|| path.clone());
                self.failed(&top, error);
            }
        }
        Ok(())
    }

    /// Queues the paths of a change with an unknown outcome.
    fn mark_unknown(&mut self, sent: &SentChange) {
        match sent {
            SentChange::Put(path) | SentChange::Touch(path) => {
                self.baseline.mark_unknown(path);
                self.queue.add(path, CheckFlags::ALL);
            }
            SentChange::Remove { path, .. } => {
                let top = self.restore_entries(sent).unwrap_or_else(|| path.clone());
                self.queue.add(&top, CheckFlags::DEEP);
            }
            SentChange::Rename { from, to } => {
                self.restore_entries(sent);
                let mut inside = self.baseline.all_below(to);
                inside.push(to.clone());
                inside.iter().for_each(|path| self.baseline.mark_unknown(path));
                self.queue.add(from, CheckFlags::ALL);
                self.queue.add(to, CheckFlags::ALL);
            }
        }
    }

    /// Adds paths that may still exist inside to the baseline again. Returns the topmost parent
    /// that was added, since only paths below a known directory are checked.
    fn restore_entries(&mut self, sent: &SentChange) -> Option<Vec<u8>> {
        let mut again: Vec<(Vec<u8>, SourceKind)> = Vec::new();
        match sent {
            SentChange::Remove { path, directory } => {
                let kind = if *directory { SourceKind::Directory } else { SourceKind::File };
                again.push((path.clone(), kind));
            }
            SentChange::Rename { from, to } => {
                let mut inside = self.baseline.all_below(to);
                inside.push(to.clone());
                for path in inside {
                    let kind =
                        self.baseline.get(&path).map_or(SourceKind::File, |known| known.kind);
                    again.push((super::baseline::moved(&path, to, from), kind));
                }
            }
            SentChange::Put(_) | SentChange::Touch(_) => {}
        }
        let mut top = None;
        for (path, kind) in again {
            if self.baseline.get(&path).is_none() {
                self.baseline.insert(&path, BaselineEntry { kind, stamp: None, fresh: false });
            }
            let mut above = parent(&path);
            while !above.is_empty() && self.baseline.get(above).is_none() {
                let known =
                    BaselineEntry { kind: SourceKind::Directory, stamp: None, fresh: false };
                self.baseline.insert(above, known);
                top = Some(above.to_vec());
                above = parent(above);
            }
        }
        top
    }

    /// Handles a lost connection: logs it and waits.
    fn on_connection_lost(&mut self, error: Error) -> Result<()> {
        self.abandon();
        self.lost = self.lost.saturating_add(1);
        if !self.ready && self.lost >= RECONNECT_LIMIT {
            return Err(error);
        }
        self.status_file.log_error(&error);
        self.status_file.update(true, |status| status.last_error = Some(one_line(&error)));
        std::thread::sleep(RECONNECT_PAUSE * self.lost.min(20));
        Ok(())
    }

    /// Drops a connection; paths sent on it are queued again.
    fn abandon(&mut self) {
        if let Some(connection) = self.mirror.take() {
            connection.abandon().iter().for_each(|sent| self.mark_unknown(sent));
        }
    }

    /// Records a failed path for a retry.
    fn failed(&mut self, path: &[u8], error: Error) {
        let message = one_line(&error);
        let is_new = self.failures.reported.remove(path).flatten().as_ref() != Some(&message);
        self.failures.add(path, message);
        if is_new {
            self.status_file.log_error(&error);
            (self.observer)(SyncEvent::Failed(error));
        }
    }

    /// Reports progress to the observer and the status file.
    fn report_progress(&mut self) {
        if self.sent.reported.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        self.sent.reported = Instant::now();
        let (files, bytes) = (self.baseline.files(), self.sent.bytes);
        (self.observer)(SyncEvent::Sent { files, bytes });
        self.publish_status(SyncState::Copying, false);
    }

    /// The queue is empty: both trees are equal, except for failed paths.
    fn idle(&mut self) {
        self.publish_status(SyncState::Watching, true);
        self.sent.busy = None;
        if !self.ready {
            self.ready = true;
            let (files, bytes) = (self.baseline.files(), self.sent.bytes);
            (self.observer)(SyncEvent::Sent { files, bytes });
            (self.observer)(SyncEvent::Ready { id: self.id.clone() });
        }
    }

    fn publish_status(&self, state: SyncState, now: bool) {
        let rate = self.sent.rate();
        self.status_file.update(now, |status| {
            status.state = state;
            status.files = self.baseline.files();
            status.sent = self.sent.files;
            status.bytes = self.sent.bytes;
            status.rate = rate.unwrap_or(status.rate);
            status.pending = self.queue.len() as u64;
            status.failures = self.failures.now.len() as u64;
            status.last_error = self.failures.now.values().flatten().next().cloned();
        });
    }

    /// Waits for inotify events. False if a retry is due.
    fn wait_for_events(&mut self) -> Result<bool> {
        let until = [self.queue.due(), self.failures.retry.map(|(at, _)| at)];
        let until = until.into_iter().flatten().min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.readable(left).map_err(|error| Error::host("cannot wait for changes", error))
    }

    /// Waits until a burst of events is over, up to `DEBOUNCE_LIMIT`.
    fn debounce(&mut self) -> Result<()> {
        let since = Instant::now();
        while since.elapsed() < DEBOUNCE_LIMIT {
            let before = self.queue.len();
            std::thread::sleep(DEBOUNCE_STEP);
            self.read_events()?;
            if self.queue.len() == before {
                break;
            }
        }
        Ok(())
    }

    fn readable(&self, limit: Option<Duration>) -> io::Result<bool> {
        // One millisecond more, so that the retry is due on return.
        let limit = limit.map(|limit| limit + Duration::from_millis(1));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = [PollFd::from_borrowed_fd(self.inotify.fd(), PollFlags::IN)];
        match poll(&mut fds, limit.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl RetryList {
    fn add(&mut self, path: &[u8], message: String) {
        let message = (self.now.len() < MAX_MESSAGES).then_some(message);
        self.now.insert(path.to_vec(), message);
        self.retry.get_or_insert_with(|| (Instant::now() + RETRY_FIRST, RETRY_FIRST));
    }

    /// Removes a path and, with `all`, everything below it.
    fn forget(&mut self, path: &[u8], all: bool) {
        self.now.remove(path);
        if all && !self.now.is_empty() {
            let (from, to) = below(path);
            let gone: Vec<Vec<u8>> =
                self.now.range(from..to).map(|(path, _)| path.clone()).collect();
            gone.iter().for_each(|path| drop(self.now.remove(path)));
        }
    }

    /// Queues all failed paths when the retry is due, with exponential backoff.
    fn wake(&mut self, now: Instant, queue: &mut PathQueue) {
        let Some((at, pause)) = self.retry.filter(|(at, _)| *at <= now) else { return };
        if self.now.is_empty() {
            self.retry = None;
            self.reported.clear();
            return;
        }
        let pause = (pause * 2).min(RETRY_LAST);
        self.retry = Some((at.max(now) + pause, pause));
        self.reported = std::mem::take(&mut self.now);
        self.reported.keys().for_each(|path| queue.add(path, CheckFlags::ALL));
    }
}

impl TransferStats {
    fn rate(&self) -> Option<u64> {
        let (since, before) = self.busy?;
        let sent = self.bytes - before;
        let millis = since.elapsed().as_millis().max(1);
        (sent > 0).then(|| u64::try_from(u128::from(sent) * 1000 / millis).unwrap_or(u64::MAX))
    }
}

/// An error on one line, up to 500 characters.
fn one_line(error: &Error) -> String {
    let causes = error.causes().iter().map(|cause| format!(": {cause}"));
    let line: String = [error.message().to_owned()].into_iter().chain(causes).collect();
    line.chars().take(500).collect()
}

/// The error for the limit of inotify instances of a user.
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
