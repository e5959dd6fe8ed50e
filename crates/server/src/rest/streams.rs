//! Bytes of files, archives, and what comes as events.

use super::asked::Asked;
use super::events::{Event, Events};
use super::pieces::{Kept, Pipe, body_of, pipe, take};
use super::running::{Start, heard};
use super::{api, failed, told};
use crate::room::Seat;
use crate::site::Site;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::routing::{get, post};
use msb_api::http::streams::{
    self, FileRead, FileWrite, Follow, Heard, SnapshotLoad, SnapshotSave,
};
use msb_api::http::{Count, Where};
use msb_api::{Api, LogFilter};
use msb_spec::{Error, Kind, Name, Result};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// How often a log that is followed is looked at.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn routes() -> Router<Arc<Site>> {
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

type Shared = State<Arc<Site>>;

/// An answer, whether it is one or an error.
fn either(answer: Result<Response>) -> Response {
    answer.unwrap_or_else(|error| failed(&error))
}

/// So much of an archive is waited for before it is answered, so that what goes wrong early is told.
const HELD: usize = 256 << 10;

/// Bytes that a thread writes. An error before so many of them is the answer.
async fn bytes(
    kind: &'static str,
    held: usize,
    work: impl FnOnce(&mut Pipe) -> Result<()> + Send + 'static,
) -> Result<Response> {
    let (mut writer, mut chunks) = pipe();
    let (tell, told) = tokio::sync::oneshot::channel();
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
                return Err(told.await.unwrap_or_else(|_| Error::host("it broke", broken)));
            }
        }
    }
    let body = match first.is_empty() {
        true => axum::body::Body::empty(),
        false => {
            let first = futures_util::stream::iter(first.into_iter().map(Ok));
            body_of(futures_util::StreamExt::chain(first, chunks), Kept::new(()))
        }
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

async fn read(State(site): Shared, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = async {
        let (api, seat) = api(&site, &parts)?;
        let ask: FileRead = Asked::of(&parts, streams::FILE_CONTENT).alone()?;
        let at = Where { sandbox: ask.sandbox, volume: ask.volume, user: ask.user }.place()?;
        bytes("application/octet-stream", 1, move |out| {
            let _seat = seat;
            api.file_read(&at, &ask.path.0, ask.offset, ask.length, &mut |piece| {
                let gone = |_| Error::new(Kind::State, "nobody reads it any more");
                std::io::Write::write_all(out, piece).map_err(gone)
            })
        })
        .await
    };
    either(answer.await)
}

async fn write(State(site): Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        let (api, seat) = api(&site, &parts)?;
        let ask: FileWrite = Asked::of(&parts, streams::FILE_CONTENT).alone()?;
        let at = Where { sandbox: ask.sandbox, volume: ask.volume, user: ask.user }.place()?;
        let mut content = take(body);
        blocking(move || {
            let _seat = seat;
            let count = api.file_write(&at, &ask.path.0, ask.mode, ask.append, &mut content)?;
            Ok(told(&Count { count }))
        })
        .await
    };
    either(answer.await)
}

async fn save(State(site): Shared, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = async {
        let (api, seat) = api(&site, &parts)?;
        let ask: SnapshotSave = Asked::of(&parts, streams::SNAPSHOT_SAVE).alone()?;
        bytes("application/x-tar", HELD, move |out| {
            let _seat = seat;
            api.snapshot_save(&ask.name, ask.whole, out)
        })
        .await
    };
    either(answer.await)
}

async fn load(State(site): Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        let (api, seat) = api(&site, &parts)?;
        let ask: SnapshotLoad = Asked::of(&parts, streams::SNAPSHOT_LOAD).alone()?;
        let mut archive = take(body);
        blocking(move || {
            let _seat = seat;
            Ok(told(&api.snapshot_load(ask.name.as_ref(), &mut archive)?))
        })
        .await
    };
    either(answer.await)
}

async fn blocking(work: impl FnOnce() -> Result<Response> + Send + 'static) -> Result<Response> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Error::new(Kind::Host, "the call broke")))
}

async fn logs(State(site): Shared, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = async {
        let (api, seat) = api(&site, &parts)?;
        let ask: Follow = Asked::of(&parts, streams::LOGS_FOLLOW).alone()?;
        let filter = LogFilter {
            exec: ask.exec,
            source: ask.source,
            since: ask.since,
            until: ask.until,
            grep: ask.grep,
        };
        followed(ask.skip, seat, move || {
            let mut logs = api.sandbox_logs(&ask.name, &filter)?;
            Ok(move || logs.more())
        })
        .await
    };
    either(answer.await)
}

