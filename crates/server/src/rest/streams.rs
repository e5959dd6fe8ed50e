//! Streaming endpoints: file contents, archives, followed logs and command output.

use super::body_stream::{BodyGuard, BodyWriter, body_of, pipe, take};
use super::command_stream::{CommandStart, to_message};
use super::request_args::RequestArgs;
use super::sse::{SseEvent, SseSender};
use super::{api, failed, json_response};
use crate::http_state::HttpState;
use crate::quota::CallPermit;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::routing::{get, post};
use msb_api::http::streams::{
    self, ExecMessage, FileRead, FileWrite, Follow, SnapshotLoad, SnapshotSave,
};
use msb_api::http::{Count, Where};
use msb_api::{Api, LogFilter};
use msb_spec::{Error, Kind, Name, Result};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// How often a followed log is read.
const POLL: Duration = Duration::from_millis(50);

pub(super) fn routes() -> Router<Arc<HttpState>> {
    Router::new()
        .route(streams::FILE_CONTENT, get(read).put(write))
        .route(streams::SNAPSHOT_SAVE, get(save))
        .route(streams::SNAPSHOT_LOAD, post(load))
        .route(streams::LOGS_FOLLOW, get(logs))
        .route(streams::EVENTS_FOLLOW, get(events))
        .route(streams::EXEC_STREAM, post(exec))
        .route(streams::RUN_STREAM, post(run))
        .route(streams::ATTACH_STREAM, get(attach))
}

type Shared = State<Arc<HttpState>>;

/// The response of a handler, or that of its error.
fn response_of(answer: Result<Response>) -> Response {
    answer.unwrap_or_else(|error| failed(&error))
}

/// Bytes of an archive that are buffered before the response starts, so that early errors get an
/// HTTP status.
const EARLY_BYTES: usize = 256 << 10;

/// A body that a thread writes. An error within the first `held` bytes becomes the response.
async fn bytes(
    kind: &'static str,
    held: usize,
    work: impl FnOnce(&mut BodyWriter) -> Result<()> + Send + 'static,
) -> Result<Response> {
    let (mut writer, mut chunks) = pipe();
    let (tell, error_sent) = tokio::sync::oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let done = work(&mut writer);
        if let Err(error) = done {
            writer.send(Err(std::io::Error::other(error.to_string())));
            let _ = tell.send(error);
        }
    });
    let mut first = Vec::new();
    let mut over = false;
    while !over && first.iter().map(Bytes::len).sum::<usize>() < held {
        match chunks.next_piece().await {
            None => over = true,
            Some(Ok(chunk)) => first.push(chunk),
            Some(Err(broken)) => {
                return Err(error_sent
                    .await
                    .unwrap_or_else(|_| Error::host("the writer failed", broken)));
            }
        }
    }
    let body = match first.is_empty() {
        true => axum::body::Body::empty(),
        false => {
            let first = futures_util::stream::iter(first.into_iter().map(Ok));
            body_of(futures_util::StreamExt::chain(first, chunks), BodyGuard::new(()))
        }
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

async fn read(State(state): Shared, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = async {
        let (api, permit) = api(&state, &parts)?;
        let ask: FileRead = RequestArgs::parse(&parts, streams::FILE_CONTENT).without_body()?;
        let at = Where { sandbox: ask.sandbox, volume: ask.volume, user: ask.user }.place()?;
        bytes("application/octet-stream", 1, move |out| {
            let _permit = permit;
            api.file_read(&at, &ask.path.0, ask.offset, ask.length, &mut |piece| {
                let on_disconnect = |_| Error::new(Kind::State, "the client has disconnected");
                std::io::Write::write_all(out, piece).map_err(on_disconnect)
            })
        })
        .await
    };
    response_of(answer.await)
}

async fn write(State(state): Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        let (api, permit) = api(&state, &parts)?;
        let ask: FileWrite = RequestArgs::parse(&parts, streams::FILE_CONTENT).without_body()?;
        let at = Where { sandbox: ask.sandbox, volume: ask.volume, user: ask.user }.place()?;
        let mut content = take(body);
        blocking(move || {
            let _permit = permit;
            let count = api.file_write(&at, &ask.path.0, ask.mode, ask.append, &mut content)?;
            Ok(json_response(&Count { count }))
        })
        .await
    };
    response_of(answer.await)
}

async fn save(State(state): Shared, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = async {
        let (api, permit) = api(&state, &parts)?;
        let ask: SnapshotSave =
            RequestArgs::parse(&parts, streams::SNAPSHOT_SAVE).without_body()?;
        bytes("application/x-tar", EARLY_BYTES, move |out| {
            let _permit = permit;
            api.snapshot_save(&ask.name, ask.whole, out)
        })
        .await
    };
    response_of(answer.await)
}

async fn load(State(state): Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        let (api, permit) = api(&state, &parts)?;
        let ask: SnapshotLoad =
            RequestArgs::parse(&parts, streams::SNAPSHOT_LOAD).without_body()?;
        let mut archive = take(body);
        blocking(move || {
            let _permit = permit;
            Ok(json_response(&api.snapshot_load(ask.name.as_ref(), &mut archive)?))
        })
        .await
    };
    response_of(answer.await)
}

async fn blocking(work: impl FnOnce() -> Result<Response> + Send + 'static) -> Result<Response> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Error::new(Kind::Host, "the request handler failed")))
}

