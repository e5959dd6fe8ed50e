//! Watches how much of the disk something takes while it goes on.

use super::fixture::walk;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most that was ever there below a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PeakUsage {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

pub(crate) struct DiskWatch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<PeakUsage>,
}

impl DiskWatch {
    pub(crate) fn start(directory: &Path) -> Self {
        let over: Arc<AtomicBool> = Arc::default();
        let (ended, directory) = (over.clone(), directory.to_owned());
        let thread = std::thread::spawn(move || {
            let mut most = PeakUsage::default();
            while !ended.load(Ordering::Acquire) {
                let now = taken(&directory);
                most.bytes = most.bytes.max(now.bytes);
                most.inodes = most.inodes.max(now.inodes);
                std::thread::sleep(Duration::from_millis(10));
            }
            most
        });
        Self { over, thread }
    }

    pub(crate) fn end(self) -> PeakUsage {
        self.over.store(true, Ordering::Release);
        self.thread.join().expect("it only looks")
    }
}

/// What is there now; a file with several names counts once.
fn taken(directory: &Path) -> PeakUsage {
    let mut seen = BTreeSet::new();
    let meta = |path: &PathBuf| fs::symlink_metadata(path).ok();
    let files = walk(directory);
    let files = files.iter().filter_map(meta).filter(|meta| seen.insert(meta.ino()));
    files.fold(PeakUsage::default(), |sum, meta| PeakUsage {
        bytes: sum.bytes + meta.blocks() * 512,
        inodes: sum.inodes + 1,
    })
}
