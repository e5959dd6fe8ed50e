//! Authentication at a registry: anonymous, Basic, or Bearer with a token server.

use super::public_only::NotPublic;
use super::{IDLE_TIMEOUT, RegistryEndpoint, UNREACHABLE, read_bounded};
use crate::credentials::{Credential, Credentials};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use msb_spec::encoding::percent_encode;
use msb_spec::{Error, Kind, Result};
use serde::Deserialize;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Mutex;
use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use ureq::{AsSendBody, Body, ResponseExt};

/// Largest response of a token server.
const TOKEN_LIMIT: u64 = 1 << 20;

/// `Authorization` headers that have worked, by scope.
#[derive(Debug)]
pub(crate) struct AuthCache {
    credentials: Credentials,
    headers: Mutex<HashMap<String, AuthHeader>>,
}

/// Value of an `Authorization` header. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
struct AuthHeader(String);

impl std::fmt::Debug for AuthHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Header(…)")
    }
}

/// What a registry asks for in `WWW-Authenticate`.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

impl AuthCache {
    pub(crate) fn new(credentials: Credentials) -> Self {
        Self { credentials, headers: Mutex::default() }
    }

    fn header(&self, scope: &str) -> Option<AuthHeader> {
        self.headers.lock().expect("no holder panics").get(scope).cloned()
    }

    fn store(&self, scope: &str, header: &AuthHeader) {
        self.headers.lock().expect("no holder panics").insert(scope.to_owned(), header.clone());
    }
}

impl RegistryEndpoint {
    /// Sends a request without a body. Repeats it with credentials after a 401.
    pub(super) fn request(
        &self,
        scope: &str,
        method: &Method,
        url: &str,
        headers: &[(&str, &str)],
    ) -> Result<Response<Body>> {
        self.request_with_body(scope, method, url, headers, || Ok(()))
    }

    /// Sends a request with a body. Repeats it with credentials after a 401.
    pub(super) fn request_with_body<B: AsSendBody>(
        &self,
        scope: &str,
        method: &Method,
        url: &str,
        headers: &[(&str, &str)],
        body: impl Fn() -> Result<B>,
    ) -> Result<Response<Body>> {
        let known = self.auth.header(scope);
        let response = self.send(method, url, headers, known.as_ref(), body()?)?;
        // A redirect target must not challenge: it would name its own token server, which would get
        // the password for this registry.
        if response.status() != StatusCode::UNAUTHORIZED || !self.is_own(&response) {
            return Ok(response);
        }
        let Some(challenge) = challenge(response.headers()) else {
            return Ok(response);
        };
        match self.authorize(&challenge, scope)? {
            Some(fresh) if known.as_ref() != Some(&fresh) => {
                self.auth.store(scope, &fresh);
                self.send(method, url, headers, Some(&fresh), body()?)
            }
            _ => Ok(response),
        }
    }

    /// Whether the response came from this endpoint and not from a redirect target.
    fn is_own(&self, response: &Response<Body>) -> bool {
        let answered = response.get_uri();
        let base = self.base.parse::<Uri>();
        base.is_ok_and(|base| {
            (base.scheme(), base.authority()) == (answered.scheme(), answered.authority())
        })
    }

    /// Whether a server responds at all; any status counts.
    pub(super) fn ping(&self) -> Result<()> {
        let url = format!("{}/v2/", self.base);
        self.send(&Method::GET, &url, &[], None, ()).map(drop)
    }

    fn send(
        &self,
        method: &Method,
        url: &str,
        headers: &[(&str, &str)],
        authorization: Option<&AuthHeader>,
        body: impl AsSendBody,
    ) -> Result<Response<Body>> {
        let mut request = Request::builder().method(method.clone()).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(AuthHeader(value)) = authorization {
            request = request.header("Authorization", value);
        }
        let request = request.body(body).map_err(|error| {
            Error::invalid(format!("cannot send a request to {}", self.base)).cause(error)
        })?;
        self.agent.run(request).map_err(|error| unreachable(&self.base, error))
    }

    /// The header that answers a challenge; none without credentials.
    fn authorize(&self, challenge: &Challenge, scope: &str) -> Result<Option<AuthHeader>> {
        let credential = self.auth.credentials.find(&self.host)?;
        match challenge {
            Challenge::Basic => Ok(credential.and_then(|credential| basic(&credential))),
            Challenge::Bearer { realm, service } => {
                self.token(realm, service.as_deref(), scope, credential.as_ref()).map(Some)
            }
        }
    }

    /// Fetches a token from the token server of the registry.
    fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        credential: Option<&Credential>,
    ) -> Result<AuthHeader> {
        #[derive(Deserialize)]
        struct TokenReply {
            token: Option<String>,
            access_token: Option<String>,
        }
        let plain = self.base.starts_with("http://");
        // Over TLS the registry must not redirect the password to a server without TLS.
        let safe = realm.starts_with("https://") || (plain && realm.starts_with("http://"));
        if !safe {
            return Err(Error::new(
                Kind::Protocol,
                format!("{} names a token server without TLS", self.base),
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
                    percent_encode(value)
                );
            }
        }
        let response = match credential {
            Some(Credential::IdentityToken(token)) => {
                let form = format!(
                    "grant_type=refresh_token&client_id=msb&refresh_token={}&{query}",
                    percent_encode(token.reveal())
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
            return Err(self.error_from(response));
        }
        let text = read_bounded(response, TOKEN_LIMIT)?;
        let answer: TokenReply = serde_json::from_slice(&text).map_err(|_| {
            Error::new(Kind::Protocol, format!("{} sent an invalid token", self.base))
        })?;
        let token = answer.token.or(answer.access_token).filter(|token| {
            !token.is_empty() && token.bytes().all(|byte| (0x21..0x7f).contains(&byte))
        });
        token.map(|token| AuthHeader(format!("Bearer {token}"))).ok_or_else(|| {
            Error::new(Kind::Protocol, format!("{} sent an invalid token", self.base))
        })
    }
}

fn basic(credential: &Credential) -> Option<AuthHeader> {
    match credential {
        Credential::Password { user, secret } => {
            let both = format!("{user}:{}", secret.reveal());
            Some(AuthHeader(format!("Basic {}", BASE64.encode(both))))
        }
        Credential::IdentityToken(_) => None,
    }
}

/// The preferred challenge: Bearer before Basic.
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

/// Converts a transport error.
fn unreachable(base: &str, error: ureq::Error) -> Error {
    let about = Error::new(Kind::Host, format!("{UNREACHABLE}{base}"));
    let said = error.to_string();
    if said.contains("certificate") {
        // The peer speaks TLS, so plain HTTP need not be tried.
        let message = format!("cannot verify the TLS certificate of {base}");
        return Error::new(Kind::Host, message).cause(said).hint(
            "`--ca FILE` adds a CA certificate, `--insecure` turns verification off; \
             config.toml can set either",
        );
    }
    match error {
        ureq::Error::Timeout(_) => {
            about.cause(format!("no response within {} seconds", IDLE_TIMEOUT.as_secs()))
        }
        ureq::Error::HostNotFound => about.cause("the host name does not exist"),
        ureq::Error::Io(cause) if NotPublic::is_in(&cause) => Error::new(
            Kind::Denied,
            format!("clients cannot use {base} through this server"),
        )
        .cause(cause)
        .hint(
            "the operator of the server can pull the image, or set `trusted` for the registry in \
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
        assert_eq!(percent_encode("repository:a/b:pull,push"), "repository%3Aa%2Fb%3Apull%2Cpush");
    }
}
