//! Client of an msb server: the Operations over HTTP, as [`msb_api::http`] defines them.
//!
//! Responses are not trusted: file names are checked before anything is written to this host, and
//! responses have a size limit.

mod exec;
mod file_copy;
mod links;
mod operations;
mod otlp;
mod pin;
mod sse;
mod websocket;

pub use otlp::Collector;

use msb_api::http::{HttpRequest, Method};
use msb_api::{NoProgress, Watch};
use msb_spec::encoding::percent_encode;
use msb_spec::{Error, Kind, Result};
use pin::Fingerprint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::pki_types::CertificateDer;
use ureq::http::{Request, Response, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, AsSendBody, Body, SendBody};

/// Longest response in bytes that is read into memory; larger than any list.
const MAX_RESPONSE: u64 = 256 << 20;

/// Connection settings of a server, with the API key.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    base: Arc<str>,
    key: Option<Arc<str>>,
    /// The only certificate that is trusted, if the server is known by its fingerprint.
    pinned: Option<CertificateDer<'static>>,
    /// Values of Secrets that are sent with each start.
    secrets: Arc<[(String, Vec<u8>)]>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Client {
    /// Checks the address of a server, as in `http://127.0.0.1:5555`, and its API key. Sends
    /// nothing yet; with a fingerprint (`https://HOST#sha256:HEX`) it fetches the certificate.
    pub fn connect(url: &str, key: Option<String>) -> Result<Self> {
        let (url, pin) = Fingerprint::split(url)?;
        let invalid_url = || {
            Error::invalid(format!("not the address of a server: `{}`", msb_spec::shown(url)))
                .hint("write it as `http://127.0.0.1:5555`")
        };
        let uri: Uri = url.parse().map_err(|_| invalid_url())?;
        let valid = matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
            && uri.query().is_none()
            && !uri.authority().is_some_and(|it| it.as_str().contains('@'));
        if !valid {
            return Err(invalid_url());
        }
        let key = key.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        if key.as_ref().is_some_and(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Error::invalid("the API key has characters that no key has"));
        }
        msb_sys::net::resolve_without_plugins();
        let pinned = pin.map(|pin| pin.fetch(&uri)).transpose()?;
        let roots = match &pinned {
            Some(only) => vec![ureq::tls::Certificate::from_der(only).to_owned()],
            None => ca_certificates(&uri)?,
        };
        let tls = TlsConfig::builder().root_certs(RootCerts::from(roots)).build();
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
            pinned,
            secrets: Arc::new([]),
        })
    }

    /// Sends a request with the values of secrets, and reads the response. With `watch`, it reports
    /// progress until then.
    fn call<R: HttpRequest>(
        &self,
        mut request: R,
        watch: Option<&dyn Watch>,
    ) -> Result<R::Response> {
        if let Some(secrets) = request.secrets() {
            *secrets = self.values()?;
        }
        let (path, rest) = build_path(&request)?;
        if let Some(watch) = watch {
            let response = self.send("POST", &path, "", rest.body().as_str(), EVENTS)?;
            return read_watched(response, watch);
        }
        let mut response = match R::ROUTE.method {
            Method::Get => self.send("GET", &path, &rest.query(), SendBody::none(), JSON)?,
            Method::Delete => self.send("DELETE", &path, &rest.query(), SendBody::none(), JSON)?,
            Method::Post => self.send("POST", &path, "", rest.body().as_str(), JSON)?,
        };
        read_json(&mut response)
    }

    /// Sends an HTTP request; another status than 2xx is an error.
    fn send(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: impl AsSendBody,
        accept: &str,
    ) -> Result<Response<Body>> {
        let mark = if query.is_empty() { "" } else { "?" };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}{mark}{query}", self.base))
            .header("accept", accept);
        if matches!(method, "POST" | "PUT") {
            let is_upload = msb_api::http::streams::UPLOADS.contains(&path);
            request = request.header("content-type", if is_upload { BYTES } else { JSON });
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request
            .body(body)
            .map_err(|error| Error::invalid("cannot build the request").cause(error))?;
        let mut response = self.agent.run(request).map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.error_of(&mut response))
    }

    fn unreachable(&self, error: &ureq::Error) -> Error {
        let failure = Error::new(Kind::Host, format!("cannot reach the server at {}", self.base));
        let failure = match error {
            ureq::Error::Io(cause) => failure.cause(cause),
            other => failure.cause(other),
        };
        failure.hint("check with `msb server status` on its host that it runs")
    }

    /// The error in the response body, or one for the status.
    fn error_of(&self, response: &mut Response<Body>) -> Error {
        #[derive(Deserialize)]
        struct ErrorReply {
            error: Error,
        }
        #[derive(Deserialize)]
        struct PlainErrorReply {
            error: PlainError,
        }
        #[derive(Deserialize)]
        struct PlainError {
            message: String,
        }
        let status = response.status();
        let mut text = Vec::new();
        let _ = response.body_mut().as_reader().take(MAX_RESPONSE).read_to_end(&mut text);
        if let Ok(reply) = serde_json::from_slice::<ErrorReply>(&text)
            && status.as_u16() != 401
        {
            return reply.error;
        }
        let message =
            serde_json::from_slice::<PlainErrorReply>(&text).map(|reply| reply.error.message);
        let error = match status.as_u16() {
            401 => {
                Error::new(Kind::Denied, format!("the server at {} requires an API key", self.base))
                    .hint("create one with `msb server keygen` on its host and set MSB_API_KEY")
            }
            403 => {
                Error::new(Kind::Denied, format!("the server at {} denies the request", self.base))
            }
            _ => {
                Error::new(Kind::Protocol, format!("the server at {} answers {status}", self.base))
                    .hint("it may not be an msb server")
            }
        };
        match message {
            Ok(message) => error.cause(message),
            Err(_) => error,
        }
    }
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const TAR: &str = "application/x-tar";
const BYTES: &str = "application/octet-stream";

