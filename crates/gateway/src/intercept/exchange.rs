//! One request and its answer: checked, decided, given its Secrets, sent, scrubbed, recorded.

use super::Shared;
use super::body::{BODY_LIMIT, Outgoing, Reply, Report};
use super::guarded::{FAULTY, Gate};
use super::head::Fault;
use super::line::Line;
use super::refusal;
use super::request::{self, Peer};
use super::scrub::scrub_headers;
use super::secrets::{Misplaced, Scope, Used, Why};
use super::upstream::{Protocol, Trouble};
use super::websocket;
use crate::budget::{REQUEST, Reserved, Share};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST,
    HeaderMap, HeaderValue,
};
use hyper::http::request::Parts;
use hyper::http::uri::Uri;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode, Version};
use msb_spec::{Decision, Direction};
use msb_wire::{FlowKind, NetEvent, Verdict};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::time::timeout;
use zeroize::Zeroizing;

/// As much of a body as is read whole to replace in it.
const MOST_BUFFERED: usize = 16 << 20;

/// One connection of the inside.
pub(crate) struct Flow {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u64,
    pub(crate) peer: Peer,
    pub(crate) scope: Scope,
    pub(crate) line: Line,
    /// The memory of its two connections.
    pub(crate) share: Arc<Share>,
    pub(crate) gate: Arc<Gate>,
    /// Why there was no other side at first: told to the first request, the next tries again.
    pub(crate) trouble: Mutex<Option<Trouble>>,
}

/// A request that does not go on.
struct Refused {
    status: StatusCode,
    text: String,
    /// What is recorded, unless the request was recorded before.
    rule: Option<String>,
    secrets: Vec<String>,
}

impl Refused {
    fn new(status: StatusCode, text: String, rule: impl Into<String>) -> Self {
        Self { status, text, rule: Some(rule.into()), secrets: Vec::new() }
    }

