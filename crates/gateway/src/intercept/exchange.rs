//! One HTTP exchange: the request is checked, decided, given its Secrets and sent; the response is
//! scrubbed and recorded.

use super::InterceptContext;
use super::body::{BODY_TIMEOUT, PlaceholderReport, RequestBody, ResponseBody};
use super::http1_framing::FramingFault;
use super::refusal;
use super::request::{self, OriginServer};
use super::request_guard::{FAULT_METHOD, GuardState};
use super::upstream::UpstreamError;
use super::upstream_conn::UpstreamConn;
use super::websocket;
use crate::budget::{ConnectionMemory, MemoryReservation, REQUEST_BYTES};
use crate::secrets::scrub::scrub_headers;
use crate::secrets::substitution::{HostSecrets, RefusalReason, RefusedSecret, UsedSecrets};
use crate::tls::client::HttpVersion;
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

/// The longest body that is buffered to substitute values in it, in bytes.
const MAX_BUFFERED_BODY: usize = 16 << 20;

/// One connection of a client in the sandbox, and its upstream connection.
pub(crate) struct ClientConnection {
    pub(crate) shared: Arc<InterceptContext>,
    pub(crate) number: u64,
    pub(crate) origin: OriginServer,
    pub(crate) secrets: HostSecrets,
    pub(crate) upstream: UpstreamConn,
    /// The memory that is reserved for both connections.
    pub(crate) memory_share: Arc<ConnectionMemory>,
    pub(crate) guard: Arc<GuardState>,
    /// Why the first connect failed: reported to the first request; the next one tries again.
    pub(crate) connect_error: Mutex<Option<UpstreamError>>,
}

/// A request that is refused, with its response.
struct RefusedRequest {
    status: StatusCode,
    text: String,
    /// The rule that is recorded; `None` if the request was recorded already.
    rule: Option<String>,
    secrets: Vec<String>,
}

impl RefusedRequest {
    fn new(status: StatusCode, text: String, rule: impl Into<String>) -> Self {
        Self { status, text, rule: Some(rule.into()), secrets: Vec::new() }
    }

