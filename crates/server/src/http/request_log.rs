//! The request log: one line for each HTTP request.
//!
//! A line has no query string, header or body: these hold paths, commands and values of clients.

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use msb_spec::clock;
use serde_json::json;
use std::fmt;
use std::time::{Duration, Instant};

/// How a line of the request log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestLogFormat {
    /// `TIME INFO server: request method=GET path=/health status=200 ms=1 key=-`
    Text,
    /// One JSON object: `time`, `method`, `path`, `status`, `ms` and `key`.
    Json,
}

/// Writes one line for each request, when the head of its response is sent.
pub struct RequestLog {
    format: RequestLogFormat,
    write: Box<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for RequestLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLog").field("format", &self.format).finish_non_exhaustive()
    }
}

impl RequestLog {
    /// A log whose lines, each with its line break, are passed to `write`.
    pub fn new(format: RequestLogFormat, write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { format, write: Box::new(write) }
    }

    pub(super) fn write(&self, request: &LoggedRequest, key: Option<&str>, status: StatusCode) {
        let took = request.begun.elapsed();
        (self.write)(&request.line(self.format, clock::now(), key, status, took));
    }
}

/// What is kept of a request until its response is known.
pub(super) struct LoggedRequest {
    method: Method,
    path: String,
    begun: Instant,
}

impl LoggedRequest {
    pub(super) fn new(request: &Request) -> Self {
        let path = request.uri().path().to_owned();
        Self { method: request.method().clone(), path, begun: Instant::now() }
    }

    fn line(
        &self,
        format: RequestLogFormat,
        now: u64,
        key: Option<&str>,
        status: StatusCode,
        took: Duration,
    ) -> String {
        let (time, method, path) = (clock::written(now), self.method.as_str(), &self.path);
        let (status, ms) = (status.as_u16(), took.as_millis() as u64);
        match format {
            RequestLogFormat::Text => {
                let key = key.unwrap_or("-");
                format!(
                    "{time} INFO  server: request method={method} path={path} status={status} \
                     ms={ms} key={key}\n"
                )
            }
            RequestLogFormat::Json => {
                let line = json!({
                    "time": time, "method": method, "path": path, "status": status, "ms": ms,
                    "key": key,
                });
                format!("{line}\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn line(format: RequestLogFormat, key: Option<&str>) -> String {
        let uri = "/api/v1/sandboxes/web/files?path=/etc/shadow&token=abc";
        let request = Request::builder().method("PUT").uri(uri).body(Body::empty()).unwrap();
        let took = Duration::from_micros(12_900);
        LoggedRequest::new(&request).line(format, 0, key, StatusCode::CREATED, took)
    }

    #[test]
    fn text_has_no_query_string() {
        assert_eq!(
            line(RequestLogFormat::Text, None),
            "1970-01-01T00:00:00.000Z INFO  server: request method=PUT \
             path=/api/v1/sandboxes/web/files status=201 ms=12 key=-\n"
        );
    }

    #[test]
    fn json_has_the_id_of_the_key() {
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&line(RequestLogFormat::Json, Some("k1")))
                .unwrap(),
            json!({
                "time": "1970-01-01T00:00:00.000Z", "method": "PUT",
                "path": "/api/v1/sandboxes/web/files", "status": 201, "ms": 12, "key": "k1",
            })
        );
    }
}