    fn response(self) -> Response<Reply> {
        let mut response = Response::new(Reply::Whole(Some(Bytes::from(self.text))));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

impl Flow {
    /// Answers one request.
    pub(crate) async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Response<Reply> {
        let asked = asks_for_websocket(&request).then(|| Asked(Some(Arc::clone(&self.gate))));
        let upgrade = request::wants_websocket(&request) && asked.is_some();
        let upgrade = upgrade.then(|| hyper::upgrade::on(&mut request));
        let (head, body) = request.into_parts();
        let shown = refusal::shown_request(head.method.as_str(), head.uri.path());
        match self.exchange(head, body, upgrade, &shown).await {
            Ok(response) => {
                if response.status() == StatusCode::SWITCHING_PROTOCOLS
                    && let Some(asked) = asked
                {
                    asked.granted();
                }
                response
            }
            Err(refused) => {
                if let Some(rule) = &refused.rule {
                    let secrets = refused.secrets.clone();
                    self.record(Decision::Deny, rule.clone(), shown, secrets);
                }
                refused.response()
            }
        }
    }

    async fn exchange(
        self: &Arc<Self>,
        mut head: Parts,
        body: Incoming,
        upgrade: Option<OnUpgrade>,
        shown: &str,
    ) -> Result<Response<Reply>, Refused> {
        self.check(&head)?;
        let decided = self.decide(&head)?;
        let mut memory = self.shared.budget.reserve(REQUEST).ok_or_else(|| self.crowded())?;
        // What is asked of the headers is asked of those that go on.
        let mut passed = head.headers.clone();
        request::drop_hop_headers(&mut passed);
        let misplaced = self.scope.lost(&head.headers, &passed);
        if let Some(misplaced) = misplaced.or_else(|| self.scope.rival(&passed)) {
            return Err(self.misplaced(misplaced));
        }
        head.headers = passed;
        let mut used = Used::new();
        self.scope.put_in(&mut head, &mut used).map_err(|misplaced| self.misplaced(misplaced))?;
        let found = Arc::new(OnceLock::new());
        let report = self.reporting(shown, &found);
        let body = self.outgoing(&mut head, body, (&mut used, &mut memory), report).await?;
        if let Some(missing) = self.scope.missing(&used) {
            return Err(self.misplaced(missing));
        }
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(trouble) = trouble {
            return Err(self.troubled(&trouble));
        }
        let allowed = || {
            let secrets = self.scope.names(&used);
            self.record(Decision::Allow, decided, shown.to_owned(), secrets);
        };
        let request = self.prepared(head, body, upgrade.is_some());
        let answered = match request.body() {
            // One Verdict for each request, and this one may still be refused.
            Outgoing::Passing(_) => {
                let answered = self.line.send(request).await;
                if let Some(of) = found.get() {
                    let mut refused = self.misplaced(self.scope.misplaced(*of, "the body"));
                    // Recorded when it was found.
                    refused.rule = None;
                    return Err(refused);
                }
                allowed();
                answered
            }
            Outgoing::Whole(_) => {
                allowed();
                self.line.send(request).await
            }
        };
        let response = answered.map_err(|trouble| self.troubled(&trouble))?;
        let with_secret = !used.is_empty() || self.passed_to_proxy().is_some();
        self.returned(response, upgrade, (with_secret, memory))
    }

    /// What is done when a placeholder comes in a body that is already on its way. The answer may
    /// have begun as well, so this is the only place where it can be recorded for sure.
    fn reporting(self: &Arc<Self>, shown: &str, found: &Arc<OnceLock<usize>>) -> Report {
        let (flow, shown, found) = (Arc::clone(self), shown.to_owned(), Arc::clone(found));
        Box::new(move |of| {
            let refused = flow.misplaced(flow.scope.misplaced(of, "the body"));
            let rule = refused.rule.unwrap_or_default();
            flow.record(Decision::Deny, rule, shown, refused.secrets);
            let _ = found.set(of);
        })
    }

    fn check(&self, head: &Parts) -> Result<(), Refused> {
        if head.method.as_str() == FAULTY
            && let Some(fault) = self.gate.fault()
        {
            let status = match fault {
                Fault::TooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                _ => StatusCode::BAD_REQUEST,
            };
            let text = refusal::because(&self.peer.name, fault.why(), None);
            return Err(Refused::new(status, text, fault.why()));
        }
        request::check(head, &self.peer).map_err(|wrong| {
            let text = refusal::because(&self.peer.name, wrong.why, None);
            Refused::new(wrong.status, text, wrong.why)
        })
    }

    /// The rule that allows it.
    fn decide(&self, head: &Parts) -> Result<String, Refused> {
        let policy = Arc::clone(&self.shared.policy.borrow());
        let decided = request::decide(&policy, &self.peer, head);
        match decided.decision {
            Decision::Allow => Ok(decided.rule),
            Decision::Deny => {
                let (method, path) = (head.method.as_str(), head.uri.path());
                let text = refusal::by_rule(method, &self.peer.name, path, &decided.rule);
                Err(Refused::new(StatusCode::FORBIDDEN, text, decided.rule))
            }
        }
    }

    /// The sandbox has all the memory of its gateway in use.
    fn crowded(&self) -> Refused {
        let why = "the memory of the gateway is in use";
        let text = refusal::because(&self.peer.name, why, Some("close other connections first"));
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, text, why)
    }

    fn misplaced(&self, misplaced: Misplaced) -> Refused {
        let secret = &misplaced.secret;
        let (why, hint) = match &misplaced.why {
            Why::OtherHost => ("a secret that is for other hosts".to_owned(), None),
            Why::NotEncrypted => {
                ("a secret without TLS".to_owned(), Some("use `https://`".to_owned()))
            }
            Why::Place(place) => {
                let hint = "it is put into `authorization` and the usual headers of API keys; \
                            `--secret-in` names other places";
                (format!("a secret in {place}"), Some(hint.to_owned()))
            }
            Why::Missing => {
                let hint = format!("send what the variable `{secret}` holds in `authorization`");
                ("a request without its secret".to_owned(), Some(hint))
            }
            Why::Rival(header) => {
                let hint = format!("send nothing but what the variable `{secret}` holds");
                (format!("another credential in the header `{header}`"), Some(hint))
            }
            Why::Unfit => ("a secret whose value cannot stand there".to_owned(), None),
        };
        let text =
            refusal::because(&self.peer.name, &format!("{why}: `{secret}`"), hint.as_deref());
        let mut refused = Refused::new(StatusCode::FORBIDDEN, text, why);
        refused.secrets = vec![misplaced.secret];
        refused
    }

    fn troubled(&self, trouble: &Trouble) -> Refused {
        let status = match trouble {
            Trouble::Slow => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        };
        let hint = match trouble {
            Trouble::Certificate(_) => Some(
                "the host must trust its authority; names that check certificates themselves can \
                 be left alone with `--net-bypass`",
            ),
            _ => None,
        };
        let text = refusal::because(&self.peer.name, &trouble.why(), hint);
        let mut refused = Refused::new(status, text, trouble.why());
        // Only a certificate is a decision of ours; the rest just happens.
        if !matches!(trouble, Trouble::Certificate(_)) {
            refused.rule = None;
        }
        refused
    }

    /// The body as it goes out: read whole where values are put into bodies.
    async fn outgoing(
        &self,
        head: &mut Parts,
        body: Incoming,
        (used, memory): (&mut Used, &mut Reserved),
        report: Report,
    ) -> Result<Outgoing, Refused> {
        if !self.scope.wants_body() || body.is_end_stream() {
            return Ok(Outgoing::passing(body, self.scope.clone(), report));
        }
        let closed = |_| Refused::new(StatusCode::BAD_GATEWAY, String::new(), "the end");
        let _room = self.shared.buffers.acquire().await.map_err(closed)?;
        let bytes = self.collected(body, memory).await?;
        let replaced = self.scope.put_in_body(&head.headers, &bytes, used);
        let whole = match replaced.map_err(|misplaced| self.misplaced(misplaced))? {
            Some(replaced) => Bytes::from_owner(replaced),
            None => Bytes::from_owner(bytes),
        };
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(whole.len()));
        Ok(Outgoing::Whole(Some(whole)))
    }

