//! Sends one request over the socket and reads its reply.

use base64::Engine as _;
use serde_json::Value;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Default path of the socket inside.
const SOCKET: &str = "/run/sandbox-ctl.sock";
/// Longest line of a reply, in bytes.
const REPLY_LIMIT: u64 = 1 << 20;
/// Longest silence. A command without output may take this long.
const READ_TIMEOUT: Duration = Duration::from_secs(3700);
/// Delay before the second and last attempt to connect: the peer may just be starting.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Error of a request. Printed to stderr.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The socket cannot be reached, or reading failed.
    Socket(String, io::Error),
    /// The reply is not valid JSON of the protocol.
    InvalidReply,
    /// The host refused; this is the complete reply.
    Refused(Value),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path, error) => write!(f, "{path}: {error}"),
            Self::InvalidReply => f.write_str("invalid reply from the host"),
            Self::Refused(reply) => {
                let error = &reply["error"];
                let text = |key: &str| error[key].as_str().unwrap_or("?").to_owned();
                write!(f, "{}: {}", text("code"), text("message"))
            }
        }
    }
}

/// Sends a request, passes output to `write_output` and returns the final reply.
pub(crate) fn send(
    request: &Value,
    write_output: &mut dyn FnMut(&str, &[u8]) -> io::Result<()>,
) -> Result<Value, RequestError> {
    let path = std::env::var("SANDBOX_CTL_SOCK").unwrap_or_else(|_| SOCKET.to_owned());
    let failed = |error: io::Error| RequestError::Socket(path.clone(), error);
    let mut stream = connect(&path).map_err(failed)?;
    stream.set_read_timeout(Some(READ_TIMEOUT)).map_err(failed)?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(failed)?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        lines.by_ref().take(REPLY_LIMIT).read_until(b'\n', &mut line).map_err(failed)?;
        let reply: Value = serde_json::from_slice(&line).map_err(|_| RequestError::InvalidReply)?;
        if reply.get("error").is_some() {
            return Err(RequestError::Refused(reply));
        }
        let Some(stream) = reply.get("stream").and_then(Value::as_str) else {
            return if reply.get("result").is_some() {
                Ok(reply)
            } else {
                Err(RequestError::InvalidReply)
            };
        };
        write_output(stream, &output_bytes(&reply)?).map_err(failed)?;
    }
}

fn connect(path: &str) -> io::Result<UnixStream> {
    UnixStream::connect(path).or_else(|_| {
        std::thread::sleep(RETRY_DELAY);
        UnixStream::connect(path)
    })
}

/// Bytes of one output message: text, or base64 if it is no UTF-8.
fn output_bytes(reply: &Value) -> Result<Vec<u8>, RequestError> {
    if let Some(text) = reply["data"].as_str() {
        return Ok(text.as_bytes().to_vec());
    }
    let encoded = reply["base64"].as_str().ok_or(RequestError::InvalidReply)?;
    base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .map_err(|_| RequestError::InvalidReply)
}
