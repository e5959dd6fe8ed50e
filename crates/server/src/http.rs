//! The HTTP listener: MCP in every dialect, the REST API, metrics and the microsandbox RPC.
//!
//! The middleware [`guard`] runs before every route. It checks for cross-site requests first
//! (`cross_site`), then the API key.

mod bodies;
mod connections;
mod cross_site;
mod request_log;
pub(crate) mod tls;

use crate::cancel::Cancel;
use crate::dialect::Caller;
use crate::dialects::DialectName;
use crate::http_state::HttpState;
use crate::keys::KeyError;
use crate::mcp;
use crate::rest;
use crate::rpc;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use bodies::{BodyBudget, BodyWithGuard};
use connections::{Connection, Connections};
use cross_site::{CheckedRequest, CrossSiteGuard};
use msb_api::http::streams;
use msb_api::prometheus;
use msb_spec::{Error, Kind, Result};
use request_log::LoggedRequest;
pub use request_log::{RequestLog, RequestLogFormat};
use serde_json::json;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// The routes that one listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedRoutes {
    /// All routes, with each dialect at `/mcp/DIALECT`.
    All,
    /// One dialect at `/mcp`, and no other routes.
    One(DialectName),
}

/// Requests in flight get this long to finish after the listener stops.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until `stop` completes, then waits up to [`GRACE`] for open requests.
pub async fn serve_http(
    listener: TcpListener,
    state: HttpState,
    served: ServedRoutes,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let failed = |error| Error::host("cannot serve HTTP", error);
    let state = Arc::new(state);
    let address = listener.local_addr().map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let layer = AuthLayer {
        state: Arc::clone(&state),
        cross_site: CrossSiteGuard::new(address, state.allowed_hosts(), state.tls().is_some()),
        bodies: BodyBudget::default(),
    };
    let router = routes(&state, served).layer(from_fn_with_state(layer, guard));
    let stopping = state.stopping().clone();
    let tls = state.tls().cloned();
    let serving = Connections::new().serve(listener, tls, router, stopping.clone());
    tokio::pin!(serving);
    tokio::select! {
        () = &mut serving => return Ok(()),
        () = stop => stopping.cancel(),
    }
    // Requests that run longer than the grace period are dropped with the process.
    let _ = tokio::time::timeout(GRACE, serving).await;
    Ok(())
}

fn routes(state: &Arc<HttpState>, served: ServedRoutes) -> Router {
    let mut router = Router::new();
    match served {
        ServedRoutes::One(dialect_name) => {
            router = router.route_service("/mcp", mcp::over_http(state, dialect_name, true));
        }
        ServedRoutes::All => {
            // Clients of the microsandbox server expect MCP at `/mcp`, without sessions.
            let old = Router::new()
                .route_service("/mcp", mcp::over_http(state, DialectName::Server, false))
                .layer(from_fn(set_accept_header));
            router = router.merge(old).route(RPC, post(rpc_call).with_state(Arc::clone(state)));
            router = router.merge(rest::routes(state));
            router = router.route(METRICS, get(metrics).with_state(Arc::clone(state)));
            for dialect_name in DialectName::ALL {
                let path = format!("/mcp/{}", dialect_name.as_str());
                router = router.route_service(&path, mcp::over_http(state, *dialect_name, true));
            }
        }
    }
    let health = router.route(HEALTH, get(health)).route("/api/v1/health", get(health));
    health.fallback(rest::unknown_path).method_not_allowed_fallback(rest::unknown_method)
}

/// Sets the `Accept` header: clients of the microsandbox server send none, and MCP requires it.
async fn set_accept_header(mut request: Request, next: Next) -> Response {
    let all = HeaderValue::from_static("application/json, text/event-stream");
    request.headers_mut().insert(header::ACCEPT, all);
    next.run(request).await
}

const HEALTH: &str = "/health";
const RPC: &str = "/api/v1/rpc";
const METRICS: &str = "/metrics";

/// Metrics of the sandboxes in the caller's scope, in the text format of Prometheus.
async fn metrics(State(state): State<Arc<HttpState>>, request: Request) -> Response {
    let Some(caller) = request.extensions().get::<Caller>().cloned() else {
        return error_response(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            KeyError::Missing.as_str(),
        );
    };
    let permit = match state.limiter().acquire(&caller) {
        Ok(permit) => permit,
        Err(error) => return rest::failed(&error),
    };
    let gathered = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        prometheus::gather(state.rest_api(&caller).as_ref(), |_| true)
    });
    match gathered.await {
        Ok(Ok(gathered)) => {
            let mut response = Response::new(Body::from(prometheus::exposition(&gathered)));
            let kind = HeaderValue::from_static(prometheus::CONTENT_TYPE);
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        Ok(Err(error)) => rest::failed(&error),
        Err(_) => error_response(
            StatusCode::INTERNAL_SERVER_ERROR,
            "broken",
            "the request handler failed",
        ),
    }
}