async fn logs(State(state): Shared, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = async {
        let (api, permit) = api(&state, &parts)?;
        let ask: Follow = RequestArgs::parse(&parts, streams::LOGS_FOLLOW).without_body()?;
        let filter = LogFilter {
            exec: ask.exec,
            source: ask.source,
            since: ask.since,
            until: ask.until,
            grep: ask.grep,
        };
        follow(ask.skip, permit, move || {
            let mut logs = api.sandbox_logs(&ask.name, &filter)?;
            Ok(move || logs.more())
        })
        .await
    };
    response_of(answer.await)
}

async fn events(State(state): Shared, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = async {
        let (api, permit) = api(&state, &parts)?;
        let ask: Follow = RequestArgs::parse(&parts, streams::EVENTS_FOLLOW).without_body()?;
        follow(ask.skip, permit, move || {
            let mut events = api.sandbox_events(&ask.name)?;
            Ok(move || events.more())
        })
        .await
    };
    response_of(answer.await)
}

/// Sends new items in batches, one event for each, until the client disconnects.
async fn follow<T, More>(
    mut skip: u64,
    permit: CallPermit,
    open: impl FnOnce() -> Result<More> + Send + 'static,
) -> Result<Response>
where
    T: serde::Serialize,
    More: FnMut() -> Result<Vec<T>>,
{
    let (events, response) = SseSender::begin();
    let (tell, opened) = tokio::sync::oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let mut more = match open() {
            Ok(more) => {
                let _ = tell.send(Ok(()));
                more
            }
            Err(error) => {
                let _ = tell.send(Err(error));
                return;
            }
        };
        loop {
            let sent = match more() {
                Ok(items) => {
                    let known = usize::try_from(skip).unwrap_or(usize::MAX).min(items.len());
                    skip -= known as u64;
                    let news = &items[known..];
                    // A closed connection is noticed only when something is sent.
                    news.is_empty() || events.send(SseEvent::new("items", &news))
                }
                Err(error) => {
                    events.send(SseEvent::new("error", &error));
                    false
                }
            };
            if !sent || events.cancel().is_cancelled() {
                return;
            }
            std::thread::sleep(POLL);
        }
    });
    match opened.await {
        Ok(Ok(())) => Ok(response),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::new(Kind::Host, "the request handler failed")),
    }
}

#[derive(Deserialize)]
struct StreamSandbox {
    name: Name,
}

#[derive(Deserialize)]
struct StreamExec {
    name: Name,
    id: u64,
}

async fn exec(State(state): Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        let (api, permit) = api(&state, &parts)?;
        let StreamSandbox { name } =
            RequestArgs::parse(&parts, streams::EXEC_STREAM).without_body()?;
        let ask = RequestArgs::parse(&parts, "").with_object(body).await?;
        let (start, stdin) = CommandStart::exec(name, ask);
        Ok(streamed(api, permit, start, stdin))
    };
    response_of(answer.await)
}

async fn run(State(state): Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        let (api, permit) = api(&state, &parts)?;
        let ask = RequestArgs::parse(&parts, "").with_object(body).await?;
        let (api, start, stdin) = CommandStart::run(&api, ask);
        Ok(streamed(api, permit, start, stdin))
    };
    response_of(answer.await)
}

async fn attach(State(state): Shared, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = async {
        let (api, permit) = api(&state, &parts)?;
        let StreamExec { name, id } =
            RequestArgs::parse(&parts, streams::ATTACH_STREAM).without_body()?;
        Ok(streamed(api, permit, CommandStart::Attach(name, id), None))
    };
    response_of(answer.await)
}

/// Streams the output of a command as server-sent events.
fn streamed(
    api: Arc<dyn Api>,
    permit: CallPermit,
    start: CommandStart,
    stdin: Option<String>,
) -> Response {
    let (events, response) = SseSender::begin();
    let reads = !matches!(start, CommandStart::Attach(..));
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        if let Err(error) = stream(api.as_ref(), start, stdin.unwrap_or_default(), reads, &events) {
            events.send(event(&ExecMessage::Error(error)));
        }
    });
    response
}

fn stream(
    api: &dyn Api,
    start: CommandStart,
    stdin: String,
    reads: bool,
    events: &SseSender,
) -> Result<()> {
    let mut running = start.start(api, events, events.cancel())?;
    events.send(event(&ExecMessage::Started(running.started.clone())));
    let input = Arc::clone(&running.input);
    let writer = std::thread::spawn(move || {
        if reads {
            let _ = input.write(stdin.as_bytes()).and_then(|()| input.close());
        }
    });
    while let Some(exec_event) = running.next()? {
        if !events.send(event(&to_message(exec_event))) {
            break;
        }
    }
    drop(running);
    let _ = writer.join();
    Ok(())
}

/// Encodes a message: its variant is the event name, its content the data.
fn event(message: &ExecMessage) -> SseEvent {
    match message {
        ExecMessage::Progress(it) => SseEvent::new("progress", it),
        ExecMessage::Started(it) => SseEvent::new("started", it),
        ExecMessage::Stdout(it) => SseEvent::new("stdout", it),
        ExecMessage::Stderr(it) => SseEvent::new("stderr", it),
        ExecMessage::Exited(it) => SseEvent::new("exited", it),
        ExecMessage::Error(it) => SseEvent::new("error", it),
    }
}
