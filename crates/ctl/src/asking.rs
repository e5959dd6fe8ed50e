//! One request over the socket, and what comes back.

use base64::Engine as _;
use serde_json::Value;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Where the host shows its socket.
const SOCKET: &str = "/run/sandbox-ctl.sock";
/// The longest line that is read.
const REPLY_LIMIT: u64 = 1 << 20;
/// How long nothing may come. Where a command says nothing, that is as long as one may take.
const PATIENCE: Duration = Duration::from_secs(3700);
/// Before a connection is tried once more: whoever answers may just be starting.
const RETRY: Duration = Duration::from_millis(500);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nobody can be reached, or nobody answers.
    Socket(String, io::Error),
    /// What came is no answer.
    Nonsense,
    /// The answer is no; this is all of it.
    Refused(Value),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path, error) => write!(f, "{path}: {error}"),
            Self::Nonsense => f.write_str("the answer cannot be understood"),
            Self::Refused(answer) => {
                let error = &answer["error"];
                let word = |key: &str| error[key].as_str().unwrap_or("?").to_owned();
                write!(f, "{}: {}", word("code"), word("message"))
            }
        }
    }
}

/// Asks, hands on what comes before the answer, and returns that.
pub(crate) fn ask(
    request: &Value,
    pass_on: &mut dyn FnMut(&str, &[u8]) -> io::Result<()>,
) -> Result<Value, Failure> {
    let path = std::env::var("SANDBOX_CTL_SOCK").unwrap_or_else(|_| SOCKET.to_owned());
    let failed = |error: io::Error| Failure::Socket(path.clone(), error);
    let mut stream = connect(&path).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(failed)?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        lines.by_ref().take(REPLY_LIMIT).read_until(b'\n', &mut line).map_err(failed)?;
        let answer: Value = serde_json::from_slice(&line).map_err(|_| Failure::Nonsense)?;
        if answer.get("error").is_some() {
            return Err(Failure::Refused(answer));
        }
        let Some(stream) = answer.get("stream").and_then(Value::as_str) else {
            return if answer.get("result").is_some() {
                Ok(answer)
            } else {
                Err(Failure::Nonsense)
            };
        };
        pass_on(stream, &piece(&answer)?).map_err(failed)?;
    }
}

fn connect(path: &str) -> io::Result<UnixStream> {
    UnixStream::connect(path).or_else(|_| {
        std::thread::sleep(RETRY);
        UnixStream::connect(path)
    })
}

/// A piece of output: text, or what is none.
fn piece(answer: &Value) -> Result<Vec<u8>, Failure> {
    if let Some(text) = answer["data"].as_str() {
        return Ok(text.as_bytes().to_vec());
    }
    let spelled = answer["base64"].as_str().ok_or(Failure::Nonsense)?;
    base64::engine::general_purpose::STANDARD.decode(spelled).map_err(|_| Failure::Nonsense)
}
