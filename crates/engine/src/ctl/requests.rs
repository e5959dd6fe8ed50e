//! Parses requests of the ctl socket.

use super::replies::CtlError;
use msb_api::ChildSpec;
use msb_spec::{Bytes, Cpus, ImageRef, Name, Span};
use serde_json::{Map, Value};
use std::time::Duration;

/// The longest request line in bytes.
pub(super) const LINE_LIMIT: usize = 65_536;
/// The default timeout of a command in seconds.
const TIMEOUT: f64 = 30.0;
/// The longest timeout in seconds; a longer command belongs into the background.
const LONGEST: f64 = 3600.0;
/// The most processors; larger numbers are clamped.
const MOST_CPUS: f64 = 4096.0;

/// A request with its id.
#[derive(Debug)]
pub(super) struct CtlRequest {
    /// The id of the client, which the reply repeats.
    pub(super) id: Value,
    pub(super) method: Result<CtlMethod, CtlError>,
}

/// The method of a request.
#[derive(Debug, PartialEq)]
pub(super) enum CtlMethod {
    Ping,
    Spawn(ChildSpec),
    List,
    Destroy(String),
    Exec { name: String, args: CommandArgs },
    Run { spec: ChildSpec, args: CommandArgs },
}

/// The arguments of a command.
#[derive(Debug, PartialEq)]
pub(super) struct CommandArgs {
    pub(super) command: String,
    pub(super) timeout: Span,
    pub(super) workdir: Option<String>,
    /// Whether output is streamed.
    pub(super) stream: bool,
}

impl CtlRequest {
    pub(super) fn parse(line: &[u8]) -> Self {
        let without_id = |error_reply| Self { id: Value::Null, method: Err(error_reply) };
        let value: Value = match serde_json::from_slice(line) {
            Ok(value) => value,
            Err(error) => return without_id(CtlError::invalid(format!("Invalid JSON: {error}"))),
        };
        let Value::Object(mut request) = value else {
            return without_id(CtlError::invalid("Request must be a JSON object"));
        };
        let id = request.remove("id").filter(is_id).unwrap_or(Value::Null);
        Self { method: method(&request), id }
    }
}

/// Whether an id is short enough to be echoed: a text up to 256 bytes, or a number.
fn is_id(id: &Value) -> bool {
    match id {
        Value::String(text) => text.len() <= 256,
        other => other.is_number(),
    }
}

fn method(request: &Map<String, Value>) -> Result<CtlMethod, CtlError> {
    let Some(Value::String(method)) = request.get("method") else {
        return Err(CtlError::invalid("Missing method"));
    };
    let nothing = Map::new();
    let params = match request.get("params") {
        None | Some(Value::Null) => &nothing,
        Some(Value::Object(params)) => params,
        Some(_) => return Err(CtlError::invalid("params must be an object")),
    };
    let params = Params(params);
    match method.as_str() {
        "ping" => Ok(CtlMethod::Ping),
        "spawn" => params.child().map(CtlMethod::Spawn),
        "list" => Ok(CtlMethod::List),
        "destroy" => params.required("name").map(CtlMethod::Destroy),
        "exec" => Ok(CtlMethod::Exec { name: params.required("name")?, args: params.args()? }),
        "run" => {
            let args = params.args()?;
            Ok(CtlMethod::Run { spec: params.child()?, args })
        }
        other => Err(CtlError::invalid(format!("Unknown method: {other}"))),
    }
}

struct Params<'a>(&'a Map<String, Value>);

