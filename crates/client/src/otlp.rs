//! Exports the usage of sandboxes to an OpenTelemetry collector: OTLP over HTTP, as JSON.

use crate::ca_certificates;
use msb_api::prometheus::{METRICS, Metric, SandboxSamples, Sort, labels};
use msb_spec::encoding::percent_decode;
use msb_spec::{Error, Kind, Name, Result, clock};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{RootCerts, TlsConfig};

/// Longest export: a collector answers at once, and newer numbers follow.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a response that are read and dropped.
const MAX_RESPONSE: u64 = 64 << 10;
/// Largest difference between two computations of the same start, in milliseconds.
const START_TOLERANCE: u64 = 1000;

/// An OpenTelemetry collector with its URL and headers.
#[derive(Debug)]
pub struct Collector {
    agent: Agent,
    url: String,
    headers: Vec<(String, String)>,
    /// Start time of each sandbox, as first exported.
    starts: Mutex<BTreeMap<Name, u64>>,
}

impl Collector {
    /// Checks the URL of a collector, below which `/v1/metrics` is; headers as `name=value,…`.
    pub fn new(endpoint: &str, headers: &str) -> Result<Self> {
        let invalid = || {
            Error::invalid(format!(
                "not the address of a collector: `{}`",
                msb_spec::shown(endpoint)
            ))
            .hint("write it as `http://127.0.0.1:4318`")
        };
        let url = format!("{}/v1/metrics", endpoint.trim_end_matches('/'));
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(invalid());
        }
        let tls = TlsConfig::builder().root_certs(RootCerts::from(ca_certificates(&uri)?)).build();
        msb_sys::net::resolve_without_plugins();
        let agent = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .tls_config(tls)
            .build();
        Ok(Self {
            agent: agent.into(),
            url,
            headers: read_headers(headers)?,
            starts: Mutex::default(),
        })
    }

    /// Exports metrics; fails if the collector does not accept them.
    pub fn send(&self, gathered: &[SandboxSamples]) -> Result<()> {
        let failed = || {
            Error::new(
                Kind::Host,
                format!("cannot export metrics to the collector at {}", self.url),
            )
        };
        let mut request = self.agent.post(&self.url).content_type("application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let now = clock::now();
        let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        update_starts(&mut starts, gathered, now);
        let body = document(gathered, &starts, now).to_string();
        drop(starts);
        let answer = request.send(body).map_err(|error| failed().cause(error))?;
        let status = answer.status();
        // Read to the end, so that the connection can be reused.
        let _ = answer.into_body().with_config().limit(MAX_RESPONSE).read_to_vec();
        match status.is_success() {
            true => Ok(()),
            false => Err(failed().cause(format!("it responded with {status}"))),
        }
    }
}

/// Parses `name=value,name=value`; values may be percent-encoded.
fn read_headers(text: &str) -> Result<Vec<(String, String)>> {
    let invalid = |part: &str| {
        Error::invalid(format!("not a header: `{}`", msb_spec::shown(part)))
            .hint("write them as `name=value,name=value`")
    };
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let header = |part: &str| {
        let (name, value) = part.split_once('=').ok_or_else(|| invalid(part))?;
        let (name, value) =
            (name.trim(), percent_decode(value.trim()).ok_or_else(|| invalid(part))?);
        let entry = ureq::http::HeaderName::try_from(name).is_ok();
        match entry && ureq::http::HeaderValue::try_from(&value).is_ok() {
            true => Ok((name.to_owned(), value)),
            false => Err(invalid(part)),
        }
    };
    parts.map(header).collect()
}

/// Computes each start once: a counter with another start time is another counter.
fn update_starts(starts: &mut BTreeMap<Name, u64>, gathered: &[SandboxSamples], now: u64) {
    starts.retain(|name, _| gathered.iter().any(|it| it.summary.name == *name));
    for it in gathered {
        let up = it.metrics.as_ref().map_or(0, |metrics| metrics.uptime_ms);
        let begun = now.saturating_sub(up);
        let entry = starts.entry(it.summary.name.clone()).or_insert(begun);
        if entry.abs_diff(begun) > START_TOLERANCE {
            *entry = begun;
        }
    }
}

