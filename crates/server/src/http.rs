//! The HTTP listener: MCP in every dialect, and who may use it from where.
//!
//! [`guard`] is in front of every route: first `cross_site`, then the key.

mod bodies;
mod connections;
mod cross_site;

use crate::cancel::Cancel;
use crate::dialect::Who;
use crate::dialects::Named;
use crate::keys::Refused;
use crate::mcp;
use crate::rest;
use crate::rpc;
use crate::site::Site;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use bodies::{BodyBudget, Keeping};
use connections::{Connection, Connections};
use cross_site::{CheckedRequest, CrossSiteGuard};
use msb_api::http::streams;
use msb_api::{asked_by, prometheus};
use msb_spec::{Asker, Error, Kind, Result, Surface};
use serde_json::json;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// What of a site one listener shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Everything: each dialect at its own path.
    All,
    /// One dialect at `/mcp`, and nothing else.
    One(Named),
}

/// Requests that are still at work when the listener ends have this long.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until it is told to stop.
pub async fn serve_http(
    listener: TcpListener,
    site: Site,
    shown: Shown,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let failed = |error| Error::host("cannot serve HTTP", error);
    let site = Arc::new(site);
    let address = listener.local_addr().map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let gate = Gate {
        site: Arc::clone(&site),
        cross_site: CrossSiteGuard::new(address),
        bodies: BodyBudget::default(),
    };
    let router = routes(&site, shown).layer(from_fn_with_state(gate, guard));
    let stopping = site.stopping().clone();
    let serving = Connections::new().serve(listener, router, stopping.clone());
    tokio::pin!(serving);
    tokio::select! {
        () = &mut serving => return Ok(()),
        () = stop => stopping.cancel(),
    }
    // Whatever has not ended by then ends with us.
    let _ = tokio::time::timeout(GRACE, serving).await;
    Ok(())
}

fn routes(site: &Arc<Site>, shown: Shown) -> Router {
    let mut router = Router::new();
    match shown {
        Shown::One(named) => {
            router = router.route_service("/mcp", mcp::over_http(site, named, true));
        }
        Shown::All => {
            // Where clients of the microsandbox server look for it, as they expect it.
            let old = Router::new()
                .route_service("/mcp", mcp::over_http(site, Named::Server, false))
                .layer(from_fn(takes_json));
            router = router.merge(old).route(RPC, post(remote_call).with_state(Arc::clone(site)));
            router = router.merge(rest::routes(site));
            router = router.route(METRICS, get(metrics).with_state(Arc::clone(site)));
            for named in Named::ALL {
                let path = format!("/mcp/{}", named.as_str());
                router = router.route_service(&path, mcp::over_http(site, *named, true));
            }
        }
    }
    let health = router.route(HEALTH, get(health)).route("/api/v1/health", get(health));
    health.fallback(rest::nothing).method_not_allowed_fallback(rest::no_method)
}

/// Clients of the microsandbox server say nothing about what they take, and take JSON.
async fn takes_json(mut request: Request, next: Next) -> Response {
    let all = HeaderValue::from_static("application/json, text/event-stream");
    request.headers_mut().insert(header::ACCEPT, all);
    next.run(request).await
}

const HEALTH: &str = "/health";
const RPC: &str = "/api/v1/rpc";
const METRICS: &str = "/metrics";

/// How much the sandboxes use that a key reaches, as Prometheus reads it.
async fn metrics(State(site): State<Arc<Site>>, request: Request) -> Response {
    let Some(who) = request.extensions().get::<Who>().cloned() else {
        return refused(StatusCode::UNAUTHORIZED, "unauthorized", Refused::Missing.as_str());
    };
    let seat = match site.room().take(&who) {
        Ok(seat) => seat,
        Err(error) => return rest::failed(&error),
    };
    let gathered = tokio::task::spawn_blocking(move || {
        let _seat = seat;
        prometheus::gather(site.guarded(&who).as_ref(), |_| true)
    });
    match gathered.await {
        Ok(Ok(gathered)) => {
            let mut response = Response::new(Body::from(prometheus::exposition(&gathered)));
            let kind = HeaderValue::from_static(prometheus::CONTENT_TYPE);
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        Ok(Err(error)) => rest::failed(&error),
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "broken", "the call broke"),
    }
}

/// Calls of the microsandbox server's own API.
async fn remote_call(State(site): State<Arc<Site>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(who) = parts.extensions.get::<Who>().cloned() else {
        return answered(rpc::refused(Refused::Missing));
    };
    let body = match axum::body::to_bytes(body, bodies::LARGEST).await {
        Ok(body) => body,
        Err(_) => return refused(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "too much at once"),
    };
    let cancel = Cancel::default();
    // Whoever hangs up wants no answer any more.
    let gone = Gone(cancel.clone());
    let seat = match site.room().take(&who) {
        Ok(seat) => seat,
        Err(error) => return answered(rpc::failed(&error)),
    };
    let called = tokio::task::spawn_blocking(move || {
        let _seat = seat;
        let asker = who.by(Asker::new(Surface::Rpc));
        asked_by(Some(asker), || rpc::rpc(site.server(), &body, &who, &cancel))
    });
    let reply = called.await;
    drop(gone);
    match reply {
        Ok(reply) => answered(reply),
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "broken", "the call broke"),
    }
}

