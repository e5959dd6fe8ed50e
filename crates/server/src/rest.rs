//! The REST API: every Operation over HTTP, from the table in [`msb_api::http`].

mod body_stream;
mod command_stream;
mod disconnect;
mod openapi;
mod request_args;
mod sse;
mod streams;
mod websocket;

pub(crate) use command_stream::{CommandStart, RunningCommand};
pub use openapi::document;
pub(crate) use request_args::member_error;

use crate::dialect::Caller;
use crate::http_state::HttpState;
use crate::quota::CallPermit;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodFilter, get, on};
use disconnect::DisconnectWatch;
use msb_api::http::{HttpRequest, Method, Route, Visitor, each};
use msb_api::{Api, Watch};
use msb_spec::{Error, Kind, Result};
use request_args::{RequestArgs, RequestMembers};
use serde::Serialize;
use serde_json::{Map, Value};
use sse::{SseEvent, SseSender};
use std::sync::{Arc, OnceLock};

pub(crate) const DOCUMENT: &str = "/openapi.json";

/// The routes of all Operations, of the streams and of the OpenAPI document.
pub(crate) fn routes(state: &Arc<HttpState>) -> Router {
    struct RouteTable(Router<Arc<HttpState>>);
    impl Visitor for RouteTable {
        fn visit<R: HttpRequest>(&mut self) {
            let router = std::mem::take(&mut self.0);
            self.0 = route(router, RestOperation { route: R::ROUTE, read: read::<R> });
        }
    }
    let mut table = RouteTable(Router::new());
    each(&mut table);
    table
        .0
        .merge(streams::routes())
        .merge(websocket::routes())
        .route(DOCUMENT, get(openapi_document))
        .with_state(Arc::clone(state))
}

/// Not part of the visitor, whose closures would be compiled once for each Operation.
fn route(router: Router<Arc<HttpState>>, operation: RestOperation) -> Router<Arc<HttpState>> {
    let method = match operation.route.method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Delete => MethodFilter::DELETE,
    };
    let handler = move |State(state), request| handle(operation, state, request);
    router.route(&operation.route.template(), on(method, handler))
}

async fn openapi_document() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| document().to_string());
    json(StatusCode::OK, text.clone())
}

/// The Api in the caller's scope, and a permit for the duration of the call.
fn api(
    state: &HttpState,
    request: &axum::http::request::Parts,
) -> Result<(Arc<dyn Api>, CallPermit)> {
    let caller = request.extensions.get::<Caller>();
    let caller = caller
        .ok_or_else(|| Error::new(Kind::Denied, "the request has no authenticated caller"))?;
    Ok((state.rest_api(caller), state.limiter().acquire(caller)?))
}

/// One Operation without its type, so that its handler is compiled once for all of them.
#[derive(Clone, Copy)]
struct RestOperation {
    route: Route,
    /// Deserializes the members of a request.
    read: fn(RequestMembers) -> Result<OperationCall>,
}

/// A call of the Api that returns its response as JSON.
pub(crate) type OperationCall = Box<dyn FnOnce(&dyn Api, &dyn Watch) -> Result<String> + Send>;

fn read<R: HttpRequest>(members: RequestMembers) -> Result<OperationCall> {
    Ok(operation_call::<R>(members.read()?))
}

/// Deserializes the members of a request from a JSON object.
pub(crate) fn read_members<R: HttpRequest>(members: &Map<String, Value>) -> Result<OperationCall> {
    let request = crate::arguments::object(members).map_err(member_error)?;
    Ok(operation_call::<R>(request))
}

fn operation_call<R: HttpRequest>(request: R) -> OperationCall {
    Box::new(move |api, watch| {
        let response = request.call(api, watch)?;
        serde_json::to_string(&response)
            .map_err(|error| Error::host("cannot encode the response", error))
    })
}

/// Handles a request for one Operation.
async fn handle(operation: RestOperation, state: Arc<HttpState>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let args = async {
        let (api, permit) = api(&state, &parts)?;
        let args = RequestArgs::parse(&parts, &operation.route.template());
        let work = (operation.read)(args.with_body(&operation.route, body).await?)?;
        Ok((api, permit, work))
    };
    let (api, permit, work) = match args.await {
        Ok(args) => args,
        Err(error) => return failed(&error),
    };
    if sse::wants(&parts.headers) {
        let (events, response) = SseSender::begin();
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let last = match work(api.as_ref(), &events) {
                Ok(handle) => SseEvent::of_json("answer", &handle),
                Err(error) => SseEvent::new("error", &error),
            };
            let _ = events.send(last);
        });
        return response;
    }
    let (waiting, on_disconnect) = DisconnectWatch::begin();
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work(api.as_ref(), &waiting)
    });
    let done = done.await;
    // Dropped here, or with this future if the client disconnects.
    drop(on_disconnect);
    match done {
        Ok(Ok(handle)) => json(StatusCode::OK, handle),
        Ok(Err(error)) => failed(&error),
        Err(_) => failed(&Error::new(Kind::Host, "the request handler failed")),
    }
}

fn json_response(handle: &impl Serialize) -> Response {
    match serde_json::to_string(handle) {
        Ok(text) => json(StatusCode::OK, text),
        Err(error) => failed(&Error::host("cannot encode the response", error)),
    }
}

fn json(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// The response for an error, with the HTTP status of its kind.
pub(crate) fn failed(error: &Error) -> Response {
    let status = match error.kind() {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Denied => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        // `Protocol`: the worker went away during the request, because the sandbox has ended.
        Kind::Exists | Kind::State | Kind::Protocol => StatusCode::CONFLICT,
        Kind::CommandNotFound | Kind::NotExecutable | Kind::Unsupported => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        Kind::Limit => StatusCode::TOO_MANY_REQUESTS,
        Kind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        Kind::Host => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let body = serde_json::json!({"error": error});
    json(status, body.to_string())
}

/// The response for an unknown path.
pub(crate) async fn unknown_path() -> Response {
    failed(&Error::new(Kind::NotFound, "no such path").hint("`/openapi.json` lists all paths"))
}

/// The response for a method that the path does not have.
pub(crate) async fn unknown_method() -> Response {
    let error = Error::invalid("the path does not support this method")
        .hint("`/openapi.json` lists all methods");
    let mut response = failed(&error);
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}