    fn response(self) -> Response<ResponseBody> {
        let mut response = Response::new(ResponseBody::Whole(Some(Bytes::from(self.text))));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

impl ClientConnection {
    /// Serves one request of the client.
    pub(crate) async fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let upgrade_wait =
            waits_for_websocket(&request).then(|| UpgradeWait(Some(Arc::clone(&self.guard))));
        let client_upgrade = request::wants_websocket(&request) && upgrade_wait.is_some();
        let client_upgrade = client_upgrade.then(|| hyper::upgrade::on(&mut request));
        let (head, body) = request.into_parts();
        let shown = refusal::shown_request(head.method.as_str(), head.uri.path());
        match self.exchange(head, body, client_upgrade, &shown).await {
            Ok(response) => {
                if response.status() == StatusCode::SWITCHING_PROTOCOLS
                    && let Some(upgrade_wait) = upgrade_wait
                {
                    upgrade_wait.granted();
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
        client_upgrade: Option<OnUpgrade>,
        shown: &str,
    ) -> Result<Response<ResponseBody>, RefusedRequest> {
        self.check(&head)?;
        let decided = self.decide(&head)?;
        let mut memory =
            self.shared.budget.reserve(REQUEST_BYTES).ok_or_else(|| self.out_of_memory())?;
        // Headers are checked as they are forwarded, without hop-by-hop headers.
        let mut passed = head.headers.clone();
        request::drop_hop_headers(&mut passed);
        let refused_secret = self.secrets.dropped_placeholder(&head.headers, &passed);
        if let Some(refused_secret) =
            refused_secret.or_else(|| self.secrets.other_credential(&passed))
        {
            return Err(self.secret_refused(refused_secret));
        }
        head.headers = passed;
        let mut used = UsedSecrets::new();
        self.secrets
            .substitute(&mut head, &mut used)
            .map_err(|refused_secret| self.secret_refused(refused_secret))?;
        let found = Arc::new(OnceLock::new());
        let report = self.placeholder_report(shown, &found);
        let body = self.request_body(&mut head, body, (&mut used, &mut memory), report).await?;
        if let Some(missing) = self.secrets.missing(&used) {
            return Err(self.secret_refused(missing));
        }
        let connect_error =
            self.connect_error.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(connect_error) = connect_error {
            return Err(self.upstream_failed(&connect_error));
        }
        let allowed = || {
            let secrets = self.secrets.names(&used);
            self.record(Decision::Allow, decided, shown.to_owned(), secrets);
        };
        let request = self.upstream_request(head, body, client_upgrade.is_some());
        let answered = match request.body() {
            // There is one Verdict for each request, and this one may still be refused.
            RequestBody::Streaming(_) => {
                let answered = self.upstream.send(request).await;
                if let Some(of) = found.get() {
                    let mut refused =
                        self.secret_refused(self.secrets.refuse_place(*of, "the body"));
                    // It was recorded when the placeholder was found.
                    refused.rule = None;
                    return Err(refused);
                }
                allowed();
                answered
            }
            RequestBody::Whole(_) => {
                allowed();
                self.upstream.send(request).await
            }
        };
        let response = answered.map_err(|error| self.upstream_failed(&error))?;
        let with_secret = !used.is_empty() || self.proxy_authorization().is_some();
        self.client_response(response, client_upgrade, (with_secret, memory))
    }

    /// What to do when a placeholder is found in a body that is being forwarded. The response may
    /// have begun already, so the refusal is recorded here.
    fn placeholder_report(
        self: &Arc<Self>,
        shown: &str,
        found: &Arc<OnceLock<usize>>,
    ) -> PlaceholderReport {
        let (flow, shown, found) = (Arc::clone(self), shown.to_owned(), Arc::clone(found));
        Box::new(move |of| {
            let refused = flow.secret_refused(flow.secrets.refuse_place(of, "the body"));
            let rule = refused.rule.unwrap_or_default();
            flow.record(Decision::Deny, rule, shown, refused.secrets);
            let _ = found.set(of);
        })
    }

    fn check(&self, head: &Parts) -> Result<(), RefusedRequest> {
        if head.method.as_str() == FAULT_METHOD
            && let Some(fault) = self.guard.fault()
        {
            let status = match fault {
                FramingFault::TooLong => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                _ => StatusCode::BAD_REQUEST,
            };
            let text = refusal::because(&self.origin.name, fault.why(), None);
            return Err(RefusedRequest::new(status, text, fault.why()));
        }
        request::check(head, &self.origin).map_err(|wrong| {
            let text = refusal::because(&self.origin.name, wrong.why, None);
            RefusedRequest::new(wrong.status, text, wrong.why)
        })
    }

    /// The rule that allows the request, or the refusal.
    fn decide(&self, head: &Parts) -> Result<String, RefusedRequest> {
        let policy = Arc::clone(&self.shared.policy.borrow());
        let decided = request::decide(&policy, &self.origin, head);
        match decided.action {
            Decision::Allow => Ok(decided.rule),
            Decision::Deny => {
                let (method, path) = (head.method.as_str(), head.uri.path());
                let text = refusal::by_rule(method, &self.origin.name, path, &decided.rule);
                Err(RefusedRequest::new(StatusCode::FORBIDDEN, text, decided.rule))
            }
        }
    }

    /// The refusal when the memory budget is used up.
    fn out_of_memory(&self) -> RefusedRequest {
        let why = "the gateway's memory is used up";
        let text = refusal::because(&self.origin.name, why, Some("close other connections first"));
        RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, text, why)
    }

    fn secret_refused(&self, refused_secret: RefusedSecret) -> RefusedRequest {
        let secret = &refused_secret.secret;
        let (why, hint) = match &refused_secret.reason {
            RefusalReason::OtherHost => ("a secret that is for other hosts".to_owned(), None),
            RefusalReason::NotEncrypted => {
                ("a secret without TLS".to_owned(), Some("use `https://`".to_owned()))
            }
            RefusalReason::Place(place) => {
                let hint = "values are substituted in `authorization` and common API key headers; \
                            `--secret-in` adds other places";
                (format!("a secret in {place}"), Some(hint.to_owned()))
            }
            RefusalReason::Missing => {
                let hint = format!("send the value of the variable `{secret}` in `authorization`");
                ("a request without its secret".to_owned(), Some(hint))
            }
            RefusalReason::OtherCredential(header) => {
                let hint = format!("send only the value of the variable `{secret}`");
                (format!("another credential in the header `{header}`"), Some(hint))
            }
            RefusalReason::InvalidBytes => {
                ("a secret value with invalid bytes for its place".to_owned(), None)
            }
        };
        let text =
            refusal::because(&self.origin.name, &format!("{why}: `{secret}`"), hint.as_deref());
        let mut refused = RefusedRequest::new(StatusCode::FORBIDDEN, text, why);
        refused.secrets = vec![refused_secret.secret];
        refused
    }

    fn upstream_failed(&self, error: &UpstreamError) -> RefusedRequest {
        tracing::debug!(name = %self.origin.name, why = error.why(), "the server failed");
        let status = match error {
            UpstreamError::Slow => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        };
        let hint = match error {
            UpstreamError::Certificate(_) => Some(
                "the host must trust the CA of the server; `--net-bypass` exempts names with \
                 clients that pin certificates",
            ),
            _ => None,
        };
        let text = refusal::because(&self.origin.name, &error.why(), hint);
        let mut refused = RefusedRequest::new(status, text, error.why());
        // Only a rejected certificate is a decision of the gateway; other errors are not recorded.
        if !matches!(error, UpstreamError::Certificate(_)) {
            refused.rule = None;
        }
        refused
    }

    /// The request body to send; it is buffered where values are substituted in bodies.
    async fn request_body(
        &self,
        head: &mut Parts,
        body: Incoming,
        (used, memory): (&mut UsedSecrets, &mut MemoryReservation),
        report: PlaceholderReport,
    ) -> Result<RequestBody, RefusedRequest> {
        if !self.secrets.substitutes_body() || body.is_end_stream() {
            return Ok(RequestBody::streaming(body, self.secrets.clone(), report));
        }
        let closed = |_| RefusedRequest::new(StatusCode::BAD_GATEWAY, String::new(), "the end");
        let _room = self.shared.buffers.acquire().await.map_err(closed)?;
        let bytes = self.read_body(body, memory).await?;
        let replaced = self.secrets.substitute_body(&head.headers, &bytes, used);
        let whole = match replaced.map_err(|refused_secret| self.secret_refused(refused_secret))? {
            Some(replaced) => Bytes::from_owner(replaced),
            None => Bytes::from_owner(bytes),
        };
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(whole.len()));
        Ok(RequestBody::Whole(Some(whole)))
    }

    async fn read_body(
        &self,
        mut body: Incoming,
        memory: &mut MemoryReservation,
    ) -> Result<Zeroizing<Vec<u8>>, RefusedRequest> {
        let name = &self.origin.name;
        let mut whole = Zeroizing::new(Vec::new());
        loop {
            let next = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
            let Ok(next) = timeout(BODY_TIMEOUT, next).await else {
                let why = "a request body that makes no progress";
                let text = refusal::because(name, why, None);
                return Err(RefusedRequest::new(StatusCode::REQUEST_TIMEOUT, text, why));
            };
            let broken = |_| {
                let why = "a malformed request body";
                RefusedRequest::new(StatusCode::BAD_REQUEST, refusal::because(name, why, None), why)
            };
            let Some(frame) = next.transpose().map_err(broken)? else { return Ok(whole) };
            match frame.into_data() {
                Ok(piece) if whole.len() + piece.len() <= MAX_BUFFERED_BODY => {
                    // Reserved twice: as received, and with values substituted.
                    if !memory.grow(2 * piece.len()) {
                        return Err(self.out_of_memory());
                    }
                    whole.extend_from_slice(&piece);
                }
                Ok(_) => {
                    let why = "a request body too long for substitution";
                    let text = refusal::because(name, why, Some("at most 16 MiB are buffered"));
                    return Err(RefusedRequest::new(StatusCode::PAYLOAD_TOO_LARGE, text, why));
                }
                // Trailers are dropped: the body is sent with a length.
                Err(_) => {}
            }
        }
    }

    /// The request as it is sent to the server.
    fn upstream_request(
        &self,
        mut head: Parts,
        body: RequestBody,
        websocket: bool,
    ) -> Request<RequestBody> {
        request::drop_hop_headers(&mut head.headers);
        head.headers.remove(EXPECT);
        if websocket {
            head.headers.insert("connection", HeaderValue::from_static("upgrade"));
            head.headers.insert("upgrade", HeaderValue::from_static("websocket"));
        }
        if self.secrets.is_scrubbing() {
            head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            // Compressed WebSocket frames could not be scrubbed.
            head.headers.remove("sec-websocket-extensions");
        }
        let mut request = Request::new(body);
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let port = self.origin.address.port();
        let default_port = if self.origin.tls { 443 } else { 80 };
        let authority = match port == default_port {
            true => self.origin.name.to_string(),
            false => format!("{}:{port}", self.origin.name),
        };
        let uri = match self.upstream.protocol() {
            HttpVersion::Http2 => {
                head.headers.remove(HOST);
                *request.version_mut() = Version::HTTP_2;
                Uri::try_from(format!("https://{authority}{path}"))
            }
            HttpVersion::Http1 => match self.proxy_authorization() {
                Some(authorization) => {
                    if let Some(value) = authorization {
                        head.headers.insert("proxy-authorization", value);
                    }
                    Uri::try_from(format!("http://{authority}{path}"))
                }
                None => Uri::try_from(path),
            },
        };
        // All parts come from a valid URI.
        *request.uri_mut() = uri.unwrap_or_default();
        *request.method_mut() = head.method;
        *request.headers_mut() = head.headers;
        request
    }

    /// For a plain request that is sent to a proxy in absolute form: the value of
    /// `Proxy-Authorization`, if there are credentials.
    fn proxy_authorization(&self) -> Option<Option<HeaderValue>> {
        let proxy = self.shared.upstream.proxy_for(&self.origin).filter(|_| !self.origin.tls)?;
        let proxy = Some(proxy).filter(|proxy| proxy.takes_requests())?;
        Some(proxy.authorization().and_then(|value| HeaderValue::from_bytes(&value).ok()))
    }

    fn client_response(
        &self,
        mut response: Response<Incoming>,
        client_upgrade: Option<OnUpgrade>,
        (with_secret, memory): (bool, MemoryReservation),
    ) -> Result<Response<ResponseBody>, RefusedRequest> {
        let switching = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let server_upgrade = switching.then(|| hyper::upgrade::on(&mut response));
        let (mut head, body) = response.into_parts();
        let is_websocket = is_websocket(&head.headers);
        // The reason phrase and other extensions could repeat a value.
        head.extensions.clear();
        request::drop_hop_headers(&mut head.headers);
        // It could move the client to QUIC or another port, which are not intercepted.
        head.headers.remove("alt-svc");
        scrub_headers(self.secrets.values(), &mut head.headers);
        if let Some(server_upgrade) = server_upgrade {
            let (true, Some(client_upgrade)) = (is_websocket, client_upgrade) else {
                let error =
                    UpstreamError::Broken("it switched protocols without a request".to_owned());
                return Err(self.upstream_failed(&error));
            };
            head.headers.insert("connection", HeaderValue::from_static("upgrade"));
            head.headers.insert("upgrade", HeaderValue::from_static("websocket"));
            let (secrets, memory_share) = (self.secrets.clone(), Arc::clone(&self.memory_share));
            tokio::spawn(async move {
                websocket::relay(client_upgrade, server_upgrade, secrets).await;
                drop((memory_share, memory));
            });
            return Ok(Response::from_parts(head, ResponseBody::Whole(None)));
        }
        if with_secret && self.secrets.is_scrubbing() && is_compressed(&head.headers) {
            let error = UpstreamError::Broken(
                "it is compressed against `accept-encoding: identity`, so it cannot be scrubbed"
                    .to_owned(),
            );
            return Err(self.upstream_failed(&error));
        }
        let body = ResponseBody::streaming(body, &head.headers, &self.secrets, memory);
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
            name: Some(self.origin.name.clone()),
            address: Some(self.origin.address.ip()),
            port: Some(self.origin.address.port()),
            rule,
            request: Some(request),
            secrets,
        }));
    }
}

/// Tells the request guard on drop that WebSocket was refused, unless it was granted.
struct UpgradeWait(Option<Arc<GuardState>>);

impl UpgradeWait {
    fn granted(mut self) {
        if let Some(guard) = self.0.take() {
            guard.set_websocket_result(true);
        }
    }
}

impl Drop for UpgradeWait {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            guard.set_websocket_result(false);
        }
    }
}

/// Whether the request guard waits for the answer. It decides by the same criteria.
fn waits_for_websocket(request: &Request<Incoming>) -> bool {
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
