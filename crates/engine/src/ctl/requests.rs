//! What may be asked from inside, parsed once.

use super::answers::Refusal;
use msb_api::ChildSpec;
use msb_spec::{Bytes, Cpus, ImageRef, Name, Span};
use serde_json::{Map, Value};
use std::time::Duration;

/// The longest line that is read.
pub(super) const LINE_LIMIT: usize = 65_536;
/// How long a command may take if nothing is said.
const TIMEOUT: f64 = 30.0;
/// A command that takes longer belongs into the background.
const LONGEST: f64 = 3600.0;
/// What a machine has no more of.
const MOST_CPUS: f64 = 4096.0;

/// A request, and what its answer is told by.
#[derive(Debug)]
pub(super) struct Request {
    /// As it came; an answer carries it.
    pub(super) id: Value,
    pub(super) method: Result<Method, Refusal>,
}

/// What is asked for.
#[derive(Debug, PartialEq)]
pub(super) enum Method {
    Ping,
    Spawn(ChildSpec),
    List,
    Destroy(String),
    Exec { name: String, ask: Ask },
    Run { spec: ChildSpec, ask: Ask },
}

/// A command.
#[derive(Debug, PartialEq)]
pub(super) struct Ask {
    pub(super) command: String,
    pub(super) timeout: Span,
    pub(super) workdir: Option<String>,
    /// Whether output is told as it comes.
    pub(super) stream: bool,
}

impl Request {
    pub(super) fn parse(line: &[u8]) -> Self {
        let nobody = |refusal| Self { id: Value::Null, method: Err(refusal) };
        let value: Value = match serde_json::from_slice(line) {
            Ok(value) => value,
            Err(error) => return nobody(Refusal::invalid(format!("Invalid JSON: {error}"))),
        };
        let Value::Object(mut request) = value else {
            return nobody(Refusal::invalid("Request must be a JSON object"));
        };
        let id = request.remove("id").filter(is_id).unwrap_or(Value::Null);
        Self { method: method(&request), id }
    }
}

/// What can be repeated without harm: a short text or a number.
fn is_id(id: &Value) -> bool {
    match id {
        Value::String(text) => text.len() <= 256,
        other => other.is_number(),
    }
}

fn method(request: &Map<String, Value>) -> Result<Method, Refusal> {
    let Some(Value::String(method)) = request.get("method") else {
        return Err(Refusal::invalid("Missing method"));
    };
    let nothing = Map::new();
    let params = match request.get("params") {
        None | Some(Value::Null) => &nothing,
        Some(Value::Object(params)) => params,
        Some(_) => return Err(Refusal::invalid("params must be an object")),
    };
    let params = Params(params);
    match method.as_str() {
        "ping" => Ok(Method::Ping),
        "spawn" => params.child().map(Method::Spawn),
        "list" => Ok(Method::List),
        "destroy" => params.required("name").map(Method::Destroy),
        "exec" => Ok(Method::Exec { name: params.required("name")?, ask: params.ask()? }),
        "run" => {
            let ask = params.ask()?;
            Ok(Method::Run { spec: params.child()?, ask })
        }
        other => Err(Refusal::invalid(format!("Unknown method: {other}"))),
    }
}

struct Params<'a>(&'a Map<String, Value>);

impl Params<'_> {
    /// A text; an empty one is none.
    fn text(&self, key: &str) -> Result<Option<String>, Refusal> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
            Some(_) => Err(Refusal::invalid(format!("params.{key} must be a string"))),
        }
    }

    fn required(&self, key: &str) -> Result<String, Refusal> {
        self.text(key)?.ok_or_else(|| Refusal::invalid(format!("params.{key} required")))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, Refusal> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|number| *number >= 0.0) {
                Some(number) => Ok(Some(number)),
                None => Err(Refusal::invalid(format!("params.{key} must be a number"))),
            },
        }
    }

    fn child(&self) -> Result<ChildSpec, Refusal> {
        let name = |text: String| {
            Name::parse(&text)
                .map_err(|_| Refusal::invalid(format!("Invalid child name: '{text}'")))
        };
        let image = |text: String| {
            ImageRef::parse(&text).map_err(|_| Refusal::invalid(format!("Invalid image: '{text}'")))
        };
        let memory = |text: String| {
            Bytes::parse(&text)
                .map_err(|_| Refusal::invalid(format!("Invalid memory string: '{text}'")))
        };
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "in range")]
        let cpus = |number: f64| Cpus { millis: (number.min(MOST_CPUS) * 1000.0) as u32 };
        // Zero is as much as the policy gives.
        let wanted = self.number("cpus")?.filter(|number| *number * 1000.0 >= 1.0);
        Ok(ChildSpec {
            image: self.text("image")?.map(image).transpose()?,
            name: self.text("name")?.map(name).transpose()?,
            cpus: wanted.map(cpus),
            memory: self.text("memory")?.map(memory).transpose()?,
        })
    }

    fn ask(&self) -> Result<Ask, Refusal> {
        let command = self.required("command")?;
        let seconds = self.number("timeout")?.unwrap_or(TIMEOUT);
        if seconds <= 0.0 || seconds > LONGEST {
            return Err(Refusal::invalid(format!(
                "params.timeout must be more than 0 and at most {LONGEST}"
            )));
        }
        Ok(Ask {
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
        let request = Request::parse(line.as_bytes());
        request.method.expect_err(line).message
    }

    #[test]
    fn what_is_no_request_is_refused_with_a_reason() {
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
    fn an_id_is_repeated_if_it_is_short() {
        assert_eq!(Request::parse(br#"{"id":"a","method":"ping"}"#).id, "a");
        assert_eq!(Request::parse(br#"{"id":7}"#).id, 7);
        assert_eq!(Request::parse(br#"{"id":[1]}"#).id, Value::Null);
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(257));
        assert_eq!(Request::parse(long.as_bytes()).id, Value::Null);
    }

    #[test]
    fn what_is_left_out_is_usual() {
        let line = br#"{"method":"run","params":{"command":"true","cpus":0,"image":""}}"#;
        let Ok(Method::Run { spec, ask }) = Request::parse(line).method else { panic!() };
        assert_eq!(spec, ChildSpec::default());
        assert_eq!((ask.timeout, ask.stream), (Span(Duration::from_secs(30)), false));
    }
}