async fn events(State(site): Shared, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = async {
        let (api, seat) = api(&site, &parts)?;
        let ask: Follow = Asked::of(&parts, streams::EVENTS_FOLLOW).alone()?;
        followed(ask.skip, seat, move || {
            let mut events = api.sandbox_events(&ask.name)?;
            Ok(move || events.more())
        })
        .await
    };
    either(answer.await)
}

/// Sends what comes, one event for all that came at once, until nobody listens.
async fn followed<T, More>(
    mut skip: u64,
    seat: Seat,
    open: impl FnOnce() -> Result<More> + Send + 'static,
) -> Result<Response>
where
    T: serde::Serialize,
    More: FnMut() -> Result<Vec<T>>,
{
    let (events, response) = Events::begin();
    let (tell, opened) = tokio::sync::oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let _seat = seat;
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
                    // Nobody says that they are gone unless they are told something.
                    news.is_empty() || events.send(Event::new("items", &news))
                }
                Err(error) => {
                    events.send(Event::new("error", &error));
                    false
                }
            };
            if !sent || events.cancel().is_cancelled() {
                return;
            }
            std::thread::sleep(LOOK);
        }
    });
    match opened.await {
        Ok(Ok(())) => Ok(response),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::new(Kind::Host, "the call broke")),
    }
}

#[derive(Deserialize)]
struct InPath {
    name: Name,
}

#[derive(Deserialize)]
struct OneExec {
    name: Name,
    id: u64,
}

async fn exec(State(site): Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        let (api, seat) = api(&site, &parts)?;
        let InPath { name } = Asked::of(&parts, streams::EXEC_STREAM).alone()?;
        let ask = Asked::of(&parts, "").with_object(Vec::new(), body).await?;
        let (start, stdin) = Start::exec(name, ask);
        Ok(streamed(api, seat, start, stdin))
    };
    either(answer.await)
}

async fn run(State(site): Shared, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answer = async {
        let (api, seat) = api(&site, &parts)?;
        let ask = Asked::of(&parts, "").with_object(Vec::new(), body).await?;
        let (api, start, stdin) = Start::run(&api, ask);
        Ok(streamed(api, seat, start, stdin))
    };
    either(answer.await)
}

async fn attach(State(site): Shared, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let answer = async {
        let (api, seat) = api(&site, &parts)?;
        let OneExec { name, id } = Asked::of(&parts, streams::ATTACH_STREAM).alone()?;
        Ok(streamed(api, seat, Start::Attach(name, id), None))
    };
    either(answer.await)
}

/// What a command says, as events.
fn streamed(api: Arc<dyn Api>, seat: Seat, start: Start, stdin: Option<String>) -> Response {
    let (events, response) = Events::begin();
    let reads = !matches!(start, Start::Attach(..));
    tokio::task::spawn_blocking(move || {
        let _seat = seat;
        if let Err(error) = stream(api.as_ref(), start, stdin.unwrap_or_default(), reads, &events) {
            events.send(event(&Heard::Error(error)));
        }
    });
    response
}

fn stream(api: &dyn Api, start: Start, stdin: String, reads: bool, events: &Events) -> Result<()> {
    let mut running = start.begin(api, events, events.cancel())?;
    events.send(event(&Heard::Started(running.started.clone())));
    let input = Arc::clone(&running.input);
    let writer = std::thread::spawn(move || {
        if reads {
            let _ = input.write(stdin.as_bytes()).and_then(|()| input.close());
        }
    });
    while let Some(said) = running.next()? {
        if !events.send(event(&heard(said))) {
            break;
        }
    }
    drop(running);
    let _ = writer.join();
    Ok(())
}

/// Named by what it is; its data is what is in it.
fn event(heard: &Heard) -> Event {
    match heard {
        Heard::Progress(it) => Event::new("progress", it),
        Heard::Started(it) => Event::new("started", it),
        Heard::Stdout(it) => Event::new("stdout", it),
        Heard::Stderr(it) => Event::new("stderr", it),
        Heard::Exited(it) => Event::new("exited", it),
        Heard::Error(it) => Event::new("error", it),
    }
}
