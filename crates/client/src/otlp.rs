//! Tells a collector of OpenTelemetry how much sandboxes use: OTLP over HTTP, as JSON.

use crate::roots;
use msb_api::prometheus::{Gathered, METRICS, Metric, Sort, labels};
use msb_spec::{Error, Kind, Name, Result, clock};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{RootCerts, TlsConfig};

/// A collector answers at once, or it is not worth waiting for: the next numbers are on their way.
const LIMIT: Duration = Duration::from_secs(10);
/// An answer that nobody reads.
const LARGEST: u64 = 64 << 10;
/// How far two reckonings of the same start may be apart, in milliseconds.
const RECKONING: u64 = 1000;

/// A collector.
#[derive(Debug)]
pub struct Collector {
    agent: Agent,
    url: String,
    headers: Vec<(String, String)>,
    /// When each sandbox was started, as it was first told.
    starts: Mutex<BTreeMap<Name, u64>>,
}

impl Collector {
    /// The one at this address, below which `/v1/metrics` is; headers as `name=value,…`.
    pub fn new(endpoint: &str, headers: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!(
                "not the address of a collector: `{}`",
                msb_spec::shown(endpoint)
            ))
            .hint("write it as `http://127.0.0.1:4318`")
        };
        let url = format!("{}/v1/metrics", endpoint.trim_end_matches('/'));
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(wrong());
        }
        let tls = TlsConfig::builder().root_certs(RootCerts::from(roots(&uri)?)).build();
        msb_sys::net::resolve_without_plugins();
        let agent = Agent::config_builder()
            .timeout_global(Some(LIMIT))
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

    /// Tells it.
    pub fn send(&self, gathered: &[Gathered]) -> Result<()> {
        let failed =
            || Error::new(Kind::Host, format!("cannot tell the collector at {}", self.url));
        let mut request = self.agent.post(&self.url).content_type("application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let now = clock::now();
        let mut starts = self.starts.lock().unwrap_or_else(PoisonError::into_inner);
        remember(&mut starts, gathered, now);
        let body = document(gathered, &starts, now).to_string();
        drop(starts);
        let answer = request.send(body).map_err(|error| failed().cause(error))?;
        let status = answer.status();
        // So that the connection can be used again.
        let _ = answer.into_body().with_config().limit(LARGEST).read_to_vec();
        match status.is_success() {
            true => Ok(()),
            false => Err(failed().cause(format!("it answered {status}"))),
        }
    }
}

/// `name=value,name=value`; values may have `%20` and the like.
fn read_headers(text: &str) -> Result<Vec<(String, String)>> {
    let wrong = |part: &str| {
        Error::invalid(format!("not a header: `{}`", msb_spec::shown(part)))
            .hint("write them as `name=value,name=value`")
    };
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let header = |part: &str| {
        let (name, value) = part.split_once('=').ok_or_else(|| wrong(part))?;
        let (name, value) = (name.trim(), decoded(value.trim()).ok_or_else(|| wrong(part))?);
        let known = ureq::http::HeaderName::try_from(name).is_ok();
        match known && ureq::http::HeaderValue::try_from(&value).is_ok() {
            true => Ok((name.to_owned(), value)),
            false => Err(wrong(part)),
        }
    };
    parts.map(header).collect()
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

/// A sum that begins at another time is another sum, so each start is reckoned once.
fn remember(starts: &mut BTreeMap<Name, u64>, gathered: &[Gathered], now: u64) {
    starts.retain(|name, _| gathered.iter().any(|it| it.summary.name == *name));
    for it in gathered {
        let up = it.metrics.as_ref().map_or(0, |metrics| metrics.uptime_ms);
        let begun = now.saturating_sub(up);
        let known = starts.entry(it.summary.name.clone()).or_insert(begun);
        if known.abs_diff(begun) > RECKONING {
            *known = begun;
        }
    }
}

/// The same metrics that Prometheus gets; `now` in milliseconds since 1970.
fn document(gathered: &[Gathered], starts: &BTreeMap<Name, u64>, now: u64) -> Value {
    let metrics = METRICS.iter().filter_map(|metric| one(metric, gathered, starts, now));
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

/// One metric of all sandboxes; none if nobody has it.
fn one(
    metric: &Metric,
    gathered: &[Gathered],
    starts: &BTreeMap<Name, u64>,
    now: u64,
) -> Option<Value> {
    let nanoseconds = |ms: u64| ms.saturating_mul(1_000_000).to_string();
    let point = |it: &Gathered| {
        let value = (metric.value)(it)?;
        let known = labels(&it.summary);
        let known = if metric.name == "msb_sandbox_up" { &known[..] } else { &known[..2] };
        let attributes: Vec<Value> = known
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
    let mut told = json!({"name": name, "description": description, "unit": unit});
    match metric.sort {
        Sort::Gauge => told["gauge"] = json!({"dataPoints": points}),
        // Since the start, not since the last time.
        Sort::Counter => {
            told["sum"] = json!({
                "dataPoints": points,
                "aggregationTemporality": 2,
                "isMonotonic": true,
            });
        }
    }
    Some(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_api::{Metrics, Status, Summary};

    fn up(name: &str, uptime_ms: u64) -> Gathered {
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
        Gathered { summary, metrics: Some(metrics) }
    }

    #[test]
    fn a_sum_begins_once_until_its_sandbox_is_started_again() {
        let mut starts = BTreeMap::new();
        let mut at = |now, uptime| {
            remember(&mut starts, &[up("box", uptime)], now);
            starts.values().copied().collect::<Vec<u64>>()
        };
        assert_eq!(at(10_000, 4000), [6000]);
        assert_eq!(at(25_003, 19_000), [6000]);
        assert_eq!(at(40_000, 30_000), [10_000]);
        remember(&mut starts, &[], 50_000);
        assert!(starts.is_empty());
    }

    #[test]
    fn headers_are_read_as_the_standard_writes_them() {
        let read = read_headers("authorization=Bearer%20abc, x-team=a").unwrap();
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read, [header("authorization", "Bearer abc"), header("x-team", "a")]);
        assert_eq!(read_headers("").unwrap(), []);
        for wrong in ["a", "a=%2", "a=%0a", "a b=c", "=x"] {
            assert!(read_headers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_addresses_of_the_web_are_collectors() {
        assert_eq!(
            Collector::new("http://127.0.0.1:4318/", "").unwrap().url,
            "http://127.0.0.1:4318/v1/metrics"
        );
        for wrong in ["", "127.0.0.1", "ftp://a", "http://", "unix:/x"] {
            assert!(Collector::new(wrong, "").is_err(), "{wrong}");
        }
    }
}
