//! Health checks of sandboxes.

use super::arguments::TargetArgs;
use super::output::HealthOutput;
use super::{OpenSandboxState, ToolOutput};
use crate::cancel::Cancel;
use crate::dialect::ToolCall;
use msb_api::{Place, Status};
use msb_spec::{Error, Kind, Name, Result};
use std::time::{Duration, Instant};

/// How often a waiting call checks for cancellation.
const NOTICE: Duration = Duration::from_millis(50);

impl OpenSandboxState {
    pub(super) fn healthcheck(
        &self,
        call: &ToolCall,
        arguments: &TargetArgs,
    ) -> Result<ToolOutput> {
        let connection = self.connected(call, arguments)?;
        let healthy = self.is_healthy(&connection.name);
        ToolOutput::one(&HealthOutput { sandbox_id: connection.name.to_string(), healthy })
    }

    /// Whether the guest responds. A paused one is unhealthy: it could not respond.
    fn is_healthy(&self, name: &Name) -> bool {
        let running = |status| matches!(status, Status::Running | Status::Draining);
        let status = self.api().sandbox_inspect(name).map(|found| found.status);
        status.is_ok_and(running) && self.api().file_stat(&Place::sandbox(name), b"/", true).is_ok()
    }

    /// Waits until the sandbox is healthy.
    pub(super) fn await_health(
        &self,
        call: &ToolCall,
        name: &Name,
        limit: Duration,
        interval: Duration,
    ) -> Result<()> {
        let since = Instant::now();
        while !self.is_healthy(name) {
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                let late = format!("sandbox `{name}` does not respond");
                return Err(Error::new(Kind::Timeout, late)
                    .cause(format!("it was polled for {} s", limit.as_secs_f64()))
                    .hint("`sandbox_get_info` shows its state; try a longer timeout"));
            }
            pause(
                interval.clamp(Duration::from_millis(1), left.max(Duration::from_millis(1))),
                &call.cancel,
            )?;
        }
        Ok(())
    }
}

/// Sleeps, and returns early with an error on cancellation.
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