/// CA certificates of this host; empty for `http`.
fn ca_certificates(uri: &Uri) -> Result<Vec<ureq::tls::Certificate<'static>>> {
    if uri.scheme_str() != Some("https") {
        return Ok(Vec::new());
    }
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(Error::new(Kind::Host, "no CA certificates found on this host")
            .hint("install ca-certificates"));
    }
    Ok(found
        .certs
        .iter()
        .map(|it| ureq::tls::Certificate::from_der(it.as_ref()).to_owned())
        .collect())
}

/// Fields of a request that are not in the path.
struct RemainingFields(Map<String, Value>);

impl RemainingFields {
    fn query(&self) -> String {
        query(&self.0)
    }

    fn body(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }
}

/// Fills the path of a route; returns it with the remaining fields.
fn build_path<R: HttpRequest>(request: &R) -> Result<(String, RemainingFields)> {
    let mut members = members(request)?;
    let mut path = R::ROUTE.template();
    for (name, _) in R::ROUTE.in_path() {
        let value = members.remove(name).unwrap_or_default();
        path = path.replace(&format!("{{{name}}}"), &percent_encode(&text_of(&value)));
    }
    Ok((path, RemainingFields(members)))
}

fn members(request: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(request) {
        Ok(Value::Object(members)) => Ok(members),
        _ => Err(Error::invalid("the request cannot be serialised")),
    }
}

/// Encodes fields as a query string; null is left out.
fn query(members: &Map<String, Value>) -> String {
    let given = members.iter().filter(|(_, value)| !value.is_null());
    let mut pairs = form_urlencoded::Serializer::new(String::new());
    pairs.extend_pairs(given.map(|(name, value)| (name, text_of(value))));
    pairs.finish()
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Reports the progress events of a response to `watch`, until the answer.
fn read_watched<T: DeserializeOwned>(response: Response<Body>, watch: &dyn Watch) -> Result<T> {
    for event in sse::SseReader::new(response.into_body().into_reader()) {
        let (name, data) = event?;
        match name.as_str() {
            "progress" => {
                let step: msb_api::http::streams::Progress = parse_json(&data)?;
                watch.step(&step.what, step.part());
            }
            "answer" => return parse_json(&data),
            "error" => return Err(parse_json(&data)?),
            _ => {}
        }
    }
    Err(Error::new(Kind::Protocol, "the server closed the connection before its response"))
}

fn read_json<T: DeserializeOwned>(response: &mut Response<Body>) -> Result<T> {
    let mut text = Vec::new();
    let read = response.body_mut().as_reader().take(MAX_RESPONSE).read_to_end(&mut text);
    read.map_err(|error| Error::host("the response of the server was cut off", error))?;
    serde_json::from_slice(&text).map_err(invalid_reply)
}

fn parse_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(invalid_reply)
}

fn invalid_reply(error: serde_json::Error) -> Error {
    Error::new(Kind::Protocol, "the response of the server has another format")
        .cause(error)
        .hint("it may have another version; `msb version` shows this one")
}

/// For requests without progress reports.
const UNWATCHED: &NoProgress = &NoProgress;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_addresses_are_checked() {
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
        assert_eq!(percent_encode("a b/ä"), "a%20b%2F%C3%A4");
    }
}
