//! Resource usage of sandboxes.

use super::envelope::{Outcome, ToolFailure, ToolSuccess};
use super::selector::named;
use super::{Microsandbox, labels, read};
use crate::dialect::ToolCall;
use msb_api::{Metrics, Status, Summary};
use msb_spec::Name;
use msb_spec::clock;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Default interval between two samples, in milliseconds.
const INTERVAL: u64 = 1000;
/// Sandboxes whose last sample is remembered.
const REMEMBERED: usize = 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricsParams {
    name: String,
    interval_ms: Option<u64>,
    samples: Option<u32>,
}

/// The last samples, to compute the usage since then.
#[derive(Debug, Default)]
pub(super) struct CpuSamples(Mutex<BTreeMap<String, (u64, u64)>>);

impl CpuSamples {
    /// CPU usage in percent of one CPU, since the last sample or the start.
    #[expect(clippy::cast_precision_loss, reason = "display needs no 53 bits of precision")]
    fn percent(&self, metrics: &Metrics) -> f64 {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= REMEMBERED {
            last.clear();
        }
        let now = (metrics.cpu_us, metrics.uptime_ms);
        let before = last.insert(metrics.name.clone(), now).filter(|(_, at)| *at < now.1);
        let (cpu, at) = before.unwrap_or((0, 0));
        let span = (now.1 - at) as f64 * 1000.0;
        match span > 0.0 {
            true => now.0.saturating_sub(cpu) as f64 / span * 100.0,
            false => 0.0,
        }
    }
}

impl Microsandbox {
    pub(super) fn sandbox_metrics(&self, call: &ToolCall) -> Outcome {
        let params: MetricsParams = read(call)?;
        let sandbox = self.measurable(&params.name)?;
        Ok(ToolSuccess::new(self.measure(&sandbox.name)?))
    }

    pub(super) fn sandbox_metrics_all(&self) -> Outcome {
        let mut all = Map::new();
        for sandbox in self.config.api.sandbox_list()? {
            let running = matches!(sandbox.status, Status::Running | Status::Draining);
            if !running || labels::of(&sandbox, labels::METRICS) == Some("off") {
                continue;
            }
            // A sandbox may end while the others are measured.
            if let Ok(metrics) = self.measure(&sandbox.name) {
                all.insert(sandbox.name.to_string(), metrics);
            }
        }
        Ok(ToolSuccess::new(Value::Object(all)))
    }

    pub(super) fn sandbox_metrics_stream(&self, call: &ToolCall) -> Outcome {
        let params: MetricsParams = read(call)?;
        let sandbox = self.measurable(&params.name)?;
        let noted = labels::of(&sandbox, labels::METRICS).and_then(|text| text.parse().ok());
        let interval = params.interval_ms.or(noted).unwrap_or(INTERVAL);
        let mut samples = Vec::new();
        // The time limit of the call applies.
        let until = Instant::now() + self.settings.default_timeout;
        let mut warning = None;
        for number in 0..params.samples.unwrap_or(1) {
            if number > 0 && !wait(call, interval, until) {
                warning = Some("the time limit was reached before all samples were taken");
                break;
            }
            samples.push(self.measure(&sandbox.name)?);
        }
        let data = json!({"name": sandbox.name, "intervalMs": interval, "samples": samples});
        Ok(ToolSuccess::new(data).warning(warning))
    }

    fn measurable(&self, name: &str) -> Result<Summary, ToolFailure> {
        let sandbox = self.config.api.sandbox_summary(&named(name)?)?;
        match labels::of(&sandbox, labels::METRICS) {
            Some("off") => {
                let text = format!("metrics are disabled for sandbox {name}");
                Err(ToolFailure::new(text)
                    .detail("hint", "it was created with disableMetricsSample"))
            }
            _ => Ok(sandbox),
        }
    }

    fn measure(&self, name: &Name) -> Result<Value, ToolFailure> {
        let metrics = self.config.api.sandbox_metrics(name)?;
        let used = metrics.guest.map_or(metrics.memory, |guest| guest.memory);
        let most = metrics.guest.map(|guest| guest.memory_total).or(metrics.memory_limit);
        Ok(json!({
            "timestamp": clock::written(clock::now()),
            "cpuPercent": self.measured.percent(&metrics),
            "vcpuTimeNs": metrics.cpu_us.saturating_mul(1000),
            "memoryBytes": used,
            "memoryAvailableBytes": most.map(|most| most.saturating_sub(used)),
            "memoryHostResidentBytes": metrics.memory,
            "memoryLimitBytes": metrics.memory_limit,
            // Values that are not counted are null.
            "diskReadBytes": metrics.disk_traffic.map(|disk| disk.read),
            "diskWriteBytes": metrics.disk_traffic.map(|disk| disk.written),
            "netRxBytes": metrics.net.map(|net| net.received),
            "netTxBytes": metrics.net.map(|net| net.sent),
            "uptimeMs": metrics.uptime_ms,
            "uptimeSecs": (metrics.uptime_ms + 500) / 1000,
        }))
    }
}

/// Sleeps until the interval, a deadline or a cancellation. True if the interval has passed.
fn wait(call: &ToolCall, interval: u64, until: Instant) -> bool {
    const LOOK: Duration = Duration::from_millis(100);
    let next = Instant::now() + Duration::from_millis(interval);
    if next > until {
        return false;
    }
    loop {
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        if call.cancel.is_cancelled() {
            return false;
        }
        std::thread::sleep(left.min(LOOK));
    }
}