/// JSON-RPC calls of the microsandbox server's own API.
async fn rpc_call(State(state): State<Arc<HttpState>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Some(caller) = parts.extensions.get::<Caller>().cloned() else {
        return rpc_response(rpc::refused(KeyError::Missing));
    };
    let body = match axum::body::to_bytes(body, bodies::LARGEST).await {
        Ok(body) => body,
        Err(_) => {
            return error_response(
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_large",
                "a body has 32 MiB at most",
            );
        }
    };
    let cancel = Cancel::default();
    // A client that disconnects cancels its call.
    let on_disconnect = CancelOnDrop(cancel.clone());
    let permit = match state.limiter().acquire(&caller) {
        Ok(permit) => permit,
        Err(error) => return rpc_response(rpc::failed(&error)),
    };
    let called = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        rpc::rpc(state.server(), &body, &caller, &cancel)
    });
    let reply = called.await;
    drop(on_disconnect);
    match reply {
        Ok(reply) => rpc_response(reply),
        Err(_) => error_response(
            StatusCode::INTERNAL_SERVER_ERROR,
            "broken",
            "the request handler failed",
        ),
    }
}

/// Cancels a call when it is dropped, because its client has disconnected.
pub(crate) struct CancelOnDrop(pub(crate) Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn rpc_response(reply: rpc::Reply) -> Response {
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
    json_response(StatusCode::OK, &body)
}

fn json_response(status: StatusCode, body: &serde_json::Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[derive(Clone)]
struct AuthLayer {
    state: Arc<HttpState>,
    cross_site: CrossSiteGuard,
    bodies: BodyBudget,
}

const SESSION: &str = "mcp-session-id";

/// Rejects cross-site and unauthenticated requests, and adds security headers to each response.
async fn guard(State(layer): State<AuthLayer>, request: Request, next: Next) -> Response {
    let logged = layer.state.request_log().map(|log| (log, LoggedRequest::new(&request)));
    let mut key = None;
    let mut response = match layer.cross_site.check(request) {
        Ok(request) => authenticate(&layer, request, next, &mut key).await,
        Err(refusal) => {
            let (status, code, message) = refusal.answer();
            error_response(status, code, message)
        }
    };
    // Responses hold bytes that sandboxes wrote. These headers keep browsers from rendering them
    // and from showing them to other origins.
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if let Some((log, request)) = logged {
        log.write(&request, key.as_deref(), response.status());
    }
    response
}

/// Authenticates a request and serves it; `key` becomes the id of its API key.
async fn authenticate(
    layer: &AuthLayer,
    checked: CheckedRequest,
    next: Next,
    key: &mut Option<String>,
) -> Response {
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
    let caller = match layer.state.caller(token) {
        Ok(caller) => caller,
        Err(reason) if request.uri().path() == RPC => return rpc_response(rpc::refused(reason)),
        Err(reason) => {
            return error_response(StatusCode::UNAUTHORIZED, "unauthorized", reason.as_str());
        }
    };
    key.clone_from(&caller.key);
    let connection = request.extensions().get::<Connection>();
    if !connection.is_none_or(|connection| connection.claim(&caller)) {
        let mut response =
            error_response(StatusCode::TOO_MANY_REQUESTS, "busy", "too many connections");
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        return response;
    }
    let session = headers.get(SESSION).and_then(|value| value.to_str().ok());
    if session.is_some_and(|session| layer.state.is_unknown_session(session, &caller)) {
        return error_response(
            StatusCode::NOT_FOUND,
            "no_session",
            "no such session; initialize again",
        );
    }
    let session = session.map(str::to_owned);
    let mut request = checked.into_inner();
    request.extensions_mut().insert(caller.clone());
    let mut body_permit = None;
    if !streams::UPLOADS.contains(&request.uri().path()) {
        let (parts, body) = request.into_parts();
        match layer.bodies.read(&caller, body).await {
            Ok((bytes, permit)) => {
                body_permit = (!bytes.is_empty()).then_some(permit);
                request = Request::from_parts(parts, Body::from(bytes));
            }
            Err(error) => {
                let (status, code, message) = error.answer();
                return error_response(status, code, message);
            }
        }
    }
    let ends = request.method() == Method::DELETE && request.uri().path().starts_with("/mcp");
    let mut response = next.run(request).await;
    if ends && response.status() == StatusCode::ACCEPTED {
        // The session is closed by now; some clients accept only 200 and 204.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    if ends && let Some(session) = session {
        layer.state.close_session(&session);
    }
    if let Some(id) = response.headers().get(SESSION).and_then(|value| value.to_str().ok()) {
        layer.state.open_session(id, &caller);
    }
    match body_permit {
        // The body stays in memory until the response is sent, so its permit is held as long.
        Some(permit) => response.map(|body| Body::new(BodyWithGuard::new(body, permit))),
        None => response,
    }
}

fn error_response(status: StatusCode, code: &str, message: &str) -> Response {
    let kind = match status {
        StatusCode::NOT_FOUND => Kind::NotFound,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::TOO_MANY_REQUESTS => Kind::Limit,
        StatusCode::REQUEST_TIMEOUT => Kind::Timeout,
        StatusCode::BAD_REQUEST => Kind::Invalid,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Kind::Invalid,
        StatusCode::INTERNAL_SERVER_ERROR => Kind::Host,
        _ => Kind::Denied,
    };
    // The JSON of every API error, plus a `code`.
    let mut body = json!({"error": Error::new(kind, message)});
    body["error"]["code"] = code.into();
    let mut response = json_response(status, &body);
    if status == StatusCode::UNAUTHORIZED {
        let how = HeaderValue::from_static("Bearer realm=\"msb\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    }
    response
}