    async fn collected(
        &self,
        mut body: Incoming,
        memory: &mut Reserved,
    ) -> Result<Zeroizing<Vec<u8>>, Refused> {
        let name = &self.peer.name;
        let mut whole = Zeroizing::new(Vec::new());
        loop {
            let next = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
            let Ok(next) = timeout(BODY_LIMIT, next).await else {
                let why = "a body that does not end";
                let text = refusal::because(name, why, None);
                return Err(Refused::new(StatusCode::REQUEST_TIMEOUT, text, why));
            };
            let broken = |_| {
                let why = "a broken body";
                Refused::new(StatusCode::BAD_REQUEST, refusal::because(name, why, None), why)
            };
            let Some(frame) = next.transpose().map_err(broken)? else { return Ok(whole) };
            match frame.into_data() {
                Ok(piece) if whole.len() + piece.len() <= MOST_BUFFERED => {
                    // Once as it came, and once with values in it.
                    if !memory.grow(2 * piece.len()) {
                        return Err(self.crowded());
                    }
                    whole.extend_from_slice(&piece);
                }
                Ok(_) => {
                    let why = "a body that is too long to put a secret in";
                    let text = refusal::because(name, why, Some("at most 16 MiB are read for it"));
                    return Err(Refused::new(StatusCode::PAYLOAD_TOO_LARGE, text, why));
                }
                // Trailers are not needed by anybody who gets a body with a length.
                Err(_) => {}
            }
        }
    }

    /// The request as the other side gets it.
    fn prepared(&self, mut head: Parts, body: Outgoing, websocket: bool) -> Request<Outgoing> {
        request::drop_hop_headers(&mut head.headers);
        head.headers.remove(EXPECT);
        if websocket {
            head.headers.insert("connection", HeaderValue::from_static("upgrade"));
            head.headers.insert("upgrade", HeaderValue::from_static("websocket"));
        }
        if self.scope.is_scrubbing() {
            head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            // What is compressed inside of frames could not be scrubbed.
            head.headers.remove("sec-websocket-extensions");
        }
        let mut request = Request::new(body);
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let port = self.peer.address.port();
        let usual = if self.peer.tls { 443 } else { 80 };
        let place = match port == usual {
            true => self.peer.name.to_string(),
            false => format!("{}:{port}", self.peer.name),
        };
        let uri = match self.line.protocol() {
            Protocol::Two => {
                head.headers.remove(HOST);
                *request.version_mut() = Version::HTTP_2;
                Uri::try_from(format!("https://{place}{path}"))
            }
            Protocol::One => match self.passed_to_proxy() {
                Some(authorization) => {
                    if let Some(value) = authorization {
                        head.headers.insert("proxy-authorization", value);
                    }
                    Uri::try_from(format!("http://{place}{path}"))
                }
                None => Uri::try_from(path),
            },
        };
        // All parts come from an address that was valid.
        *request.uri_mut() = uri.unwrap_or_default();
        *request.method_mut() = head.method;
        *request.headers_mut() = head.headers;
        request
    }

