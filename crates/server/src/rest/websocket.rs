//! A command over a WebSocket: stdin, stdout, stderr, terminal and signals.

use super::command_stream::{CommandStart, RunningCommand};
use super::request_args::RequestArgs;
use super::{api, failed};
use crate::cancel::Cancel;
use crate::http_state::HttpState;
use crate::quota::CallPermit;
use axum::Router;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request, State};
use axum::response::Response;
use axum::routing::get;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use msb_api::http::streams::{self, ExecMessage, Progress, STDERR, STDOUT, Tell};
use msb_api::{Api, ExecEvent, ExecInput, Part, Watch};
use msb_spec::{Error, Name, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Most messages in flight; senders wait for room.
const IN_FLIGHT: usize = 16;

pub(super) fn routes() -> Router<Arc<HttpState>> {
    Router::new()
        .route(streams::EXEC_SOCKET, get(exec))
        .route(streams::RUN_SOCKET, get(run))
        .route(streams::ATTACH_SOCKET, get(attach))
}

type Shared = State<Arc<HttpState>>;
type SocketSender = SplitSink<WebSocket, Message>;
type SocketReceiver = SplitStream<WebSocket>;

#[derive(Deserialize)]
struct SocketSandbox {
    name: Name,
}

#[derive(Deserialize)]
struct SocketExec {
    name: Name,
    id: u64,
}

async fn exec(State(state): Shared, request: Request) -> Response {
    upgraded(
        &state,
        request,
        streams::EXEC_SOCKET,
        |(api, permit), SocketSandbox { name }, socket| async move {
            read_first_message(socket, permit, |first| {
                let (start, _) = CommandStart::exec(name, parse_first_message(first)?);
                Ok((api, start))
            })
            .await;
        },
    )
    .await
}

async fn run(State(state): Shared, request: Request) -> Response {
    #[derive(Deserialize)]
    struct NoPath {}
    upgraded(&state, request, streams::RUN_SOCKET, |(api, permit), NoPath {}, socket| async move {
        read_first_message(socket, permit, |first| {
            let (api, start, _) = CommandStart::run(&api, parse_first_message(first)?);
            Ok((api, start))
        })
        .await;
    })
    .await
}

async fn attach(State(state): Shared, request: Request) -> Response {
    upgraded(
        &state,
        request,
        streams::ATTACH_SOCKET,
        |(api, permit), SocketExec { name, id }, socket| async move {
            serve(socket.split(), api, permit, CommandStart::Attach(name, id)).await;
        },
    )
    .await
}

/// Upgrades a request to a WebSocket, if it is valid.
async fn upgraded<T, F>(
    state: &Arc<HttpState>,
    request: Request,
    template: &str,
    serve: impl FnOnce((Arc<dyn Api>, CallPermit), T, WebSocket) -> F + Send + 'static,
) -> Response
where
    T: DeserializeOwned + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (mut parts, _) = request.into_parts();
    let request = api(state, &parts)
        .and_then(|api| Ok((api, RequestArgs::parse(&parts, template).without_body()?)));
    let (api, args) = match request {
        Ok(request) => request,
        Err(error) => return failed(&error),
    };
    let Ok(upgrade) = WebSocketUpgrade::from_request_parts(&mut parts, &()).await else {
        return failed(&Error::invalid("this path needs a WebSocket upgrade"));
    };
    let upgrade =
        upgrade.max_message_size(streams::LARGEST_MESSAGE).max_frame_size(streams::LARGEST_MESSAGE);
    upgrade.on_upgrade(move |socket| serve(api, args, socket))
}

fn parse_first_message<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| Error::invalid("the first message is invalid").cause(error))
}

/// Reads the first message, which names the command to start.
async fn read_first_message(
    socket: WebSocket,
    permit: CallPermit,
    parse: impl FnOnce(&str) -> Result<(Arc<dyn Api>, CommandStart)>,
) {
    let (mut sender, mut receiver) = socket.split();
    let first = loop {
        match receiver.next().await {
            Some(Ok(Message::Text(text))) => break parse(&text),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(Message::Binary(_))) => {
                break Err(Error::invalid("the first message must be the JSON text of a command"));
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => return,
        }
    };
    match first {
        Ok((api, start)) => serve((sender, receiver), api, permit, start).await,
        Err(error) => {
            let _ = sender.send(text(&ExecMessage::Error(error))).await;
            let _ = sender.send(Message::Close(None)).await;
        }
    }
}

fn text(message: &ExecMessage) -> Message {
    Message::Text(serde_json::to_string(message).unwrap_or_default().into())
}

/// Sends progress steps to the client.
struct ProgressMessages(mpsc::Sender<Message>);

impl Watch for ProgressMessages {
    fn step(&self, what: &str, done: Option<Part>) {
        let _ = self.0.blocking_send(text(&ExecMessage::Progress(Progress::new(what, done))));
    }
}

