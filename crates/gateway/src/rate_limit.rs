//! The egress rate limit: a token bucket over the bytes that leave the sandbox.

/// A token bucket of bytes, refilled as time passes.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// Bytes per second; `None` is no limit.
    rate: Option<u64>,
    /// Bytes that may be sent now.
    level: u64,
    /// When it was last refilled, in microseconds.
    filled: u64,
}

/// The rate is divided by this to get the burst: a quarter of a second.
const BURST_DIVISOR: u64 = 4;

impl TokenBucket {
    pub(crate) fn new(rate: Option<u64>) -> Self {
        let rate = rate.map(|rate| rate.max(1));
        Self { rate, level: Self::capacity(rate.unwrap_or(0)), filled: 0 }
    }

    /// The size of the bucket in bytes: a quarter of a second of the rate, but at least one packet
    /// of 64 KiB.
    fn capacity(rate: u64) -> u64 {
        (rate / BURST_DIVISOR).max(1 << 16)
    }

    /// How many of `wanted` bytes may be sent now.
    pub(crate) fn allowance(&mut self, wanted: usize, now: u64) -> usize {
        let Some(rate) = self.rate else { return wanted };
        let passed = now.saturating_sub(self.filled);
        let more = u128::from(passed) * u128::from(rate) / 1_000_000;
        if more > 0 {
            let more = u64::try_from(more).unwrap_or(u64::MAX);
            self.level = self.level.saturating_add(more).min(Self::capacity(rate));
            self.filled = now;
        }
        wanted.min(usize::try_from(self.level).unwrap_or(usize::MAX))
    }

    /// Takes bytes that were sent out of the bucket.
    pub(crate) fn consume(&mut self, sent: usize) {
        if self.rate.is_some() {
            self.level = self.level.saturating_sub(sent as u64);
        }
    }

    /// When a flow that got nothing should retry, in microseconds.
    pub(crate) fn retry_at(&self, now: u64) -> u64 {
        // The time for 16 KiB: short enough to keep a slow rate smooth, long enough not to wake up
        // too often at a fast one.
        let wait = 16_384 * 1_000_000 / self.rate.unwrap_or(u64::MAX).max(1);
        now + wait.clamp(1_000, 250_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_leaves_than_the_rate_allows() {
        let mut bucket = TokenBucket::new(Some(1 << 20));
        let mut sent = 0;
        for now in (0..2_000_000).step_by(1000) {
            let n = bucket.allowance(1 << 20, now);
            bucket.consume(n);
            sent += n;
        }
        assert!(sent <= (2 << 20) + (1 << 18), "{sent}");
        assert!(sent >= (2 << 20) - (1 << 18), "{sent}");
    }

    #[test]
    fn without_a_rate_all_of_it_leaves() {
        let mut bucket = TokenBucket::new(None);
        bucket.consume(usize::MAX);
        assert_eq!(bucket.allowance(77, 0), 77);
    }
}