    /// Plain requests are handed as a whole to a proxy that resolves names, with what it wants to see.
    fn passed_to_proxy(&self) -> Option<Option<HeaderValue>> {
        let proxy = self.shared.upstream.proxy_for(&self.peer).filter(|_| !self.peer.tls)?;
        let proxy = Some(proxy).filter(|proxy| proxy.takes_requests())?;
        Some(proxy.authorization().and_then(|value| HeaderValue::from_bytes(&value).ok()))
    }

    fn returned(
        &self,
        mut response: Response<Incoming>,
        upgrade: Option<OnUpgrade>,
        (with_secret, memory): (bool, Reserved),
    ) -> Result<Response<Reply>, Refused> {
        let switching = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let other = switching.then(|| hyper::upgrade::on(&mut response));
        let (mut head, body) = response.into_parts();
        let is_websocket = is_websocket(&head.headers);
        // The reason and whatever else is not in the headers could repeat a value.
        head.extensions.clear();
        request::drop_hop_headers(&mut head.headers);
        // Ways to reach the host that nobody would look into.
        head.headers.remove("alt-svc");
        scrub_headers(self.scope.values(), &mut head.headers);
        if let Some(other) = other {
            let (true, Some(own)) = (is_websocket, upgrade) else {
                let trouble = Trouble::Broken("it changes the protocol unasked".to_owned());
                return Err(self.troubled(&trouble));
            };
            head.headers.insert("connection", HeaderValue::from_static("upgrade"));
            head.headers.insert("upgrade", HeaderValue::from_static("websocket"));
            let (scope, share) = (self.scope.clone(), Arc::clone(&self.share));
            tokio::spawn(async move {
                websocket::pass(own, other, scope).await;
                drop((share, memory));
            });
            return Ok(Response::from_parts(head, Reply::Whole(None)));
        }
        if with_secret && self.scope.is_scrubbing() && is_compressed(&head.headers) {
            let trouble = Trouble::Broken(
                "it is compressed although that was refused, so a secret in it could not be found"
                    .to_owned(),
            );
            return Err(self.troubled(&trouble));
        }
        let body = Reply::passing(body, &head.headers, &self.scope, memory);
        Ok(Response::from_parts(head, body))
    }

    pub(crate) fn record(
        &self,
        decision: Decision,
        rule: String,
        request: String,
        secrets: Vec<String>,
    ) {
        self.shared.events.push(NetEvent::Decided(Verdict {
            flow: self.number,
            decision,
            direction: Direction::Egress,
            kind: FlowKind::Http,
            name: Some(self.peer.name.clone()),
            address: Some(self.peer.address.ip()),
            port: Some(self.peer.address.port()),
            rule,
            request: Some(request),
            secrets,
        }));
    }
}

/// Tells the reading side that WebSocket was not granted, unless it was.
struct Asked(Option<Arc<Gate>>);

impl Asked {
    fn granted(mut self) {
        if let Some(gate) = self.0.take() {
            gate.answer(true);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.answer(false);
        }
    }
}

/// Whether the reading side waits for an answer; it decides by the same.
fn asks_for_websocket(request: &Request<Incoming>) -> bool {
    let headers = request.headers();
    let named =
        |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"websocket");
    request.version() < Version::HTTP_2
        && headers.get_all("upgrade").iter().any(named)
        && !headers.contains_key("transfer-encoding")
        && request.body().is_end_stream()
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get("upgrade").map(HeaderValue::as_bytes);
    upgrade.is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(b"websocket"))
}

fn is_compressed(headers: &HeaderMap) -> bool {
    let mut all = headers.get_all(CONTENT_ENCODING).iter();
    all.any(|value| !value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"))
}
