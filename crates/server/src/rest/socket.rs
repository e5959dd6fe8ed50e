//! A command over a WebSocket: its stdin, stdout, stderr, terminal and signals.

use super::asked::Asked;
use super::running::{Running, Start};
use super::{api, failed};
use crate::cancel::Cancel;
use crate::room::Seat;
use crate::site::Site;
use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::response::Response;
use axum::routing::get;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use msb_api::http::streams::{self, Heard, Progress, STDERR, STDOUT, Tell};
use msb_api::{Api, ExecEvent, ExecInput, Part, Watch};
use msb_spec::{Error, Name, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Messages that are under way; whoever makes more waits.
const UNDER_WAY: usize = 16;

pub(super) fn routes() -> Router<Arc<Site>> {
    Router::new()
        .route(streams::EXEC_SOCKET, get(exec))
        .route(streams::RUN_SOCKET, get(run))
        .route(streams::ATTACH_SOCKET, get(attach))
}

type Shared = State<Arc<Site>>;
type Sends = SplitSink<WebSocket, Message>;
type Receives = SplitStream<WebSocket>;

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
    upgraded(
        &site,
        request,
        streams::EXEC_SOCKET,
        |(api, seat), InPath { name }, socket| async move {
            converse(socket, seat, |first| {
                let (start, _) = Start::exec(name, said(first)?);
                Ok((api, start))
            })
            .await;
        },
    )
    .await
}

async fn run(State(site): Shared, request: Request) -> Response {
    #[derive(Deserialize)]
    struct Nothing {}
    upgraded(&site, request, streams::RUN_SOCKET, |(api, seat), Nothing {}, socket| async move {
        converse(socket, seat, |first| {
            let (api, start, _) = Start::run(&api, said(first)?);
            Ok((api, start))
        })
        .await;
    })
    .await
}

async fn attach(State(site): Shared, request: Request) -> Response {
    upgraded(
        &site,
        request,
        streams::ATTACH_SOCKET,
        |(api, seat), OneExec { name, id }, socket| async move {
            serve(socket.split(), api, seat, Start::Attach(name, id)).await;
        },
    )
    .await
}

/// Becomes a WebSocket, if the rest is well.
async fn upgraded<T, F>(
    site: &Arc<Site>,
    request: Request,
    template: &str,
    serve: impl FnOnce((Arc<dyn Api>, Seat), T, WebSocket) -> F + Send + 'static,
) -> Response
where
    T: DeserializeOwned + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (mut parts, _) = request.into_parts();
    let asked = api(site, &parts).and_then(|api| Ok((api, Asked::of(&parts, template).alone()?)));
    let (api, ask) = match asked {
        Ok(asked) => asked,
        Err(error) => return failed(&error),
    };
    let Ok(upgrade) = WebSocketUpgrade::from_request_parts(&mut parts, &()).await else {
        return failed(&Error::invalid("this is a WebSocket: upgrade the connection"));
    };
    let upgrade =
        upgrade.max_message_size(streams::LARGEST_MESSAGE).max_frame_size(streams::LARGEST_MESSAGE);
    upgrade.on_upgrade(move |socket| serve(api, ask, socket))
}

fn said<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| Error::invalid("the first message is wrong").cause(error))
}

/// Takes the first message, which says what is to be started.
async fn converse(
    socket: WebSocket,
    seat: Seat,
    understand: impl FnOnce(&str) -> Result<(Arc<dyn Api>, Start)>,
) {
    let (mut sends, mut receives) = socket.split();
    let first = loop {
        match receives.next().await {
            Some(Ok(Message::Text(text))) => break understand(&text),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Binary(_))) => {
                break Err(Error::invalid("the first message says what is to be started"));
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => return,
        }
    };
    match first {
        Ok((api, start)) => serve((sends, receives), api, seat, start).await,
        Err(error) => {
            let _ = sends.send(text(&Heard::Error(error))).await;
            let _ = sends.send(Message::Close(None)).await;
        }
    }
}

fn text(heard: &Heard) -> Message {
    Message::Text(serde_json::to_string(heard).unwrap_or_default().into())
}

/// Tells how far it is.
struct Steps(mpsc::Sender<Message>);

impl Watch for Steps {
    fn step(&self, what: &str, done: Option<Part>) {
        let _ = self.0.blocking_send(text(&Heard::Progress(Progress::new(what, done))));
    }
}

