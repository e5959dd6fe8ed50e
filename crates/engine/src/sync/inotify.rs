//! inotify watches of every directory of the source.
//!
//! A watch belongs to an inode and follows it through renames. The map from watches to paths is
//! kept here, and corrected whenever a directory is checked.

use super::baseline::{below, join, moved};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Events that change a tree. EXCL_UNLINK leaves out unlinked files.
const WATCH_MASK: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::EXCL_UNLINK)
    .union(WatchFlags::ONLYDIR);

/// Events per read, as many as the kernel queues by default: a busy writer must not keep this
/// reading.
const MAX_EVENTS: usize = 16_384;

/// inotify watches, by watch descriptor and by path.
#[derive(Debug)]
pub(crate) struct InotifyWatches {
    inotify: OwnedFd,
    paths: HashMap<i32, Vec<u8>>,
    by_path: BTreeMap<Vec<u8>, i32>,
}

/// A change in the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FsEvent {
    /// The content of a file may have changed.
    Written(Vec<u8>),
    /// Mode, owner or timestamps of a path have changed.
    Changed(Vec<u8>),
    /// A path was created or moved here.
    Appeared(Vec<u8>),
    /// A path was removed or moved away.
    Vanished(Vec<u8>),
    /// The first path was renamed to the second.
    Renamed(Vec<u8>, Vec<u8>),
    /// The kernel queue overflowed and events were lost.
    Overflow,
    /// The source itself was removed, renamed or unmounted.
    Lost,
}

impl InotifyWatches {
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, paths: HashMap::new(), by_path: BTreeMap::new() })
    }

    /// The descriptor to poll for events.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    pub(crate) fn has(&self, path: &[u8]) -> bool {
        self.by_path.contains_key(path)
    }

    /// Watches a directory, which is at this path now.
    pub(crate) fn add(&mut self, directory: &OwnedFd, path: &[u8]) -> io::Result<()> {
        let place = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let watch = inotify::add_watch(&self.inotify, place, WATCH_MASK)?;
        if let Some(before) = self.paths.insert(watch, path.to_vec())
            && before != path
            && self.by_path.get(&before) == Some(&watch)
        {
            self.by_path.remove(&before);
        }
        match self.by_path.insert(path.to_vec(), watch) {
            Some(before) if before != watch => self.drop_watch(before),
            _ => {}
        }
        Ok(())
    }

    /// Removes the watches of a directory and everything below it.
    pub(crate) fn forget(&mut self, path: &[u8]) {
        let (from, to) = below(path);
        let below = self.by_path.range(from..to).map(|(path, _)| path.clone());
        let gone: Vec<Vec<u8>> = [path.to_vec()].into_iter().chain(below).collect();
        for path in gone {
            if let Some(watch) = self.by_path.remove(&path) {
                self.drop_watch(watch);
            }
        }
    }

    fn drop_watch(&mut self, watch: i32) {
        self.paths.remove(&watch);
        // The directory may be gone, and its watch with it.
        let _ = inotify::remove_watch(&self.inotify, watch);
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) {
        if !self.by_path.contains_key(from) {
            return;
        }
        let (start, end) = below(from);
        let below = self.by_path.range(start..end).map(|(path, _)| path.clone());
        let all: Vec<Vec<u8>> = [from.to_vec()].into_iter().chain(below).collect();
        for path in all {
            if let Some(watch) = self.by_path.remove(&path) {
                let path = moved(&path, from, to);
                self.paths.insert(watch, path.clone());
                if let Some(before) = self.by_path.insert(path, watch) {
                    self.drop_watch(before);
                }
            }
        }
    }

    /// Reads all pending events, in order.
    pub(crate) fn read_events(&mut self) -> io::Result<Vec<FsEvent>> {
        let mut events = Vec::new();
        // The MOVED_FROM half of a rename; its MOVED_TO comes next.
        let mut left: Option<(u32, Vec<u8>)> = None;
        for event in self.read()? {
            let RawInotifyEvent { watch, flags, cookie, name } = event;
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                events.push(FsEvent::Overflow);
                continue;
            }
            let Some(directory) = self.paths.get(&watch) else { continue };
            let is_root = directory.is_empty();
            let Some(name) = name else {
                let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
                if is_root && flags.intersects(gone | ReadFlags::IGNORED) {
                    events.push(FsEvent::Lost);
                } else if flags.contains(ReadFlags::IGNORED)
                    && let Some(path) = self.paths.remove(&watch)
                    && self.by_path.get(&path) == Some(&watch)
                {
                    self.by_path.remove(&path);
                }
                continue;
            };
            let path = join(directory, &name);
            if flags.contains(ReadFlags::MOVED_TO) {
                match left.take() {
                    Some((before, from)) if before == cookie => {
                        self.rename(&from, &path);
                        events.push(FsEvent::Renamed(from, path));
                    }
                    other => {
                        events.extend(other.map(|(_, from)| FsEvent::Vanished(from)));
                        events.push(FsEvent::Appeared(path));
                    }
                }
                continue;
            }
            if flags.contains(ReadFlags::MOVED_FROM) {
                events
                    .extend(left.replace((cookie, path)).map(|(_, path)| FsEvent::Vanished(path)));
                continue;
            }
            events.push(if flags.contains(ReadFlags::CREATE) {
                FsEvent::Appeared(path)
            } else if flags.contains(ReadFlags::DELETE) {
                FsEvent::Vanished(path)
            } else if flags.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE) {
                FsEvent::Written(path)
            } else {
                FsEvent::Changed(path)
            });
        }
        events.extend(left.map(|(_, from)| FsEvent::Vanished(from)));
        Ok(events)
    }

    fn read(&self) -> io::Result<Vec<RawInotifyEvent>> {
        let mut buffer = [MaybeUninit::uninit(); 32 << 10];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut events = Vec::new();
        // Events in the buffer would be lost with it.
        while events.len() < MAX_EVENTS || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) => events.push(RawInotifyEvent {
                    watch: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(|name| name.to_bytes().to_vec()),
                }),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(events)
    }
}

/// An event as read from the kernel.
struct RawInotifyEvent {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<Vec<u8>>,
}
