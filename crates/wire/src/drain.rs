//! How long output is read after its command has exited.

use std::time::{Duration, Instant};

/// Output of processes that outlive the command, like `tee` behind a shell, is read until it is
/// silent for [`STEPS`] of these.
const STEP: Duration = Duration::from_millis(50);
/// Steps of silence that end the drain. A machine that stood still for seconds has been silent for
/// one step, so its processes get the rest of the time to write.
const STEPS: u32 = 4;
/// Longest time that such output is read.
const LIMIT: Duration = Duration::from_secs(5);

/// The output of a command that has exited while other processes hold its pipes.
#[derive(Debug, Clone, Copy)]
pub struct OutputDrain {
    deadline: Instant,
    silent_steps: u32,
    latest: Instant,
}

impl OutputDrain {
    /// Begins with no silence.
    pub fn new(now: Instant) -> Self {
        Self { deadline: now + STEP, silent_steps: 0, latest: now + LIMIT }
    }

    /// When [`OutputDrain::is_over`] is to be called next.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Output has arrived: the silence begins anew.
    pub fn on_output(&mut self, now: Instant) {
        self.silent_steps = 0;
        self.deadline = self.latest.min(now + STEP);
    }

    /// Whether the output was silent for long enough, or read for the longest time.
    pub fn is_over(&mut self, now: Instant) -> bool {
        if now >= self.latest {
            return true;
        }
        if now >= self.deadline && self.silent_steps < STEPS {
            self.silent_steps += 1;
            self.deadline = self.latest.min(now + STEP);
        }
        self.silent_steps >= STEPS
    }
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, OutputDrain, STEP, STEPS};
    use std::time::{Duration, Instant};

    #[test]
    fn silence_is_counted_in_steps() {
        let begin = Instant::now();
        let mut drain = OutputDrain::new(begin);
        for step in 1..STEPS {
            assert!(!drain.is_over(begin + STEP * step), "{step}");
        }
        assert!(drain.is_over(begin + STEP * STEPS));
    }

    #[test]
    fn a_machine_that_stood_still_was_silent_for_one_step() {
        let begin = Instant::now();
        let mut drain = OutputDrain::new(begin);
        let awake = begin + Duration::from_secs(3);
        assert!(!drain.is_over(awake));
        assert_eq!(drain.deadline(), awake + STEP);
    }

    #[test]
    fn output_begins_the_silence_anew_until_the_limit() {
        let begin = Instant::now();
        let mut drain = OutputDrain::new(begin);
        let mut now = begin;
        while now + STEP * STEPS < begin + LIMIT {
            now += STEP * (STEPS - 1);
            assert!(!drain.is_over(now));
            drain.on_output(now);
        }
        assert!(drain.deadline() <= begin + LIMIT);
        assert!(drain.is_over(begin + LIMIT));
    }
}
