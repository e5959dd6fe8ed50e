//! How much may leave the sandbox in a while.

/// Bytes that may leave, filled up as time passes.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Bytes a second; none is no limit.
    rate: Option<u64>,
    /// Bytes that may leave now.
    level: u64,
    /// Until when it was filled, in microseconds.
    filled: u64,
}

/// As much as may leave at once after a pause, in seconds of the rate.
const BURST: u64 = 4;

impl Bucket {
    pub(crate) fn new(rate: Option<u64>) -> Self {
        let rate = rate.map(|rate| rate.max(1));
        Self { rate, level: Self::most(rate.unwrap_or(0)), filled: 0 }
    }

    /// A quarter of a second's worth, but a whole packet at least.
    fn most(rate: u64) -> u64 {
        (rate / BURST).max(1 << 16)
    }

    /// How much of `wanted` may leave now.
    pub(crate) fn allowance(&mut self, wanted: usize, now: u64) -> usize {
        let Some(rate) = self.rate else { return wanted };
        let passed = now.saturating_sub(self.filled);
        let more = u128::from(passed) * u128::from(rate) / 1_000_000;
        if more > 0 {
            let more = u64::try_from(more).unwrap_or(u64::MAX);
            self.level = self.level.saturating_add(more).min(Self::most(rate));
            self.filled = now;
        }
        wanted.min(usize::try_from(self.level).unwrap_or(usize::MAX))
    }

    /// That much has left.
    pub(crate) fn take(&mut self, sent: usize) {
        if self.rate.is_some() {
            self.level = self.level.saturating_sub(sent as u64);
        }
    }

    /// When it is worth asking again, for whoever got nothing.
    pub(crate) fn again(&self, now: u64) -> u64 {
        // A share of a packet's worth, so that a slow rate is smooth and a fast one not a storm.
        let wait = 16_384 * 1_000_000 / self.rate.unwrap_or(u64::MAX).max(1);
        now + wait.clamp(1_000, 250_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_leaves_than_the_rate_allows() {
        let mut bucket = Bucket::new(Some(1 << 20));
        let mut sent = 0;
        for now in (0..2_000_000).step_by(1000) {
            let n = bucket.allowance(1 << 20, now);
            bucket.take(n);
            sent += n;
        }
        assert!(sent <= (2 << 20) + (1 << 18), "{sent}");
        assert!(sent >= (2 << 20) - (1 << 18), "{sent}");
    }

    #[test]
    fn without_a_rate_all_of_it_leaves() {
        let mut bucket = Bucket::new(None);
        bucket.take(usize::MAX);
        assert_eq!(bucket.allowance(77, 0), 77);
    }
}
