//! Being let in: anonymous, by password, or by a token that another server gives.

use super::public_only::NotPublic;
use super::{Registry, SILENCE_LIMIT, UNREACHABLE, read_bounded};
use crate::credentials::{Credential, Credentials};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use msb_spec::{Error, Kind, Result};
use serde::Deserialize;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Mutex;
use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use ureq::{AsSendBody, Body, ResponseExt};

/// A token is a few kilobytes.
const TOKEN_LIMIT: u64 = 1 << 20;

/// What has let us in so far, by what it was for.
#[derive(Debug)]
pub(crate) struct Access {
    credentials: Credentials,
    headers: Mutex<HashMap<String, Header>>,
}

/// The value of an `Authorization` header, which is shown to nobody.
#[derive(Clone, PartialEq, Eq)]
struct Header(String);

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Header(…)")
    }
}

/// What a registry wants to see.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

impl Access {
    pub(crate) fn new(credentials: Credentials) -> Self {
        Self { credentials, headers: Mutex::default() }
    }

    fn header(&self, scope: &str) -> Option<Header> {
        self.headers.lock().expect("no holder panics").get(scope).cloned()
    }

    fn remember(&self, scope: &str, header: &Header) {
        self.headers.lock().expect("no holder panics").insert(scope.to_owned(), header.clone());
    }
}

impl Registry {
    /// Sends a request without a body, a second time if the registry wants to know who we are.
    pub(super) fn ask(
        &self,
        scope: &str,
        method: &Method,
        url: &str,
        headers: &[(&str, &str)],
    ) -> Result<Response<Body>> {
        self.ask_with(scope, method, url, headers, || Ok(()))
    }

    /// The same with a body.
    pub(super) fn ask_with<B: AsSendBody>(
        &self,
        scope: &str,
        method: &Method,
        url: &str,
        headers: &[(&str, &str)],
        body: impl Fn() -> Result<B>,
    ) -> Result<Response<Body>> {
        let known = self.access.header(scope);
        let response = self.send(method, url, headers, known.as_ref(), body()?)?;
        // Where a redirect has led may not ask: it would name its own token server, which would
        // be shown the password for this registry.
        if response.status() != StatusCode::UNAUTHORIZED || !self.is_own(&response) {
            return Ok(response);
        }
        let Some(challenge) = challenge(response.headers()) else {
            return Ok(response);
        };
        match self.authorize(&challenge, scope)? {
            Some(fresh) if known.as_ref() != Some(&fresh) => {
                self.access.remember(scope, &fresh);
                self.send(method, url, headers, Some(&fresh), body()?)
            }
            _ => Ok(response),
        }
    }

    /// Whether the registry itself has answered.
    fn is_own(&self, response: &Response<Body>) -> bool {
        let answered = response.get_uri();
        let base = self.base.parse::<Uri>();
        base.is_ok_and(|base| {
            (base.scheme(), base.authority()) == (answered.scheme(), answered.authority())
        })
    }

    /// Whether there is a registry at all: any answer will do.
    pub(super) fn answers(&self) -> Result<()> {
        let url = format!("{}/v2/", self.base);
        self.send(&Method::GET, &url, &[], None, ()).map(drop)
    }

    fn send(
        &self,
        method: &Method,
        url: &str,
        headers: &[(&str, &str)],
        authorization: Option<&Header>,
        body: impl AsSendBody,
    ) -> Result<Response<Body>> {
        let mut request = Request::builder().method(method.clone()).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(Header(value)) = authorization {
            request = request.header("Authorization", value);
        }
        let request = request
            .body(body)
            .map_err(|error| Error::invalid(format!("cannot ask {}", self.base)).cause(error))?;
        self.agent.run(request).map_err(|error| unreachable(&self.base, error))
    }

    /// What to show the registry; none if we have nothing to show.
    fn authorize(&self, challenge: &Challenge, scope: &str) -> Result<Option<Header>> {
        let credential = self.access.credentials.find(&self.host)?;
        match challenge {
            Challenge::Basic => Ok(credential.and_then(|credential| basic(&credential))),
            Challenge::Bearer { realm, service } => {
                self.token(realm, service.as_deref(), scope, credential.as_ref()).map(Some)
            }
        }
    }

