//! A timeout for streams that make no progress.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// A limit that restarts with each progress. No timer runs until the first poll.
pub(crate) struct IdleTimeout {
    limit: Duration,
    sleep_timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimeout {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, sleep_timer: None }
    }

    /// Poll this while there is no progress; ready after the limit.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let sleep_timer = self.sleep_timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        let polled = sleep_timer.as_mut().poll(cx);
        if polled.is_ready() {
            self.sleep_timer = None;
        }
        polled
    }

    /// Restarts the limit after progress.
    pub(crate) fn reset(&mut self) {
        self.sleep_timer = None;
    }
}
