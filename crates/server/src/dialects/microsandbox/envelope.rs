//! The JSON envelope of every result, for success and failure.

use crate::dialect::ToolResult;
use msb_spec::{Error, Kind};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The result of a call.
pub(super) type Outcome = Result<ToolSuccess, ToolFailure>;

/// The envelope of a successful call.
#[derive(Debug, Default, Serialize)]
pub(super) struct ToolSuccess {
    ok: AlwaysTrue,
    data: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    truncated: Vec<Truncation>,
}

/// Serializes as the constant `true`.
#[derive(Debug, Default)]
struct AlwaysTrue;

impl Serialize for AlwaysTrue {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bool(true)
    }
}

impl ToolSuccess {
    pub(super) fn new(data: Value) -> Self {
        Self { data, ..Self::default() }
    }

    pub(super) fn warning(mut self, warning: Option<impl Into<String>>) -> Self {
        self.warnings.extend(warning.map(Into::into));
        self
    }

    pub(super) fn truncated(mut self, truncated: impl IntoIterator<Item = Truncation>) -> Self {
        self.truncated.extend(truncated);
        self
    }

    /// Renames a member of the data.
    pub(super) fn renamed(mut self, from: &str, to: &str) -> Self {
        if let Value::Object(members) = &mut self.data
            && let Some(value) = members.remove(from)
        {
            members.insert(to.to_owned(), value);
        }
        self
    }

    /// Adds a member to the data.
    pub(super) fn with(mut self, key: &str, value: Value) -> Self {
        self.data[key] = value;
        self
    }
}

/// Says that a field was truncated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Truncation {
    pub(super) field: String,
    pub(super) returned_bytes: u64,
    pub(super) total_bytes: u64,
}

impl Truncation {
    /// None if the field is complete.
    pub(super) fn of(field: impl Into<String>, returned: usize, total: u64) -> Option<Self> {
        let (field, returned_bytes) = (field.into(), returned as u64);
        (returned_bytes < total).then_some(Self { field, returned_bytes, total_bytes: total })
    }
}

/// Bytes as text, truncated at a limit. A character that was cut in two becomes U+FFFD.
pub(super) fn cut(bytes: &[u8], limit: usize, field: &str) -> (String, Option<Truncation>) {
    let kept = &bytes[..limit.min(bytes.len())];
    let truncation = Truncation::of(field, kept.len(), bytes.len() as u64);
    (String::from_utf8_lossy(kept).into_owned(), truncation)
}

/// The envelope of a failed call.
#[derive(Debug, Clone)]
pub(super) struct ToolFailure {
    code: &'static str,
    message: String,
    details: Map<String, Value>,
    retryable: bool,
}

impl ToolFailure {
    /// A failure with the generic code.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self::of("operation_failed", message)
    }

    pub(super) fn of(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Map::new(), retryable: false }
    }

    /// An operation that needs confirmation, or is disabled on this server.
    pub(super) fn dangerous(message: impl Into<String>) -> Self {
        Self::of("dangerous_operation_disabled", message)
    }

    /// Something that is not supported, with a hint.
    pub(super) fn unsupported(message: impl Into<String>, hint: &str) -> Self {
        Self::of("unsupported", message).detail("hint", hint)
    }

    pub(super) fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// Adds every member of an object to the details.
    pub(super) fn detailed(mut self, details: Value) -> Self {
        if let Value::Object(details) = details {
            self.details.extend(details);
        }
        self
    }

    pub(super) fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// The failure as one item of a list.
    pub(super) fn brief(&self) -> Value {
        json!({"code": self.code, "message": self.message})
    }

    fn envelope(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if !self.details.is_empty() {
            error["details"] = redacted(Value::Object(self.details.clone()));
        }
        if self.retryable {
            error["retryable"] = Value::Bool(true);
        }
        json!({"ok": false, "error": error})
    }
}

/// Texts of our errors, and the ones that clients of this dialect expect.
const KNOWN: [(&str, &str, &str); 5] = [
    ("no sandbox `", "`", "sandbox not found: "),
    ("no volume `", "`", "volume not found: "),
    ("no snapshot `", "`", "[SnapshotNotFound] snapshot not found: "),
    ("volume `", "` already exists", "volume already exists: "),
    ("sandbox `", "` already exists", "sandbox already exists: "),
];