    /// Fetches a token from the server that the registry names.
    fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        credential: Option<&Credential>,
    ) -> Result<Header> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let plain = self.base.starts_with("http://");
        // A registry that has TLS does not have our password sent without.
        let safe = realm.starts_with("https://") || (plain && realm.starts_with("http://"));
        if !safe {
            return Err(Error::new(
                Kind::Protocol,
                format!("{} wants a token from a place that is not safe", self.base),
            )
            .cause(msb_spec::shown(realm)));
        }
        let mut query = String::new();
        for (name, value) in [("service", service.unwrap_or_default()), ("scope", scope)] {
            if !value.is_empty() {
                let _ = write!(
                    query,
                    "{}{name}={}",
                    if query.is_empty() { "" } else { "&" },
                    encoded(value)
                );
            }
        }
        let response = match credential {
            Some(Credential::IdentityToken(token)) => {
                let form = format!(
                    "grant_type=refresh_token&client_id=msb&refresh_token={}&{query}",
                    encoded(token.reveal())
                );
                let headers = [("Content-Type", "application/x-www-form-urlencoded")];
                self.send(&Method::POST, realm, &headers, None, form.as_str())?
            }
            other => {
                let url = match (query.is_empty(), realm.contains('?')) {
                    (true, _) => realm.to_owned(),
                    (false, true) => format!("{realm}&{query}"),
                    (false, false) => format!("{realm}?{query}"),
                };
                let header = other.and_then(basic);
                self.send(&Method::GET, &url, &[], header.as_ref(), ())?
            }
        };
        if response.status() != StatusCode::OK {
            return Err(self.complaint(response));
        }
        let text = read_bounded(response, TOKEN_LIMIT)?;
        let answer: Answer = serde_json::from_slice(&text).map_err(|_| {
            Error::new(Kind::Protocol, format!("{} gave a token that is none", self.base))
        })?;
        let token = answer.token.or(answer.access_token).filter(|token| {
            !token.is_empty() && token.bytes().all(|byte| (0x21..0x7f).contains(&byte))
        });
        token.map(|token| Header(format!("Bearer {token}"))).ok_or_else(|| {
            Error::new(Kind::Protocol, format!("{} gave a token that is none", self.base))
        })
    }
}

fn basic(credential: &Credential) -> Option<Header> {
    match credential {
        Credential::Password { user, secret } => {
            let both = format!("{user}:{}", secret.reveal());
            Some(Header(format!("Basic {}", BASE64.encode(both))))
        }
        Credential::IdentityToken(_) => None,
    }
}

/// The first challenge that we can meet.
fn challenge(headers: &HeaderMap) -> Option<Challenge> {
    let all = headers.get_all("WWW-Authenticate").iter().filter_map(|value| value.to_str().ok());
    let challenges: Vec<Challenge> = all.filter_map(parse_challenge).collect();
    let bearer = |one: &Challenge| matches!(one, Challenge::Bearer { .. });
    let at = challenges.iter().position(bearer).unwrap_or(0);
    challenges.into_iter().nth(at)
}

fn parse_challenge(text: &str) -> Option<Challenge> {
    let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut rest) = (None, None, rest);
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([',', ' ']);
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        match name.to_ascii_lowercase().as_str() {
            "realm" => realm = Some(value.to_owned()),
            "service" => service = Some(value.to_owned()),
            _ => {}
        }
        rest = after;
    }
    realm.map(|realm| Challenge::Bearer { realm, service })
}

/// Percent-encoded, as a value in a query.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

/// Why nothing came back.
fn unreachable(base: &str, error: ureq::Error) -> Error {
    let about = Error::new(Kind::Host, format!("{UNREACHABLE}{base}"));
    let said = error.to_string();
    if said.contains("certificate") {
        // It speaks TLS, so there is no use in trying without.
        return Error::new(Kind::Host, format!("{base} is not to be trusted")).cause(said).hint(
            "`--ca FILE` names a certificate to trust, `--insecure` does without; config.toml \
             keeps either",
        );
    }
    match error {
        ureq::Error::Timeout(_) => {
            about.cause(format!("it did not answer within {} seconds", SILENCE_LIMIT.as_secs()))
        }
        ureq::Error::HostNotFound => about.cause("there is no such host"),
        ureq::Error::Io(cause) if NotPublic::is_in(&cause) => Error::new(
            Kind::Denied,
            format!("clients do not reach {base} through this server"),
        )
        .cause(cause)
        .hint(
            "the operator of the server can pull the image, or name the registry as `trusted` in \
                     config.toml",
        ),
        ureq::Error::Io(cause) => about.cause(cause),
        other => about.cause(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_as_registries_write_it() {
        let text = r#"Bearer realm="https://auth.example/token",service="a, b",scope="x:y""#;
        assert_eq!(
            parse_challenge(text),
            Some(Challenge::Bearer {
                realm: "https://auth.example/token".to_owned(),
                service: Some("a, b".to_owned())
            })
        );
        assert_eq!(parse_challenge("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(parse_challenge("Negotiate"), None);
    }

    #[test]
    fn a_scope_survives_a_query() {
        assert_eq!(encoded("repository:a/b:pull,push"), "repository%3Aa%2Fb%3Apull%2Cpush");
    }
}
