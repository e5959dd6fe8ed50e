//! What is answered, in the words that clients of sandbox-ctl know.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use msb_api::{Child, ExecEvent};
use msb_spec::{Error, ImageRef, Kind};
use serde_json::{Value, json};
use std::time::Duration;

/// Characters of each stream in an answer; what is beyond them is counted.
pub(super) const MOST_SAID: usize = 50_000;

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl Refusal {
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

    /// A failure of ours. What the host said stays outside: it has paths of the host in it.
    pub(super) fn of(error: &Error) -> Self {
        let said = error.causes().first().map_or_else(|| error.message(), String::as_str);
        let (code, message) = match error.kind() {
            Kind::Denied => ("PERMISSION_DENIED", said),
            Kind::NotFound => ("NOT_FOUND", error.message()),
            Kind::Limit => ("LIMIT_REACHED", said),
            Kind::Invalid | Kind::Exists | Kind::State => ("INVALID_REQUEST", said),
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

    pub(super) fn told(&self, id: &Value) -> Value {
        json!({ "id": id, "error": { "code": self.code, "message": self.message } })
    }
}

/// A child as it is listed.
pub(super) fn listed((name, container): &(String, &str), child: &Child) -> Value {
    json!({
        "name": name,
        "container": container,
        "image": familiar(&child.image),
        "cpus": cpus(child),
        "memory_mb": child.memory.0 >> 20,
        "expires_at": expires(child),
    })
}

/// The name of an image as people say it.
pub(super) fn familiar(image: &ImageRef) -> String {
    let whole = image.to_string();
    let short = whole.strip_prefix("docker.io/library/").unwrap_or(&whole);
    short.strip_suffix(":latest").unwrap_or(short).to_owned()
}

/// A child as it is told of when it is made.
pub(super) fn spawned(names: &(String, &str), child: &Child) -> Value {
    let mut said = listed(names, child);
    said["ip"] = Value::Null;
    said
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

/// How a command went.
pub(super) fn ran(name: &str, said: (&str, &str), code: i32, took: Duration) -> Value {
    let duration_ms = (took.as_secs_f64() * 10_000.0).round() / 10.0;
    let (stdout, stderr) = said;
    let result = json!({
        "stdout": stdout, "stderr": stderr, "exit_code": code, "duration_ms": duration_ms,
    });
    json!({ "name": name, "result": result })
}

/// What a stream has said, without the last line break.
pub(super) fn text(bytes: &[u8], total: u64) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut kept: String = text.chars().take(MOST_SAID).collect();
    if kept.len() < text.len() || total > bytes.len() as u64 {
        kept.push_str(&format!("\n[truncated: {total} bytes in all]"));
    } else if kept.ends_with('\n') {
        kept.pop();
    }
    kept
}

/// A piece of output, as it comes. What is no text is told as base64.
pub(super) fn piece(id: &Value, event: &ExecEvent) -> Option<Value> {
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
    fn much_output_is_cut_and_counted() {
        assert_eq!(text(b"hi\n", 3), "hi");
        assert_eq!(text(b"hi\n\n", 4), "hi\n");
        let long = text(&[b'x'; 60_000], 70_000);
        assert!(long.len() < 50_100 && long.ends_with("[truncated: 70000 bytes in all]"));
    }

    #[test]
    fn what_the_host_said_stays_outside() {
        let error = Error::host("cannot write `/home/me/.msb`", "no space left");
        let told = Refusal::of(&error).told(&json!("1")).to_string();
        assert!(!told.contains("/home") && told.contains("INTERNAL_ERROR"), "{told}");
    }
}
