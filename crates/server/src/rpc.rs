//! `/api/v1/rpc` of the microsandbox server: JSON-RPC 2.0 in one POST request, as its SDKs use it.
//!
//! It maps bytes to bytes and a status; the HTTP listener calls it. A failed call is not a JSON-RPC
//! error but an HTTP status with `{"error", "code"}`. Only malformed requests get JSON-RPC errors.

use crate::cancel::Cancel;
use crate::dialect::Caller;
use crate::dialects::server::{CallContext, Server};
use crate::keys::KeyError;
use msb_spec::{CallOrigin, Error, Kind, Result, Surface};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;

/// Longest request in bytes: code has its own limit, and JSON escapes can make it six times longer.
const LONGEST: usize = 32 << 20;

/// The response to an HTTP request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status code.
    pub status: u16,
    /// A JSON document; empty for notifications.
    pub body: Vec<u8>,
}

impl Reply {
    fn new(status: u16, body: &Value) -> Self {
        Self { status, body: body.to_string().into_bytes() }
    }

    /// A failure in the format of that server, plus a hint.
    fn failed(status: u16, code: u16, error: &str, hint: Option<&str>) -> Self {
        let mut body = json!({"error": error, "code": code});
        if let Some(hint) = hint {
            body["hint"] = hint.into();
        }
        Self::new(status, &body)
    }

    /// A JSON-RPC error, for a malformed request.
    fn no_request(status: u16, id: &Value, code: i32, message: &str) -> Self {
        let error = json!({"code": code, "message": message});
        Self::new(status, &json!({"jsonrpc": "2.0", "id": id, "error": error}))
    }
}

/// The response of the health check.
pub fn health() -> Reply {
    Reply::new(200, &json!({"message": "Service is healthy"}))
}

/// The response to an invalid API key.
pub fn refused(why: KeyError) -> Reply {
    let error = Error::from(why);
    match why {
        KeyError::Missing | KeyError::FrameError => {
            Reply::failed(401, 1001, &format!("Invalid credentials: {error}"), error.advice())
        }
        KeyError::Signature | KeyError::Expired => {
            Reply::failed(401, 1004, &format!("Invalid or expired token: {error}"), error.advice())
        }
        KeyError::Namespace => failed(&error),
    }
}

#[derive(Deserialize)]
struct Request {
    jsonrpc: Option<Value>,
    method: Option<Value>,
    #[serde(default)]
    params: Value,
    /// Absent is not null: a request without an id is a notification and gets no response.
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
}

fn present<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// Handles one JSON-RPC request.
pub fn rpc(server: &Server, body: &[u8], caller: &Caller, cancel: &Cancel) -> Reply {
    if body.len() > LONGEST {
        return Reply::failed(413, 2001, "the request has more than 32 MiB", None);
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
        return invalid(&id, "Invalid request: the method is missing");
    };
    let origin = caller.origin(CallOrigin::new(Surface::Rpc));
    let context = CallContext { caller, cancel, watch: Arc::new(msb_api::NoProgress), origin };
    let result = match method {
        "sandbox.start" => with(request.params, |it| server.start(&context, it).map(Value::from)),
        "sandbox.stop" => with(request.params, |it| server.stop(&context, it).map(Value::from)),
        "sandbox.repl.run" => with(request.params, |it| server.run_code(&context, it)),
        "sandbox.command.run" => with(request.params, |it| server.run_command(&context, it)),
        "sandbox.metrics.get" => with(request.params, |it| server.metrics(&context, it)),
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

/// Deserializes the parameters and calls a function with them.
fn with<T: DeserializeOwned>(params: Value, act: impl Fn(&T) -> Result<Value>) -> Result<Value> {
    let params = match params {
        Value::Object(params) => params,
        Value::Null => serde_json::Map::new(),
        _ => return Err(Error::invalid("the parameters are not an object")),
    };
    act(&crate::arguments::read(&params).map_err(Error::invalid)?)
}

/// A failure, with the status and code that the SDKs expect.
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