impl From<Error> for ToolFailure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            Kind::Unsupported => "unsupported",
            _ => "operation_failed",
        };
        let known = KNOWN.iter().find_map(|(start, end, theirs)| {
            let named = error.message().strip_prefix(start)?.strip_suffix(end)?;
            Some(format!("{theirs}{named}"))
        });
        let mut failure = Self::of(code, known.unwrap_or_else(|| error.to_string()));
        failure.retryable = error.kind() == Kind::Timeout;
        if let Some(stage) = error.stage() {
            failure = failure.detail("stage", json!(stage));
        }
        if !error.causes().is_empty() {
            failure = failure.detail("causes", json!(error.causes()));
        }
        match error.advice() {
            Some(hint) => failure.detail("hint", hint),
            None => failure,
        }
    }
}

/// Wraps the result of a call in the envelope.
pub(super) fn answer(outcome: &Outcome) -> ToolResult {
    match outcome {
        Ok(done) => ToolResult::text(pretty(done)),
        Err(failure) => ToolResult::failed(pretty(&failure.envelope())),
    }
}

/// JSON indented by two spaces, as clients expect.
pub(super) fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("our own values have text as keys")
}

/// Words in names of members whose values are masked.
const HIDDEN: [&str; 8] =
    ["password", "passwd", "secret", "token", "api_key", "apikey", "private_key", "privatekey"];

fn redacted(value: Value) -> Value {
    match value {
        Value::Object(members) => members
            .into_iter()
            .map(|(key, value)| {
                let lower = key.to_lowercase().replace('-', "_");
                match HIDDEN.iter().any(|word| lower.contains(word)) {
                    true => (key, Value::from("[redacted]")),
                    false => (key, redacted(value)),
                }
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(redacted).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope_of(outcome: &Outcome) -> Value {
        serde_json::from_str(&answer(outcome).text[0]).unwrap()
    }

    #[test]
    fn success_is_in_an_envelope() {
        let truncation = Truncation::of("stdout", 4, 9);
        let outcome = Ok(ToolSuccess::new(json!([1])).warning(Some("w")).truncated(truncation));
        let text = answer(&outcome).text[0].clone();
        assert!(text.starts_with("{\n  \"ok\": true,\n  \"data\": ["), "{text}");
        assert_eq!(
            envelope_of(&outcome),
            json!({
                "ok": true, "data": [1], "warnings": ["w"],
                "truncated": [{"field": "stdout", "returnedBytes": 4, "totalBytes": 9}],
            })
        );
        assert_eq!(envelope_of(&Ok(ToolSuccess::new(json!({})))), json!({"ok": true, "data": {}}));
    }

    #[test]
    fn errors_tell_cause_and_hint_and_no_secret() {
        let error = Error::new(Kind::NotFound, "no sandbox `x`").hint("did you mean `y`?");
        let found = envelope_of(&Err(error.into()));
        assert_eq!(found["error"]["message"], "sandbox not found: x");
        assert_eq!(found["error"]["details"]["hint"], "did you mean `y`?");
        let error = Error::host("cannot start sandbox `x`", "no space");
        let found = envelope_of(&Err(error.into()));
        assert_eq!(found["error"]["message"], "cannot start sandbox `x`: no space");
        let failure = ToolFailure::new("x").detail("a", json!([{"apiToken": "1", "b": 2}]));
        let found = envelope_of(&Err(failure));
        assert_eq!(found["error"]["details"], json!({"a": [{"apiToken": "[redacted]", "b": 2}]}));
        let late = envelope_of(&Err(Error::new(Kind::Timeout, "late").into()));
        assert_eq!(late["error"]["retryable"], true);
    }

    #[test]
    fn a_cut_character_is_replaced() {
        let (text, truncation) = cut("hé".as_bytes(), 2, "content");
        assert_eq!(text, "h\u{fffd}");
        assert_eq!(truncation, Truncation::of("content", 2, 3));
        assert_eq!(cut(b"abc", 3, "content").1, None);
    }
}
