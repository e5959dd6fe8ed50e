//! How much sandboxes use.

use super::envelope::{Done, Failure, Outcome};
use super::selector::named;
use super::{Microsandbox, labels, read};
use crate::dialect::Call;
use msb_api::{Metrics, Status, Summary};
use msb_spec::Name;
use msb_spec::clock;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two measurements where nobody says.
const INTERVAL: u64 = 1000;
/// Sandboxes whose last measurement is remembered.
const REMEMBERED: usize = 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    name: String,
    interval_ms: Option<u64>,
    samples: Option<u32>,
}

/// The last measurements, so that the next ones tell what was used since.
#[derive(Debug, Default)]
pub(super) struct Measured(Mutex<BTreeMap<String, (u64, u64)>>);

impl Measured {
    /// Percent of one processor since the last time, or since the start.
    #[expect(clippy::cast_precision_loss, reason = "nobody sees the last of 53 bits")]
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
    pub(super) fn sandbox_metrics(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let sandbox = self.measurable(&asked.name)?;
        Ok(Done::new(self.measure(&sandbox.name)?))
    }

    pub(super) fn sandbox_metrics_all(&self) -> Outcome {
        let mut all = Map::new();
        for sandbox in self.world.api.sandbox_list()? {
            let running = matches!(sandbox.status, Status::Running | Status::Draining);
            if !running || labels::of(&sandbox, labels::METRICS) == Some("off") {
                continue;
            }
            // One may end while the others are measured.
            if let Ok(metrics) = self.measure(&sandbox.name) {
                all.insert(sandbox.name.to_string(), metrics);
            }
        }
        Ok(Done::new(Value::Object(all)))
    }

    pub(super) fn sandbox_metrics_stream(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let sandbox = self.measurable(&asked.name)?;
        let noted = labels::of(&sandbox, labels::METRICS).and_then(|text| text.parse().ok());
        let interval = asked.interval_ms.or(noted).unwrap_or(INTERVAL);
        let mut samples = Vec::new();
        // A call waits no longer than this server lets it.
        let until = Instant::now() + self.settings.default_timeout;
        let mut warning = None;
        for number in 0..asked.samples.unwrap_or(1) {
            if number > 0 && !wait(call, interval, until) {
                warning = Some("the time of this call was over before all samples were taken");
                break;
            }
            samples.push(self.measure(&sandbox.name)?);
        }
        let data = json!({"name": sandbox.name, "intervalMs": interval, "samples": samples});
        Ok(Done::new(data).warning(warning))
    }

    fn measurable(&self, name: &str) -> Result<Summary, Failure> {
        let sandbox = self.world.api.sandbox_summary(&named(name)?)?;
        match labels::of(&sandbox, labels::METRICS) {
            Some("off") => {
                let text = format!("metrics are disabled for sandbox {name}");
                Err(Failure::new(text).detail("hint", "it was made with disableMetricsSample"))
            }
            _ => Ok(sandbox),
        }
    }

    fn measure(&self, name: &Name) -> Result<Value, Failure> {
        let metrics = self.world.api.sandbox_metrics(name)?;
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
            // What nobody counts is null.
            "diskReadBytes": metrics.disk_traffic.map(|disk| disk.read),
            "diskWriteBytes": metrics.disk_traffic.map(|disk| disk.written),
            "netRxBytes": metrics.net.map(|net| net.received),
            "netTxBytes": metrics.net.map(|net| net.sent),
            "uptimeMs": metrics.uptime_ms,
            "uptimeSecs": (metrics.uptime_ms + 500) / 1000,
        }))
    }
}

/// Waits, but not beyond a time or a cancellation. Whether it was waited for as long as asked.
fn wait(call: &Call, interval: u64, until: Instant) -> bool {
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