/// The metrics of the Prometheus endpoint as an OTLP document; `now` in milliseconds since 1970.
fn document(gathered: &[SandboxSamples], starts: &BTreeMap<Name, u64>, now: u64) -> Value {
    let metrics = METRICS.iter().filter_map(|metric| metric_json(metric, gathered, starts, now));
    let attribute = |name: &str, value: &str| json!({"key": name, "value": {"stringValue": value}});
    let version = env!("CARGO_PKG_VERSION");
    json!({"resourceMetrics": [{
        "resource": {"attributes": [
            attribute("service.name", "msb"),
            attribute("service.version", version),
        ]},
        "scopeMetrics": [{
            "scope": {"name": "msb", "version": version},
            "metrics": metrics.collect::<Vec<Value>>(),
        }],
    }]})
}

/// One metric of all sandboxes; `None` if no sandbox has it.
fn metric_json(
    metric: &Metric,
    gathered: &[SandboxSamples],
    starts: &BTreeMap<Name, u64>,
    now: u64,
) -> Option<Value> {
    let nanoseconds = |ms: u64| ms.saturating_mul(1_000_000).to_string();
    let point = |it: &SandboxSamples| {
        let value = (metric.value)(it)?;
        let all = labels(&it.summary);
        let used = if metric.name == "msb_sandbox_up" { &all[..] } else { &all[..2] };
        let attributes: Vec<Value> = used
            .iter()
            .map(|(name, value)| json!({"key": name, "value": {"stringValue": value}}))
            .collect();
        let mut point = json!({
            "attributes": attributes,
            "timeUnixNano": nanoseconds(now),
            "asDouble": value,
        });
        if metric.sort == Sort::Counter {
            let start = starts.get(&it.summary.name).copied().unwrap_or(now);
            point["startTimeUnixNano"] = nanoseconds(start).into();
        }
        Some(point)
    };
    let points: Vec<Value> = gathered.iter().filter_map(point).collect();
    if points.is_empty() {
        return None;
    }
    let (name, description, unit) = (metric.name, metric.help, metric.unit);
    let mut metric_value = json!({"name": name, "description": description, "unit": unit});
    match metric.sort {
        Sort::Gauge => metric_value["gauge"] = json!({"dataPoints": points}),
        // Cumulative temporality: since the start, not since the last export.
        Sort::Counter => {
            metric_value["sum"] = json!({
                "dataPoints": points,
                "aggregationTemporality": 2,
                "isMonotonic": true,
            });
        }
    }
    Some(metric_value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_api::{Metrics, Status, Summary};

    fn up(name: &str, uptime_ms: u64) -> SandboxSamples {
        let name = Name::parse(name).unwrap();
        let metrics = Metrics {
            name: name.to_string(),
            cpu_us: 1,
            memory: 1,
            memory_limit: None,
            pids: 1,
            pids_limit: None,
            disk: None,
            disk_traffic: None,
            net: None,
            uptime_ms,
            guest: None,
        };
        let summary = Summary {
            name,
            status: Status::Running,
            isolation: "process".to_owned(),
            isolation_reason: None,
            image: "host".to_owned(),
            created: 0,
            labels: BTreeMap::new(),
            ephemeral: false,
            restarts: None,
            health: None,
        };
        SandboxSamples { summary, metrics: Some(metrics) }
    }

    #[test]
    fn a_sum_keeps_its_start_until_the_sandbox_restarts() {
        let mut starts = BTreeMap::new();
        let mut at = |now, uptime| {
            update_starts(&mut starts, &[up("box", uptime)], now);
            starts.values().copied().collect::<Vec<u64>>()
        };
        assert_eq!(at(10_000, 4000), [6000]);
        assert_eq!(at(25_003, 19_000), [6000]);
        assert_eq!(at(40_000, 30_000), [10_000]);
        update_starts(&mut starts, &[], 50_000);
        assert!(starts.is_empty());
    }

    #[test]
    fn headers_are_parsed_as_opentelemetry_writes_them() {
        let read = read_headers("authorization=Bearer%20abc, x-team=a").unwrap();
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read, [header("authorization", "Bearer abc"), header("x-team", "a")]);
        assert_eq!(read_headers("").unwrap(), []);
        for invalid in ["a", "a=%2", "a=%0a", "a b=c", "=x"] {
            assert!(read_headers(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_collector_has_an_http_url() {
        assert_eq!(
            Collector::new("http://127.0.0.1:4318/", "").unwrap().url,
            "http://127.0.0.1:4318/v1/metrics"
        );
        for invalid in ["", "127.0.0.1", "ftp://a", "http://", "unix:/x"] {
            assert!(Collector::new(invalid, "").is_err(), "{invalid}");
        }
    }
}
