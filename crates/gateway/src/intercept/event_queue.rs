//! The queue of Verdicts from the interception thread to the event loop.
//!
//! It is bounded and has an eventfd that is readable while it is not empty. Neither side blocks:
//! events that do not fit are counted.

use msb_spec::{Error, Result};
use msb_wire::NetEvent;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// The length of the queue; events beyond it are counted and dropped.
pub(crate) const QUEUE_LEN: usize = 4096;

/// The sending end of the queue.
#[derive(Clone)]
pub(crate) struct EventSender {
    queue: SyncSender<NetEvent>,
    state: Arc<QueueState>,
}

/// The receiving end of the queue.
pub(crate) struct EventReceiver {
    queue: Receiver<NetEvent>,
    state: Arc<QueueState>,
}

struct QueueState {
    wake: OwnedFd,
    skipped: AtomicU64,
}

/// Creates both ends of the queue.
pub(crate) fn queue() -> Result<(EventSender, EventReceiver)> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|cause| Error::host("cannot create an eventfd", cause))?;
    let state = Arc::new(QueueState { wake, skipped: AtomicU64::new(0) });
    let (sender, receiver) = sync_channel(QUEUE_LEN);
    Ok((
        EventSender { queue: sender, state: Arc::clone(&state) },
        EventReceiver { queue: receiver, state },
    ))
}

impl EventSender {
    pub(crate) fn push(&self, event: NetEvent) {
        if self.queue.try_send(event).is_err() {
            self.state.skipped.fetch_add(1, Ordering::Relaxed);
        }
        // A write fails only if the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.state.wake, &1_u64.to_ne_bytes());
    }
}

impl EventReceiver {
    /// The next event, without blocking; then the count of dropped ones.
    pub(crate) fn next(&self) -> Option<NetEvent> {
        self.queue.try_recv().ok().or_else(|| {
            // Reset before looking again: an event in between is seen now or makes it readable.
            let _ = rustix::io::read(&self.state.wake, &mut [0_u8; 8]);
            self.queue.try_recv().ok().or_else(|| {
                let count = self.state.skipped.swap(0, Ordering::Relaxed);
                (count > 0).then_some(NetEvent::Skipped { count })
            })
        })
    }

    /// A descriptor that is readable while there may be events.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.state.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(flow: u64) -> NetEvent {
        NetEvent::Ended { flow, sent: 0, received: 0 }
    }

    fn is_readable(receiver: &EventReceiver) -> bool {
        let mut fds =
            [rustix::event::PollFd::new(&receiver.state.wake, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).unwrap() == 1
    }

    #[test]
    fn events_come_in_order_and_wake_once() {
        let (events, receiver) = queue().unwrap();
        assert!(!is_readable(&receiver));
        assert_eq!(receiver.next(), None);
        (0..3).for_each(|flow| events.push(ended(flow)));
        assert!(is_readable(&receiver));
        let all: Vec<_> = std::iter::from_fn(|| receiver.next()).collect();
        assert_eq!(all, [ended(0), ended(1), ended(2)]);
        assert!(!is_readable(&receiver));
    }

    #[test]
    fn overflow_is_counted() {
        let (events, receiver) = queue().unwrap();
        (0..QUEUE_LEN as u64 + 7).for_each(|flow| events.push(ended(flow)));
        let all: Vec<_> = std::iter::from_fn(|| receiver.next()).collect();
        assert_eq!(all.len(), QUEUE_LEN + 1);
        assert_eq!(all.last(), Some(&NetEvent::Skipped { count: 7 }));
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        let (events, receiver) = queue().unwrap();
        let writer = std::thread::spawn(move || (0..20_000).for_each(|n| events.push(ended(n))));
        let (mut listed, mut skipped) = (0, 0);
        while listed + skipped < 20_000 {
            let mut fds =
                [rustix::event::PollFd::new(&receiver.state.wake, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            while let Some(event) = receiver.next() {
                match event {
                    NetEvent::Skipped { count } => skipped += count,
                    _ => listed += 1,
                }
            }
        }
        writer.join().unwrap();
        assert_eq!(receiver.next(), None);
    }
}
