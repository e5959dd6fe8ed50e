//! Asks a server for Operations, over HTTP as [`msb_api::http`] has them.
//!
//! What comes back is a server's word, and of what a sandbox made: names of files are looked at
//! before anything is written here, and answers have a size.

mod copies;
mod events;
mod exec;
mod links;
mod operations;
mod otlp;
mod socket;

pub use otlp::Collector;

use msb_api::http::{Ask, Method};
use msb_api::{Unwatched, Watch};
use msb_spec::{Error, Kind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::{Request, Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, AsSendBody, Body, SendBody};

/// Larger than every list that a person looks at.
const LARGEST: u64 = 256 << 20;

/// A server, and how one is let in.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    base: Arc<str>,
    key: Option<Arc<str>>,
    /// Values of Secrets that go along with what is started.
    secrets: Arc<[(String, Vec<u8>)]>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Client {
    /// A server by its address, as in `http://127.0.0.1:5555`, with a key if it wants one. Nothing is
    /// sent yet.
    pub fn connect(url: &str, key: Option<String>) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("not the address of a server: `{}`", msb_spec::shown(url)))
                .hint("as in http://127.0.0.1:5555")
        };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let well = matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
            && uri.query().is_none()
            && !uri.authority().is_some_and(|it| it.as_str().contains('@'));
        if !well {
            return Err(wrong());
        }
        let key = key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        if key.as_ref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Error::invalid("the key of the server is none"));
        }
        let tls = TlsConfig::builder().root_certs(RootCerts::from(roots(&uri)?)).build();
        msb_sys::net::resolve_without_plugins();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(Duration::from_secs(10)))
            .user_agent(concat!("msb/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls)
            .build();
        Ok(Self {
            agent: config.into(),
            base: url.trim_end_matches('/').into(),
            key: key.map(Into::into),
            secrets: Arc::new([]),
        })
    }

    /// Asks, and waits for the answer.
    fn ask<A: Ask>(&self, ask: &A) -> Result<A::Answer> {
        let (path, rest) = addressed::<A>(ask)?;
        let mut response = match A::ROUTE.method {
            Method::Get => self.send("GET", &path, &rest.query()?, SendBody::none(), JSON)?,
            Method::Delete => self.send("DELETE", &path, &rest.query()?, SendBody::none(), JSON)?,
            Method::Post => self.send("POST", &path, "", rest.body().as_str(), JSON)?,
        };
        json(&mut response)
    }

    /// Asks, and passes on how far it is.
    fn watched<A: Ask>(&self, ask: &A, watch: &dyn Watch) -> Result<A::Answer> {
        let (path, rest) = addressed::<A>(ask)?;
        let response = self.send("POST", &path, "", rest.body().as_str(), EVENTS)?;
        for event in events::Events::new(response.into_body().into_reader()) {
            let (name, data) = event?;
            match name.as_str() {
                "progress" => {
                    let step: msb_api::http::streams::Progress = parsed(&data)?;
                    watch.step(&step.what, step.part());
                }
                "answer" => return parsed(&data),
                "error" => return Err(parsed(&data)?),
                _ => {}
            }
        }
        Err(Error::new(Kind::Protocol, "the server hung up before it had answered"))
    }

    /// Sends a request; what is no success is an error.
    fn send(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: impl AsSendBody,
        takes: &str,
    ) -> Result<Response<Body>> {
        let mark = if query.is_empty() { "" } else { "?" };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}{mark}{query}", self.base))
            .header("accept", takes);
        if matches!(method, "POST" | "PUT") {
            let is_upload = msb_api::http::streams::UPLOADS.contains(&path);
            request = request.header("content-type", if is_upload { BYTES } else { JSON });
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request =
            request.body(body).map_err(|error| Error::invalid("no request").cause(error))?;
        let mut response = self.agent.run(request).map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refused(&mut response))
    }

    fn unreachable(&self, error: &ureq::Error) -> Error {
        let about = Error::new(Kind::Host, format!("cannot reach the server at {}", self.base));
        let about = match error {
            ureq::Error::Io(cause) => about.cause(cause),
            other => about.cause(other),
        };
        about.hint("`msb server status`, where it runs, tells whether it does")
    }

    /// The server's own words, if it has any.
    fn refused(&self, response: &mut Response<Body>) -> Error {
        #[derive(Deserialize)]
        struct Told {
            error: Error,
        }
        #[derive(Deserialize)]
        struct Plain {
            error: Message,
        }
        #[derive(Deserialize)]
        struct Message {
            message: String,
        }
        let status = response.status();
        let mut text = Vec::new();
        let _ = response.body_mut().as_reader().take(LARGEST).read_to_end(&mut text);
        if let Ok(told) = serde_json::from_slice::<Told>(&text)
            && status.as_u16() != 401
        {
            return told.error;
        }
        let said = serde_json::from_slice::<Plain>(&text).map(|plain| plain.error.message);
        let error = match status.as_u16() {
            401 => Error::new(Kind::Denied, format!("the server at {} wants a key", self.base))
                .hint("`msb server keygen`, where it runs, makes one; MSB_API_KEY is where it is looked for"),
            403 => Error::new(Kind::Denied, format!("the server at {} refuses", self.base)),
            _ => Error::new(Kind::Protocol, format!("the server at {} answers {status}", self.base))
                .hint("is it one of msb?"),
        };
        match said {
            Ok(said) => error.cause(said),
            Err(_) => error,
        }
    }
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const TAR: &str = "application/x-tar";
const BYTES: &str = "application/octet-stream";

