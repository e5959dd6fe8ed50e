//! Whether a sandbox answers.

use super::arguments::At;
use super::shown::Health;
use super::{Said, Surface};
use crate::cancel::Cancel;
use crate::dialect::Call;
use msb_api::{Place, Status};
use msb_spec::{Error, Kind, Name, Result};
use std::time::{Duration, Instant};

/// A cancelled call is noticed within this.
const NOTICE: Duration = Duration::from_millis(50);

impl Surface {
    pub(super) fn healthcheck(&self, call: &Call, arguments: &At) -> Result<Said> {
        let used = self.connected(call, arguments)?;
        let healthy = self.is_healthy(&used.name);
        Said::one(&Health { sandbox_id: used.name.to_string(), healthy })
    }

    /// Whether its guest answers. One that is paused would not, for as long as it is.
    fn is_healthy(&self, name: &Name) -> bool {
        let running = |status| matches!(status, Status::Running | Status::Draining);
        let status = self.api().sandbox_inspect(name).map(|found| found.status);
        status.is_ok_and(running) && self.api().file_stat(&Place::sandbox(name), b"/", true).is_ok()
    }

    /// Waits until it does.
    pub(super) fn await_health(
        &self,
        call: &Call,
        name: &Name,
        limit: Duration,
        interval: Duration,
    ) -> Result<()> {
        let since = Instant::now();
        while !self.is_healthy(name) {
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                let late = format!("sandbox `{name}` does not answer");
                return Err(Error::new(Kind::Timeout, late)
                    .cause(format!("it was asked for {} s", limit.as_secs_f64()))
                    .hint("`sandbox_get_info` tells its state; give it more time"));
            }
            pause(
                interval.clamp(Duration::from_millis(1), left.max(Duration::from_millis(1))),
                &call.cancel,
            )?;
        }
        Ok(())
    }
}

/// Waits, unless nobody does any more.
pub(super) fn pause(length: Duration, cancel: &Cancel) -> Result<()> {
    let since = Instant::now();
    loop {
        if cancel.is_cancelled() {
            return Err(Error::new(Kind::Timeout, "the call was cancelled"));
        }
        let left = length.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(NOTICE));
    }
}
