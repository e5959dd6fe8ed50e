//! Every Operation over HTTP, as the table in [`msb_api::http`] has it.

mod asked;
mod document;
mod events;
mod pieces;
mod running;
mod socket;
mod streams;
mod waiting;

pub use document::document;

use crate::dialect::Who;
use crate::room::Seat;
use crate::site::Site;
use asked::Asked;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodFilter, get, on};
use events::{Event, Events};
use msb_api::Api;
use msb_api::http::{Ask, Method, Visitor, each};
use msb_spec::{Error, Kind, Result};
use serde::Serialize;
use std::sync::{Arc, OnceLock};
use waiting::Waiting;

pub(crate) const DOCUMENT: &str = "/openapi.json";

/// The routes of all of it.
pub(crate) fn routes(site: &Arc<Site>) -> Router {
    struct Table(Router<Arc<Site>>);
    impl Visitor for Table {
        fn visit<A: Ask>(&mut self) {
            let how = match A::ROUTE.method {
                Method::Get => MethodFilter::GET,
                Method::Post => MethodFilter::POST,
                Method::Delete => MethodFilter::DELETE,
            };
            let router = std::mem::take(&mut self.0);
            self.0 = router.route(&A::ROUTE.template(), on(how, answer::<A>));
        }
    }
    let mut table = Table(Router::new());
    each(&mut table);
    table
        .0
        .merge(streams::routes())
        .merge(socket::routes())
        .route(DOCUMENT, get(shown))
        .with_state(Arc::clone(site))
}

async fn shown() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| document().to_string());
    json(StatusCode::OK, text.clone())
}

/// The sandboxes of whoever asks, and a seat for as long as that takes.
fn api(site: &Site, request: &axum::http::request::Parts) -> Result<(Arc<dyn Api>, Seat)> {
    let caller = request.extensions.get::<Who>();
    let caller = caller.ok_or_else(|| Error::new(Kind::Denied, "nobody has asked"))?;
    Ok((site.guarded(caller), site.room().take(caller)?))
}

/// Does one Operation.
async fn answer<A: Ask>(State(site): State<Arc<Site>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let asked = async {
        let (api, seat) = api(&site, &parts)?;
        let ask: A = Asked::of(&parts, &A::ROUTE.template()).with_body(&A::ROUTE, body).await?;
        Ok((api, seat, ask))
    };
    let (api, seat, ask) = match asked.await {
        Ok(asked) => asked,
        Err(error) => return failed(&error),
    };
    if events::wants(&parts.headers) {
        let (events, response) = Events::begin();
        tokio::task::spawn_blocking(move || {
            let _seat = seat;
            let last = match ask.perform(api.as_ref(), &events) {
                Ok(answer) => Event::new("answer", &answer),
                Err(error) => Event::new("error", &error),
            };
            let _ = events.send(last);
        });
        return response;
    }
    let (waiting, gone) = Waiting::begin();
    let done = tokio::task::spawn_blocking(move || {
        let _seat = seat;
        ask.perform(api.as_ref(), &waiting)
    });
    let done = done.await;
    // Here or, if the client hangs up, while it is waited for.
    drop(gone);
    match done {
        Ok(Ok(answer)) => told(&answer),
        Ok(Err(error)) => failed(&error),
        Err(_) => failed(&Error::new(Kind::Host, "the call broke")),
    }
}

fn told(answer: &impl Serialize) -> Response {
    match serde_json::to_string(answer) {
        Ok(text) => json(StatusCode::OK, text),
        Err(error) => failed(&Error::host("the answer cannot be written", error)),
    }
}

fn json(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// An error as clients read it.
pub(crate) fn failed(error: &Error) -> Response {
    let status = match error.kind() {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Denied => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        // A worker that went away while it was asked: the sandbox has ended.
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

/// Nothing is there, or not like that.
pub(crate) async fn nothing() -> Response {
    failed(&Error::new(Kind::NotFound, "no such path").hint("`/openapi.json` has all of them"))
}

/// There is something, but not for this method.
pub(crate) async fn no_method() -> Response {
    let error = Error::invalid("no such method here").hint("`/openapi.json` has all of them");
    let mut response = failed(&error);
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}
