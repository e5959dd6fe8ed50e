//! Replies of the ctl socket, in the format of sandbox-ctl clients.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use msb_api::{Child, ExecEvent};
use msb_spec::{Error, ImageRef, Kind};
use serde_json::{Value, json};
use std::time::Duration;

/// The most characters of each output stream in a reply; the rest is counted.
pub(super) const MAX_OUTPUT_CHARS: usize = 50_000;

/// An error reply of the ctl socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CtlError {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl CtlError {
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self { code: "INVALID_REQUEST", message: message.into() }
    }

    pub(super) fn limit(message: impl Into<String>) -> Self {
        Self { code: "LIMIT_REACHED", message: message.into() }
    }

    pub(super) fn no_child(name: &str, parent: &str) -> Self {
        let message = format!("Child '{name}' not found under '{parent}'");
        Self { code: "NOT_FOUND", message }
    }

    /// The reply for an error of the host. Its causes stay outside, since they may contain host
    /// paths.
    pub(super) fn of(error: &Error) -> Self {
        let reason = error.causes().first().map_or_else(|| error.message(), String::as_str);
        let (code, message) = match error.kind() {
            Kind::Denied => ("PERMISSION_DENIED", reason),
            Kind::NotFound => ("NOT_FOUND", error.message()),
            Kind::Limit => ("LIMIT_REACHED", reason),
            Kind::Invalid | Kind::Exists | Kind::State => ("INVALID_REQUEST", reason),
            Kind::Timeout => ("INTERNAL_ERROR", "it took too long"),
            Kind::NotExecutable | Kind::CommandNotFound => {
                ("INTERNAL_ERROR", "the child has no shell")
            }
            Kind::Unsupported | Kind::Host | Kind::Protocol => {
                ("INTERNAL_ERROR", "the host failed")
            }
        };
        Self { code, message: message.to_owned() }
    }

    pub(super) fn to_json(&self, id: &Value) -> Value {
        json!({ "id": id, "error": { "code": self.code, "message": self.message } })
    }
}

/// A child as an entry of `list`.
pub(super) fn listed((name, container): &(String, &str), child: &Child) -> Value {
    json!({
        "name": name,
        "container": container,
        "image": short_image_name(&child.image),
        "cpus": cpus(child),
        "memory_mb": child.memory.0 >> 20,
        "expires_at": expires(child),
    })
}

/// The short name of an image: without docker.io/library/ and `:latest`.
pub(super) fn short_image_name(image: &ImageRef) -> String {
    let whole = image.to_string();
    let short = whole.strip_prefix("docker.io/library/").unwrap_or(&whole);
    short.strip_suffix(":latest").unwrap_or(short).to_owned()
}

/// A child as the reply to `spawn`.
pub(super) fn spawned(names: &(String, &str), child: &Child) -> Value {
    let mut entry = listed(names, child);
    entry["ip"] = Value::Null;
    entry
}

fn cpus(child: &Child) -> Value {
    match child.cpus.millis % 1000 {
        0 => json!(child.cpus.millis / 1000),
        _ => json!(f64::from(child.cpus.millis) / 1000.0),
    }
}

fn expires(child: &Child) -> Value {
    #[expect(clippy::cast_precision_loss, reason = "a time of this era")]
    child.expires.map_or(Value::Null, |at| json!(at as f64 / 1000.0))
}

/// The result of a command, with its duration in milliseconds.
pub(super) fn exec_result(name: &str, output: (&str, &str), code: i32, took: Duration) -> Value {
    let duration_ms = (took.as_secs_f64() * 10_000.0).round() / 10.0;
    let (stdout, stderr) = output;
    let result = json!({
        "stdout": stdout, "stderr": stderr, "exit_code": code, "duration_ms": duration_ms,
    });
    json!({ "name": name, "result": result })
}

/// The text of an output stream, truncated, without the last line break.
pub(super) fn text(bytes: &[u8], total: u64) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut kept: String = text.chars().take(MAX_OUTPUT_CHARS).collect();
    if kept.len() < text.len() || total > bytes.len() as u64 {
        kept.push_str(&format!("\n[truncated: {total} bytes in all]"));
    } else if kept.ends_with('\n') {
        kept.pop();
    }
    kept
}

/// One piece of streamed output. Bytes that are not UTF-8 are sent as base64.
pub(super) fn output_piece(id: &Value, event: &ExecEvent) -> Option<Value> {
    let (stream, bytes) = match event {
        ExecEvent::Stdout(bytes) => ("stdout", bytes),
        ExecEvent::Stderr(bytes) => ("stderr", bytes),
        ExecEvent::Exited(_) => return None,
    };
    Some(match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "id": id, "stream": stream, "data": text }),
        Err(_) => json!({ "id": id, "stream": stream, "base64": STANDARD.encode(bytes) }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_is_truncated() {
        assert_eq!(text(b"hi\n", 3), "hi");
        assert_eq!(text(b"hi\n\n", 4), "hi\n");
        let long = text(&[b'x'; 60_000], 70_000);
        assert!(long.len() < 50_100 && long.ends_with("[truncated: 70000 bytes in all]"));
    }

    #[test]
    fn host_error_texts_are_not_sent_to_the_guest() {
        let error = Error::host("cannot write `/home/me/.msb`", "no space left");
        let reply = CtlError::of(&error).to_json(&json!("1")).to_string();
        assert!(!reply.contains("/home") && reply.contains("INTERNAL_ERROR"), "{reply}");
    }
}
