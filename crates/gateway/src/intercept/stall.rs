//! Notices when something that should go on does not.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// A limit that begins anew whenever something happens. Costs nothing while nothing waits.
pub(crate) struct Stall {
    limit: Duration,
    running: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, running: None }
    }

    /// To be polled whenever there is nothing; ready when that has been so for too long.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let running = self.running.get_or_insert_with(|| Box::pin(sleep(limit)));
        let polled = running.as_mut().poll(cx);
        if polled.is_ready() {
            self.running = None;
        }
        polled
    }

    /// Something happened.
    pub(crate) fn reset(&mut self) {
        self.running = None;
    }
}