/// Something for the thread that may wait.
enum Order {
    Write(axum::body::Bytes),
    Tell(Tell),
}

/// Serves one command: a thread listens to it, another speaks to it.
async fn serve((sends, receives): (Sends, Receives), api: Arc<dyn Api>, seat: Seat, start: Start) {
    let cancel = Cancel::default();
    let (out, messages) = mpsc::channel(UNDER_WAY);
    let (orders, to_do) = mpsc::channel(UNDER_WAY);
    let let_go = CancellationToken::new();
    let (listening, told) = (cancel.clone(), let_go.clone());
    tokio::task::spawn_blocking(move || {
        let _seat = seat;
        let last = match start.begin(api.as_ref(), &Steps(out.clone()), &listening) {
            Ok(running) => listen(running, &out, to_do, &told),
            Err(error) => Err(error),
        };
        if let Err(error) = last {
            let _ = out.blocking_send(text(&Heard::Error(error)));
        }
    });
    let sending = tokio::spawn(send(sends, messages, let_go));
    receive(receives, orders, sending).await;
    cancel.cancel();
}

/// Passes on what the command does, until it is over.
fn listen(
    mut running: Running,
    out: &mpsc::Sender<Message>,
    to_do: mpsc::Receiver<Order>,
    let_go: &CancellationToken,
) -> Result<()> {
    let _ = out.blocking_send(text(&Heard::Started(running.started.clone())));
    let input = Arc::clone(&running.input);
    let (goes_on, let_go) = (Arc::clone(&running.goes_on), let_go.clone());
    std::thread::spawn(move || speak(input.as_ref(), to_do, &goes_on, &let_go));
    while let Some(event) = running.next()? {
        let tagged =
            |tag: u8, bytes: Vec<u8>| Message::Binary([&[tag][..], &bytes].concat().into());
        let message = match event {
            ExecEvent::Stdout(bytes) => tagged(STDOUT, bytes),
            ExecEvent::Stderr(bytes) => tagged(STDERR, bytes),
            ExecEvent::Exited(exit) => text(&Heard::Exited(exit)),
        };
        if out.blocking_send(message).is_err() {
            break;
        }
    }
    Ok(())
}

/// Does what the client says, in order; a command that does not read keeps it waiting.
fn speak(
    input: &dyn ExecInput,
    mut to_do: mpsc::Receiver<Order>,
    goes_on: &AtomicBool,
    let_go: &CancellationToken,
) {
    while let Some(order) = to_do.blocking_recv() {
        // A command that is over takes nothing, which its end tells.
        let _ = match order {
            Order::Write(bytes) => input.write(&bytes),
            Order::Tell(Tell::CloseStdin) => input.close(),
            Order::Tell(Tell::Signal(signal)) => input.signal(signal),
            Order::Tell(Tell::Resize(size)) => input.resize(size),
            Order::Tell(Tell::Detach) => {
                goes_on.store(true, Relaxed);
                let done = input.detach();
                let_go.cancel();
                done
            }
        };
    }
}

/// Sends until there is nothing more, or the command was let go of.
async fn send(mut sends: Sends, mut messages: mpsc::Receiver<Message>, let_go: CancellationToken) {
    loop {
        let message = tokio::select! {
            message = messages.recv() => message,
            () = let_go.cancelled() => None,
        };
        let Some(message) = message else { break };
        if sends.send(message).await.is_err() {
            return;
        }
    }
    let _ = sends.send(Message::Close(None)).await;
}

/// Takes what the client sends until one of the two is gone.
async fn receive(
    mut receives: Receives,
    orders: mpsc::Sender<Order>,
    sending: tokio::task::JoinHandle<()>,
) {
    let hearing = async {
        while let Some(Ok(message)) = receives.next().await {
            let order = match message {
                Message::Binary(bytes) => Order::Write(bytes),
                Message::Text(text) => match serde_json::from_str(&text) {
                    Ok(tell) => Order::Tell(tell),
                    Err(_) => return,
                },
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => return,
            };
            if orders.send(order).await.is_err() {
                return;
            }
        }
    };
    let mut sending = sending;
    tokio::select! {
        () = hearing => {}
        _ = &mut sending => return,
    }
    // What is under way still arrives, if somebody is there.
    let _ = tokio::time::timeout(LAST_WORDS, sending).await;
}

/// A client that has said all still hears the end.
const LAST_WORDS: std::time::Duration = std::time::Duration::from_millis(100);
