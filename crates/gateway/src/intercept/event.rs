//! Verdicts on their way from the thread that decides requests to the one that reports them.
//!
//! A bounded queue and a descriptor that is readable while there is something in it. Neither side
//! waits: what does not fit is counted.

use msb_spec::{Error, Result};
use msb_wire::NetEvent;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// As many as a busy moment has; more are counted and not kept.
pub(crate) const QUEUE: usize = 4096;

/// The end that things are put in.
#[derive(Clone)]
pub(crate) struct Events {
    queue: SyncSender<NetEvent>,
    rest: Arc<Rest>,
}

/// The end that things are taken out of.
pub(crate) struct Happened {
    queue: Receiver<NetEvent>,
    rest: Arc<Rest>,
}

struct Rest {
    wake: OwnedFd,
    skipped: AtomicU64,
}

/// Both ends.
pub(crate) fn queue() -> Result<(Events, Happened)> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|cause| Error::host("cannot make an event descriptor", cause))?;
    let rest = Arc::new(Rest { wake, skipped: AtomicU64::new(0) });
    let (sender, receiver) = sync_channel(QUEUE);
    Ok((Events { queue: sender, rest: Arc::clone(&rest) }, Happened { queue: receiver, rest }))
}

impl Events {
    pub(crate) fn push(&self, event: NetEvent) {
        if self.queue.try_send(event).is_err() {
            self.rest.skipped.fetch_add(1, Ordering::Relaxed);
        }
        // A counter that is full is readable, which is all that is wanted of it.
        let _ = rustix::io::write(&self.rest.wake, &1_u64.to_ne_bytes());
    }
}

impl Happened {
    /// The next, without waiting.
    pub(crate) fn next(&self) -> Option<NetEvent> {
        self.queue.try_recv().ok().or_else(|| {
            // Emptied before looking again: what comes between is either seen now or wakes.
            let _ = rustix::io::read(&self.rest.wake, &mut [0_u8; 8]);
            self.queue.try_recv().ok().or_else(|| {
                let count = self.rest.skipped.swap(0, Ordering::Relaxed);
                (count > 0).then_some(NetEvent::Skipped { count })
            })
        })
    }

    /// Readable when there may be something.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.rest.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(flow: u64) -> NetEvent {
        NetEvent::Ended { flow, sent: 0, received: 0 }
    }

    fn is_readable(happened: &Happened) -> bool {
        let mut fds =
            [rustix::event::PollFd::new(&happened.rest.wake, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).unwrap() == 1
    }

    #[test]
    fn events_come_in_order_and_wake_once() {
        let (events, happened) = queue().unwrap();
        assert!(!is_readable(&happened));
        assert_eq!(happened.next(), None);
        (0..3).for_each(|flow| events.push(ended(flow)));
        assert!(is_readable(&happened));
        let all: Vec<_> = std::iter::from_fn(|| happened.next()).collect();
        assert_eq!(all, [ended(0), ended(1), ended(2)]);
        assert!(!is_readable(&happened));
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let (events, happened) = queue().unwrap();
        (0..QUEUE as u64 + 7).for_each(|flow| events.push(ended(flow)));
        let all: Vec<_> = std::iter::from_fn(|| happened.next()).collect();
        assert_eq!(all.len(), QUEUE + 1);
        assert_eq!(all.last(), Some(&NetEvent::Skipped { count: 7 }));
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let (events, happened) = queue().unwrap();
        let writer = std::thread::spawn(move || (0..20_000).for_each(|n| events.push(ended(n))));
        let (mut listed, mut skipped) = (0, 0);
        while listed + skipped < 20_000 {
            let mut fds =
                [rustix::event::PollFd::new(&happened.rest.wake, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            while let Some(event) = happened.next() {
                match event {
                    NetEvent::Skipped { count } => skipped += count,
                    _ => listed += 1,
                }
            }
        }
        writer.join().unwrap();
        assert_eq!(happened.next(), None);
    }
}