impl Params<'_> {
    /// A string parameter; an empty one counts as missing.
    fn text(&self, key: &str) -> Result<Option<String>, CtlError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
            Some(_) => Err(CtlError::invalid(format!("params.{key} must be a string"))),
        }
    }

    fn required(&self, key: &str) -> Result<String, CtlError> {
        self.text(key)?.ok_or_else(|| CtlError::invalid(format!("params.{key} required")))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, CtlError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|number| *number >= 0.0) {
                Some(number) => Ok(Some(number)),
                None => Err(CtlError::invalid(format!("params.{key} must be a number"))),
            },
        }
    }

    fn child(&self) -> Result<ChildSpec, CtlError> {
        let name = |text: String| {
            Name::parse(&text)
                .map_err(|_| CtlError::invalid(format!("Invalid child name: '{text}'")))
        };
        let image = |text: String| {
            ImageRef::parse(&text)
                .map_err(|_| CtlError::invalid(format!("Invalid image: '{text}'")))
        };
        let memory = |text: String| {
            Bytes::parse_size(&text)
                .map_err(|_| CtlError::invalid(format!("Invalid memory string: '{text}'")))
        };
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "in range")]
        let cpus = |number: f64| Cpus { millis: (number.min(MOST_CPUS) * 1000.0) as u32 };
        // Zero means the share of the policy.
        let wanted = self.number("cpus")?.filter(|number| *number * 1000.0 >= 1.0);
        Ok(ChildSpec {
            image: self.text("image")?.map(image).transpose()?,
            name: self.text("name")?.map(name).transpose()?,
            cpus: wanted.map(cpus),
            memory: self.text("memory")?.map(memory).transpose()?,
        })
    }

    fn args(&self) -> Result<CommandArgs, CtlError> {
        let command = self.required("command")?;
        let seconds = self.number("timeout")?.unwrap_or(TIMEOUT);
        if seconds <= 0.0 || seconds > LONGEST {
            return Err(CtlError::invalid(format!(
                "params.timeout must be more than 0 and at most {LONGEST}"
            )));
        }
        Ok(CommandArgs {
            command,
            timeout: Span(Duration::from_secs_f64(seconds)),
            workdir: self.text("workdir")?,
            stream: matches!(self.0.get("stream"), Some(Value::Bool(true))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        let request = CtlRequest::parse(line.as_bytes());
        request.method.expect_err(line).message
    }

    #[test]
    fn malformed_requests_are_refused_with_a_reason() {
        assert!(refused("not json").starts_with("Invalid JSON: "));
        assert_eq!(refused("[1]"), "Request must be a JSON object");
        assert_eq!(refused(r#"{"id":"1"}"#), "Missing method");
        assert_eq!(refused(r#"{"method":"bogus"}"#), "Unknown method: bogus");
        assert_eq!(refused(r#"{"method":"list","params":[1]}"#), "params must be an object");
        assert_eq!(refused(r#"{"method":"destroy"}"#), "params.name required");
        assert_eq!(
            refused(r#"{"method":"exec","params":{"name":"a"}}"#),
            "params.command required"
        );
        for (key, value) in [("cpus", "\"x\""), ("cpus", "-1"), ("memory", "\"zz\""), ("name", "1")]
        {
            let line = format!(r#"{{"method":"spawn","params":{{"{key}":{value}}}}}"#);
            refused(&line);
        }
        let forever = r#"{"method":"exec","params":{"name":"a","command":"b","timeout":1e99}}"#;
        assert!(refused(forever).starts_with("params.timeout"));
    }

    #[test]
    fn only_a_short_id_is_echoed() {
        assert_eq!(CtlRequest::parse(br#"{"id":"a","method":"ping"}"#).id, "a");
        assert_eq!(CtlRequest::parse(br#"{"id":7}"#).id, 7);
        assert_eq!(CtlRequest::parse(br#"{"id":[1]}"#).id, Value::Null);
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(257));
        assert_eq!(CtlRequest::parse(long.as_bytes()).id, Value::Null);
    }

    #[test]
    fn omitted_parameters_have_defaults() {
        let line = br#"{"method":"run","params":{"command":"true","cpus":0,"image":""}}"#;
        let Ok(CtlMethod::Run { spec, args }) = CtlRequest::parse(line).method else { panic!() };
        assert_eq!(spec, ChildSpec::default());
        assert_eq!((args.timeout, args.stream), (Span(Duration::from_secs(30)), false));
    }
}
