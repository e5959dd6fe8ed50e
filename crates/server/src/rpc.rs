//! `/api/v1/rpc` of the microsandbox server: JSON-RPC 2.0 over one POST, as its SDKs speak it.
//!
//! Bytes in, bytes and a status out; whoever listens for HTTP calls this. A failure is not a
//! JSON-RPC error but a status with `{"error", "code"}`, except where the request itself is none.

use crate::cancel::Cancel;
use crate::dialect::Who;
use crate::dialects::server::{Asked, Server};
use crate::keys::Refused;
use msb_spec::{Error, Kind, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;

/// The longest request: code has its own limit, and JSON can make it six times as long.
const LONGEST: usize = 32 << 20;

/// An answer to an HTTP request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// JSON; empty where nothing is to be said.
    pub body: Vec<u8>,
}

impl Reply {
    fn new(status: u16, body: &Value) -> Self {
        Self { status, body: body.to_string().into_bytes() }
    }

    /// A failure, as that server writes it. What to do about it stands beside.
    fn failed(status: u16, code: u16, error: &str, hint: Option<&str>) -> Self {
        let mut body = json!({"error": error, "code": code});
        if let Some(hint) = hint {
            body["hint"] = hint.into();
        }
        Self::new(status, &body)
    }

    /// What is no request.
    fn no_request(status: u16, id: &Value, code: i32, message: &str) -> Self {
        let error = json!({"code": code, "message": message});
        Self::new(status, &json!({"jsonrpc": "2.0", "id": id, "error": error}))
    }
}

/// That the server is there.
pub fn health() -> Reply {
    Reply::new(200, &json!({"message": "Service is healthy"}))
}

/// That a key is not good.
pub fn refused(why: Refused) -> Reply {
    let error = Error::from(why);
    match why {
        Refused::Missing | Refused::Malformed => {
            Reply::failed(401, 1001, &format!("Invalid credentials: {error}"), error.advice())
        }
        Refused::Signature | Refused::Expired => {
            Reply::failed(401, 1004, &format!("Invalid or expired token: {error}"), error.advice())
        }
        Refused::Namespace => failed(&error),
    }
}

#[derive(Deserialize)]
struct Request {
    jsonrpc: Option<Value>,
    method: Option<Value>,
    #[serde(default)]
    params: Value,
    /// Absent is not the same as null: nobody waits for an answer then.
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
}

fn present<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// Does what a request asks for.
pub fn rpc(server: &Server, body: &[u8], who: &Who, cancel: &Cancel) -> Reply {
    if body.len() > LONGEST {
        return Reply::failed(413, 2001, "the request is too long", None);
    }
    let value: Value = match serde_json::from_slice(body) {
        Ok(value) => value,
        Err(error) => {
            return Reply::no_request(400, &Value::Null, -32700, &format!("Parse error: {error}"));
        }
    };
    let invalid = |id: &Value, what: &str| Reply::no_request(400, id, -32600, what);
    let Ok(request) = serde_json::from_value::<Request>(value) else {
        return invalid(&Value::Null, "Invalid request: not an object");
    };
    let id = request.id.clone().unwrap_or_default();
    if !matches!(id, Value::Null | Value::String(_) | Value::Number(_)) {
        return invalid(&Value::Null, "Invalid request: the id is neither a string nor a number");
    }
    if request.jsonrpc != Some(json!("2.0")) {
        return invalid(&id, "Invalid or missing jsonrpc version field");
    }
    let Some(method) = request.method.as_ref().and_then(Value::as_str) else {
        return invalid(&id, "Invalid request: there is no method");
    };
    let asked = Asked { who, cancel, watch: Arc::new(msb_api::Unwatched) };
    let result = match method {
        "sandbox.start" => with(request.params, |it| server.start(&asked, it).map(Value::from)),
        "sandbox.stop" => with(request.params, |it| server.stop(&asked, it).map(Value::from)),
        "sandbox.repl.run" => with(request.params, |it| server.run_code(&asked, it)),
        "sandbox.command.run" => with(request.params, |it| server.run_command(&asked, it)),
        "sandbox.metrics.get" => with(request.params, |it| server.metrics(&asked, it)),
        other => {
            let text = format!("Method not found: {}", msb_spec::shown(other));
            return Reply::no_request(404, &id, -32601, &text);
        }
    };
    match result {
        Err(error) => failed(&error),
        Ok(_) if request.id.is_none() => Reply { status: 202, body: Vec::new() },
        Ok(result) => Reply::new(200, &json!({"jsonrpc": "2.0", "id": id, "result": result})),
    }
}

/// Does something with the parameters, if they are as they must be.
fn with<T: DeserializeOwned>(params: Value, act: impl Fn(&T) -> Result<Value>) -> Result<Value> {
    let params = match params {
        Value::Object(params) => params,
        Value::Null => serde_json::Map::new(),
        _ => return Err(Error::invalid("the parameters are not an object")),
    };
    act(&crate::arguments::read(&params).map_err(Error::invalid)?)
}

/// A failure, with the status and the code that its clients expect.
pub(crate) fn failed(error: &Error) -> Reply {
    let (status, code) = match error.kind() {
        Kind::Invalid => (400, 2001),
        Kind::Denied => (403, 3001),
        Kind::NotFound | Kind::CommandNotFound => (404, 4001),
        Kind::Exists | Kind::State | Kind::NotExecutable => (409, 4002),
        Kind::Limit => (429, 4003),
        Kind::Unsupported => (501, 5001),
        Kind::Timeout => (504, 5003),
        Kind::Host | Kind::Protocol => (500, 5002),
    };
    let text = match error.kind() {
        Kind::Denied => format!("Access denied: {error}"),
        _ => error.to_string(),
    };
    Reply::failed(status, code, &text, error.advice())
}

#[cfg(test)]
mod tests;
