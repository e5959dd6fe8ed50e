//! The kernel's events for every directory of the source.
//!
//! A watch belongs to a directory, not to its path: it goes along when the directory is renamed.
//! So which path a watch stands for is kept here, and put right whenever a directory is looked at.

use super::ledger::{below, join, moved};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Whatever changes a tree. Nothing of files that no directory holds any more.
const WANTED: WatchFlags = WatchFlags::CREATE
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

/// As many as the kernel keeps by default; who writes without end must not keep us reading.
const MOST_AT_ONCE: usize = 16_384;

/// Watches of directories, by their paths.
#[derive(Debug)]
pub(crate) struct Watches {
    inotify: OwnedFd,
    paths: HashMap<i32, Vec<u8>>,
    watches: BTreeMap<Vec<u8>, i32>,
}

/// What has happened, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The content of a file may be another.
    Written(Vec<u8>),
    /// Permissions, owner or times.
    Changed(Vec<u8>),
    /// Something is there that was not, or the other way round.
    Appeared(Vec<u8>),
    /// The same, without content of its own that could be lost.
    Vanished(Vec<u8>),
    /// Something has another name.
    Renamed(Vec<u8>, Vec<u8>),
    /// There was too much to keep.
    Overflow,
    /// The source itself was removed, renamed or unmounted.
    Lost,
}

impl Watches {
    pub(crate) fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, paths: HashMap::new(), watches: BTreeMap::new() })
    }

    /// What to wait on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    pub(crate) fn has(&self, path: &[u8]) -> bool {
        self.watches.contains_key(path)
    }

    /// Watches a directory that is at this path now.
    pub(crate) fn add(&mut self, directory: &OwnedFd, path: &[u8]) -> io::Result<()> {
        let place = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let watch = inotify::add_watch(&self.inotify, place, WANTED)?;
        if let Some(before) = self.paths.insert(watch, path.to_vec())
            && before != path
            && self.watches.get(&before) == Some(&watch)
        {
            self.watches.remove(&before);
        }
        match self.watches.insert(path.to_vec(), watch) {
            Some(before) if before != watch => self.drop_watch(before),
            _ => {}
        }
        Ok(())
    }

    /// Watches a directory and all below it no more.
    pub(crate) fn forget(&mut self, path: &[u8]) {
        let (from, to) = below(path);
        let below = self.watches.range(from..to).map(|(path, _)| path.clone());
        let gone: Vec<Vec<u8>> = [path.to_vec()].into_iter().chain(below).collect();
        for path in gone {
            if let Some(watch) = self.watches.remove(&path) {
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
        if !self.watches.contains_key(from) {
            return;
        }
        let (start, end) = below(from);
        let below = self.watches.range(start..end).map(|(path, _)| path.clone());
        let all: Vec<Vec<u8>> = [from.to_vec()].into_iter().chain(below).collect();
        for path in all {
            if let Some(watch) = self.watches.remove(&path) {
                let path = moved(&path, from, to);
                self.paths.insert(watch, path.clone());
                if let Some(before) = self.watches.insert(path, watch) {
                    self.drop_watch(before);
                }
            }
        }
    }

    /// Takes everything that has happened, in order.
    pub(crate) fn hear(&mut self) -> io::Result<Vec<Heard>> {
        let mut heard = Vec::new();
        // The first half of a renaming, whose other half comes next.
        let mut left: Option<(u32, Vec<u8>)> = None;
        for event in self.read()? {
            let Event { watch, flags, cookie, name } = event;
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                heard.push(Heard::Overflow);
                continue;
            }
            let Some(directory) = self.paths.get(&watch) else { continue };
            let is_root = directory.is_empty();
            let Some(name) = name else {
                let gone = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT;
                if is_root && flags.intersects(gone | ReadFlags::IGNORED) {
                    heard.push(Heard::Lost);
                } else if flags.contains(ReadFlags::IGNORED)
                    && let Some(path) = self.paths.remove(&watch)
                    && self.watches.get(&path) == Some(&watch)
                {
                    self.watches.remove(&path);
                }
                continue;
            };
            let path = join(directory, &name);
            if flags.contains(ReadFlags::MOVED_TO) {
                match left.take() {
                    Some((before, from)) if before == cookie => {
                        self.rename(&from, &path);
                        heard.push(Heard::Renamed(from, path));
                    }
                    other => {
                        heard.extend(other.map(|(_, from)| Heard::Vanished(from)));
                        heard.push(Heard::Appeared(path));
                    }
                }
                continue;
            }
            if flags.contains(ReadFlags::MOVED_FROM) {
                heard.extend(left.replace((cookie, path)).map(|(_, path)| Heard::Vanished(path)));
                continue;
            }
            heard.push(if flags.contains(ReadFlags::CREATE) {
                Heard::Appeared(path)
            } else if flags.contains(ReadFlags::DELETE) {
                Heard::Vanished(path)
            } else if flags.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE) {
                Heard::Written(path)
            } else {
                Heard::Changed(path)
            });
        }
        heard.extend(left.map(|(_, from)| Heard::Vanished(from)));
        Ok(heard)
    }

    fn read(&self) -> io::Result<Vec<Event>> {
        let mut buffer = [MaybeUninit::uninit(); 32 << 10];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut events = Vec::new();
        // What is in the buffer already would be lost with it.
        while events.len() < MOST_AT_ONCE || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) => events.push(Event {
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

/// An event as the kernel tells it.
struct Event {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<Vec<u8>>,
}
