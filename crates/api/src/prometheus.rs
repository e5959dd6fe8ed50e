//! How much sandboxes use, in the text format of Prometheus (0.0.4).

use crate::{Api, Metrics, Status, Summary};
use msb_spec::{HealthStatus, Name, Result};
use std::fmt::Write;

/// What this text is, as a header says it.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One sandbox, and what it uses if it runs.
#[derive(Debug, Clone)]
pub struct SandboxSamples {
    /// The name and state of the sandbox.
    pub summary: Summary,
    /// How much it uses.
    pub metrics: Option<Metrics>,
}

/// What sort of number a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// It goes up and down.
    Gauge,
    /// It goes up, and begins anew when the sandbox does.
    Counter,
}

/// One metric: its name, what it is, and its value for a sandbox if there is one.
#[derive(Debug)]
pub struct Metric {
    /// The name of the metric.
    pub name: &'static str,
    /// The help line of the metric.
    pub help: &'static str,
    /// Its unit, as OpenTelemetry writes it.
    pub unit: &'static str,
    /// What sort of number.
    pub sort: Sort,
    /// The number; none if it is not known.
    pub value: fn(&SandboxSamples) -> Option<f64>,
}

macro_rules! used {
    (|$it:ident| $value:expr) => {
        |gathered| {
            let $it = gathered.metrics.as_ref()?;
            Some(number($value))
        }
    };
}

/// A count as Prometheus has it.
#[expect(clippy::cast_precision_loss, reason = "counters below 2^53 are exact")]
fn number(count: impl Into<u64>) -> f64 {
    count.into() as f64
}

const BYTES: &str = "By";
const SECONDS: &str = "s";
const COUNT: &str = "1";

const fn metric(
    name: &'static str,
    unit: &'static str,
    sort: Sort,
    help: &'static str,
    value: fn(&SandboxSamples) -> Option<f64>,
) -> Metric {
    Metric { name, help, unit, sort, value }
}

/// All metrics, in the order of the text.
pub const METRICS: &[Metric] = &[
    metric("msb_sandbox_up", COUNT, Sort::Gauge, "Whether the sandbox runs.", |it| {
        let up = matches!(it.summary.status, Status::Running | Status::Paused | Status::Draining);
        Some(f64::from(u8::from(up)))
    }),
    metric(
        "msb_sandbox_restarts_total",
        COUNT,
        Sort::Counter,
        "How often its service was begun again since the sandbox started.",
        |it| it.summary.restarts.map(number),
    ),
    metric(
        "msb_sandbox_healthy",
        COUNT,
        Sort::Gauge,
        "Whether its last health checks went well.",
        |it| Some(f64::from(u8::from(it.summary.health? == HealthStatus::Healthy))),
    ),
    metric(
        "msb_sandbox_cpu_seconds_total",
        SECONDS,
        Sort::Counter,
        "Processor time used since the sandbox started.",
        |it| Some(number(it.metrics.as_ref()?.cpu_us) / 1e6),
    ),
    metric(
        "msb_sandbox_memory_bytes",
        BYTES,
        Sort::Gauge,
        "Memory in use, as the host counts it.",
        used!(|it| it.memory),
    ),
    metric(
        "msb_sandbox_memory_limit_bytes",
        BYTES,
        Sort::Gauge,
        "The most memory that the sandbox may use.",
        used!(|it| it.memory_limit?),
    ),
    metric(
        "msb_sandbox_guest_memory_bytes",
        BYTES,
        Sort::Gauge,
        "Memory in use, as the kernel of the microVM counts it.",
        used!(|it| it.guest?.memory),
    ),
    metric(
        "msb_sandbox_guest_memory_total_bytes",
        BYTES,
        Sort::Gauge,
        "Memory that the microVM has.",
        used!(|it| it.guest?.memory_total),
    ),
    metric(
        "msb_sandbox_pids",
        COUNT,
        Sort::Gauge,
        "Processes and threads.",
        used!(|it| it.guest.map_or(it.pids, |guest| guest.pids)),
    ),
    metric(
        "msb_sandbox_pids_limit",
        COUNT,
        Sort::Gauge,
        "The most processes and threads that the sandbox may have.",
        used!(|it| it.pids_limit?),
    ),
    metric(
        "msb_sandbox_disk_bytes",
        BYTES,
        Sort::Gauge,
        "What the writable layer takes on the disk of the host.",
        used!(|it| it.disk?),
    ),
    metric(
        "msb_sandbox_disk_read_bytes_total",
        BYTES,
        Sort::Counter,
        "Bytes read from disks since the sandbox started.",
        used!(|it| it.disk_traffic?.read),
    ),
    metric(
        "msb_sandbox_disk_written_bytes_total",
        BYTES,
        Sort::Counter,
        "Bytes written to disks since the sandbox started.",
        used!(|it| it.disk_traffic?.written),
    ),
    metric(
        "msb_sandbox_network_received_bytes_total",
        BYTES,
        Sort::Counter,
        "Bytes that came to the sandbox since it started.",
        used!(|it| it.net?.received),
    ),
    metric(
        "msb_sandbox_network_sent_bytes_total",
        BYTES,
        Sort::Counter,
        "Bytes that the sandbox sent since it started.",
        used!(|it| it.net?.sent),
    ),
    metric(
        "msb_sandbox_network_flows",
        COUNT,
        Sort::Gauge,
        "Open connections and exchanges of datagrams.",
        used!(|it| it.net?.flows),
    ),
    metric(
        "msb_sandbox_uptime_seconds",
        SECONDS,
        Sort::Gauge,
        "Seconds since the sandbox started.",
        |it| Some(number(it.metrics.as_ref()?.uptime_ms) / 1e3),
    ),
];