/// A message of the client, for the thread that may block.
enum ClientCommand {
    Write(axum::body::Bytes),
    Tell(Tell),
}

/// Serves one command: one thread reads its events, another forwards the client's messages.
async fn serve(
    (sender, receiver): (SocketSender, SocketReceiver),
    api: Arc<dyn Api>,
    permit: CallPermit,
    start: CommandStart,
) {
    let cancel = Cancel::default();
    let (out, messages) = mpsc::channel(IN_FLIGHT);
    let (commands, pending) = mpsc::channel(IN_FLIGHT);
    let detached = CancellationToken::new();
    let (listening, detach_token) = (cancel.clone(), detached.clone());
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let last = match start.start(api.as_ref(), &ProgressMessages(out.clone()), &listening) {
            Ok(running) => forward_events(running, &out, pending, &detach_token),
            Err(error) => Err(error),
        };
        if let Err(error) = last {
            let _ = out.blocking_send(text(&ExecMessage::Error(error)));
        }
    });
    let sending = tokio::spawn(send(sender, messages, detached));
    receive(receiver, commands, sending).await;
    cancel.cancel();
}

/// Forwards events of the command until it ends.
fn forward_events(
    mut running: RunningCommand,
    out: &mpsc::Sender<Message>,
    pending: mpsc::Receiver<ClientCommand>,
    detached: &CancellationToken,
) -> Result<()> {
    let _ = out.blocking_send(text(&ExecMessage::Started(running.started.clone())));
    let input = Arc::clone(&running.input);
    let (is_detached, detached) = (Arc::clone(&running.is_detached), detached.clone());
    std::thread::spawn(move || apply_commands(input.as_ref(), pending, &is_detached, &detached));
    while let Some(event) = running.next()? {
        let tagged =
            |tag: u8, bytes: Vec<u8>| Message::Binary([&[tag][..], &bytes].concat().into());
        let message = match event {
            ExecEvent::Stdout(bytes) => tagged(STDOUT, bytes),
            ExecEvent::Stderr(bytes) => tagged(STDERR, bytes),
            ExecEvent::Exited(exit) => text(&ExecMessage::Exited(exit)),
        };
        if out.blocking_send(message).is_err() {
            break;
        }
    }
    Ok(())
}

/// Applies the client's messages in order; it blocks while the command does not read stdin.
fn apply_commands(
    input: &dyn ExecInput,
    mut pending: mpsc::Receiver<ClientCommand>,
    is_detached: &AtomicBool,
    detached: &CancellationToken,
) {
    while let Some(order) = pending.blocking_recv() {
        // Input for a command that has ended is dropped; the client gets its exit.
        let _ = match order {
            ClientCommand::Write(bytes) => input.write(&bytes),
            ClientCommand::Tell(Tell::CloseStdin) => input.close(),
            ClientCommand::Tell(Tell::Signal(signal)) => input.signal(signal),
            ClientCommand::Tell(Tell::Resize(size)) => input.resize(size),
            ClientCommand::Tell(Tell::Detach) => {
                is_detached.store(true, Relaxed);
                let done = input.detach();
                detached.cancel();
                done
            }
        };
    }
}

/// Sends messages until the channel closes, or the command was detached.
async fn send(
    mut sender: SocketSender,
    mut messages: mpsc::Receiver<Message>,
    detached: CancellationToken,
) {
    loop {
        let message = tokio::select! {
            message = messages.recv() => message,
            () = detached.cancelled() => None,
        };
        let Some(message) = message else { break };
        if sender.send(message).await.is_err() {
            return;
        }
    }
    let _ = sender.send(Message::Close(None)).await;
}

/// Reads messages of the client until the client or the command ends.
async fn receive(
    mut receiver: SocketReceiver,
    commands: mpsc::Sender<ClientCommand>,
    sending: tokio::task::JoinHandle<()>,
) {
    let hearing = async {
        while let Some(Ok(message)) = receiver.next().await {
            let order = match message {
                Message::Binary(bytes) => ClientCommand::Write(bytes),
                Message::Text(text) => match serde_json::from_str(&text) {
                    Ok(tell) => ClientCommand::Tell(tell),
                    Err(_) => return,
                },
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Close(_) => return,
            };
            if commands.send(order).await.is_err() {
                return;
            }
        }
    };
    let mut sending = sending;
    tokio::select! {
        () = hearing => {}
        _ = &mut sending => return,
    }
    // Messages in flight are still sent if the client is connected.
    let _ = tokio::time::timeout(DRAIN_LIMIT, sending).await;
}

/// Time to deliver the last messages to a client that has closed its side.
const DRAIN_LIMIT: std::time::Duration = std::time::Duration::from_millis(100);