/// Those who vouch for servers; nobody has to for one without TLS.
fn roots(uri: &Uri) -> Result<Vec<ureq::tls::Certificate<'static>>> {
    if uri.scheme_str() != Some("https") {
        return Ok(Vec::new());
    }
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(Error::new(Kind::Host, "this machine knows nobody who vouches for servers")
            .hint("install ca-certificates"));
    }
    Ok(found
        .certs
        .iter()
        .map(|it| ureq::tls::Certificate::from_der(it.as_ref()).to_owned())
        .collect())
}

/// Members that are not in the path.
struct Rest(Map<String, Value>);

impl Rest {
    fn query(&self) -> Result<String> {
        query(&self.0)
    }

    fn body(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }
}

/// The path of what is asked for, and the rest of it.
fn addressed<A: Ask>(ask: &A) -> Result<(String, Rest)> {
    let mut members = members(ask)?;
    let mut path = A::ROUTE.template();
    for (name, _) in A::ROUTE.in_path() {
        let value = members.remove(name).unwrap_or_default();
        path = path.replace(&format!("{{{name}}}"), &escaped(&plain(&value)));
    }
    Ok((path, Rest(members)))
}

fn members(ask: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(ask) {
        Ok(Value::Object(members)) => Ok(members),
        _ => Err(Error::invalid("that cannot be asked for")),
    }
}

/// Members as a query; what is absent is left out.
fn query(members: &Map<String, Value>) -> Result<String> {
    let given = members.iter().filter(|(_, value)| !value.is_null());
    let pairs: Vec<(&String, String)> = given.map(|(name, value)| (name, plain(value))).collect();
    serde_urlencoded::to_string(pairs).map_err(|error| Error::invalid("no query").cause(error))
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// One part of a path.
fn escaped(text: &str) -> String {
    let kept = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    text.bytes().fold(String::new(), |mut done, byte| {
        match kept(byte) {
            true => done.push(char::from(byte)),
            false => done.push_str(&format!("%{byte:02X}")),
        }
        done
    })
}

fn json<T: DeserializeOwned>(response: &mut Response<Body>) -> Result<T> {
    let mut text = Vec::new();
    let read = response.body_mut().as_reader().take(LARGEST).read_to_end(&mut text);
    read.map_err(|error| Error::host("the answer of the server broke off", error))?;
    serde_json::from_slice(&text).map_err(misunderstood)
}

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(misunderstood)
}

fn misunderstood(error: serde_json::Error) -> Error {
    Error::new(Kind::Protocol, "the server answers something else")
        .cause(error)
        .hint("it may be of another version: `msb version` tells this one's")
}

/// Asks without anybody who watches.
const NOBODY: &Unwatched = &Unwatched;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_looked_at() {
        for good in ["http://127.0.0.1:5555", "https://box.example/msb/", "http://[::1]:80"] {
            if !good.starts_with("https") {
                assert!(Client::connect(good, None).is_ok(), "{good}");
            }
        }
        for bad in ["", "127.0.0.1:5555", "ftp://x", "http://", "http://a@b", "http://a/?x=1"] {
            assert!(Client::connect(bad, None).is_err(), "{bad}");
        }
        assert!(Client::connect("http://a", Some("two words".to_owned())).is_err());
    }

    #[test]
    fn parts_of_paths_are_escaped() {
        assert_eq!(escaped("a b/ä"), "a%20b%2F%C3%A4");
    }
}