/// Cancels a call when nobody waits for it any more.
pub(crate) struct Gone(pub(crate) Cancel);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn answered(reply: rpc::Reply) -> Response {
    let mut response = Response::new(Body::from(reply.body));
    *response.status_mut() =
        StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

async fn health() -> Response {
    let body = json!({
        "status": "ok",
        "message": "Service is healthy",
        "version": env!("CARGO_PKG_VERSION"),
    });
    as_json(StatusCode::OK, &body)
}

fn as_json(status: StatusCode, body: &serde_json::Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[derive(Clone)]
struct Gate {
    site: Arc<Site>,
    cross_site: CrossSiteGuard,
    bodies: BodyBudget,
}

const SESSION: &str = "mcp-session-id";

/// Lets in who may come in.
async fn guard(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let mut response = match gate.cross_site.check(request) {
        Ok(request) => authenticated(&gate, request, next).await,
        Err(refusal) => {
            let (status, code, message) = refusal.answer();
            refused(status, code, message)
        }
    };
    // Answers hold bytes that sandboxes wrote: no browser renders them, or shows them to another origin.
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn authenticated(gate: &Gate, checked: CheckedRequest, next: Next) -> Response {
    let request = checked.get();
    let headers = request.headers();
    let open = matches!(request.uri().path(), HEALTH | "/api/v1/health" | rest::DOCUMENT);
    if open && request.method() == Method::GET {
        return next.run(checked.into_inner()).await;
    }
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let who = match gate.site.caller(token) {
        Ok(who) => who,
        Err(reason) if request.uri().path() == RPC => return answered(rpc::refused(reason)),
        Err(reason) => return refused(StatusCode::UNAUTHORIZED, "unauthorized", reason.as_str()),
    };
    let connection = request.extensions().get::<Connection>();
    if !connection.is_none_or(|connection| connection.claim(&who)) {
        let mut response = refused(StatusCode::TOO_MANY_REQUESTS, "busy", "too many connections");
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        return response;
    }
    let session = headers.get(SESSION).and_then(|value| value.to_str().ok());
    if session.is_some_and(|session| gate.site.is_foreign(session, &who)) {
        return refused(StatusCode::NOT_FOUND, "no_session", "no such session; initialize again");
    }
    let session = session.map(str::to_owned);
    let mut request = checked.into_inner();
    request.extensions_mut().insert(who.clone());
    let mut kept = None;
    if !streams::UPLOADS.contains(&request.uri().path()) {
        let (parts, body) = request.into_parts();
        match gate.bodies.read(&who, body).await {
            Ok((bytes, permit)) => {
                kept = (!bytes.is_empty()).then_some(permit);
                request = Request::from_parts(parts, Body::from(bytes));
            }
            Err(error) => {
                let (status, code, message) = error.answer();
                return refused(status, code, message);
            }
        }
    }
    let ends = request.method() == Method::DELETE && request.uri().path().starts_with("/mcp");
    let mut response = next.run(request).await;
    if ends && response.status() == StatusCode::ACCEPTED {
        // It is done, not taken on; clients complain of what is neither 200 nor 204.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    if ends && let Some(session) = session {
        gate.site.end_session(&session);
    }
    if let Some(id) = response.headers().get(SESSION).and_then(|value| value.to_str().ok()) {
        gate.site.begin_session(id, &who);
    }
    match kept {
        // Until the answer has been sent: what was asked for is held as long.
        Some(permit) => response.map(|body| Body::new(Keeping::new(body, permit))),
        None => response,
    }
}

fn refused(status: StatusCode, code: &str, message: &str) -> Response {
    let kind = match status {
        StatusCode::NOT_FOUND => Kind::NotFound,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => Kind::Limit,
        StatusCode::REQUEST_TIMEOUT => Kind::Timeout,
        StatusCode::BAD_REQUEST => Kind::Invalid,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Kind::Invalid,
        StatusCode::INTERNAL_SERVER_ERROR => Kind::Host,
        _ => Kind::Denied,
    };
    // As every error of the API, and with a code.
    let mut body = json!({"error": Error::new(kind, message)});
    body["error"]["code"] = code.into();
    let mut response = as_json(status, &body);
    if status == StatusCode::UNAUTHORIZED {
        let how = HeaderValue::from_static("Bearer realm=\"msb\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    }
    response
}