/// Looks at every sandbox that is wanted.
pub fn gather(api: &dyn Api, wanted: impl Fn(&Name) -> bool) -> Result<Vec<SandboxSamples>> {
    let sandboxes = api.sandbox_list()?.into_iter().filter(|summary| wanted(&summary.name));
    let one = |summary: Summary| {
        let runs = !matches!(summary.status, Status::Stopped | Status::Crashed);
        // One may end while the others are looked at.
        let metrics = runs.then(|| api.sandbox_metrics(&summary.name).ok()).flatten();
        SandboxSamples { summary, metrics }
    };
    Ok(sandboxes.map(one).collect())
}

/// The labels of a sandbox.
pub fn labels(summary: &Summary) -> [(&'static str, String); 4] {
    [
        ("name", summary.name.to_string()),
        ("isolation", summary.isolation.clone()),
        ("image", summary.image.clone()),
        ("state", summary.status.as_str().to_owned()),
    ]
}

/// All metrics of these sandboxes.
pub fn exposition(gathered: &[SandboxSamples]) -> String {
    let mut text = String::new();
    for metric in METRICS {
        let sort = match metric.sort {
            Sort::Gauge => "gauge",
            Sort::Counter => "counter",
        };
        let name = metric.name;
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {sort}", metric.help);
        for one in gathered {
            let Some(value) = (metric.value)(one) else { continue };
            // What the sandbox is and where it is in its life is told once, so that a series goes on
            // when that changes.
            let known = if name == "msb_sandbox_up" { 4 } else { 2 };
            let labels = labels(&one.summary);
            let labels: Vec<String> = labels[..known]
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
                .collect();
            let _ = writeln!(text, "{name}{{{}}} {value}", labels.join(","));
        }
    }
    text
}

/// A value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskTraffic, NetUsage};
    use std::collections::BTreeMap;

    fn summary(name: &str, status: Status) -> Summary {
        Summary {
            name: Name::parse(name).unwrap(),
            status,
            isolation: "process".to_owned(),
            isolation_reason: None,
            image: "odd \"image\"\\\n".to_owned(),
            created: 0,
            labels: BTreeMap::new(),
            ephemeral: false,
            restarts: None,
            health: None,
        }
    }

    #[test]
    fn every_sandbox_has_its_line_where_there_is_something_to_tell() {
        let metrics = Metrics {
            name: "box".to_owned(),
            cpu_us: 1_500_000,
            memory: 4096,
            memory_limit: None,
            pids: 3,
            pids_limit: None,
            disk: None,
            disk_traffic: Some(DiskTraffic { read: 1, written: 2 }),
            net: Some(NetUsage { received: 5_000_000_000, sent: 7, flows: 1 }),
            uptime_ms: 1500,
            guest: None,
        };
        let text = exposition(&[
            SandboxSamples { summary: summary("box", Status::Running), metrics: Some(metrics) },
            SandboxSamples { summary: summary("off", Status::Stopped), metrics: None },
        ]);
        for line in [
            "# TYPE msb_sandbox_cpu_seconds_total counter",
            "# TYPE msb_sandbox_up gauge",
            r#"msb_sandbox_up{name="box",isolation="process",image="odd \"image\"\\\n",state="running"} 1"#,
            r#"msb_sandbox_up{name="off",isolation="process",image="odd \"image\"\\\n",state="stopped"} 0"#,
            r#"msb_sandbox_cpu_seconds_total{name="box",isolation="process"} 1.5"#,
            r#"msb_sandbox_network_received_bytes_total{name="box",isolation="process"} 5000000000"#,
            r#"msb_sandbox_disk_written_bytes_total{name="box",isolation="process"} 2"#,
            r#"msb_sandbox_uptime_seconds{name="box",isolation="process"} 1.5"#,
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(!text.contains("memory_limit_bytes{"), "{text}");
        assert!(text.ends_with('\n'));
    }
}
